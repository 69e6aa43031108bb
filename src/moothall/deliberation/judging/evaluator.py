"""The clean re-check by the trusted side: what a candidate is worth is never what its author
says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.author_tests import AuthorTests
from moothall.deliberation.judging.canary import Canary, file_of, make_canary
from moothall.deliberation.judging.clean_runs import CheckRuns, CleanCheckoutRunner
from moothall.deliberation.judging.hidden import is_hidden, with_hidden_checks, without_hidden
from moothall.deliberation.prompts.repository_context import looks_like_test
from moothall.deliberation.prompts.text import clip
from moothall.domain.codec import dump
from moothall.domain.evidence import (
    CANARY,
    HIDDEN_CASE,
    RED,
    SECRETS,
    UNBELIEVED,
    CheckRun,
    Evidence,
    Verdict,
)
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal
from moothall.domain.repository import Prepared
from moothall.domain.secrets import scrub
from moothall.errors import NotFound
from moothall.ranking import assess, changed_files, passes_gates
from moothall.ranking.assess import differing_cases, is_silent, unmatched_cases
from moothall.ranking.doctests import altered_examples
from moothall.ranking.gates import counts
from moothall.ranking.joined_secrets import joined_secrets
from moothall.ranking.relevance import concerns_change, find_test_file
from moothall.ranking.screening import screen
from moothall.ranking.syntax.normal import changed_code, changes_nothing, normal_change, same_change
from moothall.sandbox_runtime.cases import WRITTEN
from moothall.sandbox_runtime.checks import tells_cases

_OUTPUT = 8000
_NAMED = 20  # failing cases of an author's own tests
_SILENT = "its runner did not report a test that must fail, so its report is not believed"
_TRIED = 5  # cases whose file is looked for
_TOLD = 4  # cases whose output is told
_RERUN, _RERUN_MS = (
    50,
    120_000,
)  # cases, and the base's own time, up to which deciding cases are run once more


@dataclass(frozen=True, slots=True)
class _Canaries:
    """What tests that must fail showed: proving cases that differ, checks whose runner did not
    report one, and checks without one.
    """

    differing: AbstractSet[str] = frozenset()
    silent: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluatedProposal:
    """A proposal and what the trusted side found; `details`: the output of the cases that fail
    because of it.
    """

    proposal: Proposal
    assessment: Assessment
    cross: tuple[CrossRun, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def candidate(self) -> Candidate:
        """As ranking looks at it, without reviews."""
        return Candidate(self.proposal, self.assessment, self.cross)

    @property
    def seen(self) -> Assessment:
        """What seats and reviewers may know of it: nothing of hidden tests."""
        return without_hidden(self.assessment)

    @property
    def visible(self) -> Candidate:
        """The candidate as seats and reviewers may know it: without hidden tests."""
        return replace(self.candidate, assessment=self.seen)

    @property
    def passes(self) -> bool:
        """Whether every gate is passed."""
        return passes_gates(self.candidate)

    @property
    def solves(self) -> bool:
        """Whether it leaves nothing to repair that its author may know of: it passes the gates and
        its own tests, and no failure concerns the task.
        """
        visible = self.visible
        return not visible.own_failing and not visible.assessment.unsolved and passes_gates(visible)


class Evaluator:
    """Judges the candidates of one deliberation; the same diff is run once. `clean` takes secrets
    out of a text.
    """

    def __init__(
        self, runs: CleanCheckoutRunner, facts: EventWriter, clean: Callable[[str], str] = scrub
    ) -> None:
        prepared, hidden = with_hidden_checks(runs.prepared)
        runs = self._runs = replace(runs, prepared=prepared, hidden=hidden)
        self._clean = clean
        self._prepared = prepared
        self._facts = facts
        self._tests = AuthorTests(runs, facts)
        self._turns: dict[str, asyncio.Lock] = {}
        self._found: dict[str, Assessment] = {}
        self._untold: dict[str, set[str]] = {}
        self._base_turn = asyncio.Lock()
        self._reporting: dict[tuple[str, str], bool] = {}
        self._details: dict[str, Mapping[str, str]] = {}
        self._red_on_base: dict[str, bool] = {}
        self._altered: dict[str, Sequence[str]] = {}

    async def judge(self, proposal: Proposal, exact: str = "") -> EvaluatedProposal:
        """Re-check a proposal on a fresh checkout and publish what it showed. `exact` is its diff
        where that of the proposal was freed of secrets.
        """
        key = digest(proposal.diff)
        self._runs.remember(proposal.diff, exact or proposal.diff)
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._found:
                self._found[key] = await self._assess(proposal, key)
        judged = EvaluatedProposal(proposal, self._found[key], details=self._details.get(key, {}))
        await self._publish(judged)
        return judged

    async def _assess(self, proposal: Proposal, key: str) -> Assessment:
        await self._run_hidden_on_base()
        self._altered[proposal.diff] = altered_examples(
            self._runs.exact(proposal.diff), await self._before(proposal.diff)
        )
        every = dict.fromkeys(self._prepared.base.profile.checks, ())
        ran = (
            await self._runs.run(every, "check", key[:12], diff=proposal.diff)
            if proposal.diff.strip()
            else CheckRuns({}, refused=True)
        )
        runs, applies = await self._repeat_silent(ran.runs, proposal.diff), not ran.refused
        flaky = {*self._prepared.flaky}
        found = self._compare(proposal, runs, flaky, applies=applies)
        if gone := _missing_checks(found, runs, self._prepared):
            flaky |= {*await self._unsteady(gone)}
            found = self._compare(proposal, runs, flaky, applies=applies)
        doubtful = _doubtful(found, runs, self._prepared)
        differing, alone = await self._find_flaky(proposal.diff, runs, doubtful)
        if differing:
            flaky |= differing
            found = self._compare(proposal, runs, flaky, applies=applies)
        # A case that fails alone each time needs those before it; alone it says nothing.
        again = {
            check: tuple(case for case in cases if case not in alone)
            for check, cases in doubtful.items()
        }
        canaries = (
            await self._run_canaries(proposal.diff, runs, {} if differing else again, found)
            if applies
            else _Canaries()
        )
        if canaries.differing or canaries.silent:
            flaky |= canaries.differing
            runs = {
                **runs,
                **{
                    check: CheckRun(check, Verdict.MISSING, output=_SILENT, status=UNBELIEVED)
                    for check in canaries.silent
                },
            }
            found = self._compare(proposal, runs, flaky, applies=applies)
        if failing := await self._find_failing_on_base(found.regressions):
            flaky |= failing
            found = self._compare(proposal, runs, flaky, applies=applies)
        own_failing: list[str] = []
        if own := await self._own_tests(proposal, runs, own_failing):
            runs = own
            found = self._compare(proposal, runs, flaky, applies=applies)
        if found.fixed:
            unsteady = await self._find_passing_on_base(found.fixed, runs)
            unrelated = await self._unrelated(found.fixed, changed_files(proposal.diff))
            if unsteady or unrelated:
                found = self._compare(
                    proposal, runs, flaky | unsteady, applies=applies, unrelated=unrelated
                )
        if applies:
            found = replace(
                found,
                evidence=(
                    *found.evidence,
                    *await self._other_evidence(proposal, canaries, own_failing),
                ),
            )
            found = await self._read(
                proposal, found, _data_of_tests(runs) - _data_of_tests(self._prepared.runs)
            )
        broken = {*found.regressions, *(case for item in found.evidence for case in item.red)}
        self._details[key] = {
            case: said
            for check, run in runs.items()
            for case, said in run.details.items()
            if case in broken and not is_hidden(check)
        }
        return found

    async def _run_hidden_on_base(self) -> None:
        """Run the hidden tests on the untouched base, once."""
        async with self._base_turn:
            new = {
                check: () for check in self._runs.hidden.paths if check not in self._prepared.runs
            }
            if not new:
                return
            found = (await self._runs.run(new, "base", judged=False)).runs
            missing = {check: CheckRun(check, Verdict.MISSING) for check in new}
            self._prepared = replace(
                self._prepared, runs={**self._prepared.runs, **missing, **found}
            )

    async def _other_evidence(
        self, proposal: Proposal, canaries: _Canaries, failing: Sequence[str]
    ) -> list[Evidence]:
        """Return what the author's own tests show, and where the report of a runner was believed as
        it is.

        failing: the author's new cases that fail with its own change.
        """
        found = []
        if await self._tests.paths(proposal):
            own = (await self._tests.validate(proposal)).evidence
            found.append(replace(own, failed=len(failing), red=tuple(failing[:_NAMED])))
        if canaries.missing:
            why = self._why_no_canary(canaries.missing)
            found.append(Evidence(CANARY, Verdict.MISSING, why=why))
        return found

    def _why_no_canary(self, checks: Sequence[str]) -> str:
        base, names = self._prepared.runs, ", ".join(checks)
        if all(base[check].duration_ms > _RERUN_MS for check in checks if check in base):
            return (
                f"{names} took longer than {_RERUN_MS // 1000} s on the base, so no test that "
                "must fail was run with it"
            )
        return (
            f"No test that must fail could be placed in {names}: what its runner reports is "
            "believed"
        )

    async def _repeat_silent(
        self, runs: Mapping[str, CheckRun], diff: str
    ) -> Mapping[str, CheckRun]:
        """Run checks once more that ran no test at all: that is an error of the run more often than
        of the patch.
        """
        silent = {
            check: ()
            for check, run in runs.items()
            if is_silent(self._prepared.runs.get(check), run)
        }
        again = (
            (await self._runs.run(silent, "check", digest(diff)[:12], "again", diff=diff)).runs
            if silent
            else {}
        )
        return {**runs, **again}

    async def _find_flaky(
        self, diff: str, first: Mapping[str, CheckRun], doubtful: Mapping[str, tuple[str, ...]]
    ) -> tuple[set[str], set[str]]:
        """Return what is no evidence, the cases that differ when they are run once more on the same
        tree; and those that differ alone.

        They are run alone. What differs then, but each time in the same way, depends on what runs
        before it, and is steady.
        """

        async def run_again(checks: Mapping[str, tuple[str, ...]], name: str) -> set[str]:
            ran = await self._runs.run(checks, "check", digest(diff)[:12], name, diff=diff)
            return {
                case
                for check in checks
                for case in (
                    differing_cases(first[check], ran.runs[check]) if check in ran.runs else ()
                )
            }

        alone = await run_again(doubtful, "2") if doubtful else set[str]()
        some = {check: cases for check, cases in doubtful.items() if alone.intersection(cases)}
        if not some:
            return alone, alone
        return alone ^ await run_again(some, "3") | await run_again(
            dict.fromkeys(some, ()), "4"
        ), alone

    async def _run_canaries(
        self,
        diff: str,
        first: Mapping[str, CheckRun],
        doubtful: Mapping[str, tuple[str, ...]],
        found: Assessment,
    ) -> _Canaries:
        """Run the cases that prove once more, with a test in their file that must fail; where none
        prove, that test alone.
        """
        proving = {
            check: cases for check, cases in doubtful.items() if set(cases) & set(found.fixed)
        }
        canaries = {
            check: made
            for check in first
            if (made := await self._place_canary(check, first[check], found.fixed))
        }
        missing = [
            check
            for check in first
            if check in found.required
            and check not in canaries
            and tells_cases(self._argv(check))
            and "passed" in first[check].cases.values()
        ]
        asked = {
            check: (
                *proving.get(check, ()),
                *((canaries[check].case,) if check in canaries else ()),
            )
            for check in first
            if check in canaries or check in proving
        }
        runs = await self._run_with(canaries, asked, "check", digest(diff)[:12], "proof", diff=diff)
        silent: list[str] = []
        for check, canary in canaries.items():
            if canary.failed_in(runs.get(check)):
                continue
            if not await self._base_reports(check, canary):
                missing.append(check)
                runs |= await self._run_with(
                    {},
                    {check: proving.get(check, ())},
                    "check",
                    digest(diff)[:12],
                    "proof2",
                    diff=diff,
                )
                continue
            again = await self._run_with(
                {check: canary},
                {check: (canary.case,)},
                "check",
                digest(diff)[:12],
                "canary",
                diff=diff,
            )
            silent += [] if canary.failed_in(again.get(check)) else [check]
        differing = {
            case
            for check in proving
            if check in runs
            for case in differing_cases(first[check], runs[check])
        }
        return _Canaries(differing, tuple(silent), tuple(missing))

    async def _run_with(
        self,
        canaries: Mapping[str, Canary],
        asked: Mapping[str, Sequence[str]],
        *name: str,
        diff: str = "",
        judged: bool = True,
    ) -> dict[str, CheckRun]:
        append = {canary.path: canary.text for canary in canaries.values()}
        checks = {check: cases for check, cases in asked.items() if cases}
        return (
            {**(await self._runs.run(checks, *name, diff=diff, judged=judged, append=append)).runs}
            if checks
            else {}
        )

    async def _base_reports(self, check: str, canary: Canary) -> bool:
        """Whether the runner reports a canary in this file on the untouched base."""
        async with self._base_turn:
            if (check, canary.path) not in self._reporting:
                ran = await self._run_with(
                    {check: canary},
                    {check: (canary.case,)},
                    "base",
                    digest(check, canary.path)[:12],
                    "canary",
                    judged=False,
                )
                self._reporting[check, canary.path] = canary.failed_in(ran.get(check))
        return self._reporting[check, canary.path]

    async def _place_canary(self, check: str, run: CheckRun, fixed: Sequence[str]) -> Canary | None:
        """Return a canary for the file of a case that passed: one that proves, or else one that
        passed on the base.
        """
        base = self._prepared.runs.get(check)
        if base is None or base.duration_ms > _RERUN_MS or run.status != "success":
            return None
        hidden = self._runs.hidden.files if is_hidden(check) else {}
        before = frozenset(fixed)
        passed = sorted(
            (
                case
                for case, outcome in run.cases.items()
                if outcome == "passed" and (case in before or base.cases.get(case) == "passed")
            ),
            key=lambda case: case not in before,
        )
        files = (*hidden, *self._prepared.files)
        for case in passed[:_TRIED]:
            plain = case.removeprefix(HIDDEN_CASE)
            if path := file_of(plain, files):
                source = hidden.get(path) or await self._runs.text(path)
                made = make_canary(self._argv(check), plain, path, source) if source else None
                return (
                    replace(made, case=f"{case[: len(case) - len(plain)]}{made.case}")
                    if made
                    else None
                )
        return None

    def _argv(self, check: str) -> Sequence[str]:
        return self._prepared.base.profile.checks.get(check, ())

    async def _find_failing_on_base(self, lost: Sequence[str]) -> set[str]:
        """Return those of the lost cases that fail on the untouched base now, too: a busy machine
        or a date fails them, not the change.
        """
        found: set[str] = set()
        for check, base in self._prepared.runs.items():
            cases = tuple(case for case in lost if case in base.cases)
            if not cases or len(cases) > _RERUN or base.duration_ms > _RERUN_MS:
                continue
            ran = await self._runs.run(
                {check: cases}, "base", digest(check, *cases)[:12], "now", judged=False
            )
            found |= {
                case
                for case in cases
                if check in ran.runs and ran.runs[check].cases.get(case) in RED
            }
        return found

    async def _find_passing_on_base(
        self, fixed: Sequence[str], runs: Mapping[str, CheckRun]
    ) -> set[str]:
        """Return the proving cases that pass on the untouched base, too, in one of two further runs
        of them: they prove nothing.
        """
        async with self._base_turn:
            for check, run in runs.items():
                new = tuple(
                    case for case in fixed if case in run.cases and case not in self._red_on_base
                )[:_RERUN]
                if not new:
                    continue
                passing: set[str] = set()
                for number in ("2", "3"):
                    ran = await self._runs.run(
                        {check: new}, "base", digest(check, *new)[:12], number, judged=False
                    )
                    passing |= {
                        case
                        for case in new
                        if check in ran.runs and ran.runs[check].cases.get(case) == "passed"
                    }
                self._red_on_base |= {case: case not in passing for case in new}
        return {case for case in fixed if self._red_on_base.get(case) is False}

    async def _unrelated(self, fixed: Sequence[str], changed: Sequence[str]) -> set[str]:
        """Return the cases that have nothing to do with the changed files or the task."""
        tests = [path for path in self._prepared.files if looks_like_test(path)]
        code = [path for path in changed if not looks_like_test(path)]
        said = {
            case: text for run in self._prepared.runs.values() for case, text in run.details.items()
        }
        found = set()
        for case in fixed:
            if case.startswith(HIDDEN_CASE):
                continue  # the caller named it
            path = find_test_file(case, tests)
            text = await self._runs.text(path) if path else ""
            if not concerns_change(
                case, text, said.get(case, ""), code, self._facts.deliberation.description
            ):
                found.add(case)
        return found

    async def _read(
        self, proposal: Proposal, found: Assessment, written: Iterable[str]
    ) -> Assessment:
        """Add what the diff itself says: the lines that reach for what judges it, and what it makes
        of the code. `written`: data of tests that were written while these ran, and are not on the
        base.
        """
        diff, own_tests = self._runs.exact(proposal.diff), proposal.own_tests
        texts = await self._before(proposal.diff)
        change = normal_change(diff, texts, own_tests)
        keys = joined_secrets(
            diff,
            texts,
            (path for path in changed_files(diff) if path in own_tests or looks_like_test(path)),
            self._clean,
        )
        verdict = Verdict.FAILED if keys.certain else Verdict.PASSED
        shown = Evidence(
            SECRETS, verdict, failed=len(keys.certain), look=keys.certain or keys.doubtful
        )
        return replace(
            found,
            evidence=(*found.evidence, *([shown] if shown.look else [])),
            look=(*screen(diff, own_tests), *(f"{path}:1: {WRITTEN}" for path in sorted(written))),
            change=same_change(change),
            idle=changes_nothing(diff, change, self._facts.deliberation.description),
        )

    async def _before(self, diff: str) -> dict[str, str]:
        """Return the texts on the base of the code that a diff changes."""
        texts: dict[str, str] = {}
        for path in changed_code(self._runs.exact(diff)):
            with suppress(NotFound):
                texts[path] = await self._runs.read(path)
        return texts

    async def _own_tests(
        self, proposal: Proposal, runs: Mapping[str, CheckRun], failing: list[str]
    ) -> dict[str, CheckRun]:
        """Return the runs with the author's new cases that do not fail, {} if it brings no tests.
        Add the others to `failing`.

        They take no part in the runs that prove, since they could steer these. One that fails
        refuses nothing: a wrong test says little about the change beside it.
        """
        joined = dict(runs)
        tests = await self._tests.paths(proposal)
        for check, paths in tests.items():
            run = runs.get(check)
            if run is None or run.status != "success":
                continue
            known = self._prepared.runs[check].cases.keys() | run.cases.keys()
            own = await self._tests.own_run(proposal, check, paths)
            new = {case: outcome for case, outcome in own.cases.items() if case not in known}
            failing += [case for case, outcome in new.items() if outcome in RED]
            joined[check] = replace(
                run,
                cases={
                    **run.cases,
                    **{case: outcome for case, outcome in new.items() if outcome not in RED},
                },
                details={
                    **run.details,
                    **{case: said for case, said in own.details.items() if case in new},
                },
            )
        return joined if tests else {}

    async def _unsteady(self, gone: Sequence[str]) -> list[str]:
        """Return the cases of these checks that only one of two runs of the untouched base told of:
        a name may hold the time.

        Asked where a candidate's runs lack cases; each check of the base is run once more at most.
        """
        async with self._base_turn:
            for check in gone:
                if check not in self._untold:
                    again = (await self._runs.run({check: ()}, "base", check, judged=False)).runs
                    self._untold[check] = (
                        unmatched_cases(self._prepared.runs[check], again[check])
                        if check in again
                        else set()
                    )
        return sorted(case for check in gone for case in self._untold[check])

    def _compare(
        self,
        proposal: Proposal,
        runs: Mapping[str, CheckRun],
        flaky: Collection[str],
        *,
        applies: bool,
        unrelated: Collection[str] = (),
    ) -> Assessment:
        base = self._prepared
        return assess(
            base.runs,
            runs,
            base.base.profile,
            own_tests=proposal.own_tests,
            applies=applies,
            flaky=sorted(flaky),
            changed=changed_files(proposal.diff),
            altered=self._altered.get(proposal.diff, ()),
            task=self._facts.deliberation.description,
            unrelated=unrelated,
        )

    async def _publish(self, judged: EvaluatedProposal) -> None:
        found, proposal = judged.assessment, judged.proposal
        applies = Verdict.PASSED if found.applies else Verdict.FAILED
        whole = Evidence("applies", applies, proven=found.proven, look=found.look)
        told = {name: value for name, value in dump(found).items() if name != "evidence"}
        await self._facts.publish_evidence(proposal, whole, "applies", assessment=told)
        for item in found.evidence:
            await self._facts.publish_evidence(
                proposal, replace(item, output=clip(item.output, _OUTPUT))
            )

    @property
    def author_tests(self) -> AuthorTests:
        """What runs tests that somebody brought."""
        return self._tests

    async def passing_as_changed(self, author: Proposal, lost: Collection[str]) -> list[str]:
        """Return those of the lost cases that pass on the author's answer as its own version of the
        test files has them.
        """
        found: list[str] = []
        for check, paths in (await self._tests.paths(author)).items():
            own = await self._tests.own_run(author, check, paths)
            found += [case for case in lost if own.cases.get(case) == "passed"]
        return found

    def exact(self, diff: str) -> str:
        """Return a diff as it applies, where it was freed of secrets."""
        return self._runs.exact(diff)

    async def cases_on_base(self, author: Proposal) -> tuple[tuple[str, ...], str]:
        """Return an author's new cases that pass on the untouched base, or why there are none."""
        return await self._tests.passing_on_base(author)

    async def test_authors(self, judged: Sequence[EvaluatedProposal]) -> tuple[Proposal, ...]:
        """Return by seat the latest proposal with tests that count."""
        latest = {
            item.proposal.seat: item.proposal
            for item in judged
            if item.assessment.applies and await self._tests.paths(item.proposal)
        }
        return tuple(
            [author for author in latest.values() if (await self._tests.validate(author)).cases]
        )

    async def cross(
        self, judged: Sequence[EvaluatedProposal], without: Collection[str] = ()
    ) -> tuple[EvaluatedProposal, ...]:
        """Run every author's tests on the candidates of others that pass the gates. `without`:
        seats whose tests do not count.
        """
        if not _worth_it(judged):
            return tuple(judged)
        passing = [item.proposal for item in judged if item.passes]
        authors = [
            author for author in await self.test_authors(judged) if author.seat not in without
        ]
        votes = await self._tests.run(authors, passing)
        return tuple(replace(item, cross=votes.get(item.proposal.candidate, ())) for item in judged)


