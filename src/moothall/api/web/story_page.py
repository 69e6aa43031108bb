"""The page of a story: its state and the next action first, then its result and the evidence.
The result of a story: what its merged answer changes, which tests show each criterion, and
how the candidates of its tasks compare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.charts import draw
from moothall.api.web.comparison import ComparedResult, Comparison, candidates_by_key, compare
from moothall.api.web.councils import REFRESH_SECONDS
from moothall.api.web.rendering import page
from moothall.api.web.sessions import Session
from moothall.api.web.story_form import may_edit
from moothall.api.web.story_status import first_steps, is_working, may_merge, moves, next_step
from moothall.collector.progress import Progress
from moothall.domain.event import Event, EventType, seconds_between
from moothall.domain.evidence import OWN_TESTS
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.proposal import Candidate, Review
from moothall.errors import NotFound
from moothall.stories.coach import score
from moothall.stories.lifecycle import lifecycle
from moothall.stories.planner import may_change, may_retry
from moothall.stories.story_state import StoryState
from moothall.stories.task_history import WON, Round, RoundTask, rounds, task_ids

# The result of a story: what its merged answer changes, which tests show each criterion, and how
# the candidates of its tasks compare.


_RESULT_STATES = frozenset({"build", "test", "docs", "done"})
_CONTINUING = frozenset({"repair", "retry"})
"""Plans that continue the work of the plan before; others begin a new design."""
REPOSITORY = "the repository"
OWN = "the author of the answer"


@dataclass(frozen=True, slots=True)
class ShownBy:
    """A test that failed before and passes with an answer, and who wrote it."""

    case: str
    author: str


@dataclass(frozen=True, slots=True)
class CriterionEvidence:
    """A criterion, the numbers of the won tasks that cover it, the tests that support these tasks,
    and the reviewers of their winners by whether they found it met.
    """

    number: int
    text: str
    tasks: tuple[int, ...]
    tests: tuple[ShownBy, ...]
    met: tuple[str, ...]
    unmet: tuple[str, ...]

    @property
    def is_shown(self) -> bool:
        """Whether a test by another author than that of the answer supports it."""
        return any(test.author != OWN for test in self.tests)


@dataclass(frozen=True, slots=True)
class TaskCouncil:
    """A task of a story with the outcome and the progress of its council."""

    task: RoundTask
    outcome: Outcome
    progress: Progress


@dataclass(frozen=True, slots=True)
class StoryResult:
    """The result of a story.

    whole: the check of the merged answer, None before it.
    task_id: the task of that check.
    criteria: the story's criteria, in order.
    candidates: the tasks of the current round that have candidates, with their comparison.
    seconds: from the submission to the check; 0 before it.
    """

    whole: ComparedResult | None
    task_id: str
    criteria: tuple[CriterionEvidence, ...]
    candidates: tuple[tuple[TaskCouncil, Comparison], ...]
    seconds: float

    @property
    def level_reasons(self) -> Mapping[str, str]:
        """Why the winners of tasks that no independent test supports have their level, by task."""
        return {
            council.task.task_id: winner.level_reason
            for council, comparison in self.candidates
            for winner in comparison.rows[:1]
            if not winner.result.level.independent
        }

    @property
    def shares_tests(self) -> bool:
        """Whether a task with tests covers more than one criterion, so that it is unknown which
        test shows which one.
        """
        tasks = [task for item in self.criteria if item.tests for task in item.tasks]
        return len(tasks) > len(set(tasks))


@dataclass(frozen=True, slots=True)
class Councils:
    """The councils of a story: those of the tasks since its design, and that of its check."""

    tasks: tuple[TaskCouncil, ...]
    check: tuple[Outcome, Progress] | None


async def read_councils(
    dependencies: ApiDependencies, card: StoryState, rounds: Sequence[Round], principal: Principal
) -> Councils:
    """Read the councils of a story; those whose records are gone are omitted."""
    if card.position.state not in _RESULT_STATES:
        return Councils((), None)

    async def read(task_id: str) -> tuple[Outcome, Progress] | None:
        try:
            outcome = await dependencies.deliberations.result(TaskId(task_id), principal)
            return outcome, await dependencies.records.tasks.get_progress(
                TaskId(task_id), principal
            )
        except NotFound:
            return None

    tasks = [task for task in _tasks_since_design(rounds) if task.begun]
    check_id = _current_check(card)
    read_ids = [*(task.task_id for task in tasks), *([check_id] if check_id else [])]
    found = await asyncio.gather(*map(read, read_ids))
    check = found.pop() if check_id else None
    councils = [TaskCouncil(task, *one) for task, one in zip(tasks, found, strict=True) if one]
    return Councils(tuple(councils), check)


def _current_check(card: StoryState) -> str:
    """Return the task that checked the merged answer. '' means that no task did, or that the story
    has been sent back since.
    """
    if card.check is None or card.position.state == "build":
        return ""
    if card.position.state == "test" and card.check.data.get("moved") != card.moved:
        return ""
    return str(card.check.data.get("task_id") or "")


def _tasks_since_design(rounds: Sequence[Round]) -> list[RoundTask]:
    """Return the tasks of the last design and of the plans that continued it."""
    tasks: list[RoundTask] = []
    for plan in rounds:
        tasks = [*(tasks if plan.by in _CONTINUING else ()), *plan.steps]
    return tasks


def story_result(
    card: StoryState, councils: Councils, rounds: Sequence[Round], moves: Sequence[Event]
) -> StoryResult:
    """Return the result of a story from its councils."""
    current = {task.task_id for task in rounds[-1].steps} if rounds else set()
    compared = tuple(
        (council, compare(council.outcome, council.progress))
        for council in councils.tasks
        if council.task.task_id in current and council.outcome.results
    )
    rows = compare(*councils.check).rows if councils.check else ()
    return StoryResult(
        whole=rows[0] if rows else None,
        task_id=councils.check[0].task_id if councils.check else "",
        criteria=tuple(
            _criterion(number, text, councils.tasks) for number, text in enumerate(card.story.ac, 1)
        ),
        candidates=compared,
        seconds=_seconds_to_check(card, moves),
    )


def _criterion(number: int, text: str, councils: Iterable[TaskCouncil]) -> CriterionEvidence:
    won = [
        council
        for council in councils
        if council.task.status == WON and text in council.task.criteria
    ]
    tests: dict[str, ShownBy] = {}
    reviews: list[Review] = []
    for council in won:
        for winner in council.outcome.results[:1]:
            reviews += winner.reviews
            key = winner.seat, winner.revision
            candidate = candidates_by_key(council.progress.state).get(key)
            for test in _tests_of(candidate) if candidate else ():
                tests.setdefault(test.case, test)
    return CriterionEvidence(
        number=number,
        text=text,
        tasks=tuple(council.task.number for council in won),
        tests=tuple(tests.values()),
        met=tuple(dict.fromkeys(review.reviewer for review in reviews if text in review.met)),
        unmet=tuple(dict.fromkeys(review.reviewer for review in reviews if text in review.unmet)),
    )


def _tests_of(candidate: Candidate) -> Iterable[ShownBy]:
    """Return the tests that failed before and pass with a candidate, best evidence first."""
    for case in candidate.assessment.fixed:
        yield ShownBy(case, REPOSITORY)
    for run in candidate.reproducing:
        for case in run.cases:
            yield ShownBy(case, run.author)
    if candidate.brings_tests:
        for item in candidate.assessment.evidence:
            for case in item.shown if item.check == OWN_TESTS else ():
                yield ShownBy(case, OWN)


def _seconds_to_check(card: StoryState, moves: Sequence[Event]) -> float:
    submissions = [event.time for event in moves if event.data.get("to_state") == "design"]
    return seconds_between(submissions[-1], card.check.time) if submissions and card.check else 0.0


# The page of a story: its state and the next action first, then its result and the evidence.


Moves = Sequence[tuple[str, str, str]]


async def story_page(dependencies: ApiDependencies, story_id: str, session: Session) -> Response:
    """Return the page of a story."""
    principal = session.principal
    card = await dependencies.stories.board.card(story_id, principal)
    made_moves, events, account, cards = await asyncio.gather(
        dependencies.stories.board.moves(card.story.id, principal),
        dependencies.stories.board.history(card.story.id, principal),
        dependencies.stories.budgets.of(card.story.id, principal.tenant, card.story.budget),
        dependencies.stories.board.cards(principal),
    )
    views = await dependencies.records.tasks.find_tasks(task_ids(events), principal)
    story_rounds = rounds(events, views, card.position.state)
    councils = await read_councils(dependencies, card, story_rounds, principal)
    possible_moves = moves(card, principal)
    can_retry = may_retry(card, principal)
    context: dict[str, Any] = {
        "card": card,
        "states": lifecycle().columns,
        "history": made_moves,
        "rounds": story_rounds[::-1],
        "chart": draw(story_rounds[-1].steps) if story_rounds else None,
        "budget": account.lines(),
        "spent": account.spent,
        "moves": possible_moves,
        "primary": "" if can_retry else _primary_event(card, possible_moves),
        "next_step": next_step(card, principal),
        "may_change": may_change(card, principal),
        "may_edit": may_edit(card, session),
        "can_retry": can_retry,
        "can_merge": may_merge(card, principal),
        "delivery": card.delivery.data if card.delivery else {},
        "comments": [event for event in events if event.type is EventType.STORY_COMMENTED],
        "key": new_task_id(),
        "score": score(card.draft),
        "refresh": REFRESH_SECONDS if is_working(card) else 0,
        "seq": card.seq,
        "story_id": card.story.id,
        "first_steps": first_steps(cards),
    }

    # In a thread, because the diffs of its answers may be large.
    result = await asyncio.to_thread(story_result, card, councils, story_rounds, made_moves)
    return page("story.html", session=session, result=result, **context)


def _primary_event(card: StoryState, possible_moves: Moves) -> str:
    """Return the move that takes a story on, '' if the user cannot make it now."""
    transition = lifecycle().next_transition(card.position.state)
    open_events = {event for event, _, reason in possible_moves if not reason}
    return transition.event if transition and transition.event in open_events else ""
