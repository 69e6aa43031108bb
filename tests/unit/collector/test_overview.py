from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moothall.collector.fold import DeliberationState, fold
from moothall.collector.overview import Overview, live_view
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.ids import LOCAL, Principal, TaskId, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import Proposal, SeatOutcome, SeatStatus
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import NotFound
from moothall.testing.bus import MemoryBus

EVE = Principal("eve", "elsewhere")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
ONE, TWO = "agent-dev-001", "agent-dev-002"


def request_event(task: str, tenant: str = "local") -> Event:
    d = Deliberation(
        TaskKey(task),
        "Add hello_world()",
        "dev",
        "vote",
        (ONE, TWO),
        0,
        NOW,
        2,
        repository=RepositoryRef(id="sample"),
        tenant=tenant,
    )
    return new_event(
        EventType.DELIBERATION_REQUESTED, task, dump(d), tenant=tenant, time=NOW.isoformat()
    )


def seat_event(
    kind: EventType, task: str = "task-1", seat: str = ONE, ordinal: str = "", **data: Any
) -> Event:
    payload = {"task_id": task, "seat": seat, **data}
    return new_event(
        kind, task, payload, ordinal=ordinal or seat, time=(NOW + timedelta(seconds=1)).isoformat()
    )


def decision_event(
    task: str, status: str = "COMPLETED", tenant: str = "local", **fields: Any
) -> Event:
    seats = (SeatOutcome(ONE, SeatStatus.FAILED, "MODEL_UNAVAILABLE", "nobody answers"),)
    outcome = Outcome(
        task,
        DeliberationStatus(status),
        tenant=tenant,
        role="dev",
        seats=seats,
        duration_ms=7,
        **fields,
    )
    return new_event(
        EventType.DELIBERATION_DECIDED, task, dump(outcome), tenant=tenant, time=NOW.isoformat()
    )


def state_of(*events: Event) -> DeliberationState:
    state: DeliberationState | None = None
    for event in events:
        state = fold(state, event)
    assert state is not None
    return state


def test_a_live_tasks_progress_never_goes_back() -> None:
    steps = [
        request_event("task-1"),
        seat_event(EventType.DELIBERATION_STARTED, seat=""),
        seat_event(
            EventType.MODEL_CALLED,
            ordinal="c-1",
            call_id="task-1/agent-dev-001/propose/0.1",
            usage={"calls": 1},
        ),
        seat_event(
            EventType.SEAT_PROPOSED, candidate=ONE, proposal=dump(Proposal(ONE, "dev", "x", "diff"))
        ),
        seat_event(
            EventType.SEAT_FAILED,
            seat=TWO,
            error={"code": "OUT_OF_TURNS", "message": "nothing was changed"},
        ),
    ]
    views = [live_view(state_of(*steps[:count])) for count in range(1, len(steps) + 1)]
    assert [view.status.value for view in views] == ["PENDING"] + ["IN_PROGRESS"] * 4
    progress = [view.progress for view in views]
    assert progress == sorted(progress)
    assert progress[0] == 0
    assert len(set(progress)) == 5
    assert progress[-1] < 100
    assert [seat.status for seat in views[0].seats] == ["waiting", "waiting"]
    assert [(seat.status, seat.error_code) for seat in views[-1].seats] == [
        ("proposed", ""),
        ("failed", "OUT_OF_TURNS"),
    ]
    assert (views[0].description, views[0].repository, views[0].requested[:10]) == (
        "Add hello_world()",
        "sample",
        "2026-01-02",
    )


async def test_only_live_and_failed_tasks_of_the_tenant_are_listed() -> None:
    bus = MemoryBus()
    for task in ("task-1", "task-2", "task-3"):
        await bus.publish(request_event(task))
    live = [state_of(request_event("task-1")), state_of(request_event("task-9", "elsewhere"))]
    overview = Overview(bus, lambda: live)
    assert [view.task_id for view in await overview.list_tasks(LOCAL)] == ["task-1"]
    await bus.publish(
        decision_event(
            "task-2", "FAILED", error_message="No seat proposed anything: 1 x MODEL_UNAVAILABLE."
        )
    )
    await bus.publish(decision_event("task-3", winner_id=ONE, final_state="committed"))
    await bus.publish(decision_event("task-8", tenant="elsewhere"))
    views = await overview.list_tasks(LOCAL)
    assert [(view.task_id, view.status.value, view.progress) for view in views] == [
        ("task-1", "PENDING", 0),
        ("task-3", "COMPLETED", 100),
        ("task-2", "FAILED", 100),
    ]
    (failed,) = await overview.list_tasks(LOCAL, "failed")
    assert failed.error.startswith("No seat proposed anything")
    assert (failed.seats[0].error_code, failed.description, failed.protocol) == (
        "MODEL_UNAVAILABLE",
        "Add hello_world()",
        "vote",
    )
    assert [view.task_id for view in await overview.list_tasks(LOCAL, "live")] == ["task-1"]
    assert [view.task_id for view in await overview.list_tasks(LOCAL, "ended", 1)] == ["task-3"]
    assert [view.task_id for view in await overview.list_tasks(LOCAL, limit=1, first=2)] == [
        "task-2"
    ]
    matches = await overview.list_tasks(LOCAL, limit=1, query="HELLO_world sample", first=1)
    assert [view.task_id for view in matches] == ["task-3"]
    assert await overview.list_tasks(LOCAL, query="hello goodbye") == []
    assert {view.task_id for view in await overview.list_tasks(EVE)} == {"task-8", "task-9"}
    assert (await overview.get_task(TaskId("task-2"), LOCAL)) == failed
    for task, principal in (("task-2", EVE), ("task-9", LOCAL), ("nothing", LOCAL)):
        with pytest.raises(NotFound):
            await overview.get_task(TaskId(task), principal)


async def test_a_decided_task_is_no_longer_live_even_if_the_collector_has_it() -> None:
    bus = MemoryBus()
    await bus.publish(request_event("task-1"))
    overview = Overview(bus, lambda: [state_of(request_event("task-1"))])
    await bus.publish(decision_event("task-1", "CANCELLED"))
    await bus.publish(decision_event("task-1", "CANCELLED"))
    assert [view.status.value for view in await overview.list_tasks(LOCAL)] == ["CANCELLED"]
