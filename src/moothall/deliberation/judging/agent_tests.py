"""Trials: the tests of an agent without an answer of its own, run on the base and on the answers.

A trial decides which cases count, and for which answers. The rules are those for tests of seats
(`author_tests`). The agent's version of a test file replaces that of the base in these runs only. A
case counts only if the base lacks it, or if the agent changed it so that it fails on the base. Each
case runs three times (once if a run takes longer than a minute).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from moothall.deliberation.judging.author_tests import (
    LONG_MS,
    RUNS,
    AuthorTests,
    brings_inline_tests,
)
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.hidden import contains_tests
from moothall.domain.evidence import CheckRun, Evidence, JudgedCase, Verdict
from moothall.domain.proposal import Candidate, CrossRun, Proposal
from moothall.domain.repository import Patch
from moothall.ranking.criteria import format_cases, sanitize_line
from moothall.ranking.diffs import FileDiff, file_diffs, filter_files
from moothall.ranking.test_cases import containers

COUNTS = "counts"
PASSES_ON_BASE = "passes on the base"
OTHER_REASON = "fails on the base for a reason that the task does not give"
UNFINISHED = "its run on the base did not finish"
FAILS_EVERYWHERE = "fails on every answer"
NO_DIFFERENCE = "comes out the same on every answer"
DIFFERS = "differs from run to run"
_MAX_REPORTED_CASES = 40
_MAX_NAMED_CASES = 20

ReadCases = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]
"""Returns the given cases that do not fit the task, each with the reason."""


async def extract_tests(
    runner: CleanCheckoutRunner, patch: Patch, seat: str, role: str
) -> Proposal:
    """Return the tests in an agent's change as a proposal of a seat.

    Changes of source, configuration and data of the base are dropped, and so are binary files.
    """
    base_files, tests = frozenset(runner.prepared.files), frozenset(patch.tests)
    rust_sources = [
        part.path
        for part in file_diffs(patch.diff)
        if part.path.endswith(".rs") and part.path in base_files - tests
    ]
    base_texts = {path: await runner.read_base_text(path) for path in rust_sources}

    def is_test_change(part: FileDiff) -> bool:
        if part.path in tests:
            return part.path not in base_files or contains_tests(part.path)
        return part.path in base_texts and brings_inline_tests(part, base_texts[part.path])

    diff = filter_files(patch.diff, is_test_change)
    return Proposal(
        seat,
        role,
        "",
        diff,
        own_tests=tuple(path for path in patch.tests if f" b/{path}\n" in diff),
    )


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The result of each new case.

    states: by case `COUNTS`, or the first reason why it does not count.
    passed: by diff the cases that count and pass.
    failing_on_base: the cases that count and fail on the base.
    """

    states: Mapping[str, str]
    passed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failing_on_base: frozenset[str] = frozenset()

    @property
    def counted(self) -> tuple[str, ...]:
        """The cases that count."""
        return self.cases_with(COUNTS)

    def cases_with(self, state: str) -> tuple[str, ...]:
        """Return the cases with a state."""
        return tuple(case for case, case_state in self.states.items() if case_state == state)

    @property
    def cases(self) -> tuple[JudgedCase, ...]:
        """The cases and their states, for a report."""
        return tuple(
            JudgedCase(case, state)
            for case, state in list(self.states.items())[:_MAX_REPORTED_CASES]
        )

    def describe_dropped(self) -> str:
        """Describe which cases do not count and why; '' if all count."""
        by_state: dict[str, list[str]] = {}
        for case, state in self.states.items():
            if state not in {COUNTS, FAILS_EVERYWHERE}:
                by_state.setdefault(state, []).append(case)
        return "; ".join(
            f"{format_cases(cases)}: {sanitize_line(state, 200)}"
            for state, cases in by_state.items()
        )


