"""The tests that seats brought, run on every candidate.

A case of an author counts if it is new or changed, fails on the base for a reason that the task
gives, and passes on the author's own candidate, each time in three runs (in one, if a run takes
longer than a minute). Its new cases that pass on the base, too, are guards: a candidate of another
seat that breaks one does not pass the tests of this author. The author's version of a test file
takes the place of the base's for these runs alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.test_files import is_crate_module, is_run_alone
from moothall.deliberation.prompts.text import clip
from moothall.domain.evidence import OWN_TESTS, RED, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import CrossRun, Proposal
from moothall.ranking.gates import name_cases
from moothall.ranking.relevance import missing_names, names_in
from moothall.ranking.syntax.diffs import FileDiff, file_diffs
from moothall.ranking.syntax.rust_tests import with_tests_of
from moothall.ranking.test_authorship import containers

_OUTPUT = 8000
_FAILED_CASES = 40  # recorded of a run; as many cases of an agent are read
RUNS = 3
"""Runs of a test before it counts."""
LONG_MS = 60_000
"""A run that takes longer is not repeated."""
_INLINE = re.compile(r"#\[(?:\w+::)*(?:test|test_case|rstest)\b|\bquickcheck!")


def adds_inline_tests(part: FileDiff) -> bool:
    """Whether the change of a Rust file adds a test, as far as its added lines say."""
    return any(_INLINE.search(line) for line in part.added.values())


def brings_inline_tests(part: FileDiff, base: str) -> bool:
    """Whether the change of a Rust file, whose text is `base` before it, adds a test to it or
    changes one.
    """
    after = part.apply(base)
    return adds_inline_tests(part) or with_tests_of(after, base) != after


async def runnable_paths(
    runs: CleanCheckoutRunner, tests: Sequence[str], diff: str
) -> dict[str, tuple[str, ...]]:
    """Return by check those of the test files that its runner can be given by name; () for the
    whole check.

    The whole check is run for tests inside Rust source files that `diff` changes, which no runner
    is given by name.
    """
    profile = runs.prepared.base.profile
    inside = [path for path in tests if is_crate_module(path)]
    inside += [
        part.path
        for part in file_diffs(diff)
        if part.path.endswith(".rs")
        and part.path not in tests
        and brings_inline_tests(part, await runs.text(part.path))
    ]
    found: dict[str, tuple[str, ...]] = {}
    for check in profile.checks:
        folder = profile.folders.get(check, "")
        start = f"{folder}/" if folder else ""
        some = tuple(path for path in tests if is_run_alone(path) and path.startswith(start))
        inline = any(path.startswith(start) for path in inside)
        if (some or inline) and (check == "tests" or check.startswith("tests-")):
            found[check] = () if inline else some
    return found


@dataclass(frozen=True, slots=True)
class ValidCases:
    """The cases of an author that count, by check. guards: its new ones that pass on the base. why:
    the reason if there are none.
    """

    cases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    guards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    why: str = ""

    @property
    def evidence(self) -> Evidence:
        """What they say of their author's own candidate."""
        names = [case for some in self.cases.values() for case in some]
        verdict = Verdict.PASSED if names else Verdict.MISSING
        return Evidence(
            OWN_TESTS, verdict, passed=len(names), why=self.why, shown=tuple(names[:20])
        )


