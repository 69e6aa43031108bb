"""The judgement of a given change, after the checks that every candidate gets: whether it fails
only tests that it edits, which of its parts no test notices, and a review.

A part is a hunk of a source file, or a whole new file. It is noticed if a test that passes with the
change does not pass without this part: a test of the base, of the change, or of the test writer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moothall.deliberation.context import DeliberationContext
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.deliberation.judging.reviews import collect_reviews, group_answers
from moothall.deliberation.prompts.repository_context import looks_like_test
from moothall.domain.evidence import (
    EDITED_TESTS,
    FAILED_OUTCOMES,
    REVIEWER,
    UNNOTICED,
    CheckRun,
    Evidence,
    Verdict,
)
from moothall.domain.ids import digest
from moothall.domain.proposal import Candidate, Proposal
from moothall.domain.task import CHANGE
from moothall.ranking import passes_acceptance_checks
from moothall.ranking.criteria import sanitize_line

_MAX_PARTS = 10
_MAX_BASE_MS = 60_000
"""The duration of the checks on the base above which no part is taken away."""
_MAX_NAMED_CASES = 20
_FILE_START = re.compile(r"(?m)^diff --git ")
_HUNK_START = re.compile(r"(?m)^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
_NAME = re.compile(r"(?m)^\+\+\+ b/(.*?)\t?$")
_SOURCE = re.compile(r"\.(?:py|pyi|[cm]?[jt]sx?|go|rs|c|cc|cpp|h|hpp|java|kt|rb|php|cs|swift|vue)$")


async def judge_change(council: DeliberationContext, agent_tests: Proposal | None) -> None:
    """Publish the further evidence about a given change, and its review.

    agent_tests: the tests of the test writer, if it wrote any.
    """
    evaluator = council.evaluator
    change = next((item for item in council.judged if item.proposal.seat == CHANGE), None)
    if evaluator is None or change is None or not change.assessment.applies:
        return
    if passes_acceptance_checks(change):
        authors = [author for author in (change.proposal, agent_tests) if author is not None]
        evidence = await _find_unnoticed(evaluator, change.proposal, authors)
    else:
        evidence = await _find_edited_tests(evaluator, change)
    if evidence is not None:
        await council.events.publish_evidence(change.proposal, evidence)
    if council.deliberation.asks_no_model or council.setup_of(REVIEWER).function is not None:
        return
    answers = group_answers([change.proposal])
    pairs = [(REVIEWER, answer) for answer in answers]
    await collect_reviews(council, pairs, "verify", council.deliberation.rounds + 1)


async def _find_edited_tests(evaluator: Evaluator, change: Candidate) -> Evidence | None:
    """Return the evidence that a change fails only tests that it edits or deletes; None if it fails
    others too.
    """
    proposal, assessment = change.proposal, change.assessment
    failing = {
        evidence.check
        for evidence in assessment.evidence
        if evidence.check in assessment.required and evidence.verdict is not Verdict.PASSED
    }
    if not proposal.own_tests or not assessment.regressions:
        return None
    if not all(check == "tests" or check.startswith("tests-") for check in failing):
        return None
    base_runs = evaluator.author_tests.runner.prepared.runs
    outcomes: dict[str, str] = {}
    for check in failing:
        run = await evaluator.author_tests.run_tests(proposal.diff, proposal, check, ())
        base_cases = base_runs[check].cases if check in base_runs else {}
        new_failures = [
            case
            for case, outcome in run.cases.items()
            if outcome in FAILED_OUTCOMES and base_cases.get(case) not in FAILED_OUTCOMES
        ]
        if run.status != "success" or new_failures or "passed" not in run.cases.values():
            return None
        outcomes |= run.cases
    if any(outcomes.get(case) in FAILED_OUTCOMES for case in assessment.regressions):
        return None
    return Evidence(
        EDITED_TESTS,
        Verdict.FAILED,
        failed=len(assessment.regressions),
        shown=tuple(assessment.regressions[:_MAX_NAMED_CASES]),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a change: its location, and the change without it."""

    location: str
    diff_without: str


