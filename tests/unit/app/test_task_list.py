"""The list of tasks, of the process that serves or from the log."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moothall.app.task_list import (
    ListRequest,
    TaskList,
    list_tasks,
    request_list,
    serve_task_list,
)
from moothall.app.tasks import Tasks
from moothall.collector.fold import DeliberationState, fold
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation
from moothall.errors import BusUnavailable
from moothall.processes import serve_requests
from moothall.settings import AllSettings
from moothall.testing.bus import MemoryBus

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SEATS = ("agent-dev-001", "agent-dev-002")


def request_event(task: str) -> Event:
    d = Deliberation(TaskKey(task), "Add hello_world()", "dev", "vote", SEATS, 0, NOW, 2)
    return new_event(EventType.DELIBERATION_REQUESTED, task, dump(d), time=NOW.isoformat())


def decision_event(task: str) -> Event:
    outcome = Outcome(task, DeliberationStatus.COMPLETED, role="dev")
    return new_event(EventType.DELIBERATION_DECIDED, task, dump(outcome), time=NOW.isoformat())


async def tasks_of(*events: Event, served: bool = True, active: tuple[str, ...] = ()) -> Tasks:
    bus = MemoryBus()
    for event in events:
        await bus.publish(event)
    states: list[DeliberationState] = [fold(None, request_event(task)) for task in active]
    return Tasks(AllSettings(), bus, served=served, active_states=lambda: states)  # type: ignore[arg-type]  # all in memory


async def list_ids(data_dir: Path, request: ListRequest) -> list[str] | None:
    answer = await request_list(data_dir, request)
    if answer is None:
        return None
    assert answer.served
    return [view.task_id for view in answer.tasks]


async def test_the_serving_process_lists_its_tasks(tmp_path: Path) -> None:
    events = [request_event(f"t{number}") for number in range(3)]
    ends = [decision_event("t0"), decision_event("t1")]
    tasks = await tasks_of(*events, *ends, active=("t2",))
    async with serve_task_list(tasks, tmp_path):
        assert await list_ids(tmp_path, ListRequest()) == ["t2", "t1", "t0"]
        assert await list_ids(tmp_path, ListRequest("ended", 1)) == ["t1"]
        assert await list_ids(tmp_path, ListRequest("live")) == ["t2"]
        assert await list_ids(tmp_path, ListRequest(first=1, limit=1)) == ["t1"]
        assert await list_ids(tmp_path, ListRequest(query="nothing like it")) == []
    assert await list_ids(tmp_path, ListRequest()) is None


async def test_a_killed_process_gives_no_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale_socket:
        stale_socket.bind(str(tmp_path / "tasks.sock"))
    assert await list_ids(tmp_path, ListRequest()) is None


@pytest.mark.parametrize("answer", [{}, {"served": True, "tasks": [{"unknown": 1}]}])
async def test_the_answer_of_another_version_is_ignored(
    answer: Mapping[str, Any], tmp_path: Path
) -> None:
    async def answer_differently(_request: bytes) -> Mapping[str, Any]:
        return answer

    async with serve_requests(tmp_path / "tasks.sock", answer_differently):
        assert await list_ids(tmp_path, ListRequest()) is None


async def test_the_error_of_a_process_is_no_answer(tmp_path: Path) -> None:
    def fail() -> Sequence[DeliberationState]:
        raise BusUnavailable("the bus does not answer")

    tasks = Tasks(AllSettings(), MemoryBus(), served=True, active_states=fail)  # type: ignore[arg-type]  # all in memory
    async with serve_task_list(tasks, tmp_path):
        assert await list_ids(tmp_path, ListRequest()) is None


@pytest.mark.e2e  # with an embedded bus
async def test_without_an_answer_the_log_is_read(tmp_path: Path) -> None:
    listed = await list_tasks(AllSettings(data_dir=tmp_path), ListRequest(), print)
    assert listed == TaskList(served=False, tasks=())
