"""The clean re-check by the trusted side: what a candidate is worth is never what its author says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.counter import CounterProof, Proving
from moothall.council.judging.cross import CrossTests
from moothall.council.judging.distinguish import DistinguishingInputs
from moothall.council.judging.runs import CheckRuns, FreshRuns
from moothall.council.prompting.excerpt import looks_like_test
from moothall.council.prompting.text import clip
from moothall.domain.codec import dump
from moothall.domain.evidence import APART, RED, SECRETS, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal
from moothall.domain.repository import Prepared
from moothall.domain.secrets import scrub
from moothall.errors import NotFound
from moothall.inside.cases import WRITTEN
from moothall.inside.checks import runs_python_tests
from moothall.ranking import assess, changed_files, passes_gates, rivals
from moothall.ranking.assess import differing_cases, is_silent, unmatched_cases
from moothall.ranking.documented import altered_examples
from moothall.ranking.gates import counts
from moothall.ranking.screening import screen, tests_to_read
from moothall.ranking.screening.joined import joined_secrets
from moothall.ranking.syntax.normal import changed_code, changes_nothing, normal_change, same_change

_OUTPUT = 8000
_TESTS = 500  # files of tests that are read for what they import or name
_TOLD = 4  # cases whose output is told
_RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|\.(?:test|spec)\.[cm]?[jt]sx?$|(?:^|/)(?:tests?|__tests__)/[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)
"""Test files that a runner can be given by name."""
_RERUN, _RERUN_MS = 50, 120_000  # cases, and the base's own time, up to which deciding cases are run once more


@dataclass(frozen=True, slots=True)
class Judged:
    """A proposal and what the trusted side found; `details`: what the cases said that it made red; `counter`: its counter-proof;
    `inputs`: what it did on distinguishing ones.
    """

    proposal: Proposal
    assessment: Assessment
    cross: tuple[CrossRun, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    counter: Evidence | None = None
    inputs: Evidence | None = None

    @property
    def candidate(self) -> Candidate:
        """As ranking looks at it, without reviews."""
        evidence = (*self.assessment.evidence, *(item for item in (self.counter, self.inputs) if item))
        return Candidate(self.proposal, replace(self.assessment, evidence=evidence), self.cross)

    @property
    def passes(self) -> bool:
        """Whether every gate is passed."""
        return passes_gates(self.candidate)

    @property
    def solves(self) -> bool:
        """Whether it passes the gates and leaves no failure behind that concerns the task: there is nothing to repair."""
        return self.passes and not self.assessment.unsolved


class Bench:
    """Judges the candidates of one deliberation; the same diff is run once. `clean` takes secrets out of a text."""

    def __init__(self, runs: FreshRuns, facts: Facts, limits: LimitSettings, clean: Callable[[str], str] = scrub) -> None:
        self._runs = runs
        self._clean = clean
        self._prepared = runs.prepared
        self._facts = facts
        self._cross = CrossTests(runs, facts)
        self._counter = CounterProof(runs, facts, limits)
        self._limits = limits
        self._inputs = DistinguishingInputs(runs, facts, limits)
        self._turns: dict[str, asyncio.Lock] = {}
        self._found: dict[str, Assessment] = {}
        self._untold: dict[str, set[str]] = {}
        self._base_turn = asyncio.Lock()
        self._details: dict[str, Mapping[str, str]] = {}
        self._authors: dict[str, Proposal] = {}
        self._altered: dict[str, Sequence[str]] = {}

    async def judge(self, proposal: Proposal, exact: str = "") -> Judged:
        """Re-check a proposal on a fresh checkout and publish what it showed. `exact` is its diff where that of the proposal was
        freed of secrets.
        """
        key = digest(proposal.diff)
        self._runs.remember(proposal.diff, exact or proposal.diff)
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._found:
                self._found[key] = await self._assess(proposal, key)
        judged = Judged(proposal, self._found[key], details=self._details.get(key, {}))
        await self._publish(judged)
        return judged

    async def _assess(self, proposal: Proposal, key: str) -> Assessment:
        self._altered[proposal.diff] = altered_examples(self._runs.exact(proposal.diff), await self._before(proposal.diff))
        every = dict.fromkeys(self._prepared.base.profile.checks, ())
        ran = (
            await self._runs.run(every, "check", key[:12], diff=proposal.diff)
            if proposal.diff.strip()
            else CheckRuns({}, refused=True)
        )
        runs, applies = await self._repeat_silent(ran.runs, proposal.diff), not ran.refused
        found = self._compare(proposal, runs, self._prepared.flaky, applies=applies)
        if gone := _missing_checks(found, runs, self._prepared):
            found = self._compare(proposal, runs, (*self._prepared.flaky, *await self._unsteady(gone)), applies=applies)
        if flaky := await self._find_flaky(proposal.diff, runs, _doubtful(found, runs, self._prepared)):
            known = (*self._prepared.flaky, *await self._unsteady(gone))
            found = self._compare(proposal, runs, (*known, *sorted(flaky)), applies=applies)
        if own := await self._own_tests(proposal, runs):
            runs = own
            flaky_now = sorted({case for item in found.evidence for case in item.flaky} | {*self._prepared.flaky})
            found = self._compare(proposal, runs, flaky_now, applies=applies)
        if found.proven and self._limits.apart_seconds:
            stronger = await agreement(self._runs, proposal.diff, found.fixed, runs, self._limits.apart_seconds)
            found = replace(found, evidence=(*found.evidence, *stronger))
        if applies:
            found = await self._read(proposal, found, _data_of_tests(runs) - _data_of_tests(self._prepared.runs))
        broken = {*found.regressions, *(case for item in found.evidence for case in item.red)}
        self._details[key] = {case: said for run in runs.values() for case, said in run.details.items() if case in broken}
        return found

    async def _repeat_silent(self, runs: Mapping[str, CheckRun], diff: str) -> Mapping[str, CheckRun]:
        """Run checks once more that ran no test at all: that is an error of the run more often than of the patch."""
        silent = {check: () for check, run in runs.items() if is_silent(self._prepared.runs.get(check), run)}
        again = (await self._runs.run(silent, "check", digest(diff)[:12], "again", diff=diff)).runs if silent else {}
        return {**runs, **again}

    async def _find_flaky(self, diff: str, first: Mapping[str, CheckRun], doubtful: Mapping[str, tuple[str, ...]]) -> set[str]:
        """Return what is no evidence: the cases that differ when they are run once more on the same tree.

        They are run alone. What differs then, but each time in the same way, depends on what runs before it, and is steady.
        """

        async def run_again(checks: Mapping[str, tuple[str, ...]], name: str) -> set[str]:
            ran = await self._runs.run(checks, "check", digest(diff)[:12], name, diff=diff)
            return {
                case for check in checks for case in (differing_cases(first[check], ran.runs[check]) if check in ran.runs else ())
            }

        alone = await run_again(doubtful, "2") if doubtful else set[str]()
        some = {check: cases for check, cases in doubtful.items() if alone.intersection(cases)}
        if not some:
            return alone
        return alone ^ await run_again(some, "3") | await run_again(dict.fromkeys(some, ()), "4")

    async def _read(self, proposal: Proposal, found: Assessment, written: Iterable[str]) -> Assessment:
        """Add what the diff itself says: the lines that reach for what judges it, and what it makes of the code. `written`: data of tests
        that were written while these ran, and are not on the base.
        """
        diff, own_tests = self._runs.exact(proposal.diff), proposal.own_tests
        texts, tests = await self._before(proposal.diff), await self._tests(tests_to_read(diff, own_tests))
        change = normal_change(diff, texts, own_tests)
        keys = joined_secrets(
            diff, texts, (path for path in changed_files(diff) if path in own_tests or looks_like_test(path)), self._clean
        )
        verdict = Verdict.FAILED if keys.certain else Verdict.PASSED
        shown = Evidence(SECRETS, verdict, failed=len(keys.certain), look=keys.certain or keys.doubtful)
        return replace(
            found,
            evidence=(*found.evidence, *([shown] if shown.look else [])),
            look=(
                *screen(diff, own_tests, texts, tests, self._prepared),
                *(f"{path}:1: {WRITTEN}" for path in sorted(written)),
            ),
            change=same_change(change),
            idle=changes_nothing(diff, change, self._facts.d.description),
        )

    async def _tests(self, ending: str) -> dict[str, str]:
        """Return the texts of the base's test files."""
        texts = {}
        for path in [path for path in self._prepared.files if path.endswith(ending) and looks_like_test(path)][:_TESTS]:
            with suppress(NotFound):
                texts[path] = await self._runs.read(path)
        return texts

    async def _before(self, diff: str) -> dict[str, str]:
        """Return the texts on the base of the code that a diff changes."""
        texts: dict[str, str] = {}
        for path in changed_code(self._runs.exact(diff)):
            with suppress(NotFound):
                texts[path] = await self._runs.read(path)
        return texts

    async def _own_tests(self, proposal: Proposal, runs: Mapping[str, CheckRun]) -> dict[str, CheckRun]:
        """Return the runs with what the author's new test files say, {} where there are none.

        They take no part in the runs that prove, since they could steer these; what is red in them speaks against their author.
        """
        new = [path for path in proposal.own_tests if path not in self._prepared.files and _RUN_ALONE.search(path)]
        joined = dict(runs)
        for check, run in runs.items():
            folder = self._prepared.base.profile.folders.get(check, "")
            paths = [path for path in new if not folder or path.startswith(f"{folder}/")]
            if not paths or not (check == "tests" or check.startswith("tests-")) or run.status != "success":
                continue
            known = self._prepared.runs[check].cases.keys() | run.cases.keys()
            own = await self._cross.tests(proposal.diff, proposal, check, paths)
            cases = {case: result for case, result in own.cases.items() if case not in known}
            joined[check] = replace(
                run,
                verdict=Verdict.FAILED if run.verdict is Verdict.PASSED and RED & {*cases.values()} else run.verdict,
                cases={**run.cases, **cases},
                details={**run.details, **{case: said for case, said in own.details.items() if case in cases}},
            )
        return joined if new else {}

    async def _unsteady(self, gone: Sequence[str]) -> list[str]:
        """Return the cases of these checks that only one of two runs of the untouched base told of: a name may hold the time.

        Asked where a candidate's runs lack cases; each check of the base is run once more at most.
        """
        async with self._base_turn:
            for check in gone:
                if check not in self._untold:
                    again = (await self._runs.run({check: ()}, "base", check, judged=False)).runs
                    self._untold[check] = unmatched_cases(self._prepared.runs[check], again[check]) if check in again else set()
        return sorted(case for check in gone for case in self._untold[check])

    def _compare(self, proposal: Proposal, runs: Mapping[str, CheckRun], flaky: Sequence[str], *, applies: bool) -> Assessment:
        base = self._prepared
        return assess(
            base.runs,
            runs,
            base.base.profile,
            own_tests=proposal.own_tests,
            applies=applies,
            flaky=flaky,
            changed=changed_files(proposal.diff),
            altered=self._altered.get(proposal.diff, ()),
            task=self._facts.d.description,
        )

    async def _publish(self, judged: Judged) -> None:
        found, proposal = judged.assessment, judged.proposal
        applies = Verdict.PASSED if found.applies else Verdict.FAILED
        whole = Evidence("applies", applies, proven=found.proven, look=found.look)
        told = {name: value for name, value in dump(found).items() if name != "evidence"}
        await self._facts.show(proposal, whole, "applies", assessment=told)
        for item in found.evidence:
            await self._facts.show(proposal, replace(item, output=clip(item.output, _OUTPUT)))

    async def confirm(self, judged: Judged, *, time_left: bool = True) -> Judged:
        """Put the proof of a would-be winner to the test, once a diff; where only tests of other seats prove it, by these."""
        proofs: tuple[Proving, ...] = (Proving(judged.assessment.fixed),)
        if not judged.assessment.proven and time_left:
            authors = [self._authors[name] for name in sorted({run.author for run in judged.cross if run.passed})]
            proofs = await self._cross.proving(judged.proposal, authors)
        counter = await self._counter.confirm(judged.proposal, proofs, time_left=time_left)
        return replace(judged, counter=counter)

    async def cross(self, judged: Sequence[Judged]) -> tuple[Judged, ...]:
        """Run every author's own tests on the candidates of others that pass the gates, where that can change anything."""
        if not _worth_it(judged):
            return tuple(judged)
        passing = [item.proposal for item in judged if item.passes]
        authors = [item.proposal for item in judged if item.proposal.own_tests and item.assessment.applies]
        self._authors = {author.seat: author for author in authors}
        votes = await self._cross.run(authors, passing)
        return tuple(replace(item, cross=votes.get(item.proposal.candidate, ())) for item in judged)

    async def find_undecided(self, judged: Sequence[Judged]) -> tuple[tuple[Proposal, ...], tuple[str, ...]]:
        """Return those that lead where neither tests nor inputs tell them apart, one of each answer, and what they make differently."""
        first = rivals([item.candidate for item in judged])
        if not first or any(item.inputs for item in first):
            return (), ()
        proposals = tuple({item.proposal.diff: item.proposal for item in first}.values())
        return proposals, await self._inputs.functions(proposals)

    async def distinguish(self, judged: Sequence[Judged], written: Sequence[str] = ()) -> tuple[Judged, ...]:
        """Run those that lead, and that no test tells apart, on the same inputs, those that a seat has `written` first."""
        found = await self._inputs.compare([item.proposal for item in rivals([item.candidate for item in judged])], written)
        return tuple(replace(item, inputs=found.get(item.proposal.candidate, item.inputs)) for item in judged)


