"""The steps of the gateway from the token on, in their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.authorization.rules import Rules
from moothall.authorization.tokens import Tokens, narrow, request_digest
from moothall.domain.tool import Grant, ToolCall, ToolResult, ToolStatus
from moothall.ports import Workspace
from moothall.tools.schemas import Arguments, Output
from moothall.tools.spec import Caps, Danger, Requirements, ToolSpec
from support.tool_gateway import App, open_app, tool_call

LOOK = ToolSpec(
    name="web.look",
    summary="look",
    arguments=Arguments,
    output=Output,
    danger=Danger.READ,
    caps=Caps(5),
    requirements=Requirements(network_access=True),
    cache_seconds=60.0,
)
SEND = ToolSpec(
    name="web.send",
    summary="send",
    arguments=Arguments,
    output=Output,
    danger=Danger.OUTSIDE,
    caps=Caps(5),
    requirements=Requirements(network_access=True),
)
WEB = {spec.name: spec for spec in (LOOK, SEND)}
ALL = Grant(tools=("*",))


class Web:
    """A toolkit that counts its calls."""

    def __init__(self, status: ToolStatus = ToolStatus.SUCCESS) -> None:
        self.calls: list[ToolCall] = []
        self.status = status

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        self.calls.append(call)
        return ToolResult(call.request_id, call.tool, self.status, {"seen": len(self.calls)})


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (lambda app, token: "", "the capability token is missing"),
        (lambda app, token: token[:-2], "is refused"),
        (lambda app, token: app.seat(workspace_id="ws-2").token, "Audience"),
        (lambda app, token: app.seat(role="qa").token, "belongs to another principal"),
        (
            lambda app, token: narrow(token, seconds=60, tools=["files.list"]),
            "files.write is not covered",
        ),
        (lambda app, token: narrow(token, seconds=60, protected=["src/"]), "protected: src/"),
        (
            lambda app, token: narrow(token, seconds=60, request="0" * 64),
            "bound to another request",
        ),
        (lambda app, token: Rules().tokens.check, "is refused"),
    ],
)
async def test_nothing_runs_without_a_valid_token(app: App, token: Any, message: str) -> None:
    seat = app.seat()
    token_value = token(app, seat.token)
    result = await app.tool_gateway.call(
        replace(seat, token=token_value if isinstance(token_value, str) else "x.y.z"),
        tool_call("files.write", path="src/a", content=""),
    )
    assert result.status is ToolStatus.BLOCKED
    assert message in result.error
    assert app.workspace.calls == []


async def test_a_token_bound_to_a_request_is_valid_for_it_only(app: App) -> None:
    seat, call = app.seat(), tool_call(path="a")
    bound = replace(seat, token=narrow(seat.token, seconds=60, request=request_digest(call)))
    assert (await app.tool_gateway.call(bound, call)).status is ToolStatus.SUCCESS
    assert (await app.tool_gateway.call(bound, tool_call(path="b"))).status is ToolStatus.BLOCKED


async def test_a_revoked_seat_is_stopped_immediately(tmp_path: Path) -> None:
    revoked: set[str] = set()
    tokens = Tokens(b"k" * 32, 3600, revoked=lambda ids: not revoked.isdisjoint(ids))
    async with open_app(tmp_path, tokens=tokens) as app:
        seat = app.seat()
        assert (await app.tool_gateway.call(seat, tool_call(path="a"))).status is ToolStatus.SUCCESS
        revoked.add("ws-1")
        refused = await app.tool_gateway.call(seat, tool_call(path="a", number=2))
    assert (refused.status, refused.error) == (
        ToolStatus.BLOCKED,
        "the capability token was revoked",
    )


async def test_the_eleventh_dangerous_call_is_refused_and_does_not_run(app: App) -> None:
    seat = app.seat()
    results = [
        await app.tool_gateway.call(seat, tool_call("tests.pytest", number=number))
        for number in range(11)
    ]
    assert [result.status for result in results] == [ToolStatus.SUCCESS] * 10 + [
        ToolStatus.RATE_LIMITED
    ]
    assert "may be called 10 a minute" in results[-1].error
    assert len(app.workspace.calls) == 10
    neighbour = replace(app.seat(), seat="agent-dev-002")
    assert (
        await app.tool_gateway.call(neighbour, tool_call("tests.pytest"))
    ).status is ToolStatus.SUCCESS


async def test_a_tool_that_keeps_failing_opens_its_circuit(tmp_path: Path) -> None:
    async with open_app(tmp_path, breaker_seconds=600) as app:
        app.workspace.answer = lambda call: ToolResult(
            call.request_id, call.tool, ToolStatus.TIMEOUT
        )
        seat = app.seat()
        results = [
            await app.tool_gateway.call(seat, tool_call(path="a", number=number))
            for number in range(6)
        ]
        other_result = await app.tool_gateway.call(seat, tool_call("files.list", number=7))
    assert [result.status for result in results] == [ToolStatus.TIMEOUT] * 5 + [
        ToolStatus.CIRCUIT_OPEN
    ]
    assert other_result.status is ToolStatus.TIMEOUT
    assert len(app.workspace.calls) == 6


async def test_a_toolkit_serves_its_category_and_cacheable_results_are_cached(
    tmp_path: Path,
) -> None:
    web = Web()
    async with open_app(tmp_path, catalogue=WEB, toolkits={"web": web.call}) as app:
        seat = app.seat(grant=ALL)
        first = await app.tool_gateway.call(seat, tool_call("web.look"))
        repeated = await app.tool_gateway.call(seat, tool_call("web.look", number=2))
        assert (first.output, repeated.output) == ({"seen": 1}, {"seen": 1})
        assert (first.request_id, repeated.request_id) == ("request-1", "request-2")
        assert len(app.records()) == 4
        web.status = ToolStatus.ERROR
        for number in (3, 4):
            assert (
                await app.tool_gateway.call(seat, tool_call("web.send", number=number))
            ).status is ToolStatus.ERROR
    assert [call.tool for call in web.calls] == ["web.look", "web.send", "web.send"]
    assert app.workspace.calls == []
    kinds = [
        str(event.type) for event in app.facts.events if event.data["request_id"] == "request-3"
    ]
    assert kinds == ["moothall.tool.started", "moothall.tool.finished"]