def _missing_checks(
    found: Assessment, runs: Mapping[str, CheckRun], base: Prepared
) -> tuple[str, ...]:
    """Required checks that ran to their end, and do not tell of cases that were green on the
    base.
    """
    lost = set(found.regressions)
    return tuple(
        name
        for name, run in runs.items()
        if name in found.required
        and run.cases
        and run.status == "success"
        and lost & (base.runs[name].cases.keys() - run.cases.keys())
    )


def _doubtful(
    found: Assessment, runs: Mapping[str, CheckRun], base: Prepared
) -> dict[str, tuple[str, ...]]:
    """By check the cases that decide: regressions, new red ones and those that prove. Only of
    checks that can be run again cheaply.
    """
    deciding = {
        *found.regressions,
        *found.fixed,
        *(case for item in found.evidence for case in item.red),
    }
    cases = {
        name: tuple(sorted(deciding & run.cases.keys()))
        for name, run in runs.items()
        if name in found.required
    }
    return {
        name: some
        for name, some in cases.items()
        if some
        and len(some) <= _RERUN
        and runs[name].status == "success"
        and base.runs[name].duration_ms <= _RERUN_MS
    }


def _data_of_tests(runs: Mapping[str, CheckRun]) -> frozenset[str]:
    """The data of tests that were written while these ran."""
    return frozenset(
        case for run in runs.values() for case, said in run.details.items() if said == WRITTEN
    )


