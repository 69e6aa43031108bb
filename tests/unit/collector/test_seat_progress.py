from __future__ import annotations

from typing import Any

import pytest

from moothall.collector.overview import Overview
from moothall.collector.progress import ENDED, Progress, apply_event
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.ids import LOCAL, Principal, TaskId
from moothall.errors import NotFound
from moothall.testing.bus import MemoryBus
from support.story import SEATS, Story, full

ONE = SEATS[0]


def progress_of(events: list[Event]) -> Progress:
    progress = Progress()
    for seq, event in enumerate(events, 1):
        progress, _ = apply_event(progress, Recorded(seq, event))
    return progress


def turn(story: Story, seat: str = ONE, **fields: Any) -> Story:
    tools = [{"tool": f"files.{number}", "status": "success"} for number in range(3)]
    return story.add(EventType.SEAT_TURN, {"seat": seat, "turn": 1, "operations": tools, **fields})


def test_a_lane_shows_turns_tools_checks_and_the_last_text() -> None:
    story = Story().begun()
    story.add(
        EventType.MODEL_CALLED,
        {"seat": ONE, "call_id": "c", "phase": "propose", "usage": {}, "answer": "raw"},
    )
    assert progress_of(story.events).seats[ONE].last_message == "raw"
    turn(story, thought="I add it.", checks={"tests": "failed"})
    for _ in range(3):
        turn(story, checks={})
    lane = progress_of(story.events).seats[ONE]
    assert (lane.approach, lane.phase, lane.turns, lane.tool_call_count) == (
        "plainly",
        "propose",
        4,
        12,
    )
    assert (len(lane.tools), lane.tools[-1]) == (8, ("files.2", "success"))
    assert (lane.checks, lane.last_message, lane.activity) == (
        {"tests": "failed"},
        "I add it.",
        "waits for the model",
    )
    assert lane.started_at
    assert not lane.ended_at
    assert progress_of(story.failed(ONE).events).seats[ONE].ended_at


def test_a_review_is_no_message_of_its_seat() -> None:
    story = turn(Story().begun(), thought="I add it.")
    review = {"seat": ONE, "call_id": "c", "phase": "verify", "usage": {}, "answer": '{"score": 8}'}
    story.add(EventType.MODEL_CALLED, review)
    assert progress_of(story.events).seats[ONE].last_message == "I add it."


def test_a_seat_waits_for_the_model_runs_its_tools_and_waits_for_the_decision() -> None:
    story = Story().begun()
    assert progress_of(story.events).seats[ONE].activity == "waits for the model"
    call = {"seat": ONE, "call_id": "c", "phase": "propose", "usage": {}, "answer": ""}
    story.add(EventType.MODEL_CALLED, {**call, "calls": [{"name": "shell"}]})
    assert progress_of(story.events).seats[ONE].activity == "runs its tools"
    turn(story)
    assert progress_of(story.events).seats[ONE].activity == "waits for the model"
    story.proposed(ONE, "diff")
    assert progress_of(story.events).seats[ONE].activity == "waits for checks and reviews"
    story.checked(ONE)
    assert progress_of(story.events).seats[ONE].activity == "waits for the decision"


def test_the_last_message_is_limited() -> None:
    story = turn(Story().begun(), thought="x" * 5_000)
    assert len(progress_of(story.events).seats[ONE].last_message) == 2_000


@pytest.mark.parametrize(
    "data",
    [
        {"operations": 1},
        {"operations": [1], "checks": [], "thought": 3},
        {"seat": 4},
        {"seat": "nobody"},
    ],
)
def test_malformed_turns_are_ignored(data: dict[str, Any]) -> None:
    story = Story().begun().add(EventType.SEAT_TURN, {"seat": ONE, **data})
    lane = progress_of(story.events).seats[ONE]
    assert (lane.tool_call_count, lane.checks, lane.last_message) == (0, {}, "")


def test_the_phase_follows_the_events() -> None:
    story = Story().requested()
    assert progress_of(story.events).phase == "asked for"
    assert (
        progress_of(
            [
                *story.events,
                Story().add(EventType.AGENT_PROGRESS, {"current_task": "setup"}).events[0],
            ]
        ).phase
        == "preparing"
    )
    story = Story().begun()
    assert progress_of(story.events).phase == "proposing"
    for seat in SEATS:
        story.proposed(seat, seat)
    assert progress_of(story.events).phase == "re-checking"
    assert progress_of(story.reviewed(SEATS[1], ONE, 0.5).events).phase == "reviewing"
    story.add(EventType.MODEL_CALLED, {"seat": ONE, "call_id": "r", "phase": "revise", "usage": {}})
    assert progress_of(story.events).phase == "revising"
    for seat in SEATS:
        story.finished(seat)
    assert progress_of(story.events).phase == "ranking"
    assert (
        progress_of(story.add(EventType.DELIBERATION_CANCELLED, {"reason": "r"}).events).phase
        == "stopping"
    )
    assert (
        progress_of(story.add(EventType.DELIBERATION_DECIDED, {"status": "COMPLETED"}).events).phase
        == "decided"
    )


async def test_a_later_read_shows_new_progress_and_another_tenant_sees_nothing() -> None:
    bus, events = MemoryBus(), full().events
    overview = Overview(bus, tuple)
    with pytest.raises(NotFound):
        await overview.get_progress(TaskId("task-a"), LOCAL)
    for event in events[:5]:
        await bus.publish(event)
    progress_before = await overview.get_progress(TaskId("task-a"), LOCAL)
    for event in events[5:]:
        await bus.publish(event)
    progress_after = await overview.get_progress(TaskId("task-a"), LOCAL)
    assert progress_before.percent < progress_after.percent
    assert progress_after.percent == progress_of(events).percent
    assert all(lane.activity == ENDED for lane in progress_after.seats.values())
    with pytest.raises(NotFound):
        await overview.get_progress(TaskId("task-a"), Principal("eve", "elsewhere"))


def test_a_text_proposal_waits_for_reviews() -> None:
    request = {"seats": [*SEATS], "role": "dev", "protocol": "vote"}
    story = Story().add(EventType.DELIBERATION_REQUESTED, request)
    progress = progress_of(story.add(EventType.SEAT_PROPOSED, {"seat": ONE}).events)
    assert progress.seats[ONE].activity == "waits for the reviews"
