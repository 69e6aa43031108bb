"""Tests of an agent that has no answer of its own, run on the base and on answers: which of their
cases count, and for whom.

The same runs and reasons as for tests of seats (`author_tests`): the agent's version of a test file
takes the place of the base's for these runs alone, only cases that the base lacks count, or that
the agent changed so that they fail on it, and each is run three times (once, if a run takes longer
than a minute).
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
from moothall.deliberation.judging.evaluator import EvaluatedProposal
from moothall.deliberation.judging.test_files import is_crate_module, is_run_alone
from moothall.deliberation.prompts.evidence_prompt import READ_CASES
from moothall.domain.evidence import CheckRun, Evidence, JudgedCase, Verdict
from moothall.domain.proposal import CrossRun, Proposal
from moothall.domain.repository import Patch
from moothall.ranking.gates import name_cases, plain
from moothall.ranking.syntax.diffs import FileDiff, file_diffs, keep_files
from moothall.ranking.test_authorship import containers

COUNTS = "counts"
PASSES_ON_BASE = "passes on the base"
OTHER_REASON = "fails on the base for a reason that the task does not give"
FAILS_EVERYWHERE = "fails on every answer"
TELLS_NOTHING = "comes out the same on every answer"
DIFFERS = "differs from run to run"
_CASES = 40
_SHOWN = 20

Read = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]
"""Given cases, returns those that do not fit the task, with the reason."""


async def tests_in(runs: CleanCheckoutRunner, patch: Patch, seat: str, role: str) -> Proposal:
    """Return what of an agent's change are tests, as if a seat had proposed them.

    Changes of source, configuration and data of the base are left out, and so is all that is no
    text.
    """
    there, tests = frozenset(runs.prepared.files), frozenset(patch.tests)
    sources = [
        part.path
        for part in file_diffs(patch.diff)
        if part.path.endswith(".rs") and part.path in there - tests
    ]
    texts = {path: await runs.text(path) for path in sources}

    def wanted(part: FileDiff) -> bool:
        if part.path in tests:
            return part.path not in there or is_run_alone(part.path) or is_crate_module(part.path)
        return part.path in texts and brings_inline_tests(part, texts[part.path])

    diff = keep_files(patch.diff, wanted)
    return Proposal(
        seat,
        role,
        "",
        diff,
        own_tests=tuple(path for path in patch.tests if f" b/{path}\n" in diff),
    )


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What became of each new case, by name: the first reason why it does not count, or `COUNTS`.
    `passed`: by diff, the cases that count and pass; `red`: those that fail on the base.
    """

    states: Mapping[str, str]
    passed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    red: frozenset[str] = frozenset()

    @property
    def counted(self) -> tuple[str, ...]:
        """The cases that count."""
        return self.of(COUNTS)

    def of(self, state: str) -> tuple[str, ...]:
        """Return the cases of which this became."""
        return tuple(case for case, found in self.states.items() if found == state)

    @property
    def cases(self) -> tuple[JudgedCase, ...]:
        """All of it, for a report."""
        return tuple(JudgedCase(case, state) for case, state in list(self.states.items())[:_CASES])

    def dropped(self) -> str:
        """Say why cases do not count; '' if all do."""
        by_state: dict[str, list[str]] = {}
        for case, state in self.states.items():
            if state not in {COUNTS, FAILS_EVERYWHERE}:
                by_state.setdefault(state, []).append(case)
        return "; ".join(
            f"{name_cases(cases)}: {plain(state, 200)}" for state, cases in by_state.items()
        )


