"""Rego in process and an OPA server under one contract, and the effect of a failing server: nothing
runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from moothall.app.gateway_rules import open_policy
from moothall.authorization.rules import Mode, Policy
from moothall.config import GuardSettings, Settings
from moothall.domain.tool import ToolStatus
from moothall.errors import ConfigurationError
from moothall.policy import Opa, Rego, opa
from support.policy import CONTRACT, POLICY, Api, Opened, data_api
from support.tool_gateway import open_app, tool_call


@asynccontextmanager
async def in_process(folder: Path) -> AsyncIterator[Rego]:
    engine = Rego(folder)
    try:
        yield engine
    finally:
        engine.close()


@asynccontextmanager
async def over_http(folder: Path) -> AsyncIterator[Opa]:
    async with data_api(folder) as api, opa(api.url, seconds=20) as engine:
        yield engine


@pytest.mark.parametrize("case", CONTRACT, ids=lambda case: case.__name__)
@pytest.mark.parametrize("opened", [in_process, over_http], ids=["rego", "http"])
async def test_each_engine_follows_the_contract(
    case: Callable[[Opened, Path], Awaitable[None]], opened: Opened, tmp_path: Path
) -> None:
    await case(opened, tmp_path)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "tools.rego").write_text(POLICY, encoding="utf-8")
    async with data_api(tmp_path) as served:
        yield served


def reply_with(
    text: str, status: int = 200
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(text=text, status=status, content_type="application/json")

    return answer


async def slow(request: web.Request) -> web.StreamResponse:
    del request
    await asyncio.sleep(30)
    return web.Response()


async def redirect(request: web.Request) -> web.StreamResponse:
    raise web.HTTPTemporaryRedirect(f"{request.url.origin()}/allowed")


ILL: dict[str, Any] = {
    "500": reply_with('{"result": {"allow": true}}', 500),
    "undefined": reply_with("{}"),
    "no decision": reply_with('{"result": true}'),
    "no json": reply_with("allow"),
    "no object": reply_with('[{"allow": true}]'),
    "unclear": reply_with('{"result": {"allow": "yes"}}'),
    "huge": reply_with('{"result": {"allow": true, "reason": "' + "x" * 100_000 + '"}}'),
    "deep": reply_with("[" * 60_000),
    "elsewhere": redirect,
    "slow": slow,
}


@pytest.mark.parametrize("ill", ILL.values(), ids=ILL)
async def test_a_failing_server_blocks_calls_until_it_recovers(
    api: Api, tmp_path: Path, ill: Any
) -> None:
    async with (
        opa(api.url, seconds=0.5) as engine,
        open_app(tmp_path, policy=Policy("enforce", engine.decide)) as app,
    ):
        api.answer = ill
        result = await app.tool_gateway.call(app.seat(), tool_call(path="a"))
        assert (result.status, app.workspace.calls) == (ToolStatus.BLOCKED, [])
        assert "nothing runs until it can" in result.error
        api.answer = None
        assert (
            await app.tool_gateway.call(app.seat(), tool_call(path="a", number=2))
        ).status is ToolStatus.SUCCESS


async def test_an_unreachable_server_blocks_calls(tmp_path: Path) -> None:
    (tmp_path / "tools.rego").write_text(POLICY, encoding="utf-8")
    async with data_api(tmp_path) as api:
        url = api.url
        opened = opa(url, seconds=5)
        engine = await opened.__aenter__()
    try:
        async with open_app(tmp_path, policy=Policy("enforce", engine.decide)) as app:
            result = await app.tool_gateway.call(app.seat(), tool_call(path="a"))
            assert (result.status, app.workspace.calls) == (ToolStatus.BLOCKED, [])
    finally:
        await opened.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("mode", "ran", "requests"), [("enforce", False, 1), ("dry-run", True, 1), ("off", True, 0)]
)
async def test_a_denied_call_runs_only_if_not_enforced(
    api: Api,
    tmp_path: Path,
    mode: Mode,
    ran: bool,  # noqa: FBT001
    requests: int,
) -> None:
    settings = Settings(data_dir=tmp_path, guard=GuardSettings(policy=mode, policy_url=api.url))
    async with open_policy(settings.guard) as policy, open_app(tmp_path, policy=policy) as app:
        requests_before = api.requests
        result = await app.tool_gateway.call(app.seat(), tool_call(path="secret/a"))
        assert (bool(app.workspace.calls), api.requests - requests_before) == (ran, requests)
        assert ran or (result.status, result.error) == (
            ToolStatus.BLOCKED,
            "files.read is refused by policy: secrets stay closed",
        )


async def test_a_servers_answer_is_cached(api: Api, tmp_path: Path) -> None:
    async with (
        opa(api.url, seconds=20) as engine,
        open_app(tmp_path, policy=Policy("enforce", engine.decide)) as app,
    ):
        requests_before = api.requests
        for number in range(5):
            await app.tool_gateway.call(app.seat(), tool_call(path="a", number=number))
        assert api.requests - requests_before == 1


async def test_a_policy_server_that_cannot_be_queried_stops_the_start(
    api: Api, tmp_path: Path
) -> None:
    api.answer = reply_with("{}", 404)
    for url, message in (
        (api.url, "answered 404"),
        ("http://127.0.0.1:1", "cannot be reached"),
        ("http://[", "cannot be reached"),
    ):
        settings = Settings(data_dir=tmp_path, guard=GuardSettings(policy_url=url))
        with pytest.raises(ConfigurationError, match=message):
            async with open_policy(settings.guard):
                pass


async def test_the_token_is_sent_to_the_server(api: Api) -> None:
    authorizations: list[str] = []

    async def deny(request: web.Request) -> web.StreamResponse:
        authorizations.append(request.headers.get("Authorization", ""))
        return web.json_response({"result": {"allow": False}})

    api.answer = deny
    async with opa(api.url, seconds=20, token="t0p"):
        pass
    assert authorizations == ["Bearer t0p"]
