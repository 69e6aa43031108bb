from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moothall.authorization.audit_chain import verify_all
from moothall.authorization.gateway import Alerts
from moothall.authorization.limits import AlertLimits
from moothall.domain.event import Event, EventType
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.events.registry import subject_of
from support.tool_gateway import App, open_app, tool_call


def alerts_of(app: App) -> list[Event]:
    return [event for event in app.facts.events if event.type == EventType.GUARD_ALERTED]


async def make_refused_calls(
    app: App, times: int, tool: str = "git.push", first: int = 1, **arguments: Any
) -> None:
    for number in range(first, first + times):
        result = await app.tool_gateway.call(
            app.seat(), tool_call(tool, number=number, **arguments)
        )
        assert result.status is ToolStatus.BLOCKED


async def test_many_refusals_raise_one_alert_and_reset_the_count(
    tmp_path: Path,
) -> None:
    async with open_app(tmp_path, alerts=AlertLimits(denials=5)) as app:
        await make_refused_calls(app, 4, branch="x")
        assert alerts_of(app) == []
        await make_refused_calls(app, 3, first=5, branch="x")
        [alert] = alerts_of(app)
        assert (
            alert.data["kind"],
            alert.data["count"],
            alert.data["principal"],
            alert.data["tool"],
        ) == (
            "denials",
            5,
            app.seat().principal.name,
            "git.push",
        )
        assert (subject_of(alert), "not granted" in alert.data["reason"]) == ("audit.local", True)
        await make_refused_calls(app, 3, first=8, branch="x")
        assert len(alerts_of(app)) == 2
        assert len({event.id for event in alerts_of(app)}) == 2


@pytest.mark.parametrize("path", ["../etc/passwd", "/etc/passwd", "a/../../b"])
async def test_attempts_to_leave_the_workspace_raise_an_early_alert(
    tmp_path: Path, path: str
) -> None:
    async with open_app(tmp_path, alerts=AlertLimits(escapes=3)) as app:
        await make_refused_calls(app, 3, "files.read", path=path)
        [alert] = alerts_of(app)
    assert (alert.data["kind"], alert.data["count"]) == ("escapes", 3)


async def test_an_action_that_isolation_refuses_counts_as_an_attempted_escape(
    tmp_path: Path,
) -> None:
    def refuse(call: ToolCall) -> ToolResult:
        return ToolResult(
            call.request_id, call.tool, ToolStatus.BLOCKED, error="a link that leaves the workspace"
        )

    async with open_app(tmp_path, alerts=AlertLimits(escapes=2)) as app:
        app.workspace.answer = refuse
        await make_refused_calls(app, 2, "files.read", path="link")
        [alert] = alerts_of(app)
    assert (alert.data["kind"], alert.data["reason"]) == (
        "escapes",
        "a link that leaves the workspace",
    )


async def test_invalid_calls_do_not_count_as_refusals(tmp_path: Path) -> None:
    async with open_app(tmp_path, alerts=AlertLimits(denials=2, escapes=1)) as app:
        for number in range(6):
            await app.tool_gateway.call(app.seat(), tool_call("files.raed", number=number))
            await app.tool_gateway.call(app.seat(), tool_call("files.read", number=number, path=7))
        assert alerts_of(app) == []


async def test_refusals_outside_the_window_are_not_counted(app: App) -> None:
    now = 0.0
    alerts = Alerts(AlertLimits(denials=3, seconds=10), lambda: now)
    for moment in (0, 4, 9, 15, 16, 30):
        now = moment
        alerts.count_refusal(app.seat(), tool_call(path="a"), "no", escape=False)
    assert alerts.pop_raised() != ()
    for moment in (100, 106, 112, 118):
        now = moment
        alerts.count_refusal(app.seat(), tool_call(path="a"), "no", escape=False)
    assert alerts.pop_raised() == []


async def test_the_approver_is_audited_before_the_call_runs(tmp_path: Path) -> None:
    from moothall.authorization.approvals import BUCKET, SPENT_BUCKET, ApprovalQueue, Approvals
    from moothall.authorization.rules import Policy
    from moothall.testing.bus import MemoryBus

    class Parks:
        async def decide(self, document: Any) -> Any:
            del document
            return {"allow": False, "reason": "ask first", "park": True}

    bus = MemoryBus()
    parking = ApprovalQueue(bus.bucket(BUCKET), bus.bucket(SPENT_BUCKET), Approvals(b"k" * 32, 60))
    async with open_app(tmp_path, policy=Policy("enforce", Parks().decide), parking=parking) as app:
        call = tool_call(path="a")
        assert (await app.tool_gateway.call(app.seat(), call)).status is ToolStatus.PARKED
        await parking.resolve("local", call.request_id, allow=True, approver="ann")
        assert (await app.tool_gateway.call(app.seat(), call)).status is ToolStatus.SUCCESS
        phases = [(record["phase"], record.get("approved_by")) for record in app.records()]
        assert phases == [
            ("start", None),
            ("finish", None),
            ("start", None),
            ("approved", "ann"),
            ("finish", None),
        ]
        report = verify_all(tmp_path)
        assert (report.ok, report.unfinished) == (True, 0)
        [approved] = report.approved
        assert (approved.by, approved.tool, approved.request_id) == (
            "ann",
            "files.read",
            call.request_id,
        )
        lines = app.chain.read_text(encoding="ascii")
        app.chain.write_text(
            lines.replace('"approved_by":"ann"', '"approved_by":"bob"'), encoding="ascii"
        )
        assert not verify_all(tmp_path).ok