async def _find_unnoticed(
    evaluator: Evaluator, proposal: Proposal, authors: Sequence[Proposal]
) -> Evidence | None:
    """Return the evidence about the parts of a change that no test notices; None if it changes no
    source file.

    authors: the authors whose tests run in addition to those of the base.
    """
    parts = list(_split_diff(evaluator.unredact(proposal.diff), proposal.own_tests))
    if not parts:
        return None
    runner = evaluator.author_tests.runner
    runs = runner.prepared.runs
    checks = [name for name in runs if name == "tests" or name.startswith("tests-")]
    duration_ms = sum(runs[check].duration_ms for check in checks)
    if not checks or duration_ms > _MAX_BASE_MS:
        reason = (
            f"its tests take {duration_ms // 1000} s, so no part of the change was taken away"
            if checks
            else "it has no tests, so no part of the change was taken away"
        )
        return Evidence(UNNOTICED, Verdict.MISSING, why=reason.capitalize())
    passing_with_all = await _find_passing_cases(evaluator, proposal.diff, authors, checks)
    unnoticed: list[str] = []
    tested_count = 0
    for part in parts[:_MAX_PARTS]:
        passing = await _find_passing_cases(evaluator, part.diff_without, authors, checks)
        if passing is None:
            continue
        tested_count += 1
        if passing_with_all is not None and passing_with_all <= passing:
            unnoticed.append(part.location)
    skipped_count = len(parts) - min(len(parts), _MAX_PARTS)
    return Evidence(
        UNNOTICED,
        Verdict.FAILED if unnoticed else Verdict.PASSED,
        passed=tested_count - len(unnoticed),
        failed=len(unnoticed),
        look=tuple(unnoticed),
        why=f"{skipped_count} further parts of the change were not taken away"
        if skipped_count
        else "",
    )


async def _find_passing_cases(
    evaluator: Evaluator, diff: str, authors: Sequence[Proposal], checks: Sequence[str]
) -> frozenset[tuple[str, str]] | None:
    """Return the cases that pass with a diff, by author; None if the diff does not apply."""
    passing: set[tuple[str, str]] = set()
    for author in authors:
        runs = await _run_checks_with(evaluator, diff, author, checks)
        if runs is None:
            return None
        for run in runs.values():
            passing |= {
                (author.seat, case) for case, outcome in run.cases.items() if outcome == "passed"
            }
    return frozenset(passing)


async def _run_checks_with(
    evaluator: Evaluator, diff: str, author: Proposal, checks: Sequence[str]
) -> Mapping[str, CheckRun] | None:
    check_runs = await evaluator.author_tests.runner.run_checks(
        dict.fromkeys(checks, ()),
        "part",
        digest(diff, author.diff)[:12],
        diff=diff,
        extra=author.diff if author.own_tests else "",
        label="part",
    )
    return None if check_runs.refused else check_runs.runs


def _split_diff(diff: str, own_tests: Collection[str]) -> Iterator[_Part]:
    """Yield the parts of a diff in source files, tests aside."""
    files = _cut_before(diff, _FILE_START)
    for number, file in enumerate(files):
        name = _NAME.search(file)
        if name is None or not _SOURCE.search(name[1]):
            continue
        if name[1] in own_tests or looks_like_test(name[1]):
            continue
        path = sanitize_line(name[1], 200)
        other_files = (files[:number], files[number + 1 :])
        head, *hunks = _cut_before(file, _HUNK_START, head=True)
        if "\nnew file mode " in head:
            yield _Part(f"{path} (new)", _join_parts(*other_files))
            continue
        for index, hunk in enumerate(hunks):
            other_hunks = [*hunks[:index], *hunks[index + 1 :]]
            remaining_file = [head, *other_hunks] if other_hunks or "\nrename " in head else []
            yield _Part(
                f"{path}:{_lines_of(hunk)}",
                _join_parts(other_files[0], remaining_file, other_files[1]),
            )


def _cut_before(text: str, start: re.Pattern[str], *, head: bool = False) -> list[str]:
    """Cut a text where a pattern begins; with `head`, the text before the first is the first."""
    starts = [match.start() for match in start.finditer(text)]
    pieces = [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=False)]
    return [text[: starts[0]] if starts else text, *pieces] if head else pieces


def _join_parts(*groups: Iterable[str]) -> str:
    return "".join(piece for group in groups for piece in group)


def _lines_of(hunk: str) -> str:
    """Return the lines that a hunk adds or surrounds with removals, after the change: `12-18`."""
    match = _HUNK_START.match(hunk)
    if match is None:
        return "?"
    line, changed = int(match[1]), list[int]()
    for text in hunk.split("\n")[1:]:
        if text[:1] in {"+", "-"}:
            changed.append(line)
        if text[:1] in {"+", " "}:
            line += 1
    first, last = min(changed, default=line), max(changed, default=line)
    return str(first) if first == last else f"{first}-{last}"
