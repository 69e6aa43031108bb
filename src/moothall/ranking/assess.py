"""What the runs of a candidate's checks say, next to the runs of the untouched base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from moothall.domain.evidence import CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.repository import Profile

TESTS = "tests"
_RED = {"failed", "errored"}


@dataclass(frozen=True, slots=True)
class Assessment:
    """The facts that ranking needs of one candidate; the fields mean what they mean in `Candidate`.

    `evidence` has one entry for every required check, also for one that did not run.
    """

    applies: bool
    required: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()
    proven: bool = False
    behaviour: str = ""
    evidence: tuple[Evidence, ...] = ()


def assess(
    prepared_runs: Mapping[str, CheckRun],
    candidate_runs: Mapping[str, CheckRun],
    profile: Profile,
    own_tests: Sequence[str],
    applies: bool,  # noqa: FBT001 - a fact among facts; callers name it
) -> Assessment:
    """Compare a candidate's runs on a clean checkout with the base's.

    `own_tests` are the paths of test files that the author added or changed: what passes in them
    proves nothing. A patch that does not apply has no runs that mean anything, so all are missing.
    """
    known = frozenset(profile.known_failures)
    runs = candidate_runs if applies else {}
    names = (*profile.checks, *sorted(set(runs) - set(profile.checks)))
    proving = {name for name in names if _proves(prepared_runs.get(name), runs.get(name), own_tests)}
    evidence = tuple(_evidence(name, runs.get(name), known, proven=name in proving) for name in names)
    return Assessment(
        applies=applies,
        required=tuple(profile.checks),
        regressions=_regressions(prepared_runs, runs, known) if applies else (),
        proven=bool(proving),
        behaviour=_behaviour(prepared_runs, runs, own_tests, evidence) if applies else "",
        evidence=evidence,
    )


def _evidence(name: str, run: CheckRun | None, known: AbstractSet[str], *, proven: bool) -> Evidence:
    if run is None:
        return Evidence(check=name, verdict=Verdict.MISSING)
    outcomes = list(run.cases.values())
    return Evidence(
        check=name,
        verdict=_verdict(name, run, known),
        passed=outcomes.count("passed"),
        failed=sum(outcome in _RED for outcome in outcomes),
        skipped=outcomes.count("skipped"),
        duration_ms=run.duration_ms,
        output=run.output,
        proven=proven,
    )


def _verdict(name: str, run: CheckRun, known: AbstractSet[str]) -> Verdict:
    """A run's verdict, with known failures forgiven and a test run that tested nothing unmasked.

    The exit code alone is not believed: code under test can end its process with any.
    """
    if run.verdict not in {Verdict.PASSED, Verdict.FAILED} or run.status != "success":
        return Verdict.ERRORED if run.verdict is Verdict.PASSED else run.verdict
    red = {case for case, outcome in run.cases.items() if outcome in _RED}
    if red - known:
        return Verdict.FAILED
    if name == TESTS and "passed" not in run.cases.values():
        return Verdict.MISSING if run.verdict is Verdict.PASSED else run.verdict
    return Verdict.PASSED if red else run.verdict


def _regressions(base: Mapping[str, CheckRun], now: Mapping[str, CheckRun], known: AbstractSet[str]) -> tuple[str, ...]:
    lost: set[str] = set()
    for name, run in base.items():
        after = now[name].cases if name in now else {}
        lost.update(case for case, outcome in run.cases.items() if outcome == "passed" and after.get(case) != "passed")
    return tuple(sorted(lost - known))


def _proves(base: CheckRun | None, now: CheckRun | None, own_tests: Sequence[str]) -> bool:
    if base is None or now is None:
        return False
    return any(
        outcome == "passed" and _was_red(base, case) and not _may_be_own(case, own_tests) for case, outcome in now.cases.items()
    )


def _was_red(base: CheckRun, case: str) -> bool:
    """A test that could not even be collected was red too; its file is then the failed case."""
    if case in base.cases:
        return base.cases[case] in _RED
    return base.cases.get(case.partition("::")[0]) in _RED


def _may_be_own(case: str, own_tests: Sequence[str]) -> bool:
    """Whether the author may have had a hand in this test. An id that names no file (Go, Rust) may be anyone's."""
    file, separator, _ = case.partition("::")
    if not separator or "." not in file.rsplit("/", 1)[-1]:
        return bool(own_tests)
    for path in own_tests:
        module = path.rsplit(".", 1)[0].replace("/", ".")
        if file in {path, module} or file.startswith(f"{module}."):
            return True
    return False


def _behaviour(
    base: Mapping[str, CheckRun], now: Mapping[str, CheckRun], own_tests: Sequence[str], evidence: Sequence[Evidence]
) -> str:
    """Equal for candidates that no shared test tells apart. A new test of the author's own is not
    shared: counting it would put everyone who wrote one into a cluster of one.
    """
    parts = [f"{item.check}={item.verdict}" for item in evidence]
    for name in sorted(now):
        before = base[name].cases if name in base else {}
        parts += [
            f"{name}/{case}={outcome}"
            for case, outcome in sorted(now[name].cases.items())
            if case in before or not _may_be_own(case, own_tests)
        ]
    return digest(*parts)
