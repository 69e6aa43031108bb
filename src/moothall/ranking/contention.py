"""Time limits that a check hit on a busy machine. They prove nothing about the code, so the check
is run again alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from moothall.domain.evidence import RED, CheckRun, Verdict
from moothall.ranking.assess import HIT_LIMIT
from moothall.sandbox_runtime.pressure import BUSY

# Our own limits if they were hit because the machine was busy, and the messages of runners and
# clients about a project's limits: jest, mocha, vitest, node:test, pytest-timeout, Go, nextest.
_TIME_LIMIT = re.compile(
    rf"{HIT_LIMIT} [^\n]{{0,40}}{BUSY}|\btimed?[ -]?out|exceeded (?:a |the |its "
    r")?(?:timeout|deadline|time)|deadline exceeded|too long\b",
    re.IGNORECASE,
)
_MAX_READ_CHARS = 20_000
_BUSY = (
    "a time limit was hit while the machine was busy, which proves nothing about the code; free "
    "some cores, or raise workspace.case_seconds and workspace.check_floor_seconds"
)


def hit_limit_under_load(run: CheckRun, base: CheckRun | None = None) -> bool:
    """True if a check hit a time limit while the machine was busy. Cases that fail on the base do
    not count.
    """
    if not run.contended:
        return False
    return (
        run.status == "timeout"
        or bool(stopped_cases(run, base))
        or (_is_silent(run) and _names_limit(run.output))
    )


def as_errored(run: CheckRun, base: CheckRun | None = None) -> CheckRun:
    """Return the run as unfinished: no case counts as failed because of a time limit."""
    stopped = stopped_cases(run, base)
    headline, rest = (
        (run.output.partition("\n")[::2]) if run.status == "timeout" else (run.check, run.output)
    )
    return replace(
        run,
        verdict=Verdict.ERRORED,
        status="timeout",
        cases={
            case: "errored" if case in stopped else outcome for case, outcome in run.cases.items()
        },
        output=f"{headline}: {_BUSY}\n{rest}",
    )


def stopped_cases(run: CheckRun, base: CheckRun | None = None) -> Sequence[str]:
    """Return the failed cases whose output names a time limit and that do not fail on the base."""
    known = base.cases if base else {}
    return [
        case
        for case, outcome in run.cases.items()
        if outcome in RED and known.get(case) not in RED and _names_limit(run.details.get(case, ""))
    ]


def _is_silent(run: CheckRun) -> bool:
    return not run.cases and run.status == "success" and run.verdict is Verdict.FAILED


def _names_limit(text: str) -> bool:
    return _TIME_LIMIT.search(text[-_MAX_READ_CHARS:]) is not None
