"""The list of tasks, of the process that serves or from the log."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moothall.app import tasks as app_tasks
from moothall.app.task_list import ListRequest, list_tasks, serve_task_list
from moothall.app.tasks import Tasks
from moothall.collector.fold import DeliberationState, fold
from moothall.config import Settings
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


def requested(task: str) -> Event:
    d = Deliberation(TaskKey(task), "Add hello_world()", "dev", "vote", SEATS, 0, NOW, 2)
    return new_event(EventType.DELIBERATION_REQUESTED, task, dump(d), time=NOW.isoformat())


def decided(task: str) -> Event:
    outcome = Outcome(task, DeliberationStatus.COMPLETED, role="dev")
    return new_event(EventType.DELIBERATION_DECIDED, task, dump(outcome), time=NOW.isoformat())


async def tasks_of(*events: Event, served: bool = True, active: tuple[str, ...] = ()) -> Tasks:
    bus = MemoryBus()
    for event in events:
        await bus.publish(event)
    states: list[DeliberationState] = [fold(None, requested(task)) for task in active]
    return Tasks(AllSettings(), bus, served=served, active_states=lambda: states)  # type: ignore[arg-type]  # all in memory


@pytest.fixture
def log_is_read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The data directories whose log was read by the command itself; the log has task-log."""
    folders: list[Path] = []

    @asynccontextmanager
    async def open_tasks(settings: Settings, _report: object) -> AsyncIterator[Tasks]:
        folders.append(settings.data_dir)
        yield await tasks_of(requested("task-log"), decided("task-log"), served=False)

    monkeypatch.setattr(app_tasks, "open_tasks", open_tasks)
    return folders


async def list_ids(data_dir: Path, request: ListRequest) -> tuple[bool, list[str]]:
    found = await list_tasks(AllSettings(data_dir=data_dir), request, print)
    return found.served, [view.task_id for view in found.tasks]


async def test_the_serving_process_lists_its_tasks(tmp_path: Path, log_is_read: list[Path]) -> None:
    events = [requested(f"t{number}") for number in range(3)]
    ends = [decided("t0"), decided("t1")]
    tasks = await tasks_of(*events, *ends, active=("t2",))
    async with serve_task_list(tasks, tmp_path):
        assert await list_ids(tmp_path, ListRequest()) == (True, ["t2", "t1", "t0"])
        assert await list_ids(tmp_path, ListRequest("ended", 1)) == (True, ["t1"])
        assert await list_ids(tmp_path, ListRequest("live")) == (True, ["t2"])
        assert await list_ids(tmp_path, ListRequest(first=1, limit=1)) == (True, ["t1"])
        assert await list_ids(tmp_path, ListRequest(query="nothing like it")) == (True, [])
    assert log_is_read == []
    assert await list_ids(tmp_path, ListRequest()) == (False, ["task-log"])


async def test_the_log_is_read_if_the_process_was_killed(
    tmp_path: Path, log_is_read: list[Path]
) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "tasks.sock"))
    assert await list_ids(tmp_path, ListRequest()) == (False, ["task-log"])
    assert log_is_read == [tmp_path]


@pytest.mark.parametrize("answer", [{}, {"served": True, "tasks": [{"unknown": 1}]}])
async def test_the_log_is_read_if_a_process_of_another_version_answers(
    answer: Mapping[str, Any], tmp_path: Path, log_is_read: list[Path]
) -> None:
    async def answer_differently(_request: bytes) -> Mapping[str, Any]:
        return answer

    async with serve_requests(tmp_path / "tasks.sock", answer_differently):
        assert await list_ids(tmp_path, ListRequest()) == (False, ["task-log"])
    assert log_is_read == [tmp_path]


async def test_the_log_is_read_if_the_process_cannot_answer(
    tmp_path: Path, log_is_read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise BusUnavailable("the bus does not answer")

    tasks = await tasks_of()
    monkeypatch.setattr(tasks, "latest", fail)
    async with serve_task_list(tasks, tmp_path):
        assert await list_ids(tmp_path, ListRequest()) == (False, ["task-log"])
    assert log_is_read == [tmp_path]
