"""`moothall log tail` on a log in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from moothall.cli import main
from moothall.domain.event import EventType
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus


def test_an_unknown_task_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_log(*_: Any, **__: Any) -> AsyncIterator[MemoryBus]:
        bus = MemoryBus()
        started = write(EventType.DELIBERATION_STARTED, "task-1", {"task_id": "task-1"})
        await bus.publish(started)
        yield bus

    monkeypatch.setattr("moothall.app.bus.open_log", open_log)
    known = CliRunner().invoke(main, ["log", "tail", "--task", "task-1"])
    assert (known.exit_code, "deliberation.started" in known.stdout) == (0, True), known.output
    unknown = CliRunner().invoke(main, ["log", "tail", "--task", "task-2"])
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "no events of task 'task-2'" in unknown.stderr
    late = CliRunner().invoke(main, ["log", "tail", "--task", "task-1", "--after", "9"])
    assert (late.exit_code, late.stdout) == (0, "")
