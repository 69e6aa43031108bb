from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from moothall.config import LlmSettings
from moothall.errors import ConfigurationError, ModelUnavailable
from moothall.llm.startup_check import reach
from moothall.testing.model import scripted_model


def silent(_body: dict[str, Any], _headers: Mapping[str, str]) -> str:
    return ""


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


@asynccontextmanager
async def answering(
    *statuses: int, headers: Mapping[str, str] | None = None, text: str = "no"
) -> AsyncIterator[str]:
    """A server that answers each request with the next status, and repeats the last one."""
    remaining = list(statuses)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(
            status=remaining.pop(0) if len(remaining) > 1 else remaining[0],
            headers=headers,
            text=text,
        )

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_a_reachable_server_causes_no_message() -> None:
    messages: list[str] = []
    async with scripted_model(silent, api_key="secret-key") as server:
        await reach(
            LlmSettings.model_validate({"api_key": "secret-key", "model": "scripted"}),
            server.base_url,
            messages.append,
        )
        await reach(LlmSettings(), server.base_url.replace("//", "//secret-key@"), messages.append)
        assert server.model_lists == 2
        assert server.requests == []
    assert messages == []


async def test_each_configuration_mistake_has_its_own_message() -> None:
    async with (
        scripted_model(silent, api_key="right") as server,
        answering(404) as not_found_server,
        answering(200) as page,
    ):
        root = server.base_url.removesuffix("/v1")
        key = {"api_key": "right"}
        for settings, url, message in (
            ({}, server.base_url, "401.*MOOTHALL_LLM__API_KEY"),
            (key, root, f"set MOOTHALL_LLM__BASE_URL={root}/v1"),
            (
                key | {"model": "no-such"},
                server.base_url,
                "no model 'no-such'; it has: scripted .*MOOTHALL_LLM__MODEL",
            ),
            (key, server.base_url.replace("http:", "https:"), "does not speak TLS .*http://"),
            ({}, not_found_server, "404.*usually ends with /v1"),
            ({}, page, "text/plain, not a list of models"),
            ({}, "localhost:8000", "not an http or https URL"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                await reach(LlmSettings.model_validate(settings), url, pytest.fail)


async def test_a_redirect_is_reported_and_not_followed() -> None:
    async with answering(307, headers={"Location": "http://elsewhere/v1/models"}) as url:
        with pytest.raises(
            ConfigurationError,
            match="redirects to http://elsewhere/v1/models; set MOOTHALL_LLM__BASE_URL to the",
        ):
            await reach(LlmSettings(), url, pytest.fail)


async def test_a_configured_model_needs_no_list_of_models() -> None:
    async with answering(404) as url:
        await reach(LlmSettings(model="mine"), url, pytest.fail)


async def test_a_rate_limited_server_counts_as_available() -> None:
    async with answering(429) as url:
        await reach(LlmSettings(), url, pytest.fail)


async def test_an_unreachable_server_names_the_setting() -> None:
    for url, message in (
        (
            f"http://127.0.0.1:{free_port()}/v1",
            "connection refused at 127.0.0.1.*MOOTHALL_LLM__BASE_URL",
        ),
        (
            "http://no.such.name.invalid/v1",
            "no.such.name.invalid cannot be resolved.*MOOTHALL_LLM__BASE_URL",
        ),
    ):
        with pytest.raises(ModelUnavailable, match=message):
            await reach(LlmSettings(), url, pytest.fail)


async def test_a_server_without_http_is_reported() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ModelUnavailable, match="does not answer with HTTP"):
            await reach(
                LlmSettings(),
                f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
                pytest.fail,
            )


async def test_a_silent_server_times_out() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ModelUnavailable, match="does not answer in time"):
            await reach(
                LlmSettings(call_seconds=0.3),
                f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
                pytest.fail,
            )


async def test_a_starting_server_is_awaited_only_with_wait_seconds() -> None:
    messages: list[str] = []
    listed = '{"data": [{"id": "m"}]}'
    async with answering(503, text=listed) as url:
        with pytest.raises(ModelUnavailable, match=r"503.*MOOTHALL_LLM__WAIT_SECONDS"):
            await reach(LlmSettings(), url, pytest.fail)
    async with answering(503, 200, text=listed) as url:
        await reach(LlmSettings(wait_seconds=60), url, messages.append)
    assert len(messages) == 1
    assert messages[0].startswith("waiting up to 60 s for the model server: ")


async def test_a_wrong_key_fails_without_waiting() -> None:
    async with scripted_model(silent, api_key="right") as server:
        with pytest.raises(ConfigurationError, match="401"):
            await reach(LlmSettings(wait_seconds=600), server.base_url, pytest.fail)


async def test_one_reachable_replica_is_enough_but_none_may_be_misconfigured() -> None:
    messages: list[str] = []
    unreachable = f"http://127.0.0.1:{free_port()}/v1"
    async with scripted_model(silent) as server, scripted_model(silent, api_key="other") as locked:
        await reach(LlmSettings(replicas=(server.base_url,)), unreachable, messages.append)
        assert len(messages) == 1
        assert "connection refused" in messages[0]
        with pytest.raises(ConfigurationError, match="401"):
            await reach(LlmSettings(replicas=(locked.base_url,)), server.base_url, pytest.fail)