@dataclass(slots=True)
class Trial:
    """A run of the tests of `author` on the base and on the answers `diffs`.

    must_distinguish: a case counts only if it tells the answers apart; its result on the base does
    not matter.
    """

    tests: AuthorTests
    author: Proposal
    diffs: Sequence[str]
    must_distinguish: bool = False
    _runs: dict[tuple[str, str, int], CheckRun] = field(default_factory=dict)

    async def judge_cases(self, read_cases: ReadCases) -> Verdicts:
        """Return the state of each case.

        read_cases: called once, for the cases that would count or that fail on every answer.
        """
        states = dict(await self.run_once())
        cases = self._new_cases()
        unread = tuple(case for case, state in states.items() if self._needs_reading(state))
        unfit = await read_cases(unread) if unread else {}
        states |= {
            case: f"does not fit the task: {reason}"
            for case, reason in unfit.items()
            if case in states
        }
        counted_cases = [case for case, state in states.items() if state == COUNTS]
        paths_by_check = await self.tests.find_paths(self.author)
        checks = {
            check: paths
            for check, paths in paths_by_check.items()
            if check in map(cases.get, counted_cases)
        }
        for number in range(2, RUNS + 1):
            if any(run.duration_ms > LONG_MS for run in self._runs.values()):
                break
            await self._run_all(number, checks)
        states |= {
            case: DIFFERS for case in counted_cases if not self._is_steady(cases[case], case)
        }
        counted_cases = [case for case in counted_cases if states[case] == COUNTS]
        return Verdicts(
            states,
            {
                diff: frozenset(
                    case for case in counted_cases if self._passes(diff, cases[case], case)
                )
                for diff in self.diffs
            },
            frozenset(case for case in counted_cases if self._fails_on_base(cases[case], case)),
        )

    async def run_once(self) -> Mapping[str, str]:
        """Return the state of each case after one run, before a model reads the cases."""
        await self._run_all(1, await self.tests.find_paths(self.author))
        return {case: self._first_state(check, case) for case, check in self._new_cases().items()}

    async def run_on_base(self) -> Mapping[str, tuple[CheckRun, tuple[str, ...]]]:
        """Return by check the first run on the base, and the new cases in it."""
        await self._run_all(1, await self.tests.find_paths(self.author), [""])
        cases = self._new_cases()
        return {
            check: (run, tuple(case for case, case_check in cases.items() if case_check == check))
            for (diff, check, _), run in self._runs.items()
            if not diff
        }

    def _needs_reading(self, state: str) -> bool:
        return state == COUNTS or (state == FAILS_EVERYWHERE and not self.must_distinguish)

    def _first_state(self, check: str, case: str) -> str:
        passing = [diff for diff in self.diffs if self._passes(diff, check, case)]
        if not self.must_distinguish and not self._fails_on_base(check, case):
            run = self._runs["", check, 1]
            if run.status != "success":
                return UNFINISHED
            return PASSES_ON_BASE if run.cases.get(case) == "passed" else OTHER_REASON
        if self.must_distinguish and len(passing) in {0, len(self.diffs)}:
            return NO_DIFFERENCE
        return COUNTS if passing else FAILS_EVERYWHERE

    async def _run_all(
        self, number: int, checks: Mapping[str, Sequence[str]], diffs: Sequence[str] | None = None
    ) -> None:
        async def run_tests(diff: str, check: str, paths: Sequence[str]) -> None:
            self._runs[diff, check, number] = await self.tests.run_tests(
                diff, self.author, check, paths, number
            )

        async with asyncio.TaskGroup() as group:
            for diff in ("", *self.diffs) if diffs is None else diffs:
                for check, paths in checks.items():
                    group.create_task(run_tests(diff, check, paths))

    def _new_cases(self) -> dict[str, str]:
        """Return the new cases with their checks, by name: a runner may report them in any order.

        A case is new if the base lacks it, or if it passes there only in the base's own version.
        """
        base_runs = self.tests.runner.prepared.runs
        checks_by_case: dict[str, str] = {}
        for (_, check, _), run in self._runs.items():
            base_cases = base_runs[check].cases if check in base_runs else {}
            cases_on_base = self._runs["", check, 1].cases
            changed = {
                case
                for case, outcome in base_cases.items()
                if outcome == "passed" and cases_on_base.get(case) == "failed"
            }
            checks_by_case |= {
                case: check
                for case, outcome in run.cases.items()
                if (case not in base_cases or case in changed) and outcome != "skipped"
            }
        # A file or package that cannot be loaded on the base is reported as a case with its name.
        container_names = {name for case in checks_by_case for name in containers(case)}
        return {
            case: check
            for case, check in sorted(checks_by_case.items())
            if case not in container_names
        }

    def _runs_of_diff(self, diff: str, check: str) -> list[CheckRun]:
        return [
            run
            for (run_diff, run_check, _), run in self._runs.items()
            if (run_diff, run_check) == (diff, check)
        ]

    def _fails_on_base(self, check: str, case: str) -> bool:
        return all(self.tests.fails_on_base(run, case) for run in self._runs_of_diff("", check))

    def _passes(self, diff: str, check: str, case: str) -> bool:
        return all(run.cases.get(case) == "passed" for run in self._runs_of_diff(diff, check))

    def _is_steady(self, check: str, case: str) -> bool:
        base_outcomes = {
            self.tests.fails_on_base(run, case) for run in self._runs_of_diff("", check)
        }
        answer_outcomes = [
            {run.cases.get(case) == "passed" for run in self._runs_of_diff(diff, check)}
            for diff in self.diffs
        ]
        return len(base_outcomes) == 1 and all(len(outcomes) == 1 for outcomes in answer_outcomes)


async def add_cross_runs(
    tests: AuthorTests,
    author: Proposal,
    verdicts: Verdicts,
    candidates: Sequence[Candidate],
    *,
    published: bool = True,
) -> tuple[Candidate, ...]:
    """Return the candidates with the results of the counted cases, and publish these."""
    updated = []
    for candidate in candidates:
        passed = verdicts.passed.get(candidate.proposal.diff)
        other_runs = tuple(run for run in candidate.cross if run.author != author.seat)
        if passed is None or not verdicts.counted:
            updated.append(replace(candidate, cross=other_runs))
            continue
        failed = tuple(case for case in verdicts.counted if case not in passed)
        reproducing = tuple(
            case for case in verdicts.counted if case in passed and case in verdicts.failing_on_base
        )
        evidence = Evidence(
            check="cross",
            verdict=Verdict.FAILED if failed else Verdict.PASSED,
            passed=len(passed),
            failed=len(failed),
            proven=not failed and bool(reproducing),
            red=failed[:_MAX_REPORTED_CASES],
            shown=reproducing[:_MAX_NAMED_CASES],
            why=f"fails {format_cases(failed)}" if failed else "",
        )
        if published:
            await tests.facts.publish_evidence(
                candidate.proposal, evidence, f"cross/{author.seat}", cross_author=author.seat
            )
        updated.append(
            replace(
                candidate,
                cross=(
                    *other_runs,
                    CrossRun(author.seat, not failed, evidence.shown, evidence.red),
                ),
            )
        )
    return tuple(updated)