@dataclass(slots=True)
class Trial:
    """The tests of `author` on the base and on the answers `diffs`. `apart`: they have to tell the
    answers apart, whatever the base does.
    """

    tests: AuthorTests
    author: Proposal
    diffs: Sequence[str]
    apart: bool = False
    _runs: dict[tuple[str, str, int], CheckRun] = field(default_factory=dict)

    async def run(self, read: Read) -> Verdicts:
        """Return what becomes of each case. `read` is asked once, about those that would count or
        fail on every answer.
        """
        states = dict(await self.look())
        cases = self._new_cases()
        unfit = (
            await read(tuple(found))
            if (found := [case for case, state in states.items() if self._is_open(state)])
            else {}
        )
        states |= {
            case: f"does not fit the task: {why}" for case, why in unfit.items() if case in states
        }
        counted = [case for case, state in states.items() if state == COUNTS]
        every = await self.tests.paths(self.author)
        checks = {
            check: paths for check, paths in every.items() if check in map(cases.get, counted)
        }
        for number in range(2, RUNS + 1):
            if any(run.duration_ms > LONG_MS for run in self._runs.values()):
                break
            await self._run_all(number, checks)
        states |= {case: DIFFERS for case in counted if not self._is_steady(cases[case], case)}
        counted = [case for case in counted if states[case] == COUNTS]
        return Verdicts(
            states,
            {
                diff: frozenset(case for case in counted if self._passes(diff, cases[case], case))
                for diff in self.diffs
            },
            frozenset(case for case in counted if self._fails_on_base(cases[case], case)),
        )

    async def look(self) -> Mapping[str, str]:
        """Return what a first run makes of each case; nobody has read them yet."""
        await self._run_all(1, await self.tests.paths(self.author))
        return {case: self._first_state(check, case) for case, check in self._new_cases().items()}

    async def on_base(self) -> Mapping[str, tuple[CheckRun, tuple[str, ...]]]:
        """Return by check the first run on the base, and the new cases in it."""
        await self._run_all(1, await self.tests.paths(self.author), [""])
        cases = self._new_cases()
        return {
            check: (run, tuple(case for case, of in cases.items() if of == check))
            for (diff, check, _), run in self._runs.items()
            if not diff
        }

    def _is_open(self, state: str) -> bool:
        return state == COUNTS or (state == FAILS_EVERYWHERE and not self.apart)

    def _first_state(self, check: str, case: str) -> str:
        passing = [diff for diff in self.diffs if self._passes(diff, check, case)]
        if not self.apart and not self._fails_on_base(check, case):
            run = self._runs["", check, 1]
            return PASSES_ON_BASE if run.cases.get(case) == "passed" else OTHER_REASON
        if self.apart and len(passing) in {0, len(self.diffs)}:
            return TELLS_NOTHING
        return COUNTS if passing else FAILS_EVERYWHERE

    async def _run_all(
        self, number: int, checks: Mapping[str, Sequence[str]], diffs: Sequence[str] | None = None
    ) -> None:
        async def run(diff: str, check: str, paths: Sequence[str]) -> None:
            self._runs[diff, check, number] = await self.tests.run_tests(
                diff, self.author, check, paths, number
            )

        async with asyncio.TaskGroup() as group:
            for diff in ("", *self.diffs) if diffs is None else diffs:
                for check, paths in checks.items():
                    group.create_task(run(diff, check, paths))

    def _new_cases(self) -> dict[str, str]:
        """Return the cases that the base lacks, or that pass with its own version of them, with
        their checks, in the order of the runs.
        """
        base = self.tests.runs.prepared.runs
        found: dict[str, str] = {}
        for (_, check, _), run in self._runs.items():
            before = base[check].cases if check in base else {}
            on_base = self._runs["", check, 1].cases
            changed = {
                case
                for case, outcome in before.items()
                if outcome == "passed" and on_base.get(case) == "failed"
            }
            found |= {
                case: check
                for case, outcome in run.cases.items()
                if (case not in before or case in changed) and outcome != "skipped"
            }
        # A file or package that cannot be loaded on the base is a case of its own name there.
        wholes = {name for case in found for name in containers(case)}
        return {case: check for case, check in found.items() if case not in wholes}

    def _of(self, diff: str, check: str) -> list[CheckRun]:
        return [run for (of, name, _), run in self._runs.items() if (of, name) == (diff, check)]

    def _fails_on_base(self, check: str, case: str) -> bool:
        return all(
            run.status == "success" and self.tests.fails_on_base(run, case)
            for run in self._of("", check)
        )

    def _passes(self, diff: str, check: str, case: str) -> bool:
        return all(run.cases.get(case) == "passed" for run in self._of(diff, check))

    def _is_steady(self, check: str, case: str) -> bool:
        on_base = {
            run.status == "success" and self.tests.fails_on_base(run, case)
            for run in self._of("", check)
        }
        told = [
            {run.cases.get(case) == "passed" for run in self._of(diff, check)}
            for diff in self.diffs
        ]
        return len(on_base) == 1 and all(len(outcomes) == 1 for outcomes in told)


async def vote(
    tests: AuthorTests,
    author: Proposal,
    verdicts: Verdicts,
    judged: Sequence[EvaluatedProposal],
    *,
    published: bool = True,
) -> tuple[EvaluatedProposal, ...]:
    """Return the candidates with what the counted cases say of those that were run, and publish
    it.
    """
    found = []
    for item in judged:
        passed = verdicts.passed.get(item.proposal.diff)
        others = tuple(run for run in item.cross if run.author != author.seat)
        if passed is None or not verdicts.counted:
            found.append(replace(item, cross=others))
            continue
        failed = tuple(case for case in verdicts.counted if case not in passed)
        shown = tuple(case for case in verdicts.counted if case in passed and case in verdicts.red)
        evidence = Evidence(
            check="cross",
            verdict=Verdict.FAILED if failed else Verdict.PASSED,
            passed=len(passed),
            failed=len(failed),
            proven=not failed and bool(shown),
            red=failed[:READ_CASES],
            shown=shown[:_SHOWN],
            why=f"fails {name_cases(failed)}" if failed else "",
        )
        if published:
            await tests.facts.publish_evidence(
                item.proposal, evidence, f"cross/{author.seat}", cross_author=author.seat
            )
        found.append(
            replace(
                item,
                cross=(*others, CrossRun(author.seat, not failed, evidence.shown, evidence.red)),
            )
        )
    return tuple(found)
