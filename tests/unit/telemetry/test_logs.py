from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moothall import telemetry
from moothall.telemetry.tracing import log_context

PROGRAM = """
import asyncio
from moothall import telemetry
from moothall.config import LogSettings

telemetry.configure_logs(LogSettings(format="json"))
log = telemetry.get_logger("moothall.test")

async def seat(name):
    with telemetry.bound(seat=name):
        await asyncio.sleep(0)
        log.info("begun")

async def main():
    with telemetry.span("call", parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), telemetry.bound(task_id="task-a"):
        async with asyncio.TaskGroup() as group:
            group.create_task(seat("one"))
            group.create_task(seat("two"))
        log.info("own", task_id="task-b")
    log.info("after")

asyncio.run(main())
"""  # noqa: E501 - a line of embedded text


@pytest.mark.e2e  # a process each
def test_log_lines_contain_task_seat_and_trace() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    lines = [json.loads(line) for line in completed.stderr.splitlines()]
    assert [(line["event"], line.get("task_id"), line.get("seat")) for line in lines] == [
        ("begun", "task-a", "one"),
        ("begun", "task-a", "two"),
        ("own", "task-b", None),
        ("after", None, None),
    ]
    assert {line.get("trace_id") for line in lines[:3]} == {"0af7651916cd43dd8448eb211c80319c"}
    assert lines[0]["span_id"] == "b7ad6b7169203331"
    assert "trace_id" not in lines[3]


def test_nothing_is_logged_without_bound_values() -> None:
    with telemetry.bound(task_id="task-a"), telemetry.bound(seat="one"):
        assert log_context() == {"task_id": "task-a", "seat": "one"}
    assert log_context() == {}


@pytest.mark.e2e  # a process each
def test_no_log_line_contains_a_secret() -> None:
    program = (
        "from moothall import telemetry\nfrom moothall.config import LogSettings\n"
        "telemetry.configure_logs(LogSettings(), secrets=('own-value-1',))\nlog = "
        "telemetry.get_logger('x')\n"
        f"log.warning('said ghp_{'a1B2' * 9}', reason='own-value-1', "
        "url='https://me:s3cret@host')\n"
        "try:\n    raise ValueError('own-value-1')\nexcept ValueError:\n    "
        "log.exception('failed')\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert [completed.stderr.count(word) for word in ("ghp_", "own-value-1", "s3cret")] == [0, 0, 0]
    assert completed.stderr.count("[redacted]") == 3, completed.stderr


@pytest.mark.e2e  # a process each
def test_a_task_and_its_child_tasks_can_log_to_a_separate_file(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "host.log"
    program = f"""
import asyncio
from pathlib import Path
from moothall import telemetry
from moothall.config import LogSettings

telemetry.configure_logs(LogSettings(level="warning"), secrets=("own-value-1",))
log = telemetry.get_logger("x")

async def host():
    telemetry.log_apart(LogSettings(level="info"), Path({str(file)!r}))
    await asyncio.create_task(seat())

async def seat():
    log.info("apart", reason="own-value-1")

async def main():
    log.warning("before")
    await asyncio.create_task(host())
    log.info("omitted")
    log.warning("after")

asyncio.run(main())
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert [word in completed.stderr for word in ("before", "after", "apart", "omitted")] == [
        True,
        True,
        False,
        False,
    ]
    (line,) = file.read_text(encoding="utf-8").splitlines()
    assert "apart" in line
    assert "own-value-1" not in line
