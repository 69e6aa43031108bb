"""Further runs of cases that decide about a candidate: alone, with canaries, and on the base.
Cases that further runs on an unchanged base confirmed as failing, shared by the deliberations
of a process. Canaries: tests that must fail.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.hidden import is_hidden
from moothall.domain.evidence import FAILED_OUTCOMES, HIDDEN_CASE, CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment
from moothall.domain.repository import Prepared
from moothall.ranking.assess import differing_cases, unmatched_cases
from moothall.ranking.test_cases import find_test_file
from moothall.sandbox_runtime.checks import is_pytest, reports_cases

# Cases that further runs on an unchanged base confirmed as failing, shared by the deliberations of
# a process.


_VALID_SECONDS = 600.0
"""A test may begin to pass by itself later, with the date or the load of the machine."""
_MAX_CASES = 10_000


@dataclass(slots=True)
class BaseFailures:
    """Failures that were confirmed in the last ten minutes, by base, bounds, check and case.

    Hidden tests are left out: other deliberations have others under the same names.

    clock: returns seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _confirmed_at: dict[tuple[object, ...], float] = field(default_factory=dict)

    def find(self, prepared: Prepared, check: str, cases: Collection[str]) -> frozenset[str]:
        """Return the cases whose failure is confirmed."""
        oldest_valid = self.clock() - _VALID_SECONDS
        return frozenset(
            case
            for case in cases
            if self._confirmed_at.get(_case_key(prepared, check, case), oldest_valid) > oldest_valid
        )

    def add(self, prepared: Prepared, check: str, cases: Collection[str]) -> None:
        """Store failures that were confirmed now."""
        if is_hidden(check):
            return
        for case in cases:
            key = _case_key(prepared, check, case)
            self._confirmed_at.pop(key, None)  # so that the oldest one comes first
            self._confirmed_at[key] = self.clock()
        while len(self._confirmed_at) > _MAX_CASES:
            del self._confirmed_at[next(iter(self._confirmed_at))]


def _case_key(prepared: Prepared, check: str, case: str) -> tuple[object, ...]:
    return prepared.key, prepared.bounds, check, case


# Canaries: tests that must fail. A runner that does not report one as failed is not trusted.
#
# A canary is appended to the file of a passed case, so it runs in the same process as the evaluated
# code. It fails by the usual assertion of its runner, so a replaced assertion is detected too. Its
# name is random.


_PYTHON = (
    "\n\nclass Test{name}(__import__('unittest').TestCase):\n    def test_{name}(self):\n        "
    "self.assertEqual(1, 2)\n"
)
_GO = (
    '\n\nfunc Test{name}(t *testing.T) {{\n\tif got := 1; got != 2 {{\n\t\tt.Errorf("got %d", '
    "got)\n\t}}\n}}\n"
)
_RUST = "\n#[cfg(test)]\n#[test]\nfn test_{name}() {{\n    assert_eq!(1, 2);\n}}\n"
_NODE_TEST = "\n;require('node:test')('{name}', () => require('node:assert').strictEqual(1, 2));\n"
_NODE_TEST_MODULE = (
    "\n;import test{name} from 'node:test';\nimport assert{name} from 'node:assert';\n"
    "test{name}('{name}', () => assert{name}.strictEqual(1, 2));\n"
)
_VITEST = (
    "\n;import {{ test as test{name}, expect as expect{name} }} from 'vitest';\n"
    "test{name}('{name}', () => {{ expect{name}(1).toBe(2); }});\n"
)
_GLOBAL = "\n;{call}('{name}', () => {{ {failing} }});\n"
_SCRIPT = re.compile(r"\.[cm]?[jt]sx?$")
_MODULE = re.compile(r"(?m)^\s*(?:import\b[^(\n]*['\"{*]|export\b)")
_CALL = re.compile(r"(?m)^\s*(it|test)\s*\(")
_NODE = frozenset({"npm", "pnpm", "yarn", "npx", "node"})


@dataclass(frozen=True, slots=True)
class Canary:
    """A test to append to a test file.

    case: the name that narrows a run to it.
    """

    path: str
    text: str
    name: str
    case: str

    def failed_in(self, run: CheckRun | None) -> bool:
        """True if a run reports the canary as failed."""
        return run is not None and any(
            self.name in case and outcome in FAILED_OUTCOMES for case, outcome in run.cases.items()
        )


