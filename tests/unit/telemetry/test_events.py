from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import moothall
from moothall import telemetry
from moothall.domain.event import EventType, new_event, request_event_id
from moothall.domain.ids import TaskKey
from moothall.domain.task import Deliberation
from moothall.telemetry.tracing import write, write_of

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUESTED = Deliberation(
    TaskKey("task-1"),
    "do it",
    "dev",
    "vote",
    ("a",),
    0,
    datetime(2026, 1, 2, tzinfo=UTC),
    2,
    story_id="story-1",
    tenant="acme",
)


def test_an_event_has_a_timestamp_and_the_current_trace() -> None:
    started = datetime.now(UTC)
    with telemetry.span("work", parent=TRACE):
        event = write(
            EventType.TOOL_STARTED, "ws-1", {"tool": "files.read"}, ordinal="r-1", source="executor"
        )
    assert event.traceparent == TRACE
    assert (
        started - timedelta(milliseconds=1)
        <= datetime.fromisoformat(event.time)
        <= datetime.now(UTC)
    )
    assert event.id == new_event(EventType.TOOL_STARTED, "ws-1", {}, ordinal="r-1").id, (
        "a repeat has the same id"
    )
    assert (
        write(EventType.TOOL_STARTED, "ws-1", {}, time="2026-01-02T00:00:00Z").time
        == "2026-01-02T00:00:00Z"
    )


def test_an_event_of_a_deliberation_names_its_task_its_story_and_its_cause() -> None:
    event = write_of(REQUESTED, EventType.SEAT_FINISHED, {"seat": "a"}, ordinal="a", source="host")
    assert (event.subject, event.correlationid, event.tenant, event.source) == (
        "task-1",
        "story-1",
        "acme",
        "host",
    )
    assert event.data == {"task_id": "task-1", "seat": "a"}
    assert event.causationid == request_event_id(TaskKey("task-1"))


def test_events_are_created_in_one_place() -> None:
    source = Path(moothall.__file__).parent
    callers = {
        path.name
        for path in source.rglob("*.py")
        if "testing" not in path.parts and "new_event(" in path.read_text()
    }
    assert callers == {"event.py", "tracing.py"}
