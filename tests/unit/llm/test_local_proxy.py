"""The local model's proxy, with an engine that answers but saves no states."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moothall.config import LlmSettings
from moothall.errors import ConfigurationError, ModelUnavailable
from moothall.llm.client import OpenAIModel, open_model
from moothall.llm.serve_local import serve_proxy
from moothall.llm.windows import counting
from moothall.testing.model import Answer, Fault, ScriptedModel, scripted_model
from moothall.testing.server_contract import ask


@asynccontextmanager
async def open_proxied_model(
    folder: Path, answer: Answer
) -> AsyncIterator[tuple[OpenAIModel, ScriptedModel, str]]:
    async with (
        scripted_model(answer, models=("small",), api_key="inner") as engine,
        serve_proxy(
            engine.base_url.removesuffix("/v1"),
            "inner",
            name="small",
            api_key="outer",
            slots=2,
            states=folder,
            salt="",
        ) as port,
        open_model(
            LlmSettings(retries=1), f"http://outer@127.0.0.1:{port}/v1", retry_seconds=0.001
        ) as model,
    ):
        yield model, engine, f"http://127.0.0.1:{port}/v1"


async def test_a_call_is_forwarded_with_its_slot(tmp_path: Path) -> None:
    async with open_proxied_model(tmp_path, lambda _b, _h: "hello") as (model, engine, _):
        reply = await model.chat(ask(seed=9))
    assert (reply.text, reply.model) == ("hello", "small")
    assert engine.requests[-1].body["id_slot"] in {0, 1}
    assert engine.requests[-1].body["seed"] == 9


@pytest.mark.parametrize("kind", ["cut", "drop"])
async def test_an_interrupted_engine_response_is_an_error(tmp_path: Path, kind: Any) -> None:
    async with open_proxied_model(tmp_path, lambda _b, _h: Fault(kind, text="half")) as (
        model,
        _,
        _url,
    ):
        with pytest.raises(ModelUnavailable, match="failed 2 times"):
            await model.chat(ask())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "messages"),
        (b'{"messages": []}', 400, "messages"),
        (b'{"messages": [{"role": "user", "content": [1]}]}', 400, "messages"),
        (
            b'{"model": "gpt", "messages": [{"role": "user", "content": "x"}]}',
            404,
            "this server has `small`",
        ),
        (b'{"n": 2, "messages": [{"role": "user", "content": "x"}]}', 400, "`n` must be 1"),
    ],
)
async def test_an_invalid_request_is_refused(
    tmp_path: Path, body: bytes, status: int, message: str
) -> None:
    async with (
        open_proxied_model(tmp_path, lambda _b, _h: "hello") as (_, engine, url),
        aiohttp.ClientSession(headers={"Authorization": "Bearer outer"}) as session,
        session.post(f"{url}/chat/completions", data=body) as response,
    ):
        assert response.status == status
        assert message in await response.text()
    assert not engine.requests


async def test_the_key_is_required(tmp_path: Path) -> None:
    async with open_proxied_model(tmp_path, lambda _b, _h: "hello") as (_, engine, url):
        for key in ("", "inner", "wrong"):
            async with open_model(
                LlmSettings(api_key=key) if key else LlmSettings(), url
            ) as outsider:
                with pytest.raises(ConfigurationError, match="401"):
                    await outsider.chat(ask())
    assert not engine.requests


async def test_tokens_are_counted_by_the_engine(tmp_path: Path) -> None:
    async with open_proxied_model(tmp_path, lambda _b, _h: "hello") as (_, engine, url):
        engine.tokenize = lambda body: {"tokens": body["content"].split()}
        async with counting(LlmSettings(), url.replace("//", "//outer@")) as count:
            assert await count("one two three four") == 4
        async with counting(LlmSettings(), url.replace("//", "//wrong@")) as count:
            await count("another text")
        assert engine.tokenized == 1, "nobody enters without the key"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer outer"}) as session:
            for body, status in ((b"{", 400), (b"[]", 400), (b'{"prompt": 1}', 400)):
                async with session.post(url.replace("/v1", "/tokenize"), data=body) as response:
                    assert response.status == status
            engine.tokenize = None
            async with session.post(
                url.replace("/v1", "/tokenize"), json={"prompt": "x"}
            ) as response:
                assert response.status == 503