def find_case_file(case: str, files: Sequence[str]) -> str:
    """Return the file of a case; '' if it is unknown.

    For a Go case, this is a test file of its package.
    """
    package, _, test = case.partition("::")
    path = find_test_file(case, files)
    if path or not test or " " in package:
        return path
    folders = {path.rpartition("/")[0]: path for path in files if path.endswith("_test.go")}
    matching = [folder for folder in folders if not folder or package.endswith(f"/{folder}")]
    return folders[max(matching, key=len)] if matching else ""


def make_canary(argv: Sequence[str], case: str, path: str, source: str) -> Canary | None:
    """Return a canary for the file of a case; None if its runner is unknown.

    source: the text of the file.
    """
    name = f"z{secrets.token_hex(4)}"
    container = case.partition("::")[0]
    if path.endswith(".py") and is_pytest(argv):
        return Canary(
            path, _PYTHON.format(name=name), name, f"{container}::Test{name}::test_{name}"
        )
    if path.endswith(".py"):
        return (
            Canary(path, _PYTHON.format(name=name), name, f"Test{name}")
            if reports_cases(argv)
            else None
        )
    if path.endswith(".go"):
        return Canary(
            path,
            _GO.format(name=name.upper()),
            name.upper(),
            f"{container}::Test{name.upper()}",
        )
    if path.endswith(".rs"):
        return Canary(path, _RUST.format(name=name), name, f"{container}::test_{name}")
    if _SCRIPT.search(path) and argv and argv[0].rpartition("/")[2] in _NODE:
        return Canary(
            path,
            _script_template(source, path).format(name=name, **_global_calls(source)),
            name,
            f"{container}::{name}",
        )
    return None


def _script_template(source: str, path: str) -> str:
    module = path.endswith((".mjs", ".mts")) or (
        not path.endswith((".cjs", ".cts")) and bool(_MODULE.search(source))
    )
    if re.search(r"['\"](?:node:)?test['\"]", source):
        return _NODE_TEST_MODULE if module else _NODE_TEST
    return _VITEST if re.search(r"['\"]vitest['\"]", source) else _GLOBAL


def _global_calls(source: str) -> dict[str, str]:
    """Return how tests are declared and fail if the runner's functions are global, as in mocha and
    jest.
    """
    call = _CALL.search(source)
    failing = (
        "expect(1).toBe(2);"
        if ".toBe(" in source or ".toEqual(" in source
        else 'throw new Error("1 is not 2");'
    )
    if re.search(r"require\(['\"](?:node:)?assert", source):
        failing = "require('assert').strictEqual(1, 2);"
    return {"call": call[1] if call else "it", "failing": failing}


# Further runs of cases that decide about a candidate: alone, with canaries, and on the base.


MAX_RERUN_CASES = 50
"""Deciding cases are run again if there are at most so many, and if the base took at most
`MAX_RERUN_MS`."""
MAX_RERUN_MS = 120_000
_MAX_CANARY_CASES = 5  # cases that are tried as the place of a canary


