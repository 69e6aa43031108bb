from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.collector.decide import decide, is_ready, pending_outcome
from moothall.collector.fold import DeliberationState, fold
from moothall.domain.budget import Usage
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import SeatStatus
from moothall.errors import InvalidRequest
from support.story import DEADLINE, SEATS, START, Story, full

FIRST, SECOND, THIRD = SEATS
SOON, LATE = START, DEADLINE + timedelta(seconds=11)


def state_of(events: Iterable[Event]) -> DeliberationState:
    state = None
    for event in events:
        state = fold(state, event)
    assert state is not None
    return state


def outcome_of(story: Story) -> Outcome:
    return decide(state_of(story.events))


WHOLE = full().events


@given(st.permutations(WHOLE), st.lists(st.sampled_from(WHOLE)), st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(
    order: list[Event], repeated: list[Event], chance: object
) -> None:
    events = [*order]
    for event in repeated:
        events.insert(chance.randrange(len(events) + 1), event)  # type: ignore[attr-defined]  # hypothesis's Random
    assert state_of(events) == state_of(WHOLE)
    assert decide(state_of(events)) == decide(state_of(WHOLE))


@given(st.data())
def test_the_earlier_of_two_events_with_one_key_counts(data: st.DataObject) -> None:
    story = full()
    story.finished(FIRST, SeatStatus.LATE).proposed(FIRST, "other").checked(
        FIRST, passed=False
    ).called(FIRST, f"task-a/{FIRST}/propose/0.0", 99)
    order = data.draw(st.permutations(story.events))
    assert decide(state_of(order)) == decide(state_of(WHOLE)) == decide(state_of(story.events))


@given(st.sets(st.integers(0, len(WHOLE) - 1)))
def test_any_subset_of_events_gives_an_outcome_and_a_winner_has_evidence(
    lost_indexes: set[int],
) -> None:
    events = [event for index, event in enumerate(WHOLE) if index == 0 or index not in lost_indexes]
    state = state_of(events)
    assert is_ready(state, LATE)
    outcome = decide(state)
    assert outcome.status.ended
    assert outcome.final_state
    assert {seat.seat for seat in outcome.seats} == set(SEATS)
    if outcome.winner_id:
        assert outcome.results[0].evidence
        assert any(name == FIRST for name, _ in state.proposals)
        assert any(name == FIRST for name, _ in state.assessments)
    else:
        assert outcome.error_message


def test_the_proven_candidate_wins() -> None:
    outcome = outcome_of(full())
    assert (outcome.status, outcome.winner_id, outcome.proven, outcome.final_state) == (
        "COMPLETED",
        FIRST,
        True,
        "committed",
    )
    assert [(item.rank, item.seat, item.passed_gates) for item in outcome.results] == [
        (1, FIRST, True),
        (2, SECOND, False),
    ]
    assert [item.check for item in outcome.results[0].evidence] == ["applies", "tests"]
    assert [(item.reviewer, item.candidate, item.score) for item in outcome.results[0].reviews] == [
        (SECOND, FIRST, 0.9)
    ]
    assert "Passes the tests of another author." in outcome.results[0].reasons
    assert [seat.status for seat in outcome.seats] == ["proposed", "proposed", "failed"]
    assert outcome.seats[2].error_code == "MODEL_UNAVAILABLE"
    assert outcome.usage == Usage(17, 0, 2, 2, 0.2)
    assert outcome.seats[0].usage == Usage(10, 0, 1, 1, 0.1)
    assert outcome.duration_ms == (len(WHOLE) - 1) * 1000
    assert (outcome.role, outcome.story_id, outcome.agent_count) == ("dev", "story-1", 3)


def test_a_decision_is_ready_once_all_seats_ended_or_at_a_cancel_or_the_deadline() -> None:
    events = full().events
    assert not is_ready(DeliberationState(TaskKey("task-a")), LATE)
    assert not is_ready(state_of(events[:-1]), SOON)
    assert not is_ready(state_of(events[:-1]), DEADLINE + timedelta(seconds=9))
    assert is_ready(state_of(events[:-1]), DEADLINE + timedelta(seconds=10))
    assert is_ready(state_of(events), SOON)
    assert is_ready(state_of(Story().begun().cancelled().events), SOON)
    decided = new_event(EventType.DELIBERATION_DECIDED, "task-a", dump(outcome_of(full())))
    assert not is_ready(state_of([*events, decided]), LATE)


def test_a_council_whose_seats_all_failed_has_failed() -> None:
    story = Story().begun()
    for seat, code in zip(
        SEATS, ("MODEL_UNAVAILABLE", "MODEL_UNAVAILABLE", "BUDGET_EXCEEDED"), strict=True
    ):
        story.failed(seat, code).finished(seat, SeatStatus.FAILED, code)
    outcome = outcome_of(story)
    assert (outcome.status, outcome.final_state, outcome.winner_id) == ("FAILED", "failed", "")
    assert (
        outcome.error_message
        == "No seat proposed anything: 1 x BUDGET_EXCEEDED, 2 x MODEL_UNAVAILABLE."
    )


def test_there_is_no_winner_if_no_candidate_passes_the_acceptance_checks() -> None:
    story = Story().begun().proposed(FIRST, "bad").checked(FIRST, passed=False).finished(FIRST)
    outcome = outcome_of(
        story.finished(SECOND, SeatStatus.FAILED, "X").finished(THIRD, SeatStatus.UNSTARTED)
    )
    assert (outcome.status, outcome.final_state, outcome.winner_id) == (
        "COMPLETED",
        "no_winner",
        "",
    )
    assert "Required check tests failed" in outcome.error_message


def test_an_unchecked_proposal_does_not_win() -> None:
    story = (
        Story()
        .begun()
        .proposed(FIRST, "good")
        .finished(FIRST)
        .finished(SECOND, SeatStatus.FAILED, "X")
    )
    outcome = outcome_of(story.finished(THIRD, SeatStatus.FAILED, "X"))
    assert outcome.final_state == "no_winner"
    assert "clean re-check is missing" in outcome.error_message


@pytest.mark.parametrize("evaluated", [1, 2])
def test_a_quorum_decides_at_the_deadline_and_fewer_seats_are_a_timeout(evaluated: int) -> None:
    story = Story().begun()
    for seat in SEATS[:evaluated]:
        story.proposed(seat, f"good {seat}").checked(seat).finished(seat)
    outcome = outcome_of(story.proposed(THIRD, "not checked"))
    assert outcome.seats[2].status is SeatStatus.LATE
    assert outcome.duration_ms == 600_000
    if evaluated == 1:
        assert (outcome.status, outcome.final_state, outcome.winner_id) == (
            "TIMEOUT",
            "timeout",
            "",
        )
        assert (
            outcome.error_message
            == "The time ran out when 1 of 3 seats had proposed and were checked; 50% were needed."
        )
        assert len(outcome.results) == 2
    else:
        assert outcome.status is DeliberationStatus.COMPLETED
        assert outcome.winner_id in SEATS[:2]


def test_events_after_the_deadline_do_not_count() -> None:
    story = Story().begun().proposed(FIRST, "good").checked(FIRST).finished(FIRST)
    outcome_before = outcome_of(story)
    for seat in (SECOND, THIRD):
        story.finished(seat, at=611)
    assert outcome_of(story.cancelled(at=700)) == outcome_before


def test_unstarted_seats_are_not_required() -> None:
    story = (
        Story()
        .begun()
        .proposed(FIRST, "good")
        .checked(FIRST)
        .finished(FIRST)
        .finished(SECOND, SeatStatus.UNSTARTED)
    )
    assert outcome_of(story).winner_id == FIRST


def test_a_proven_answer_wins_without_most_seats() -> None:
    story = Story().begun().proposed(FIRST, "good").checked(FIRST).finished(FIRST)
    for seat in (SECOND, THIRD):
        story.finished(seat, SeatStatus.LATE, "OUT_OF_PATIENCE")
    outcome = outcome_of(story)
    assert (outcome.status, outcome.winner_id, outcome.proven) == ("COMPLETED", FIRST, True)
    assert [seat.status for seat in outcome.seats] == ["proposed", "late", "late"]


def test_a_seat_that_failed_without_finishing_keeps_its_error() -> None:
    outcome = outcome_of(Story().begun().failed(FIRST, "BUDGET_EXCEEDED"))
    assert (outcome.status, outcome.seats[0].status, outcome.seats[0].error_code) == (
        "TIMEOUT",
        "failed",
        "BUDGET_EXCEEDED",
    )


def test_a_cancelled_outcome_gives_the_reason() -> None:
    outcome = outcome_of(
        Story().begun().proposed(FIRST, "good").checked(FIRST).cancelled("changed my mind")
    )
    assert (outcome.status, outcome.final_state, outcome.winner_id) == (
        "CANCELLED",
        "cancelled",
        "",
    )
    assert outcome.error_message == "Cancelled: changed my mind"
    assert {seat.status for seat in outcome.seats} == {SeatStatus.CANCELLED}
    assert len(outcome.results) == 1


def test_a_text_council_is_decided_by_reviews_and_commits_nothing() -> None:
    outcome = outcome_of(full(text=True))
    assert (outcome.status, outcome.final_state, outcome.winner_id, outcome.proven) == (
        "COMPLETED",
        "answered",
        FIRST,
        False,
    )
    assert outcome.results[0].content == "good"


def test_events_of_an_unrequested_seat_are_ignored() -> None:
    story = full()
    assert outcome_of(
        story.proposed("agent-dev-009", "mine").checked("agent-dev-009")
    ) == outcome_of(full())


def test_the_pending_outcome_shows_the_status_while_it_runs() -> None:
    story = Story().requested()
    waiting = pending_outcome(state_of(story.events))
    running = pending_outcome(state_of(Story().begun().events))
    assert waiting is not None
    assert running is not None
    assert (waiting.status, running.status, running.agent_count) == ("PENDING", "IN_PROGRESS", 3)
    assert pending_outcome(DeliberationState(TaskKey("task-a"))) is None


@pytest.mark.parametrize(
    ("kind", "data", "named"),
    [
        (EventType.SEAT_PROPOSED, {"task_id": "task-a"}, "proposal"),
        (EventType.SEAT_PROPOSED, {"task_id": "task-a", "proposal": {"seat": 3}}, "seat"),
        (
            EventType.SEAT_FINISHED,
            {"task_id": "task-a", "seat": FIRST, "outcome": {"status": "won"}},
            "status",
        ),
        (EventType.CHECK_FINISHED, {"task_id": "task-a", "evidence": {}}, "candidate"),
        (
            EventType.CHECK_FINISHED,
            {"task_id": "task-a", "candidate": FIRST, "evidence": {"check": "x", "verdict": "?"}},
            "verdict",
        ),
        (EventType.MODEL_CALLED, {"task_id": "task-a", "usage": {"calls": "many"}}, "calls"),
        (EventType.SEAT_FAILED, {"task_id": "task-a", "seat": FIRST, "error": "x"}, "error"),
        (EventType.SEAT_STARTED, {}, "task_id"),
        (EventType.SEAT_STARTED, {"task_id": "task-b"}, "task-b"),
    ],
)
def test_a_malformed_event_is_refused_with_the_field(
    kind: EventType, data: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        fold(DeliberationState(TaskKey("task-a")), new_event(kind, "task-a", data))


@pytest.mark.parametrize("time", ["yesterday", "0001-01-01T00:00:00+10:00"])
def test_a_malformed_time_is_refused(time: str) -> None:
    with pytest.raises(InvalidRequest, match="RFC 3339"):
        fold(None, new_event(EventType.SEAT_STARTED, "task-a", {"task_id": "task-a"}, time=time))


@pytest.mark.parametrize(
    "deadline", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59", "9999-12-31T23:59:59-10:00"]
)
def test_a_deadline_at_the_end_of_time_means_no_deadline(deadline: str) -> None:
    events = Story().begun().events
    request = new_event(
        EventType.DELIBERATION_REQUESTED, "task-a", {**events[0].data, "deadline": deadline}
    )
    assert not is_ready(state_of([request, *events[1:]]), LATE)


def test_deciding_an_unrequested_deliberation_is_a_bug() -> None:
    with pytest.raises(ValueError, match="never requested"):
        decide(DeliberationState(TaskKey("task-a")))
