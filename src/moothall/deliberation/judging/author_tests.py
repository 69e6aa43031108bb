"""Cross-tests: the tests that seats wrote, run on every candidate.

A case of an author counts if it is new or changed, fails on the base for a reason that the task
names, and passes on the author's own candidate, in each of three runs (one run if it takes longer
than a minute). The author's new cases that pass on the base are guards: a candidate of another seat
that breaks one does not pass the tests of this author. The author's version of a test file replaces
that of the base in these runs only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.hidden import is_crate_module, is_run_alone
from moothall.domain.evidence import FAILED_OUTCOMES, OWN_TESTS, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import CrossRun, Proposal
from moothall.domain.text import clip
from moothall.ranking.criteria import format_cases
from moothall.ranking.diffs import FileDiff, file_diffs, restore_base_tests
from moothall.ranking.test_cases import containers, find_identifiers, find_missing_names

_OUTPUT_CHARS = 8000
_MAX_NAMED_CASES = 20
_MAX_FAILED_CASES = 40  # recorded per run; as many cases of an agent are read
RUNS = 3
"""The number of runs before a test counts."""
LONG_MS = 60_000
"""The duration above which a run is not repeated, in milliseconds."""
_INLINE_TEST = re.compile(r"#\[(?:\w+::)*(?:test|test_case|rstest)\b|\bquickcheck!")


def adds_inline_tests(part: FileDiff) -> bool:
    """True if an added line of a Rust file declares a test."""
    return any(_INLINE_TEST.search(line) for line in part.added.values())


def brings_inline_tests(part: FileDiff, base: str) -> bool:
    """True if the change of a Rust file adds or changes a test inside it.

    base: the text of the file before the change.
    """
    changed_text = part.apply(base)
    return adds_inline_tests(part) or restore_base_tests(changed_text, base) != changed_text


async def runnable_paths(
    runner: CleanCheckoutRunner, tests: Sequence[str], diff: str
) -> dict[str, tuple[str, ...]]:
    """Return by check the test files that its runner accepts by name; () to run the whole check.

    The whole check runs for tests inside Rust source files that `diff` changes, and for test files
    of other languages if the check reports its cases in files, since no runner accepts these by
    name.
    """
    profile = runner.prepared.base.profile
    inline_test_files = [path for path in tests if is_crate_module(path)]
    inline_test_files += [
        part.path
        for part in file_diffs(diff)
        if part.path.endswith(".rs")
        and part.path not in tests
        and brings_inline_tests(part, await runner.read_base_text(part.path))
    ]
    paths_by_check: dict[str, tuple[str, ...]] = {}
    for check in profile.checks:
        folder = profile.folders.get(check, "")
        prefix = f"{folder}/" if folder else ""
        paths = tuple(path for path in tests if is_run_alone(path) and path.startswith(prefix))
        runs_whole_check = any(path.startswith(prefix) for path in inline_test_files) or (
            not paths
            and check in profile.reports
            and any(path.startswith(prefix) for path in tests)
        )
        if (paths or runs_whole_check) and (check == "tests" or check.startswith("tests-")):
            paths_by_check[check] = () if runs_whole_check else paths
    return paths_by_check


@dataclass(frozen=True, slots=True)
class ValidCases:
    """The cases of an author that count, by check.

    guards: new cases that pass on the base.
    reason: the reason if there are no cases.
    """

    cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    guards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reason: str = ""

    @property
    def evidence(self) -> Evidence:
        """The evidence of the author's own tests for its own candidate."""
        names = [case for cases in self.cases.values() for case in cases]
        verdict = Verdict.PASSED if names else Verdict.MISSING
        return Evidence(
            OWN_TESTS,
            verdict,
            passed=len(names),
            why=self.reason,
            shown=tuple(names[:_MAX_NAMED_CASES]),
        )


