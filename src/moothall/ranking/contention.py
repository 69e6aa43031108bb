"""Time limits that a check hit on a busy machine: they say nothing of the code, so the check is run again alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from moothall.domain.evidence import RED, CheckRun, Verdict
from moothall.inside.pressure import BUSY
from moothall.ranking.assess import HIT_LIMIT

# Ours where they were hit before the time was had, and what test runners and clients print about a project's own: jest, mocha, vitest, node:test,
# pytest-timeout, Go, nextest.
_TIME_LIMIT = re.compile(
    rf"{HIT_LIMIT} [^\n]{{0,40}}{BUSY}|\btimed?[ -]?out|exceeded (?:a |the |its )?(?:timeout|deadline|time)|deadline exceeded|too long\b",
    re.IGNORECASE,
)
_READ = 20_000
_BUSY = (
    "a time limit was hit while the machine was busy, so this says nothing of the code; "
    "leave the machine more free cores, or raise workspace.case_seconds and workspace.check_floor_seconds"
)


def hit_limit_under_load(run: CheckRun, base: CheckRun | None = None) -> bool:
    """Whether a check hit a limit of time while the machine was busy, other than in cases that are red on the base."""
    if not run.contended:
        return False
    return run.status == "timeout" or bool(stopped_cases(run, base)) or (_is_silent(run) and _names_limit(run.output))


def as_errored(run: CheckRun, base: CheckRun | None = None) -> CheckRun:
    """Return the run as one that did not come to its end: no case of it counts as failed for a limit of time."""
    stopped = stopped_cases(run, base)
    first, rest = (run.output.partition("\n")[::2]) if run.status == "timeout" else (run.check, run.output)
    return replace(
        run,
        verdict=Verdict.ERRORED,
        status="timeout",
        cases={case: "errored" if case in stopped else outcome for case, outcome in run.cases.items()},
        output=f"{first}: {_BUSY}\n{rest}",
    )


def stopped_cases(run: CheckRun, base: CheckRun | None = None) -> Sequence[str]:
    """Return the red cases whose output names a time limit, other than those that are red on the base."""
    known = base.cases if base else {}
    return [
        case
        for case, outcome in run.cases.items()
        if outcome in RED and known.get(case) not in RED and _names_limit(run.details.get(case, ""))
    ]


def _is_silent(run: CheckRun) -> bool:
    return not run.cases and run.status == "success" and run.verdict is Verdict.FAILED


def _names_limit(text: str) -> bool:
    return _TIME_LIMIT.search(text[-_READ:]) is not None
