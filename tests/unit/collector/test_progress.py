from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moothall.collector.fold import DeliberationState, fold
from moothall.collector.overview import live_view
from moothall.collector.progress import Progress, ProgressStep, apply_event
from moothall.domain.event import Event, EventType, Recorded, new_event
from moothall.domain.outcome import DeliberationStatus
from support.story import SEATS, Story, full


def steps_of(events: list[Event]) -> list[ProgressStep]:
    progress, steps = Progress(), []
    for seq, event in enumerate(events, 1):
        progress, step = apply_event(progress, Recorded(seq, event))
        steps.append(step)
    return steps


def decision_event(winner: str = SEATS[0]) -> Event:
    data = {
        "task_id": "task-a",
        "status": "COMPLETED",
        "winner_id": winner,
        "proven": True,
        "error_message": "none passes",
    }
    return new_event(EventType.DELIBERATION_DECIDED, "task-a", data)


def test_the_percentage_rises_from_0_to_100() -> None:
    steps = steps_of([*full().events, decision_event()])
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
    assert (steps[0].status, steps[0].percent) == (DeliberationStatus.PENDING, 0)
    assert (steps[1].status, steps[1].percent) == (DeliberationStatus.IN_PROGRESS, 5)
    assert steps[-2].percent == 95
    assert (steps[-1].status, steps[-1].percent) == (DeliberationStatus.COMPLETED, 100)
    middle = [step.percent for step in steps if step.event_type == EventType.SEAT_PROPOSED]
    assert 5 < middle[0] < middle[1] < 95


@given(st.permutations(full().events))
def test_the_percentage_never_falls_in_any_order_of_events(events: list[Event]) -> None:
    percents = [step.percent for step in steps_of([*events, decision_event()])]
    assert percents == sorted(percents)
    assert all(0 <= percent <= 100 for percent in percents)


@given(st.permutations(full().events), st.integers(1, len(full().events)))
def test_watching_and_listing_show_the_same_progress(events: list[Event], count: int) -> None:
    events = [
        full().events[0],
        *(event for event in events if event.type is not EventType.DELIBERATION_REQUESTED),
    ]
    state: DeliberationState | None = None
    for event in events[:count]:
        state = fold(state, event)
    assert state is not None
    listed, watched = live_view(state), steps_of(events[:count])[-1]
    assert (listed.progress, listed.status) == (watched.percent, watched.status)


@given(
    st.sampled_from(EventType),
    st.dictionaries(
        st.sampled_from(["seat", "turn", "seats", "usage", "evidence", "status"]),
        st.integers() | st.text(),
    ),
)
def test_invalid_data_still_gives_a_step(kind: EventType, data: dict[str, object]) -> None:
    step = steps_of([new_event(kind, "task-a", data)])[0]
    assert step.step
    assert step.step.isprintable()


def test_the_steps_name_the_actor_and_the_action() -> None:
    story = Story().begun().called(SEATS[0], "c", 20)
    story.add(EventType.SEAT_TURN, {"seat": SEATS[0], "turn": 2, "operations": [{}, {}]})
    story.failed(SEATS[1]).checked(SEATS[0]).crossed(SEATS[0], SEATS[1], passed=True).reviewed(
        SEATS[1], SEATS[0], 0.5
    )
    sentences = [step.step for step in steps_of([*story.events, decision_event()])]
    assert sentences[0] == "Asked for: 3 seats, protocol vote."
    assert sentences[2] == f"{SEATS[0]} begins: plainly."
    assert sentences[5:] == [
        f"{SEATS[0]} asked the model (propose): 21 tokens.",
        f"{SEATS[0]} finished turn 2 with 2 tool calls.",
        f"{SEATS[1]} failed: went wrong [MODEL_UNAVAILABLE]",
        f"Clean re-check of {SEATS[0]}: tests passed.",
        f"Clean re-check of {SEATS[0]}: applies passed.",
        f"Clean re-check of {SEATS[0]}: tests of {SEATS[1]} passed.",
        f"{SEATS[1]} reviewed {SEATS[0]}: 0.5.",
        f"Decided: {SEATS[0]} wins, proven.",
    ]
    story = Story().called("-", "c", 20)
    story.add(EventType.SEAT_TURN, {"seat": SEATS[0], "turn": 1, "operations": [{}]})
    story.add(EventType.DELIBERATION_RESUMED, {"by": "ada"})
    assert [step.step for step in steps_of(story.events)][-3:] == [
        "The council asked the model (propose): 21 tokens.",
        f"{SEATS[0]} finished turn 1 with 1 tool call.",
        "Resumed by ada.",
    ]
    report = {
        "agent": "tie-breaker",
        "message": "tie-breaker: 2 answers behave the same: tried both",
    }
    reported = new_event(
        EventType.EVIDENCE_REPORTED, "task-a", {"task_id": "task-a", "report": report}
    )
    assert steps_of([reported])[0].step == "tie-breaker: 2 answers behave the same: tried both."
    assert steps_of([decision_event("")])[0].step == "Decided: no winner. none passes"