def _missing_checks(found: Assessment, runs: Mapping[str, CheckRun], base: Prepared) -> tuple[str, ...]:
    """Required checks that ran to their end, and do not tell of cases that were green on the base."""
    lost = set(found.regressions)
    return tuple(
        name
        for name, run in runs.items()
        if name in found.required
        and run.cases
        and run.status == "success"
        and lost & (base.runs[name].cases.keys() - run.cases.keys())
    )


def _doubtful(found: Assessment, runs: Mapping[str, CheckRun], base: Prepared) -> dict[str, tuple[str, ...]]:
    """By check the cases that decide: regressions, new red ones and those that prove. Only of checks that can be run again cheaply."""
    deciding = {*found.regressions, *found.fixed, *(case for item in found.evidence for case in item.red)}
    cases = {name: tuple(sorted(deciding & run.cases.keys())) for name, run in runs.items() if name in found.required}
    return {
        name: some
        for name, some in cases.items()
        if some and len(some) <= _RERUN and runs[name].status == "success" and base.runs[name].duration_ms <= _RERUN_MS
    }


def _data_of_tests(runs: Mapping[str, CheckRun]) -> frozenset[str]:
    """The data of tests that were written while these ran."""
    return frozenset(case for run in runs.values() for case, said in run.details.items() if said == WRITTEN)


