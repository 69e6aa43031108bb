from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.authorization.approvals import (
    BUCKET,
    SPENT_BUCKET,
    ApprovalQueue,
    Approvals,
    ExpiredApproval,
    Subject,
    refuse_unless_operator,
)
from moothall.authorization.rules import Policy
from moothall.domain.ids import Principal
from moothall.domain.tool import ToolStatus
from moothall.errors import InvalidRequest, NotFound, Refused
from moothall.testing.bus import MemoryBus
from support.tool_gateway import App, open_app, tool_call

KEY = b"k" * 32
SUBJECT = Subject("local", "ws-1", "request-1", "files.delete", "0" * 64)


class AsksFirst:
    """A policy under which deletions require approval."""

    async def decide(self, document: Any) -> Any:
        return {"allow": document["tool"] != "files.delete", "reason": "ask first", "park": True}


def parking_on(bus: MemoryBus, key: bytes = KEY, seconds: float = 900) -> ApprovalQueue:
    return ApprovalQueue(bus.bucket(BUCKET), bus.bucket(SPENT_BUCKET), Approvals(key, seconds))


def open_gateway(folder: Path, parking: ApprovalQueue) -> Any:
    return open_app(folder, parking=parking, policy=Policy("enforce", AsksFirst().decide))


async def delete(app: App, number: int = 1, path: str = "a", **seat: Any) -> tuple[ToolStatus, str]:
    result = await app.tool_gateway.call(
        app.seat(**seat), tool_call("files.delete", number=number, path=path)
    )
    return result.status, result.error


async def test_an_allowed_request_runs_once(tmp_path: Path) -> None:
    parking = parking_on(MemoryBus())
    async with open_gateway(tmp_path, parking) as app:
        status, message = await delete(app)
        [item] = parking.list_waiting("local")
        assert status is ToolStatus.PARKED
        assert f"waits for an operator as {item.id}" in message
        assert (item.request_id, item.tool, item.arguments, item.principal) == (
            "request-1",
            "files.delete",
            {"path": "a"},
            "local",
        )
        assert parking.list_waiting("other") == []
        assert app.workspace.calls == []

        await parking.resolve("local", item.id, allow=True, approver="ann")
        assert parking.list_waiting("local") == []
        # Other arguments are another request.
        assert (await delete(app, path="b", number=2))[0] is ToolStatus.PARKED
        assert (await delete(app))[0] is ToolStatus.SUCCESS
        assert await delete(app) == (ToolStatus.BLOCKED, "the approval was already used")
        assert [call.arguments for call in app.workspace.calls] == [{"path": "a"}]
        ids = [event.id for event in app.facts.events]
        # Parking and its end are two events.
        assert len(ids[:1] + ids[2:3]) == len({ids[0], ids[2]})
        assert [record["status"] for record in app.records() if record["phase"] == "finish"] == [
            "parked",
            "parked",
            "success",
            "blocked",
        ]


async def test_a_repeated_request_of_a_seat_uses_the_approval(tmp_path: Path) -> None:
    parking = parking_on(MemoryBus())
    async with open_gateway(tmp_path, parking) as app:
        await delete(app, 1)
        await delete(app, 2)
        assert len(parking.list_waiting("local")) == 1
        await parking.resolve("local", "request-1", allow=True, approver="ann")
        assert (await delete(app, 3, role="qa"))[0] is ToolStatus.PARKED  # another seat
        assert (await delete(app, 4))[0] is ToolStatus.SUCCESS
        # An approval is for one call; this one waits again.
        assert (await delete(app, 5))[0] is ToolStatus.PARKED
        assert {item.request_id for item in parking.list_waiting("local")} == {
            "request-3",
            "request-5",
        }


