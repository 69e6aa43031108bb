"""The comparison of a council's candidates: a row for each of them, and the reasons that all of
them share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moothall.collector.decide import collect_candidates
from moothall.collector.fold import DeliberationState
from moothall.collector.progress import Progress
from moothall.domain.budget import Usage
from moothall.domain.event import seconds_between
from moothall.domain.evidence import Verdict
from moothall.domain.outcome import Outcome, Result
from moothall.domain.proposal import Candidate
from moothall.ranking.order import ABOVE, NO_CHECKS, level_prefix
from moothall.stories.diff_lines import read_files


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
    first, *others = results
    return tuple(
        reason for reason in first.reasons if all(reason in other.reasons for other in others)
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
