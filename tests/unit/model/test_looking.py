"""Whether a model server answers, asked as the model's client asks it."""

import pytest

from moothall.config import Llm
from moothall.errors import ModelUnavailable
from moothall.model.looking import look
from moothall.testing.model import scripted_model

KEY = "a key of the server's"


async def test_a_key_in_the_url_is_sent_as_the_models_client_sends_it() -> None:
    async with scripted_model(lambda _body, _headers: "", api_key="secret-key") as server:
        base_url = server.base_url.replace("//", "//secret-key@")

        assert await look(Llm(), base_url) == (1, 1, "")


async def test_a_configured_key_is_sent_and_wins_over_one_in_the_url() -> None:
    async with scripted_model(lambda _body, _headers: "", api_key=KEY) as server:
        settings = Llm.model_validate({"api_key": KEY})

        assert await look(settings, server.base_url.replace("//", "//other@")) == (1, 1, "")


async def test_a_wrong_key_is_said() -> None:
    async with scripted_model(lambda _body, _headers: "", api_key=KEY) as server:
        with pytest.raises(ModelUnavailable, match="status 401"):
            await look(Llm(), server.base_url)


async def test_of_two_servers_the_one_that_does_not_answer_is_said() -> None:
    async with scripted_model(lambda _body, _headers: "") as server:
        settings = Llm.model_validate({"replicas": ["http://127.0.0.1:9/v1"]})

        answering, there, wrong = await look(settings, server.base_url)

    assert (answering, there) == (1, 2)
    assert "does not answer" in wrong
