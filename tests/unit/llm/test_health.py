"""The health check of model servers, with the same requests as the client."""

from moothall.config import LlmSettings, Models
from moothall.llm.startup_check import ServerCount, check_servers
from moothall.telemetry import metrics
from moothall.testing.model import scripted_model

KEY = "a key of the server's"


async def test_a_key_in_the_url_is_sent_as_the_models_client_sends_it() -> None:
    async with scripted_model(lambda _body, _headers: "", api_key="secret-key") as server:
        base_url = server.base_url.replace("//", "//secret-key@")

        assert await check_servers(Models(), base_url) == {"default": ServerCount(1, 1)}


async def test_a_configured_key_takes_precedence_over_one_in_the_url() -> None:
    async with scripted_model(lambda _body, _headers: "", api_key=KEY) as server:
        settings = LlmSettings.model_validate({"api_key": KEY})

        assert await check_servers(Models(settings), server.base_url.replace("//", "//other@")) == {
            "default": ServerCount(1, 1)
        }


async def test_a_wrong_key_is_reported() -> None:
    async with scripted_model(lambda _body, _headers: "", api_key=KEY) as server:
        counts = (await check_servers(Models(), server.base_url))["default"]
    assert (counts.answering, counts.configured) == (0, 1)
    assert "status 401" in counts.fault


async def test_the_failed_server_of_two_is_reported() -> None:
    async with scripted_model(lambda _body, _headers: "") as server:
        settings = LlmSettings.model_validate({"replicas": ["http://127.0.0.1:9/v1"]})

        counts = (await check_servers(Models(settings), server.base_url))["default"]

    assert (counts.answering, counts.configured) == (1, 2)
    assert "does not answer" in counts.fault


async def test_each_model_is_reported_by_name() -> None:
    async with scripted_model(lambda _body, _headers: "") as server:
        models = Models.of(
            LlmSettings(),
            {
                "large": LlmSettings(base_url="http://127.0.0.1:9/v1"),
                "warm": LlmSettings(temperature=1.2),
            },
        )

        counts = await check_servers(models, server.base_url)

    assert {name: count.answering for name, count in counts.items()} == {
        "default": 1,
        "large": 0,
        "warm": 1,
    }
    assert {name: metrics.MODEL_UP.values[name,] for name in counts} == {
        "default": 1,
        "large": 0,
        "warm": 1,
    }