async def test_a_refused_request_stays_refused_with_the_reason(tmp_path: Path) -> None:
    parking = parking_on(MemoryBus())
    async with open_gateway(tmp_path, parking) as app:
        await delete(app)
        await parking.resolve("local", "request-1", allow=False, approver="ann", comment="keep it")
        assert await delete(app, 2) == (ToolStatus.BLOCKED, "an operator refused it: keep it")
        with pytest.raises(InvalidRequest, match="it was refused already"):
            await parking.resolve("local", "request-1", allow=True, approver="ann")
        with pytest.raises(NotFound):
            await parking.resolve("other", "request-1", allow=True, approver="eve")


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"},
        {"workspace": "ws-2"},
        {"request_id": "r"},
        {"tool": "x"},
        {"arguments_digest": "1"},
    ],
)
def test_an_approval_is_bound_to_one_request(change: dict[str, str]) -> None:
    approvals = Approvals(KEY, 900)
    grant = approvals.sign(SUBJECT, "ann")
    assert approvals.check(grant, SUBJECT).approver == "ann"
    with pytest.raises(Refused, match="another request"):
        approvals.check(grant, replace(SUBJECT, **change))


def test_forged_and_expired_approvals_are_refused() -> None:
    now = [1_800_000_000.0]
    approvals = Approvals(KEY, 900, lambda: now[0])
    grant = approvals.sign(SUBJECT, "ann")
    for forged in (Approvals(b"e" * 32, 900).sign(SUBJECT, "ann"), grant[:-2], "a.b.c", ""):
        with pytest.raises(Refused):
            approvals.check(forged, SUBJECT)
    now[0] += 901
    with pytest.raises(ExpiredApproval):
        approvals.check(grant, SUBJECT)


async def test_a_forged_decision_in_the_bucket_runs_nothing(tmp_path: Path) -> None:
    bus = MemoryBus()
    parking = parking_on(bus)
    async with open_gateway(tmp_path, parking) as app:
        await delete(app)
        eve = parking_on(bus, b"e" * 32)
        await eve.refresh()
        await eve.resolve("local", "request-1", allow=True, approver="ann")
        await parking.refresh()
        status, message = await delete(app)
    assert status is ToolStatus.BLOCKED
    assert "the approval is refused" in message
    assert app.workspace.calls == []


async def test_an_approval_used_by_another_process_is_used_up(tmp_path: Path) -> None:
    bus = MemoryBus()
    first_queue, second_queue = parking_on(bus), parking_on(bus)
    async with (
        open_gateway(tmp_path / "1", first_queue) as first_gateway,
        open_gateway(tmp_path / "2", second_queue) as second_gateway,
    ):
        await delete(first_gateway)
        await first_queue.resolve("local", "request-1", allow=True, approver="ann")
        await second_queue.refresh()
        assert sorted([(await delete(first_gateway))[0], (await delete(second_gateway))[0]]) == [
            ToolStatus.BLOCKED,
            ToolStatus.SUCCESS,
        ]


async def test_listeners_get_each_allowed_request_once_wherever_it_was_allowed(
    tmp_path: Path,
) -> None:
    bus = MemoryBus()
    first_queue, second_queue = parking_on(bus), parking_on(bus)
    resolved: asyncio.Queue[str] = asyncio.Queue()
    first_queue.on_resolved(lambda item: resolved.put_nowait(item.request_id))
    async with open_gateway(tmp_path, first_queue) as app, asyncio.TaskGroup() as group:
        running = group.create_task(first_queue.run())
        await delete(app, 1)
        await delete(app, 2, "b")
        await first_queue.resolve("local", "request-1", allow=True, approver="ann")
        await second_queue.refresh()
        await second_queue.resolve("local", "request-2", allow=True, approver="ann")
        async with asyncio.timeout(20):
            assert [await resolved.get(), await resolved.get()] == ["request-1", "request-2"]
        running.cancel()
    assert resolved.empty()


def test_only_operators_may_decide_requests() -> None:
    refuse_unless_operator(Principal("ann", "local", operator=True))
    with pytest.raises(Refused, match="eve is not an operator: give the account or token the role"):
        refuse_unless_operator(Principal("eve", "local"))
