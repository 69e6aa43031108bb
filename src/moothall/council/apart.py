"""Two processes: the tests that prove a candidate in one, its code in another that sees none of them.

Where they agree the proof is stronger: code that reads tests, runner or report finds none there. Where they do not, nothing is said: a
test may derive a class of the code, or compare what is copied on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moothall.council.context import is_test
from moothall.council.runs import FreshRuns
from moothall.domain.evidence import APART, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.inside.checks import runs_python_tests
from moothall.ranking import changed_files


async def agreement(
    runs: FreshRuns, diff: str, proving: Sequence[str], told: Mapping[str, CheckRun], seconds: float
) -> tuple[Evidence, ...]:
    """Return the evidence that the cases `proving` are green in this way too; () where not all are, or where it cannot be tried.

    `told`: what the candidate's checks came to as they are. After `seconds` they are stopped: what waits for something in its own
    process may wait for ever here.
    """
    profile = runs.prepared.base.profile
    code = tuple(path for path in changed_files(runs.exact(diff)) if path.endswith((".py", ".pyi")) and not is_test(path))
    able = [
        name
        for name, argv in profile.checks.items()
        if name in told and runs_python_tests(argv) and not profile.reports.get(name)
    ]
    cases = {name: some for name in able if (some := tuple(case for case in proving if case in told[name].cases))}
    if not code or not proving or {case for some in cases.values() for case in some} != {*proving}:
        return ()
    ran = await runs.run(cases, "apart", digest(diff)[:12], diff=diff, apart=code, seconds=seconds, label=APART)
    green = all(ran.runs[name].cases.get(case) == "passed" for name, some in cases.items() if name in ran.runs for case in some)
    if not green or ran.runs.keys() != cases.keys():
        return ()
    took = sum(run.duration_ms for run in ran.runs.values())
    return (Evidence(APART, Verdict.PASSED, passed=len(proving), duration_ms=took),)