def _worth_it(judged: Sequence[Judged]) -> bool:
    """Tests of others change something where candidates compete, or where one is not proven yet."""
    passing = [item for item in judged if item.passes]
    return len({item.proposal.diff for item in passing}) > 1 or any(not item.assessment.proven for item in passing)


def facts_text(judged: Judged, base: Mapping[str, CheckRun]) -> str:
    """Say what the checks of a candidate showed, for its author or a reviewer. Names nobody."""
    found = judged.assessment
    lines = [] if found.applies else ["The patch is empty or does not apply on a clean checkout."]
    if found.idle:
        lines.append("The patch changes comments, docstrings or formatting alone.")
    for item in found.evidence:
        lines.append(f"{item.check}: {item.verdict}{counts(item)}{': ' if item.red else ''}{', '.join(item.red[:10])}")
        if item.red_before:
            lines.append(f"Red before and still: {', '.join(item.red_before[:10])}")
        if item.verdict is not Verdict.PASSED and item.output and not judged.details:
            lines.append(clip(item.output, 1500))
    if found.regressions:
        lines.append(f"Passed before and not any more: {', '.join(found.regressions[:10])}")
    lines += [f"{case}:\n{clip(said.strip(), 1500)}" for case, said in list(judged.details.items())[:_TOLD]]
    if any(outcome in RED for run in base.values() for outcome in run.cases.values()):
        lines.append("A test that failed before passes now." if found.proven else "No test that failed before passes now.")
    if judged.cross:
        lines.append(f"Passes the tests of {sum(run.passed for run in judged.cross)} of {len(judged.cross)} colleagues.")
    return "\n".join(lines)


async def agreement(
    runs: FreshRuns, diff: str, proving: Sequence[str], told: Mapping[str, CheckRun], seconds: float
) -> tuple[Evidence, ...]:
    """Return the evidence that the cases `proving` are green in two processes too: the tests in one, the code in another that sees none of
    them; () where not all are, or where it cannot be tried. Where they agree the proof is stronger: code that reads tests, runner or report
    finds none there. Where they do not, nothing is said: a test may derive a class of the code, or compare what is copied on the way.

    `told`: what the candidate's checks came to as they are. After `seconds` they are stopped: what waits for something in its own
    process may wait for ever here.
    """
    profile = runs.prepared.base.profile
    code = tuple(path for path in changed_files(runs.exact(diff)) if path.endswith((".py", ".pyi")) and not looks_like_test(path))
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
