"""Proposals, their reviews, and the results of seats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moothall.domain.budget import Usage
from moothall.domain.evidence import (
    ALREADY_DONE,
    CONTRADICTION,
    OWN_TESTS,
    SUPERSEDED,
    TEST_WRITER,
    TIE_BREAKER,
    Evidence,
    EvidenceLevel,
    Verdict,
)
from moothall.domain.ids import digest
from moothall.domain.tool import ToolUsage


@dataclass(frozen=True, slots=True)
class Operation:
    """A tool call that contributed to a proposal. The digest is the sha256 of its canonical
    arguments.
    """

    tool: str
    arguments_digest: str
    status: str
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A seat's answer. `revision` 0 is the original. `diff` is a git diff against the base commit,
    empty in a deliberation about text, in which `content` is the answer itself. `own_tests` are the
    paths of test files that the author added or changed. `message`: the messages of the author's
    own commits.
    """

    seat: str
    role: str
    content: str
    diff: str = ""
    commit_sha: str = ""
    revision: int = 0
    operations: tuple[Operation, ...] = ()
    own_tests: tuple[str, ...] = ()
    created_at_ms: int = 0
    message: str = ""

    @property
    def candidate(self) -> str:
        """The candidate's name, unique within the deliberation."""
        return self.seat if self.revision == 0 else f"{self.seat}.r{self.revision}"

    @property
    def fingerprint(self) -> str:
        """A digest of the content, equal for equal proposals. Evidence for one content never counts
        for another.
        """
        return digest(self.diff or self.content)[:16]


@dataclass(frozen=True, slots=True)
class Review:
    """A seat's review of another seat's candidate. `score` is 0..1; `met` and `unmet` quote
    requirements.
    """

    reviewer: str
    candidate: str
    score: float
    met: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    comment: str = ""


class SeatStatus(StrEnum):
    """How a seat ended."""

    PROPOSED = "proposed"
    FAILED = "failed"
    LATE = "late"
    CANCELLED = "cancelled"
    UNSTARTED = "unstarted"


OUT_OF_PATIENCE = "OUT_OF_PATIENCE"
"""The code of a seat that was stopped because there is a proven answer."""


@dataclass(frozen=True, slots=True)
class SeatOutcome:
    """The result of a seat. A failed seat is a value with a stable error code, never an exception.

    `duration_ms` is from the request to the end, 0 if it is unknown. `tools`: the usage of its
    tools and checks.
    """

    seat: str
    status: SeatStatus
    error_code: str = ""
    error_message: str = ""
    usage: Usage = Usage()
    duration_ms: int = 0
    tools: ToolUsage = ToolUsage()


_WORK, _PROPOSED, _CHECKED, _REVIEWED = (
    0.6,
    0.7,
    0.8,
    0.9,
)  # the progress of a seat after its turns, its proposal, the checks and the reviews

_USUAL_TURNS = 12  # few seats need more, whatever the limit


def seat_progress(
    turns: int,
    max_turns: int,
    *,
    proposed: bool = False,
    checked: bool = False,
    reviewed: bool = False,
    ended: bool = False,
) -> float:
    """Return the progress of a seat, 0..1, after so many turns of at most `max_turns`."""
    if ended:
        return 1.0
    if proposed:
        return _REVIEWED if reviewed else _CHECKED if checked else _PROPOSED
    return min(1.0, turns / max(1, min(max_turns, _USUAL_TURNS))) * _WORK


_AGENTS = frozenset({TEST_WRITER, TIE_BREAKER})  # authors of tests that propose nothing