@dataclass(frozen=True, slots=True)
class AuthorTests:
    """Runs the tests that candidates of one deliberation brought; the same tests on the same patch
    once.
    """

    runs: CleanCheckoutRunner
    facts: EventWriter
    _known: dict[tuple[str, ...], CheckRun] = field(default_factory=dict)
    _valid: dict[str, ValidCases] = field(default_factory=dict)
    _turns: dict[object, asyncio.Lock] = field(default_factory=dict)

    async def paths(self, author: Proposal) -> dict[str, tuple[str, ...]]:
        """Return by check the test files of an author that its runner can be given by name, as
        `runnable_paths` does.
        """
        return await runnable_paths(self.runs, author.own_tests, author.diff)

    async def validate(self, author: Proposal) -> ValidCases:
        """Return the cases of an author that count."""
        async with self._turns.setdefault(author.diff, asyncio.Lock()):
            if author.diff not in self._valid:
                self._valid[author.diff] = await self._validate(author)
        return self._valid[author.diff]

    async def run(
        self, authors: Sequence[Proposal], candidates: Sequence[Proposal]
    ) -> Mapping[str, tuple[CrossRun, ...]]:
        """Return by candidate how it fares under the tests of others, published. Each author has
        one vote, with its latest tests.

        They never score the author's own candidates, nor one that is the same patch. What differs
        from run to run is no vote.
        """
        latest = {author.seat: author for author in authors}
        valid = {seat: await self.validate(author) for seat, author in latest.items()}
        pairs = [
            (item, author)
            for item in candidates
            for author in latest.values()
            if item.seat != author.seat and item.diff != author.diff and valid[author.seat].cases
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._vote(item.diff, author, valid[author.seat]))
                for item, author in pairs
            ]
        votes: dict[str, tuple[CrossRun, ...]] = {}
        for (item, author), task in zip(pairs, tasks, strict=True):
            if (evidence := task.result()) is None:
                continue
            at = f"cross/{author.seat}/{author.fingerprint}"
            await self.facts.publish_evidence(
                item, evidence, at, cross_author=author.seat, cross_fingerprint=author.fingerprint
            )
            vote = CrossRun(
                author.seat, evidence.verdict is Verdict.PASSED, evidence.shown, evidence.red
            )
            votes[item.candidate] = (*votes.get(item.candidate, ()), vote)
        return votes

    async def own_run(self, author: Proposal, check: str, paths: Sequence[str]) -> CheckRun:
        """Run an author's tests on its own candidate."""
        return await self.run_tests(author.diff, author, check, paths)

    async def _validate(self, author: Proposal) -> ValidCases:
        found: dict[str, tuple[str, ...]] = {}
        guards: dict[str, tuple[str, ...]] = {}
        reasons: list[str] = []
        for check, paths in (await self.paths(author)).items():
            cases, guards[check], why = await self._valid_cases(author, check, paths)
            reasons += [why] if why else []
            if cases:
                found[check] = cases
        if not found and not reasons:
            reasons = ["no runner of this repository takes these files by name"]
        return ValidCases(found, guards, "" if found else reasons[0])

    async def _valid_cases(
        self, author: Proposal, check: str, paths: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        before = self.runs.prepared.runs[check].cases if check in self.runs.prepared.runs else {}
        own = await self.run_tests(author.diff, author, check, paths)
        new = [
            case
            for case, outcome in own.cases.items()
            if case not in before and outcome == "passed"
        ]
        known = [
            case for case, outcome in own.cases.items() if before.get(case) == outcome == "passed"
        ]
        if not new and not known:
            return (), (), _why_none(own, before)
        base = await self.run_tests("", author, check, paths)
        # A known case that fails here was changed by its author. That its file cannot be loaded
        # says nothing of it.
        red = [case for case in new if self.fails_on_base(base, case)] + [
            case for case in known if base.cases.get(case) == "failed"
        ]
        if base.status != "success" or not red:
            if not new:
                return (), (), _why_none(own, before)
            passing = base.status == "success" and all(
                base.cases.get(case) == "passed" for case in new
            )
            return (
                (),
                (),
                "they pass without the change"
                if passing
                else "they fail on the base for a reason that the task does not give",
            )
        guards = [case for case in new if base.cases.get(case) == "passed"]
        for number in range(2, RUNS + 1):
            if max(base.duration_ms, own.duration_ms) > LONG_MS:
                break
            again = await self.run_tests("", author, check, paths, number)
            once_more = await self.run_tests(author.diff, author, check, paths, number)
            red = [
                case
                for case in red
                if self.fails_on_base(again, case) and once_more.cases.get(case) == "passed"
            ]
            guards = [
                case
                for case in guards
                if again.cases.get(case) == once_more.cases.get(case) == "passed"
            ]
        return tuple(red), tuple(guards), "" if red else "they differ from run to run"

    async def passing_on_base(self, author: Proposal) -> tuple[tuple[str, ...], str]:
        """Return the new cases of an author if all of them pass on the base in three runs; else why
        they count for nothing.
        """
        found: list[str] = []
        for check, paths in (await self.paths(author)).items():
            before = (
                self.runs.prepared.runs[check].cases if check in self.runs.prepared.runs else {}
            )
            for number in range(1, RUNS + 1):
                run = await self.run_tests("", author, check, paths, number)
                new = {case: outcome for case, outcome in run.cases.items() if case not in before}
                if failing := [case for case, outcome in new.items() if outcome in RED]:
                    return (), f"its tests fail on the base: {name_cases(failing)}"
                if number == 1:
                    found += [case for case, outcome in new.items() if outcome == "passed"]
        return (
            (tuple(found), "") if found else ((), "it brings no new test that passes on the base")
        )

    def fails_on_base(self, base: CheckRun, case: str) -> bool:
        """Whether a case fails on the base for a reason that the task may give.

        A test that ran and failed does. One whose file could not be loaded or built does if the
        task names what is missing.
        """
        outcome = base.cases.get(case)
        if outcome in {"passed", "skipped"}:
            return False
        if outcome == "failed":
            return True
        errors = "\n".join(
            [
                *(base.details.get(name, "") for name in (case, *containers(case))),
                base.output[-_OUTPUT:],
            ]
        )
        return bool(missing_names(errors) & names_in(self.facts.deliberation.description))

    async def _vote(self, diff: str, author: Proposal, valid: ValidCases) -> Evidence | None:
        """Return what a candidate comes to under the cases of an author; None if that differs from
        run to run.
        """
        cases = valid.cases
        red: list[str] = []
        runs: list[CheckRun] = []
        paths_of = await self.paths(author)
        for check, some in cases.items():
            paths = paths_of[check]
            run = await self.run_tests(diff, author, check, paths)
            every_case = (*some, *valid.guards.get(check, ()))
            failed = [case for case in every_case if run.cases.get(case) != "passed"]
            if failed and run.duration_ms <= LONG_MS:
                again = await self.run_tests(diff, author, check, paths, 2)
                if failed != [case for case in every_case if again.cases.get(case) != "passed"]:
                    return None
            red += failed
            runs.append(run)
        total = sum(len(some) + len(valid.guards.get(check, ())) for check, some in cases.items())
        return Evidence(
            check="cross",
            verdict=Verdict.FAILED if red else Verdict.PASSED,
            passed=total - len(red),
            failed=len(red),
            duration_ms=sum(run.duration_ms for run in runs),
            output=clip("\n".join(run.output for run in runs), _OUTPUT),
            proven=not red,
            red=tuple(red[:_FAILED_CASES]),
            shown=tuple(case for some in cases.values() for case in some if case not in red)[:20],
            why=f"fails {name_cases(red)}" if red else "",
        )

    async def run_tests(
        self, diff: str, author: Proposal, check: str, paths: Sequence[str], number: int = 1
    ) -> CheckRun:
        """Run the author's `paths` on the base with `diff`; the base's other tests are as they were
        there.
        """
        key = (diff, author.diff, check, *paths, str(number))
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                ran = await self.runs.run(
                    {check: ()},
                    "cross",
                    digest(diff)[:8],
                    digest(*key)[:12],
                    diff=diff,
                    extra=author.diff,
                    paths=paths,
                    label="cross",
                )
                self._known[key] = ran.runs.get(check) or CheckRun(
                    "cross", Verdict.MISSING, output=ran.why
                )
        return self._known[key]


def _why_none(own: CheckRun, before: Mapping[str, str]) -> str:
    """Say why none of an author's cases that the base lacks counts."""
    failed = any(outcome in RED for case, outcome in own.cases.items() if case not in before)
    return "they fail with its own change" if failed else "no new test was found in them"