@dataclass(frozen=True, slots=True)
class CanaryResults:
    """Results of tests that must fail.

    differing: proving cases that came out differently in the second run.
    silent: checks whose runner did not report the canary.
    missing: checks in which no canary could be placed.
    """

    differing: AbstractSet[str] = frozenset()
    silent: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class FurtherRuns:
    """Runs cases of one deliberation again. Results on the base are kept.

    prepared: the base with its runs, hidden tests included.
    """

    def __init__(
        self, runner: CleanCheckoutRunner, prepared: Prepared, base_failures: BaseFailures
    ) -> None:
        self.prepared = prepared
        self.base_lock = asyncio.Lock()
        self._runner = runner
        self._base_failures = base_failures
        self._unstable_cases: dict[str, set[str]] = {}
        self._canary_reported: dict[tuple[str, str], bool] = {}
        self._confirmed_failures: dict[str, bool] = {}
        self._failing_now: dict[tuple[str, ...], set[str]] = {}

    def known_passing_on_base(self, fixed: Sequence[str]) -> set[str]:
        """Return the fixed cases that passed in a further run on the base."""
        return {case for case in fixed if self._confirmed_failures.get(case) is False}

    async def find_flaky(
        self, diff: str, first: Mapping[str, CheckRun], deciding: Mapping[str, tuple[str, ...]]
    ) -> tuple[set[str], set[str]]:
        """Return the flaky cases, and the cases that differ when they run alone.

        The deciding cases run again, alone, on the same tree. A case that differs from the first
        run in the same way each time depends on the cases before it, and is not flaky.
        """

        async def run_again(checks: Mapping[str, tuple[str, ...]], name: str) -> set[str]:
            check_runs = await self._runner.run_checks(
                checks, "check", digest(diff)[:12], name, diff=diff
            )
            return {
                case
                for check in checks
                for case in (
                    differing_cases(first[check], check_runs.runs[check])
                    if check in check_runs.runs
                    else ()
                )
            }

        differing_alone = await run_again(deciding, "2") if deciding else set[str]()
        order_dependent = {
            check: cases for check, cases in deciding.items() if differing_alone.intersection(cases)
        }
        if not order_dependent:
            return differing_alone, differing_alone
        return differing_alone ^ await run_again(order_dependent, "3") | await run_again(
            dict.fromkeys(order_dependent, ()), "4"
        ), differing_alone

    async def run_canaries(
        self,
        diff: str,
        first: Mapping[str, CheckRun],
        deciding: Mapping[str, tuple[str, ...]],
        assessment: Assessment,
    ) -> CanaryResults:
        """Run the proving cases again, with a canary in their file; run the canary alone if no case
        proves.
        """
        proving = {
            check: cases for check, cases in deciding.items() if set(cases) & set(assessment.fixed)
        }
        canaries = {
            check: canary
            for check in first
            if (canary := await self._place_canary(check, first[check], assessment.fixed))
        }
        missing = [
            check
            for check in first
            if check in assessment.required
            and check not in canaries
            and reports_cases(self._check_argv(check))
            and "passed" in first[check].cases.values()
        ]
        cases_to_run = {
            check: (
                *proving.get(check, ()),
                *((canaries[check].case,) if check in canaries else ()),
            )
            for check in first
            if check in canaries or check in proving
        }
        names = ("check", digest(diff)[:12])
        runs = await self._run_with_canaries(canaries, cases_to_run, *names, "proof", diff=diff)
        silent: list[str] = []
        for check, canary in canaries.items():
            if canary.failed_in(runs.get(check)):
                continue
            if not await self._is_reported_on_base(check, canary):
                missing.append(check)
                runs |= await self._run_with_canaries(
                    {}, {check: proving.get(check, ())}, *names, "proof2", diff=diff
                )
                continue
            canary_runs = await self._run_with_canaries(
                {check: canary}, {check: (canary.case,)}, *names, "canary", diff=diff
            )
            silent += [] if canary.failed_in(canary_runs.get(check)) else [check]
        differing = {
            case
            for check in proving
            if check in runs
            for case in differing_cases(first[check], runs[check])
        }
        return CanaryResults(differing, tuple(silent), tuple(missing))

    async def _run_with_canaries(
        self,
        canaries: Mapping[str, Canary],
        cases_to_run: Mapping[str, Sequence[str]],
        *name: str,
        diff: str = "",
        judged: bool = True,
    ) -> dict[str, CheckRun]:
        append = {canary.path: canary.text for canary in canaries.values()}
        checks = {check: cases for check, cases in cases_to_run.items() if cases}
        return (
            {
                **(
                    await self._runner.run_checks(
                        checks, *name, diff=diff, judged=judged, append=append
                    )
                ).runs
            }
            if checks
            else {}
        )

    async def _is_reported_on_base(self, check: str, canary: Canary) -> bool:
        """True if the runner reports a canary in this file on the unchanged base."""
        async with self.base_lock:
            if (check, canary.path) not in self._canary_reported:
                runs = await self._run_with_canaries(
                    {check: canary},
                    {check: (canary.case,)},
                    "base",
                    digest(check, canary.path)[:12],
                    "canary",
                    judged=False,
                )
                self._canary_reported[check, canary.path] = canary.failed_in(runs.get(check))
        return self._canary_reported[check, canary.path]

    async def _place_canary(self, check: str, run: CheckRun, fixed: Sequence[str]) -> Canary | None:
        """Return a canary for the file of a passed case: a proving one, or else one that passed on
        the base.
        """
        base = self.prepared.runs.get(check)
        if base is None or base.duration_ms > MAX_RERUN_MS or run.status != "success":
            return None
        hidden = self._runner.hidden.files if is_hidden(check) else {}
        proving = frozenset(fixed)
        passed = sorted(
            (
                case
                for case, outcome in run.cases.items()
                if outcome == "passed" and (case in proving or base.cases.get(case) == "passed")
            ),
            key=lambda case: case not in proving,
        )
        files = (*hidden, *self.prepared.files)
        for case in passed[:_MAX_CANARY_CASES]:
            test_id = case.removeprefix(HIDDEN_CASE)
            if path := find_case_file(test_id, files):
                source = hidden.get(path) or await self._runner.read_base_text(path)
                canary = (
                    make_canary(self._check_argv(check), test_id, path, source) if source else None
                )
                return (
                    replace(canary, case=f"{case[: len(case) - len(test_id)]}{canary.case}")
                    if canary
                    else None
                )
        return None

    def _check_argv(self, check: str) -> Sequence[str]:
        return self.prepared.base.profile.checks.get(check, ())

    async def find_failing_on_base(self, lost_cases: Sequence[str]) -> set[str]:
        """Return the lost cases that now fail on the unchanged base too. Each set of cases runs
        once.

        A busy machine or a date fails them, not the change.
        """
        failing: set[str] = set()
        for check, base in self.prepared.runs.items():
            cases = tuple(case for case in lost_cases if case in base.cases)
            if not cases or len(cases) > MAX_RERUN_CASES or base.duration_ms > MAX_RERUN_MS:
                continue
            async with self.base_lock:
                if (check, *cases) not in self._failing_now:
                    check_runs = await self._runner.run_checks(
                        {check: cases}, "base", digest(check, *cases)[:12], "now", judged=False
                    )
                    run = check_runs.runs.get(check)
                    self._failing_now[check, *cases] = {
                        case
                        for case in cases
                        if run is not None and run.cases.get(case) in FAILED_OUTCOMES
                    }
            failing |= self._failing_now[check, *cases]
        return failing

    async def find_passing_on_base(
        self, fixed: Sequence[str], runs: Mapping[str, CheckRun]
    ) -> set[str]:
        """Return the fixed cases that pass in one of two further runs on the unchanged base. They
        prove nothing.
        """
        async with self.base_lock:
            for check, run in runs.items():
                unknown = [
                    case
                    for case in fixed
                    if case in run.cases and case not in self._confirmed_failures
                ]
                known_failures = self._base_failures.find(self.prepared, check, unknown)
                self._confirmed_failures |= dict.fromkeys(known_failures, True)
                unconfirmed = tuple(case for case in unknown if case not in known_failures)
                unconfirmed = unconfirmed[:MAX_RERUN_CASES]
                if not unconfirmed:
                    continue
                passing: set[str] = set()
                complete = True
                for number in ("2", "3"):
                    check_runs = await self._runner.run_checks(
                        {check: unconfirmed},
                        "base",
                        digest(check, *unconfirmed)[:12],
                        number,
                        judged=False,
                    )
                    passing |= {
                        case
                        for case in unconfirmed
                        if check in check_runs.runs
                        and check_runs.runs[check].cases.get(case) == "passed"
                    }
                    complete &= (
                        check in check_runs.runs and check_runs.runs[check].status == "success"
                    )
                self._confirmed_failures |= {case: case not in passing for case in unconfirmed}
                if complete:
                    self._base_failures.add(
                        self.prepared, check, [case for case in unconfirmed if case not in passing]
                    )
        return {case for case in fixed if self._confirmed_failures.get(case) is False}

    async def find_unstable_cases(self, checks: Sequence[str]) -> list[str]:
        """Return the cases of these checks that only one of two runs of the unchanged base
        reported, such as names with a timestamp.

        Used if a candidate's runs lack cases. Each check runs on the base at most once more.
        """
        async with self.base_lock:
            for check in checks:
                if check not in self._unstable_cases:
                    runs = (
                        await self._runner.run_checks({check: ()}, "base", check, judged=False)
                    ).runs
                    self._unstable_cases[check] = (
                        unmatched_cases(self.prepared.runs[check], runs[check])
                        if check in runs
                        else set()
                    )
        return sorted(case for check in checks for case in self._unstable_cases[check])
