"""Tasks as commands see them, over an in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moothall import config
from moothall.app.bus import is_served, lease_of, open_log
from moothall.app.tasks import Tasks, cancel, choose_result
from moothall.concurrency import run_in_background
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.ids import TaskId, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.status import FLEET, HostState
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import InvalidRequest, NotFound
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server
from moothall.orchestrator.fork import find_decision as decision
from moothall.settings import AllSettings
from moothall.testing.bus import MemoryBus

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SEATS = ("agent-dev-001", "agent-dev-002")


def request_event(task: str, repository: str = "sample", deadline: datetime = NOW) -> Event:
    about = RepositoryRef(id=repository) if repository else None
    d = Deliberation(
        TaskKey(task), "Add hello_world()", "dev", "vote", SEATS, 0, deadline, 2, repository=about
    )
    return new_event(EventType.DELIBERATION_REQUESTED, task, dump(d), time=NOW.isoformat())


def results(*seats: str) -> tuple[Result, ...]:
    return tuple(
        Result(rank, seat, "dev", 0.5, (), passed_gates=True, proven=False, diff=f"of {seat}")
        for rank, seat in enumerate(seats, 1)
    )


def decision_event(task: str, winner: str = SEATS[1]) -> Event:
    outcome = Outcome(
        task,
        DeliberationStatus.COMPLETED,
        role="dev",
        winner_id=winner,
        results=results(SEATS[1], SEATS[0]),
    )
    return new_event(EventType.DELIBERATION_DECIDED, task, dump(outcome), time=NOW.isoformat())


async def tasks_of(*events: Event) -> tuple[MemoryBus, Tasks]:
    bus = MemoryBus()
    for event in events:
        await bus.publish(event)
        if event.type is EventType.DELIBERATION_DECIDED:
            await bus.put(event.subject, event.data)
    return bus, Tasks(AllSettings(), bus, served=False)  # type: ignore[arg-type]  # all in memory


async def test_the_latest_tasks_are_found_at_any_depth_of_a_long_log() -> None:
    ends = [decision_event(f"task-{number}") for number in range(3)]
    later_events = [
        new_event(EventType.SEAT_TURN, "x", {"task_id": "x"}, ordinal=str(n)) for n in range(900)
    ]
    _, tasks = await tasks_of(*ends, *later_events, decision_event("task-9"))
    assert [view.task_id for view in await tasks.latest(limit=1)] == ["task-9"]
    assert [view.task_id for view in await tasks.latest(limit=2)] == ["task-9", "task-2"]
    assert len(await tasks.latest("ended", 50)) == 4
    assert await tasks.latest("live") == []


async def test_running_tasks_are_read_from_the_log_only() -> None:
    _, tasks = await tasks_of(
        request_event("task-a1"), request_event("task-b2"), decision_event("task-a1")
    )
    views = await tasks.latest()
    assert [(view.task_id, view.status.value) for view in views] == [
        ("task-b2", "PENDING"),
        ("task-a1", "COMPLETED"),
    ]
    assert [view.task_id for view in await tasks.latest("live")] == ["task-b2"]
    assert [view.task_id for view in await tasks.latest("ended")] == ["task-a1"]
    assert await tasks.repository(TaskId("task-b2")) == RepositoryRef(id="sample")


async def test_waiting_for_a_paused_task_is_refused() -> None:
    paused, resumed = (
        new_event(
            kind,
            "task-a1",
            {"task_id": "task-a1", "number": number},
            ordinal=number,
            time=NOW.isoformat(),
        )
        for number, kind in enumerate(
            (EventType.DELIBERATION_PAUSED, EventType.DELIBERATION_RESUMED)
        )
    )
    bus, tasks = await tasks_of(request_event("task-a1"), paused)
    with pytest.raises(InvalidRequest, match="task-a1 is paused: resume it"):
        await tasks.check_not_paused(TaskId("task-a1"))
    await bus.publish(resumed)
    await tasks.check_not_paused(TaskId("task-a1"))


async def test_a_task_is_found_by_a_prefix_and_the_latest_by_default() -> None:
    _, tasks = await tasks_of(
        request_event("task-a1"),
        request_event("task-a2"),
        request_event("other"),
        decision_event("task-a1"),
        decision_event("task-a2"),
    )
    assert await tasks.find("task-a1", exact=True) == "task-a1"
    assert await tasks.find("ot") == "other"
    assert await tasks.find_or_latest(None) == "other", "the task is running"
    for named, message in (
        ("task-", "did you mean task-a1, task-a2"),
        ("never", "`moothall list` shows them"),
    ):
        with pytest.raises(NotFound, match=message):
            await tasks.find(named)
    with pytest.raises(NotFound, match=r"did you mean other\?"):
        await tasks.find("ot", exact=True)
    with pytest.raises(InvalidRequest):
        await tasks.find("../x")


@pytest.mark.e2e
async def test_a_served_external_bus_is_recognised_by_its_hosts(tmp_path: Path) -> None:
    async def announce(_request: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        return dump(HostState("host-1", "here", 1, 0.0, ())), b""

    async with (
        embedded_server(config.BusSettings(), tmp_path / "bus") as url,
        open_bus(config.BusSettings(), url) as bus,
    ):
        shared = AllSettings(bus=config.BusSettings(url=url), data_dir=tmp_path / "data")
        assert not await is_served(shared, bus)
        async with run_in_background(bus.answer(FLEET, announce), "host"):
            async with asyncio.timeout(20):
                while not await is_served(shared, bus):
                    await asyncio.sleep(0.05)
            assert not await is_served(AllSettings(data_dir=tmp_path / "data"), bus)


@pytest.mark.e2e
async def test_a_cancel_on_an_external_bus_leaves_the_decision_to_the_lease_holder(
    tmp_path: Path,
) -> None:
    async with (
        embedded_server(config.BusSettings(), tmp_path / "bus") as url,
        open_bus(config.BusSettings(), url) as bus,
    ):
        shared = AllSettings(bus=config.BusSettings(url=url), data_dir=tmp_path / "data")
        for task in ("task-a1", "task-b2"):
            await bus.create(request_event(task, deadline=datetime(2100, 1, 1, tzinfo=UTC)))
        async with lease_of(bus, "decide.task-a1").try_acquire():
            messages: list[str] = []
            assert (await cancel(shared, "task-a1", "", messages.append))[
                1
            ] is DeliberationStatus.CANCELLED
            assert messages == ["it is cancelled, but its process has not confirmed that yet"]
            assert await decision(bus, TaskKey("task-a1")) is None
            async with open_log(shared, messages.append, alone=False):
                pass  # like `log tail --follow`
        messages = []
        assert (await cancel(shared, "task-b2", "", messages.append))[
            1
        ] is DeliberationStatus.CANCELLED
        assert messages == []


async def test_an_empty_list_is_reported() -> None:
    _, tasks = await tasks_of()
    with pytest.raises(NotFound, match="there are no tasks yet"):
        await tasks.find_or_latest(None)


async def test_only_an_ended_task_can_be_deleted_and_then_completely() -> None:
    bus, tasks = await tasks_of(
        request_event("task-a1"), request_event("task-b2"), decision_event("task-a1")
    )
    with pytest.raises(InvalidRequest, match="`moothall cancel task-b2` first"):
        await tasks.forget(TaskId("task-b2"))
    await tasks.forget(TaskId("task-a1"))
    assert await tasks.ids() == ["task-b2"]
    assert await bus.get("task-a1") is None
    assert [view.task_id for view in await tasks.latest()] == ["task-b2"]
    with pytest.raises(NotFound):
        await tasks.outcome(TaskId("task-a1"))


@pytest.mark.parametrize(
    ("seat", "expected"),
    [
        ("", SEATS[1]),
        ("agent-dev-001", SEATS[0]),
        ("dev-001", SEATS[0]),
        ("1", SEATS[0]),
        ("002", SEATS[1]),
    ],
)
def test_a_seat_is_given_by_name_or_number(seat: str, expected: str) -> None:
    outcome = Outcome(
        "t", DeliberationStatus.COMPLETED, winner_id=SEATS[1], results=results(SEATS[1], SEATS[0])
    )
    assert choose_result(outcome, seat).seat == expected


def test_a_missing_winner_and_an_unknown_seat_are_reported() -> None:
    outcome = Outcome("t", DeliberationStatus.COMPLETED, results=results(*SEATS))
    with pytest.raises(
        NotFound, match="t has no winner; name a seat: agent-dev-001, agent-dev-002"
    ):
        choose_result(outcome, "")
    with pytest.raises(NotFound, match="no seat '9' in t; seats with a proposal: agent-dev-001"):
        choose_result(outcome, "9")
    failed = (SeatOutcome(SEATS[0], SeatStatus.FAILED, "OUT_OF_TURNS", "no turn is left"),)
    outcome = Outcome(
        "t", DeliberationStatus.FAILED, seats=failed, error_message="no seat proposed a change"
    )
    with pytest.raises(
        NotFound, match=r"t ended \(failed\) without a proposal: no seat proposed a change"
    ):
        choose_result(outcome, "")
    with pytest.raises(NotFound, match="agent-dev-001 of t proposed nothing: no turn is left"):
        choose_result(outcome, "1")


async def test_the_progress_of_a_running_task_is_shown() -> None:
    _, tasks = await tasks_of(
        request_event("task-a1"), decision_event("task-a1"), request_event("task-b2")
    )
    for named, seat in ((None, ""), (None, "1"), ("task-b2", ""), ("2", "")):
        with pytest.raises(
            InvalidRequest, match=r"task-b2 is still running \(\d+ %\).*`moothall serve` resumes it"
        ):
            await tasks.choose(named, seat)
    assert (await tasks.choose("task-a1"))[1].seat == SEATS[1]


async def test_a_seat_without_a_task_refers_to_the_latest_task() -> None:
    _, tasks = await tasks_of(
        request_event("3"), decision_event("3"), request_event("task-a1"), decision_event("task-a1")
    )
    assert [
        (task, result.seat)
        for task, result in [await tasks.choose(named) for named in ("2", "dev-001", "3")]
    ] == [
        ("task-a1", SEATS[1]),
        ("task-a1", SEATS[0]),
        ("3", SEATS[1]),
    ]
    with pytest.raises(NotFound, match=r"no task '9'.*A seat's number follows the task: TASK 9"):
        await tasks.choose("9")
