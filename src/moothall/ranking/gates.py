"""The gates: what a candidate must show before anything else about it counts."""

from __future__ import annotations

from collections.abc import Iterable

from moothall.domain.evidence import Evidence, Verdict
from moothall.domain.proposal import Candidate

_SHOWN = 3
_NAME_CHARS = 80


def gate_failures(candidate: Candidate) -> tuple[str, ...]:
    """Return one sentence for each gate that the candidate does not pass; () if it passes all."""
    if candidate.about_text:
        return () if candidate.proposal.content.strip() else ("The answer is empty.",)
    return tuple(_failures(candidate))


def passes_gates(candidate: Candidate) -> bool:
    """Whether the candidate may win."""
    return not gate_failures(candidate)


def _failures(candidate: Candidate) -> Iterable[str]:
    if not candidate.proposal.diff.strip():
        yield "The patch is empty."
    elif not candidate.applies:
        yield "The patch does not apply on a clean checkout."
    for name in dict.fromkeys(candidate.required):
        runs = [item for item in candidate.evidence if item.check == name]
        bad = next((item for item in runs if item.verdict is not Verdict.PASSED), None)
        if not runs or (bad and bad.verdict is Verdict.MISSING):
            yield f"Required check {plain(name)} is missing."
        elif bad:
            yield f"Required check {plain(name)} {bad.verdict}{counts(bad)}."
    if lost := candidate.regressions:
        more = ", …" if len(lost) > _SHOWN else ""
        shown = ", ".join(plain(case) for case in lost[:_SHOWN])
        yield f"{len(lost)} {'test' if len(lost) == 1 else 'tests'} that passed on the base {'does' if len(lost) == 1 else 'do'} not any more: {shown}{more}."


def counts(item: Evidence) -> str:
    """Return ` (11 of 12 passed)` where the check counted anything, else nothing."""
    total = item.passed + item.failed
    return f" ({item.passed} of {total} passed)" if total else ""


def plain(text: str) -> str:
    """Return a name that may come from a model as one short printable line."""
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line if len(line) <= _NAME_CHARS else f"{line[: _NAME_CHARS - 1]}…"
