"""The gates: what a candidate must show before anything else about it counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from moothall.domain.evidence import SECRETS, Evidence, Verdict
from moothall.domain.proposal import Candidate
from moothall.domain.task import VALIDATION
from moothall.ranking.test_authorship import may_be_own

_SHOWN = 3
_NAME_CHARS = 80
_EDITED = " The answer changes tests there, but they count as they are on the base."


def gate_failures(candidate: Candidate) -> tuple[str, ...]:
    """Return one sentence for each gate that the candidate does not pass; () if it passes all."""
    if candidate.about_text:
        return () if candidate.proposal.content.strip() else ("The answer is empty.",)
    return tuple(_failures(candidate))


def passes_gates(candidate: Candidate) -> bool:
    """Whether the candidate may win."""
    return not gate_failures(candidate)


def _failures(candidate: Candidate) -> Iterable[str]:
    found = candidate.assessment
    if not candidate.proposal.diff.strip():
        yield "The patch is empty."
    elif not found.applies:
        yield "The patch does not apply on a clean checkout."
    elif found.idle and not found.proven:
        yield (
            "The patch changes comments, docstrings or formatting alone, and the task asks for "
            "more."
        )
    barren = not any(
        item.passed or item.verdict is Verdict.PASSED
        for item in found.evidence
        if item.check in found.required
    )
    for name in dict.fromkeys(found.required):
        runs = [item for item in found.evidence if item.check == name]
        bad = next((item for item in runs if item.verdict is not Verdict.PASSED), None)
        if not runs or (bad and bad.verdict is Verdict.MISSING):
            why = plain(bad.why, 300) if bad and bad.why else ""
            yield (
                f"Required check {plain(name)} has no verdict: {why}."
                if why
                else f"Required check {plain(name)} is missing."
            )
        elif bad and (barren or found.missed or not _is_excused(bad, candidate.superseded)):
            yield f"Required check {plain(name)} {bad.verdict}{counts(bad)}{_because(bad)}."
    for item in found.evidence:
        if item.check == SECRETS and item.verdict is Verdict.FAILED:
            yield f"What looks like a key or password is made of parts at {name_cases(item.look)}."
    if lost := [case for case in found.regressions if case not in candidate.superseded]:
        one = len(lost) == 1
        edited = any(may_be_own(case, candidate.proposal.own_tests) for case in lost)
        yield (
            f"{len(lost)} {'test' if one else 'tests'} that passed on the base "
            f"{'does' if one else 'do'} not any more: {name_cases(lost)}."
            f"{_EDITED if edited else ''}"
        )


def _is_excused(item: Evidence, superseded: AbstractSet[str]) -> bool:
    """Whether all that fails in a check failed on the base or is superseded by the task: no reason
    against a candidate, but in a check of the caller's.
    """
    if item.verdict is not Verdict.FAILED or item.check.startswith(f"{VALIDATION}-"):
        return False
    return bool(item.red_before or item.red) and superseded >= {*item.red}


def counts(item: Evidence) -> str:
    """Return ` (11 of 13 passed, 1 red before)` where the check counted anything, else nothing."""
    total = item.passed + item.failed
    before = f", {item.before} red before" if item.before else ""
    return f" ({item.passed} of {total} passed{before})" if total else ""


def name_cases(cases: Sequence[str]) -> str:
    """Return the first of some names, each with its end: names of one file begin alike."""
    more = ", …" if len(cases) > _SHOWN else ""
    return ", ".join(_cut_middle(plain(case, len(case))) for case in cases[:_SHOWN]) + more


def _cut_middle(name: str) -> str:
    head = _NAME_CHARS // 3
    if len(name) <= _NAME_CHARS:
        return name
    return f"{name[:head]}…{name[head + 1 - _NAME_CHARS :]}"


def _because(item: Evidence) -> str:
    """What is new and red; else what stopped the check; else what should have become green."""
    if item.red:
        return f": {name_cases(item.red)}"
    if item.why:
        return f": {plain(item.why, 200)}"
    return f": red as on the base: {name_cases(item.red_before)}" if item.red_before else ""


def plain(text: str, chars: int = _NAME_CHARS) -> str:
    """Return a name that may come from a model as one short printable line."""
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line if len(line) <= chars else f"{line[: chars - 1]}…"
