"""The verdict on a given change: what the events and the outcome of a judgement say about it.

The document is the output of `moothall judge --json` and the predicate of its signed statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.evidence import (
    CANARY,
    EDITED_TESTS,
    OWN_TESTS,
    TEST_WRITER,
    UNNOTICED,
    Evidence,
    EvidenceLevel,
    Report,
)
from moothall.domain.outcome import Outcome, Result
from moothall.domain.proposal import Review
from moothall.domain.task import CHANGE
from moothall.ranking.order import NO_CHECKS

LEVELS = tuple(level.words for level in reversed(EvidenceLevel))
"""The levels that can be required, the lowest first."""
Finding = Literal["passed", "broken", "disputed", "none"]
_REPOSITORY = "repository"
_MAX_TASK_CHARS, _MAX_ROWS = 4_000, 500
_NO_MODEL = (
    "No model was used: the change was not compared with the task, no independent test was "
    "written, and nobody reviewed it."
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check of the repository with the change. `new_failures` are the first that the base does
    not have; `before` counts the failures that it has.
    """

    check: str
    verdict: str
    passed: int
    failed: int
    skipped: int
    before: int
    new_failures: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A test that distinguishes the base and the answers: its author, and its result for each.

    `author`: repository, change, test-writer or a rival. `base`: failed, passed or unknown.
    `results`: passed or failed by answer.
    """

    case: str
    author: str
    base: str
    results: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rival:
    """A seat that solved the same task, as a comparison."""

    seat: str
    rank: int
    level: str
    passed: bool
    score: float
    lines: int


@dataclass(frozen=True, slots=True)
class VerdictDocument:
    """`moothall judge`: the verdict on a change.

    `finding`: passed (nothing is broken), broken, disputed (it fails only tests that it edits or
    deletes, so a person decides), or none (it could not be judged; `error` tells why). `level` is
    its level of evidence. `accepted`: it passed and is at least at the level `required`.
    `unnoticed` are parts of the change without which no test fails, as path:lines. `not_judged`
    says what was not looked at. `look` are lines for a person. `rank` is its place among its
    rivals.
    """

    task_id: str
    repository: str
    base: str
    head: str
    task: str
    finding: Finding
    level: str
    required: str
    accepted: bool
    reasons: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    matrix: tuple[MatrixRow, ...] = ()
    edited_tests: tuple[str, ...] = ()
    unnoticed: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    look: tuple[str, ...] = ()
    reviews: tuple[Review, ...] = ()
    rank: int = 0
    rivals: tuple[Rival, ...] = ()
    models: tuple[str, ...] = ()
    error: str = ""
    judged_at: str = ""
    version: Literal[1] = 1


class JudgementLog:
    """The events of a judgement that its outcome does not contain."""

    def __init__(self) -> None:
        self.request: Mapping[str, Any] = {}
        self.models: tuple[str, ...] = ()
        self.assessment: Mapping[str, Any] = {}
        self.look: tuple[str, ...] = ()
        self.cross: list[tuple[str, str, Evidence]] = []
        self.reports: list[Report] = []
        self.decided_at = ""

    def add_event(self, recorded: Recorded) -> None:
        """Store the data of an event."""
        event, data = recorded.event, recorded.event.data
        if event.type is EventType.DELIBERATION_REQUESTED:
            self.request = data
        elif event.type is EventType.DELIBERATION_STARTED and not self.request.get("tests_only"):
            models = data.get("models") or ()
            self.models = tuple(str(model.get("model")) for model in models)
        elif event.type is EventType.EVIDENCE_REPORTED:
            self.reports.append(load(Report, data["report"]))
        elif event.type is EventType.CHECK_FINISHED:
            evidence = load(Evidence, data["evidence"])
            if author := data.get("cross_author"):
                self.cross.append((str(author), str(data.get("candidate")), evidence))
            elif data.get("seat") == CHANGE and isinstance(data.get("assessment"), Mapping):
                self.assessment, self.look = data["assessment"], evidence.look
        elif event.type is EventType.DELIBERATION_DECIDED:
            self.decided_at = event.time


def make_verdict(outcome: Outcome, log: JudgementLog, required: str) -> VerdictDocument:
    """Return the verdict on the change of a judgement."""
    result = next((item for item in outcome.results if item.seat == CHANGE), None)
    merge = log.request.get("merge") or ("",)
    reference = log.request.get("repository") or {}
    common: dict[str, Any] = {
        "task_id": outcome.task_id,
        "repository": str(reference.get("url") or reference.get("id") or ""),
        "base": str(log.request.get("base_sha") or ""),
        "head": str(merge[0]),
        "task": str(log.request.get("description") or "")[:_MAX_TASK_CHARS],
        "required": required,
        "models": log.models,
        "judged_at": log.decided_at,
    }
    if result is None:
        return VerdictDocument(
            **common, finding="none", level="", accepted=False, error=_explain_none(outcome)
        )
    evidence_by_check = {evidence.check: evidence for evidence in result.evidence}
    level = result.level.words
    finding: Finding = (
        "passed"
        if result.passed_gates
        else "disputed"
        if EDITED_TESTS in evidence_by_check
        else "broken"
    )
    return VerdictDocument(
        **common,
        finding=finding,
        level=level,
        accepted=finding == "passed" and LEVELS.index(level) >= LEVELS.index(required),
        reasons=result.reasons,
        checks=tuple(_check_results(result)),
        matrix=tuple(_matrix(result, log)[:_MAX_ROWS]),
        edited_tests=evidence_by_check[EDITED_TESTS].shown
        if EDITED_TESTS in evidence_by_check
        else (),
        unnoticed=evidence_by_check[UNNOTICED].look if UNNOTICED in evidence_by_check else (),
        not_judged=tuple(_list_gaps(result, log)),
        look=log.look,
        reviews=result.reviews,
        rank=result.rank,
        rivals=tuple(_rivals(outcome)),
    )


def _explain_none(outcome: Outcome) -> str:
    seat = next((item for item in outcome.seats if item.seat == CHANGE), None)
    return (seat.error_message if seat else "") or outcome.error_message or "it was not judged"


def _check_results(result: Result) -> list[CheckResult]:
    return [
        CheckResult(
            evidence.check,
            str(evidence.verdict),
            evidence.passed,
            evidence.failed,
            evidence.skipped,
            evidence.before,
            evidence.red,
            evidence.why,
        )
        for evidence in result.evidence
        if evidence.check not in NO_CHECKS
    ]


def _matrix(result: Result, log: JudgementLog) -> list[MatrixRow]:
    """Return the tests that differ between the base and an answer."""
    rows: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}

    def add(cases: Iterable[str], author: str, base: str, answer: str, outcome: str) -> None:
        for case in cases:
            rows.setdefault((author, case), (base, {}))[1][answer] = outcome

    cases = log.assessment.get
    add(cases("regressions", ()), _REPOSITORY, "passed", CHANGE, "failed")
    add(cases("fixed", ()), _REPOSITORY, "failed", CHANGE, "passed")
    add(cases("still_red", ()), _REPOSITORY, "failed", CHANGE, "failed")
    for evidence in result.evidence:
        if evidence.check == OWN_TESTS:
            add(evidence.shown, CHANGE, "failed", CHANGE, "passed")
            add(evidence.red, CHANGE, "unknown", CHANGE, "failed")
    for author, answer, evidence in log.cross:
        add(evidence.shown, author, "failed", answer, "passed")
        add(evidence.red, author, "unknown", answer, "failed")
    return [
        MatrixRow(case, author, base, results) for (author, case), (base, results) in rows.items()
    ]


def _list_gaps(result: Result, log: JudgementLog) -> list[str]:
    """Return sentences about the gaps of the verdict."""
    gaps = [_NO_MODEL] if log.request.get("tests_only") else []
    reports = {report.agent: report for report in log.reports}
    writer = reports.get(TEST_WRITER)
    if not gaps and writer is None and not result.level.independent:
        gaps.append(
            "No independent test was written: this needs a model that calls tools, and a change "
            "that passes."
        )
    if writer is not None and not writer.cases:
        gaps.append(f"No independent test: {writer.message}.")
    gaps += [f"{report.message}." for report in log.reports if report.missing]
    gaps += [
        f"{evidence.why}."
        for evidence in result.evidence
        if evidence.check in {CANARY, UNNOTICED} and evidence.why
    ]
    return gaps


def _rivals(outcome: Outcome) -> list[Rival]:
    from moothall.cli.show import count_changes

    return [
        Rival(
            item.seat,
            item.rank,
            item.level.words,
            item.passed_gates,
            item.score,
            sum(count_changes(item.diff)),
        )
        for item in outcome.results
        if item.seat != CHANGE
    ]
