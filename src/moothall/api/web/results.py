"""Results on the pages: the comparison of a council's candidates; and the result of a story, with
the tests that show each criterion, and the comparison of its tasks' candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moothall.api.dependencies import ApiDependencies
from moothall.collector.decide import collect_candidates
from moothall.collector.fold import DeliberationState
from moothall.collector.progress import Progress
from moothall.domain.budget import Usage
from moothall.domain.event import Event, seconds_between
from moothall.domain.evidence import OWN_TESTS, Verdict
from moothall.domain.ids import Principal, TaskId
from moothall.domain.outcome import Outcome, Result
from moothall.domain.proposal import Candidate, Review
from moothall.errors import NotFound
from moothall.ranking.order import ABOVE, NO_CHECKS, level_prefix
from moothall.stories.diff_lines import read_files
from moothall.stories.story_state import StoryState
from moothall.stories.task_history import WON, Round, RoundTask

# The comparison of a council's candidates: a row for each of them, and the reasons that all of them
# share.


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a total."""

    passed: int
    total: int


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """A candidate's row.

    passed_checks, failed_checks: the checks of the repository that pass, and the others.
    tests: the test cases that these checks count, with the author's own ones.
    authors: the other authors whose tests were run on it, and those whose tests all pass.
    review: the mean of its reviews, None without any.
    usage, seconds: those of its seat, zeros if they are unknown.
    reasons: those that it does not share with the others.
    """

    result: Result
    passed_checks: tuple[str, ...]
    failed_checks: tuple[str, ...]
    tests: Share
    authors: Share
    review: float | None
    files: int
    added: int
    removed: int
    usage: Usage
    seconds: float
    reasons: tuple[str, ...]

    @property
    def level_reason(self) -> str:
        """Why it has its level of evidence."""
        return level_reason(self.result)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The candidates of a council, best first. `common_reasons` are shared by the first
    `sharing_count` candidates: by all accepted ones if there are several, or else by all.
    `decisive` is what ranked the first one above the second, '' if nothing was recorded.
    """

    rows: tuple[ComparedResult, ...]
    common_reasons: tuple[str, ...]
    sharing_count: int
    decisive: str

    @property
    def has_cost(self) -> bool:
        """Whether the model server reported prices."""
        return any(row.usage.cost_usd for row in self.rows)


def compare(outcome: Outcome, progress: Progress) -> Comparison:
    """Compare the candidates of a council. The runs of other authors' tests and the durations come
    from its progress.
    """
    candidates = candidates_by_key(progress.state)
    usages = {seat.seat: seat.usage for seat in outcome.seats}
    accepted = [result for result in outcome.results if result.passed_gates]
    sharing = accepted if len(accepted) > 1 else outcome.results
    common = _common_reasons(sharing)
    rows = tuple(
        _row(
            result,
            candidates.get((result.seat, result.revision)),
            usages.get(result.seat, Usage()),
            seconds_between(lane.started_at, lane.ended_at)
            if (lane := progress.seats.get(result.seat))
            else 0.0,
            common if result in sharing else (),
        )
        for result in outcome.results
    )
    decisive = next(
        (
            f"{result.answer} {reason[0].lower()}{reason[1:]}"
            for result in outcome.results[:1]
            for reason in result.reasons
            if reason.startswith(ABOVE)
        ),
        "",
    )
    return Comparison(rows, common, len(sharing), decisive)


def _common_reasons(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the reasons that several results share."""
    if len(results) < 2:  # noqa: PLR2004 - several
        return ()
    first, *other_results = results
    return tuple(
        reason
        for reason in first.reasons
        if all(reason in result.reasons for result in other_results)
    )


def candidates_by_key(state: DeliberationState | None) -> dict[tuple[str, int], Candidate]:
    """Return the recorded candidates by seat and revision."""
    return {
        (candidate.proposal.seat, candidate.proposal.revision): candidate
        for candidate in (collect_candidates(state) if state else ())
    }


def level_reason(result: Result) -> str:
    """Return why a candidate has its level of evidence, or else what the level means. The reason is
    recorded only as a sentence of the ranking.
    """
    prefix = level_prefix(result.level)
    return next(
        (reason.removeprefix(prefix) for reason in result.reasons if reason.startswith(prefix)),
        f"{result.level.meaning}.",
    )


def _row(
    result: Result,
    candidate: Candidate | None,
    usage: Usage,
    seconds: float,
    common: Sequence[str],
) -> ComparedResult:
    checks = [item for item in result.evidence if item.check not in NO_CHECKS]
    passed = sum(item.passed for item in checks)
    votes: dict[str, bool] = {}
    for run in candidate.cross if candidate else ():
        if run.author != result.seat:
            votes[run.author] = votes.get(run.author, True) and run.passed
    files = read_files(result.diff) if result.diff else ()
    scores = [review.score for review in result.reviews]
    return ComparedResult(
        result=result,
        passed_checks=tuple(item.check for item in checks if item.verdict is Verdict.PASSED),
        failed_checks=tuple(item.check for item in checks if item.verdict is not Verdict.PASSED),
        tests=Share(passed, passed + sum(item.failed for item in checks)),
        authors=Share(sum(votes.values()), len(votes)),
        review=sum(scores) / len(scores) if scores else None,
        files=len(files),
        added=sum(file.added for file in files),
        removed=sum(file.removed for file in files),
        usage=usage,
        seconds=seconds,
        reasons=tuple(reason for reason in result.reasons if reason not in common),
    )


# The result of a story: what its merged answer changes, which tests show each criterion, and how
# the candidates of its tasks compare.


_RESULT_STATES = frozenset({"build", "test", "docs", "done"})
_CONTINUING = frozenset({"repair", "retry"})
"""Plans that continue the work of the plan before; others begin a new design."""
REPOSITORY = "the repository"
AUTHOR = "the author of the answer"


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
        return any(test.author != AUTHOR for test in self.tests)


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
    def has_independent_winners(self) -> bool:
        """Whether tests by others than their authors support the winners of all current tasks."""
        return bool(self.candidates) and all(
            comparison.rows[0].result.level.independent for _, comparison in self.candidates
        )

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

    async def read_council(task_id: str) -> tuple[Outcome, Progress] | None:
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
    records = await asyncio.gather(*map(read_council, read_ids))
    check = records.pop() if check_id else None
    councils = [
        TaskCouncil(task, *record) for task, record in zip(tasks, records, strict=True) if record
    ]
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
    compared_results = tuple(
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
        candidates=compared_results,
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
                yield ShownBy(case, AUTHOR)


def _seconds_to_check(card: StoryState, moves: Sequence[Event]) -> float:
    submissions = [event.time for event in moves if event.data.get("to_state") == "design"]
    return seconds_between(submissions[-1], card.check.time) if submissions and card.check else 0.0