class _CheckCases(NamedTuple):
    """The cases of one check that count, its guards, and the reason if no case counts."""

    cases: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AuthorTests:
    """Runs the tests that candidates of one deliberation brought.

    The same tests run once on the same patch.
    """

    runner: CleanCheckoutRunner
    facts: EventWriter
    _results: dict[tuple[str, ...], CheckRun] = field(default_factory=dict)
    _validated: dict[str, ValidCases] = field(default_factory=dict)
    _locks: dict[object, asyncio.Lock] = field(default_factory=dict)

    async def find_paths(self, author: Proposal) -> dict[str, tuple[str, ...]]:
        """Return by check the test files of an author that its runner accepts by name."""
        return await runnable_paths(self.runner, author.own_tests, author.diff)

    async def validate(self, author: Proposal) -> ValidCases:
        """Return the cases of an author that count."""
        async with self._locks.setdefault(author.diff, asyncio.Lock()):
            if author.diff not in self._validated:
                self._validated[author.diff] = await self._validate_checks(author)
        return self._validated[author.diff]

    async def run_cross_tests(
        self, authors: Sequence[Proposal], candidates: Sequence[Proposal]
    ) -> Mapping[str, tuple[CrossRun, ...]]:
        """Run the tests of authors on candidates; return and publish the results by candidate.

        Each author has one vote, with its latest tests. An author never scores its own candidates,
        nor the same patch of another seat. A result that differs between runs is no vote.
        """
        latest_by_seat = {author.seat: author for author in authors}
        valid_by_seat = {
            seat: await self.validate(author) for seat, author in latest_by_seat.items()
        }
        pairs = [
            (candidate, author)
            for candidate in candidates
            for author in latest_by_seat.values()
            if candidate.seat != author.seat
            and candidate.diff != author.diff
            and valid_by_seat[author.seat].cases
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    self._score_candidate(candidate.diff, author, valid_by_seat[author.seat])
                )
                for candidate, author in pairs
            ]
        votes: dict[str, tuple[CrossRun, ...]] = {}
        for (candidate, author), task in zip(pairs, tasks, strict=True):
            if (evidence := task.result()) is None:
                continue
            ordinal = f"cross/{author.seat}/{author.fingerprint}"
            await self.facts.publish_evidence(
                candidate,
                evidence,
                ordinal,
                cross_author=author.seat,
                cross_fingerprint=author.fingerprint,
            )
            vote = CrossRun(
                author.seat, evidence.verdict is Verdict.PASSED, evidence.shown, evidence.red
            )
            votes[candidate.candidate] = (*votes.get(candidate.candidate, ()), vote)
        return votes

    async def run_own_tests(self, author: Proposal, check: str, paths: Sequence[str]) -> CheckRun:
        """Run an author's tests on its own candidate."""
        return await self.run_tests(author.diff, author, check, paths)

    async def _validate_checks(self, author: Proposal) -> ValidCases:
        cases_by_check: dict[str, tuple[str, ...]] = {}
        guards: dict[str, tuple[str, ...]] = {}
        reasons: list[str] = []
        for check, paths in (await self.find_paths(author)).items():
            valid = await self._validate_check(author, check, paths)
            guards[check] = valid.guards
            if valid.reason:
                reasons.append(valid.reason)
            if valid.cases:
                cases_by_check[check] = valid.cases
        if not cases_by_check and not reasons:
            reasons = ["no runner of this repository takes these files by name"]
        return ValidCases(cases_by_check, guards, "" if cases_by_check else reasons[0])

    async def _validate_check(
        self, author: Proposal, check: str, paths: Sequence[str]
    ) -> _CheckCases:
        base_cases = (
            self.runner.prepared.runs[check].cases if check in self.runner.prepared.runs else {}
        )
        own_run = await self.run_tests(author.diff, author, check, paths)
        new = [
            case
            for case, outcome in own_run.cases.items()
            if case not in base_cases and outcome == "passed"
        ]
        existing = [
            case
            for case, outcome in own_run.cases.items()
            if base_cases.get(case) == outcome == "passed"
        ]
        if not new and not existing:
            return _CheckCases(reason=_explain_no_cases(own_run, base_cases))
        base_run = await self.run_tests("", author, check, paths)
        # A known case that fails here was changed by its author. A file that cannot be loaded says
        # nothing about its cases.
        failing_on_base = [case for case in new if self.fails_on_base(base_run, case)] + [
            case for case in existing if base_run.cases.get(case) == "failed"
        ]
        if not failing_on_base:
            if not new:
                return _CheckCases(reason=_explain_no_cases(own_run, base_cases))
            pass_on_base = all(base_run.cases.get(case) == "passed" for case in new)
            if base_run.status != "success":
                return _CheckCases(reason="their run on the base did not finish")
            return _CheckCases(
                reason="they pass without the change"
                if pass_on_base
                else "they fail on the base for a reason that the task does not give"
            )
        guards = [case for case in new if base_run.cases.get(case) == "passed"]
        for number in range(2, RUNS + 1):
            if max(base_run.duration_ms, own_run.duration_ms) > LONG_MS:
                break
            repeated_base_run = await self.run_tests("", author, check, paths, number)
            repeated_own_run = await self.run_tests(author.diff, author, check, paths, number)
            failing_on_base = [
                case
                for case in failing_on_base
                if self.fails_on_base(repeated_base_run, case)
                and repeated_own_run.cases.get(case) == "passed"
            ]
            guards = [
                case
                for case in guards
                if repeated_base_run.cases.get(case) == repeated_own_run.cases.get(case) == "passed"
            ]
        return _CheckCases(
            tuple(failing_on_base),
            tuple(guards),
            "" if failing_on_base else "they differ from run to run",
        )

    async def find_cases_passing_on_base(self, author: Proposal) -> tuple[tuple[str, ...], str]:
        """Return the new cases of an author if all of them pass on the base in three runs;
        otherwise the reason.
        """
        passing: list[str] = []
        for check, paths in (await self.find_paths(author)).items():
            base_cases = (
                self.runner.prepared.runs[check].cases if check in self.runner.prepared.runs else {}
            )
            for number in range(1, RUNS + 1):
                run = await self.run_tests("", author, check, paths, number)
                new = {
                    case: outcome for case, outcome in run.cases.items() if case not in base_cases
                }
                if failing := [case for case, outcome in new.items() if outcome in FAILED_OUTCOMES]:
                    return (), f"its tests fail on the base: {format_cases(failing)}"
                if number == 1:
                    passing += [case for case, outcome in new.items() if outcome == "passed"]
        return (
            (tuple(passing), "")
            if passing
            else ((), "it brings no new test that passes on the base")
        )

    def fails_on_base(self, base: CheckRun, case: str) -> bool:
        """True if a case fails on the base for a reason that the task may name.

        This holds for a test that ran and failed. It holds for one whose file could not be loaded
        or built if the task names what is missing, unless the run did not finish.
        """
        outcome = base.cases.get(case)
        if outcome == "failed":
            return base.status in {"success", "timeout"}
        if outcome in {"passed", "skipped"} or base.status != "success":
            return False
        errors = "\n".join(
            [
                *(base.details.get(name, "") for name in (case, *containers(case))),
                base.output[-_OUTPUT_CHARS:],
            ]
        )
        return bool(
            find_missing_names(errors) & find_identifiers(self.facts.deliberation.description)
        )

    async def _score_candidate(
        self, diff: str, author: Proposal, valid: ValidCases
    ) -> Evidence | None:
        """Return the result of an author's cases on a candidate; None if it differs between runs or
        hit a time limit on a busy machine.
        """
        cases = valid.cases
        failing: list[str] = []
        runs: list[CheckRun] = []
        paths_by_check = await self.find_paths(author)
        for check, names in cases.items():
            paths = paths_by_check[check]
            run = await self.run_tests(diff, author, check, paths)
            every_case = (*names, *valid.guards.get(check, ()))
            failed = [case for case in every_case if run.cases.get(case) != "passed"]
            if failed and _is_unfinished_under_load(run, failed):
                return None
            if failed and run.duration_ms <= LONG_MS:
                repeated = await self.run_tests(diff, author, check, paths, 2)
                if failed != [case for case in every_case if repeated.cases.get(case) != "passed"]:
                    return None
            failing += failed
            runs.append(run)
        total = sum(len(names) + len(valid.guards.get(check, ())) for check, names in cases.items())
        return Evidence(
            check="cross",
            verdict=Verdict.FAILED if failing else Verdict.PASSED,
            passed=total - len(failing),
            failed=len(failing),
            duration_ms=sum(run.duration_ms for run in runs),
            output=clip("\n".join(run.output for run in runs), _OUTPUT_CHARS),
            proven=not failing,
            red=tuple(failing[:_MAX_FAILED_CASES]),
            shown=tuple(case for names in cases.values() for case in names if case not in failing)[
                :_MAX_NAMED_CASES
            ],
            why=f"fails {format_cases(failing)}" if failing else "",
        )

    async def run_tests(
        self, diff: str, author: Proposal, check: str, paths: Sequence[str], number: int = 1
    ) -> CheckRun:
        """Run test files of an author on the base with `diff`.

        The other tests are those of the base.
        """
        key = (diff, author.diff, check, *paths, str(number))
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._results:
                check_runs = await self.runner.run_checks(
                    {check: ()},
                    "cross",
                    digest(diff)[:8],
                    digest(*key)[:12],
                    diff=diff,
                    extra=author.diff,
                    paths=paths,
                    label="cross",
                )
                self._results[key] = check_runs.runs.get(check) or CheckRun(
                    "cross", Verdict.MISSING, output=check_runs.failure
                )
        return self._results[key]


def _is_unfinished_under_load(run: CheckRun, failed: Sequence[str]) -> bool:
    return (
        run.contended
        and run.status == "timeout"
        and all(run.cases.get(case) in {None, "errored"} for case in failed)
    )


def _explain_no_cases(own_run: CheckRun, base_cases: Mapping[str, str]) -> str:
    """Explain why no case of an author counts that the base lacks."""
    failed = any(
        outcome in FAILED_OUTCOMES
        for case, outcome in own_run.cases.items()
        if case not in base_cases
    )
    return "they fail with its own change" if failed else "no new test was found in them"
