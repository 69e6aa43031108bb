"""Further runs of cases that decide about a candidate: alone, with canaries, and on the base."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from moothall.deliberation.judging.base_failures import BaseFailures
from moothall.deliberation.judging.canary import Canary, find_case_file, make_canary
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.hidden import is_hidden
from moothall.domain.evidence import HIDDEN_CASE, RED, CheckRun
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment
from moothall.domain.repository import Prepared
from moothall.ranking.assess import differing_cases, unmatched_cases
from moothall.sandbox_runtime.checks import reports_cases

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
            and reports_cases(self._argv(check))
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
                canary = make_canary(self._argv(check), test_id, path, source) if source else None
                return (
                    replace(canary, case=f"{case[: len(case) - len(test_id)]}{canary.case}")
                    if canary
                    else None
                )
        return None

    def _argv(self, check: str) -> Sequence[str]:
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
                        case for case in cases if run is not None and run.cases.get(case) in RED
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
                known = self._base_failures.find(self.prepared, check, unknown)
                self._confirmed_failures |= dict.fromkeys(known, True)
                unconfirmed = tuple(case for case in unknown if case not in known)
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