def _worth_it(judged: Sequence[EvaluatedProposal]) -> bool:
    """Tests of others change something where candidates compete, or where one is not proven yet."""
    passing = [item for item in judged if item.passes]
    return len({item.proposal.diff for item in passing}) > 1 or any(
        not item.assessment.proven for item in passing
    )


def facts_text(judged: EvaluatedProposal, base: Mapping[str, CheckRun]) -> str:
    """Say what the checks of a candidate showed, for its author or a reviewer. Names nobody."""
    found = judged.seen
    lines = [] if found.applies else ["The patch is empty or does not apply on a clean checkout."]
    if found.idle:
        lines.append("The patch changes comments, docstrings or formatting alone.")
    for item in found.evidence:
        lines.append(
            f"{item.check}: "
            f"{item.verdict}{counts(item)}{': ' if item.red else ''}{', '.join(item.red[:10])}"
        )
        if item.red_before:
            lines.append(f"Red before and still: {', '.join(item.red_before[:10])}")
        if item.verdict is not Verdict.PASSED and item.output and not judged.details:
            lines.append(clip(item.output, 1500))
    if found.regressions:
        lines.append(f"Passed before and not any more: {', '.join(found.regressions[:10])}")
    lines += [
        f"{case}:\n{clip(said.strip(), 1500)}"
        for case, said in list(judged.details.items())[:_TOLD]
    ]
    if any(outcome in RED for run in base.values() for outcome in run.cases.values()):
        lines.append(
            "A test that failed before passes now."
            if found.proven
            else "No test that failed before passes now."
        )
    if judged.cross:
        lines.append(
            f"Passes the tests of {sum(run.passed for run in judged.cross)} of "
            f"{len(judged.cross)} colleagues."
        )
    return "\n".join(lines)
