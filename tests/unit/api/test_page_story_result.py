"""The result of a story: which tests show each criterion, from the events of its councils."""

from __future__ import annotations

from typing import Any

from moothall.api.web.results import (
    AUTHOR,
    REPOSITORY,
    Councils,
    ShownBy,
    StoryResult,
    TaskCouncil,
    story_result,
)
from moothall.collector.decide import decide
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.progress import Progress
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import OWN_TESTS, Evidence, Verdict
from moothall.domain.ids import TaskId
from moothall.domain.plan import Story as PlannedStory
from moothall.domain.proposal import Review
from moothall.stories.story_state import StoryState
from moothall.stories.task_history import WON, Round, RoundTask
from moothall.telemetry.tracing import write
from support.story import SEATS, Story

FIRST, SECOND, _ = SEATS
CRITERIA = ("It greets.", "It is polite.", "It is quiet.")


def council(
    number: int,
    *criteria: str,
    fixed: tuple[str, ...] = (),
    own_tests: tuple[str, ...] = (),
    **fields: Any,
) -> TaskCouncil:
    """Return a task whose council has one candidate."""
    story = Story(f"task-{number}").begun().proposed(FIRST, "good")
    evidence = [Evidence("tests", Verdict.PASSED, passed=1)]
    if own_tests:
        evidence.append(Evidence(OWN_TESTS, Verdict.PASSED, shown=own_tests))
    facts = {"applies": True, "required": ["tests"], "proven": bool(fixed), "fixed": fixed}
    common = {"seat": FIRST, "candidate": FIRST}
    for item in evidence:
        story.add(EventType.CHECK_FINISHED, {**common, "evidence": dump(item)})
    applies = dump(Evidence("applies", Verdict.PASSED))
    story.add(EventType.CHECK_FINISHED, {**common, "evidence": applies, "assessment": facts})
    if review := fields.get("review"):
        story.add(
            EventType.SEAT_REVIEWED, {"seat": SECOND, "candidate": FIRST, "review": dump(review)}
        )
    state: DeliberationState | None = None
    for event in story.events:
        state = fold(state, event)
    assert state is not None
    outcome = decide(state)
    task = RoundTask(
        number,
        TaskId(f"task-{number}"),
        "dev",
        "",
        status=fields.get("status", WON),
        begun=True,
        criteria=criteria,
    )
    return TaskCouncil(task, outcome, Progress(state, outcome.status))


def result_of(*councils: TaskCouncil) -> StoryResult:
    card = StoryState(PlannedStory("story-1", "Greet", ac=CRITERIA))
    plan = Round("plan-1", "architects", "", "", tuple(item.task for item in councils), "")
    return story_result(card, Councils(councils, None), [plan], ())


def test_a_criterion_is_shown_only_by_the_tests_of_its_tasks() -> None:
    review = Review(SECOND, FIRST, 0.9, met=(CRITERIA[0],), unmet=(CRITERIA[1],))
    result = result_of(
        council(1, CRITERIA[0], fixed=("test_greets",), review=review),
        council(2, CRITERIA[1], own_tests=("test_polite",)),
    )
    greets, polite, quiet = result.criteria
    assert (greets.tests, greets.is_shown) == ((ShownBy("test_greets", REPOSITORY),), True)
    assert (greets.met, greets.unmet) == ((SECOND,), ())
    assert (polite.tests, polite.is_shown) == ((ShownBy("test_polite", AUTHOR),), False)
    assert (quiet.tests, quiet.tasks) == ((), ())
    assert not result.shares_tests
    assert not result.has_independent_winners, "the second one is self-tested"
    assert [item.task.number for item, _ in result.candidates] == [1, 2]
    (reason,) = result.level_reasons.items()
    assert reason == (
        "task-2",
        "only its author's own tests fail on the base and pass with it: test_polite.",
    )


def test_tests_of_a_task_with_several_criteria_are_marked_as_shared() -> None:
    result = result_of(council(1, *CRITERIA[:2], fixed=("test_greets",)))
    assert [len(item.tests) for item in result.criteria] == [1, 1, 0]
    assert result.shares_tests
    assert result.has_independent_winners


def test_a_task_without_a_winner_is_no_evidence_for_a_criterion() -> None:
    result = result_of(council(1, CRITERIA[0], fixed=("test_greets",), status="no winner"))
    assert result.criteria[0].tasks == ()
    assert result.criteria[0].tests == ()


def test_the_duration_is_from_the_last_submission_to_the_check() -> None:
    def event(kind: EventType, time: str, **data: str) -> Any:
        return write(kind, "story-1", {"story_id": "story-1", **data}, time=time)

    moves = [
        event(EventType.STORY_TRANSITIONED, "2026-01-01T00:00:00Z", to_state="design"),
        event(EventType.STORY_TRANSITIONED, "2026-01-01T00:01:00Z", to_state="design"),
    ]
    check = event(EventType.STORY_CHECKED, "2026-01-01T00:03:00Z")
    card = StoryState(PlannedStory("story-1", "Greet", ac=CRITERIA), check=check)
    assert story_result(card, Councils((), None), (), moves).seconds == 120