@dataclass(frozen=True, slots=True)
class CrossRun:
    """A run of another author's tests on a candidate. `passed` is True if all of them passed;
    `cases` names some that passed, `failed` some that did not.
    """

    author: str
    passed: bool
    cases: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result of the clean re-check of a proposal.

    `applies` is False if the patch was empty or did not apply to a clean checkout. `behaviour` is
    equal for candidates that no test could tell apart. `regressions` are tests that passed on the
    base and no longer do. `fixed` are tests not by the author that failed on the base and pass now.
    `still_red` failed on the base and still do. `unsolved`: those of them, for an unproven
    candidate, that concern the change or the task. `missed`: the task asks for one of them to pass.
    `unrelated` pass now but have nothing to do with the change. `evidence` has one entry for every
    check, also for those that did not run. `look` are lines that a person should look at before the
    candidate counts as proven. `change` is equal for candidates whose code differs only in comments
    and strings. `idle`: only such text changes, but the task asks for more. `confirmed` is False if
    the cases in `fixed` passed in one run only, because the candidate could not win.
    """

    applies: bool
    required: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()
    proven: bool = False
    behaviour: str = ""
    evidence: tuple[Evidence, ...] = ()
    fixed: tuple[str, ...] = ()
    still_red: tuple[str, ...] = ()
    look: tuple[str, ...] = ()
    change: str = ""
    idle: bool = False
    unsolved: tuple[str, ...] = ()
    missed: bool = False
    unrelated: tuple[str, ...] = ()
    confirmed: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal with everything known about it, as used by ranking. `cross` has only accepted
    tests of other authors.

    `missing`: reviewers that were asked but gave no review. `details`: the output of cases that
    fail because of the proposal; only its evaluation has it.
    """

    proposal: Proposal
    assessment: Assessment
    cross: tuple[CrossRun, ...] = ()
    reviews: tuple[Review, ...] = ()
    about_text: bool = False
    missing: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def proven(self) -> bool:
        """Whether a test of the repository or of the caller failed on the base and passes. In a
        candidate that is not confirmed, it has passed once.
        """
        return self.assessment.proven

    @property
    def superseded(self) -> frozenset[str]:
        """The tests that it breaks because they expect what the task asks to change."""
        return frozenset(
            case
            for item in self.assessment.evidence
            if item.check == SUPERSEDED
            for case in item.shown
        )

    @property
    def own_failing(self) -> int:
        """The number of its author's new tests that fail with it."""
        return sum(item.failed for item in self.assessment.evidence if item.check == OWN_TESTS)

    @property
    def already_done(self) -> bool:
        """Whether it shows that the base already does what the task asks for."""
        return any(
            item.check == ALREADY_DONE and item.verdict is Verdict.PASSED
            for item in self.assessment.evidence
        )

    @property
    def reproducing(self) -> tuple[CrossRun, ...]:
        """The passed runs of other authors' tests that fail on the base.

        Tests of agents that only write tests may pass on the base and only choose between answers;
        such runs have no cases.
        """
        return tuple(
            run
            for run in self.cross
            if run.passed
            and run.author != self.proposal.seat
            and (run.cases or run.author not in _AGENTS)
        )

    @property
    def refuting(self) -> tuple[str, ...]:
        """The authors that propose nothing and whose tests fail on it. Such an answer is not
        reproduced.
        """
        authors = {run.author for run in self.cross if not run.passed and run.author in _AGENTS}
        return tuple(sorted(authors))

    @property
    def level(self) -> EvidenceLevel:
        """The candidate's level of evidence."""
        if self.about_text:
            return EvidenceLevel.UNPROVEN
        if self.proven and self.assessment.confirmed:
            return EvidenceLevel.PROVEN
        if self.reproducing and not self.refuting:
            return EvidenceLevel.REPRODUCED
        return EvidenceLevel.SELF_TESTED if self.brings_tests else EvidenceLevel.UNPROVEN

    @property
    def brings_tests(self) -> bool:
        """Whether the author's own tests count: they fail on the base, pass with the answer and do
        not contradict the task.
        """
        verdicts = {
            item.check: item.verdict
            for item in self.assessment.evidence
            if item.check in {OWN_TESTS, CONTRADICTION}
        }
        return verdicts == {OWN_TESTS: Verdict.PASSED}


@dataclass(frozen=True, slots=True)
class CandidateRank:
    """A candidate's place in the ranking; `rank` from 1, `score` 0..1, reasons for people."""

    candidate: str
    seat: str
    rank: int
    score: float
    reasons: tuple[str, ...]
    passed_gates: bool
    level: EvidenceLevel
    undecided: bool = False
    """Whether no test or review decides between it and the other answers in first place."""

    @property
    def proven(self) -> bool:
        """Whether a test of the repository or of the caller supports it."""
        return self.level is EvidenceLevel.PROVEN
