"""The clean re-check by the trusted side: what a candidate is worth is never what its author says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from moothall.config import Limits
from moothall.council.counter import CounterProof
from moothall.council.facts import Facts
from moothall.council.text import clip
from moothall.council.watching import checked
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Assessment, Candidate, CrossRun, Proposal
from moothall.domain.repository import Prepared
from moothall.errors import NotFound, PatchRefused, SandboxUnavailable, WorkspaceFailed
from moothall.ports import Reader, Workspaces
from moothall.ranking import assess, changed_files, passes_gates
from moothall.ranking.assess import differing, told_once
from moothall.ranking.gates import counts
from moothall.ranking.reach import changed_python, reaches

_OUTPUT = 8000
_TEXT = 1_000_000
_TOLD = 4  # cases whose output is told
_TRIES = 3  # an executor may be killed under a check
_RED = {"failed", "errored"}
_RUN_ALONE = re.compile(
    r"(?:^|/)test_[^/]*\.py$|_test\.(?:py|go)$|\.(?:test|spec)\.[cm]?[jt]sx?$|(?:^|/)(?:tests?|__tests__)/[^/]+\.(?:rs|[cm]?[jt]sx?)$"
)
"""Test files that a runner can be given by name."""
_RERUN, _RERUN_MS = 50, 120_000  # cases, and the base's own time, up to which deciding cases are run once more


def workspace_name(task_id: str, *parts: str) -> str:
    """Return an id for a workspace: readable where it is short, and the same on a second run."""
    name = "-".join((task_id, *parts))
    limit = 63
    return name if len(name) <= limit else f"{name[: limit - 13]}-{digest(name)[:12]}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A proposal and what the trusted side found; `details`: what the cases said that it made red; `counter`: its counter-proof."""

    proposal: Proposal
    assessment: Assessment
    cross: tuple[CrossRun, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    counter: Evidence | None = None

    @property
    def candidate(self) -> Candidate:
        """As ranking looks at it, without reviews."""
        evidence = (*self.assessment.evidence, *((self.counter,) if self.counter else ()))
        return Candidate(self.proposal, replace(self.assessment, evidence=evidence), self.cross)

    @property
    def passes(self) -> bool:
        """Whether every gate is passed."""
        return passes_gates(self.candidate)


class Bench:
    """Judges the candidates of one deliberation; the same diff is run once."""

    def __init__(
        self, prepared: Prepared, workspaces: Workspaces, reader: Reader, facts: Facts, *, at_once: int, limits: Limits
    ) -> None:
        self._prepared = prepared
        self._reader = reader
        self._workspaces = workspaces
        self._facts = facts
        self._places = asyncio.Semaphore(at_once)
        self._counter = CounterProof(prepared, workspaces, reader, facts, limits, self._places)
        self._countered: dict[str, Evidence] = {}
        self._most = limits.counter_proofs
        self._turns: dict[str, asyncio.Lock] = {}
        self._found: dict[str, Assessment] = {}
        self._crossed: dict[tuple[str, str], CheckRun] = {}
        self._untold: dict[str, set[str]] = {}
        self._base_turn = asyncio.Lock()
        self._exact: dict[str, str] = {}
        self._details: dict[str, Mapping[str, str]] = {}

    async def judge(self, proposal: Proposal, exact: str = "") -> Judged:
        """Re-check a proposal on a fresh checkout and publish what it showed. `exact` is its diff where that of the proposal was
        freed of secrets.
        """
        key = digest(proposal.diff)
        self._exact[proposal.diff] = exact or proposal.diff
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._found:
                self._found[key] = await self._assess(proposal, key)
        judged = Judged(proposal, self._found[key], details=self._details.get(key, {}))
        await self._publish(judged)
        return judged

    async def _assess(self, proposal: Proposal, key: str) -> Assessment:
        name = workspace_name(self._facts.d.task_id, "check", key[:12])
        runs, applies = await self._run_checks(proposal, name, {}) if proposal.diff.strip() else ({}, False)
        found = self._compared(proposal, runs, self._prepared.flaky, applies=applies)
        if gone := _gone(found, runs, self._prepared):
            found = self._compared(proposal, runs, (*self._prepared.flaky, *await self._unsteady(gone)), applies=applies)
        if doubtful := _doubtful(found, runs, self._prepared):
            # What decides is run once more on the same tree: what differs is no evidence.
            again, _ = await self._run_checks(proposal, f"{name}-2", doubtful)
            flaky = {case for check, run in again.items() for case in differing(runs[check], run)}
            if flaky:
                known = (*self._prepared.flaky, *await self._unsteady(gone))
                found = self._compared(proposal, runs, (*known, *sorted(flaky)), applies=applies)
        if own := await self._own_tests(proposal, runs):
            runs = own
            flaky_now = sorted({case for item in found.evidence for case in item.flaky} | {*self._prepared.flaky})
            found = self._compared(proposal, runs, flaky_now, applies=applies)
        if applies:
            found = replace(found, look=await self._reached(proposal))
        broken = {*found.regressions, *(case for item in found.evidence for case in item.red)}
        self._details[key] = {case: said for run in runs.values() for case, said in run.details.items() if case in broken}
        return found

    async def _reached(self, proposal: Proposal) -> tuple[str, ...]:
        """Return the lines that the proposal adds and that reach for what judges it."""
        diff = self._exact[proposal.diff]
        texts: dict[str, str] = {}
        for path in changed_python(diff):
            with suppress(NotFound):
                texts[path] = await self._reader.read(self._prepared.base, path, _TEXT)
        return reaches(diff, texts, proposal.own_tests)

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
            own = await self._run_tests(proposal.diff, proposal, check, paths)
            cases = {case: result for case, result in own.cases.items() if case not in known}
            joined[check] = replace(
                run,
                verdict=Verdict.FAILED if run.verdict is Verdict.PASSED and _RED & {*cases.values()} else run.verdict,
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
                    self._untold[check] = set()
                    name = workspace_name(self._facts.d.task_id, "base", check)
                    with suppress(WorkspaceFailed, SandboxUnavailable):
                        async with self._places, self._workspaces.open(self._prepared, name) as workspace:
                            again = await workspace.check(check, deadline=self._facts.d.deadline)
                            self._untold[check] = told_once(self._prepared.runs[check], again)
        return sorted(case for check in gone for case in self._untold[check])

    def _compared(self, proposal: Proposal, runs: Mapping[str, CheckRun], flaky: Sequence[str], *, applies: bool) -> Assessment:
        base = self._prepared
        return assess(
            base.runs,
            runs,
            base.base.profile,
            own_tests=proposal.own_tests,
            applies=applies,
            flaky=flaky,
            changed=changed_files(proposal.diff),
            task=self._facts.d.description,
        )

    async def _run_checks(
        self, proposal: Proposal, name: str, only: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, CheckRun], bool]:
        """Run the checks on a fresh checkout, or `only` these with these cases; False where the patch does not apply."""
        runs: dict[str, CheckRun] = {}
        checks = self._prepared.base.profile.checks
        for _ in range(_TRIES):
            try:
                async with (
                    self._places,
                    self._workspaces.open(self._prepared, name, patch=self._exact[proposal.diff], judged=True) as workspace,
                ):
                    for check in only or checks:
                        with checked(check, name) as noted:
                            run = await workspace.check(check, deadline=self._facts.d.deadline, cases=only.get(check, ()))
                            runs[check] = noted(run)
                break
            except PatchRefused:
                return runs, False
            except (WorkspaceFailed, SandboxUnavailable):
                continue  # what did not run is missing, and missing never passes
        return runs, True

    async def _publish(self, judged: Judged) -> None:
        found, proposal = judged.assessment, judged.proposal
        about = {"seat": proposal.seat, "candidate": proposal.candidate, "fingerprint": proposal.fingerprint}
        await self._facts.say(
            EventType.CHECK_FINISHED,
            f"{proposal.candidate}/{proposal.fingerprint}/applies",
            **about,
            evidence=dump(
                Evidence("applies", Verdict.PASSED if found.applies else Verdict.FAILED, proven=found.proven, look=found.look)
            ),
            assessment={
                "applies": found.applies,
                "required": list(found.required),
                "regressions": list(found.regressions),
                "proven": found.proven,
                "behaviour": found.behaviour,
                "fixed": list(found.fixed),
                "still_red": list(found.still_red),
                "look": list(found.look),
            },
        )
        for item in found.evidence:
            shown = replace(item, output=clip(item.output, _OUTPUT))
            await self._facts.say(
                EventType.CHECK_FINISHED,
                f"{proposal.candidate}/{proposal.fingerprint}/check/{item.check}",
                **about,
                evidence=dump(shown),
            )

    async def confirm(self, judged: Judged, *, time_left: bool = True) -> Judged:
        """Put the proof of a would-be winner to the test, once a diff and within `limits.counter_proofs`."""
        key, proposal = digest(judged.proposal.diff), judged.proposal
        if not self._most:
            return judged
        if key in self._countered:
            known = self._countered[key]
            await self._counter.publish(proposal, known.verdict, known.why, known.red, known.duration_ms)
        elif not time_left:
            said = "no time was left for the counter-proof"
            self._countered[key] = await self._counter.publish(proposal, Verdict.ERRORED, said)
        elif sum(item.verdict is Verdict.FAILED for item in self._countered.values()) >= self._most:
            said = f"{self._most} forged verdicts were found (limits.counter_proofs), and this one was not put to the test"
            self._countered[key] = await self._counter.publish(proposal, Verdict.ERRORED, said)
        else:
            self._countered[key] = await self._counter.of(proposal, self._exact[proposal.diff], judged.assessment.fixed)
        return replace(judged, counter=self._countered[key])

    async def cross(self, judged: Sequence[Judged]) -> tuple[Judged, ...]:
        """Run every author's own tests on the candidates of others that pass the gates.

        An author's tests are accepted only if they fail on the base; they never score the author's own
        candidates, nor one that is the same patch. Each author has one vote, with its latest tests.
        """
        authors = {item.proposal.seat: item.proposal for item in judged if item.proposal.own_tests and item.assessment.applies}
        pairs = [
            (item, author)
            for item in judged
            for author in authors.values()
            if item.passes and item.proposal.seat != author.seat and item.proposal.diff != author.diff
        ]
        if not pairs or not _worth_it(judged):
            return tuple(judged)
        asked = {author.seat: author for _, author in pairs}
        accepted = {author.seat for author, run in await self._on_base(asked.values()) if _fails(run)}
        pairs = [(item, author) for item, author in pairs if author.seat in accepted]
        async with asyncio.TaskGroup() as group:
            for patch, author in {(item.proposal.diff, author) for item, author in pairs}:
                group.create_task(self._run_tests(patch, author))
        crossed = [(item, author, self._crossed[digest(item.proposal.diff), digest(author.diff)]) for item, author in pairs]
        for item, author, run in crossed:
            await self._publish_cross(item.proposal, author, run)
        votes: dict[str, list[CrossRun]] = {}
        for item, author, run in crossed:
            votes.setdefault(item.proposal.candidate, []).append(CrossRun(author.seat, run.verdict is Verdict.PASSED))
        return tuple(replace(item, cross=tuple(votes.get(item.proposal.candidate, ()))) for item in judged)

    async def _on_base(self, authors: Iterable[Proposal]) -> list[tuple[Proposal, CheckRun]]:
        async with asyncio.TaskGroup() as group:
            tasks = [(author, group.create_task(self._run_tests("", author))) for author in authors]
        return [(author, task.result()) for author, task in tasks]

    async def _run_tests(self, patch: str, author: Proposal, check: str = "tests", paths: Sequence[str] = ()) -> CheckRun:
        """Run the author's tests, or `paths` of them, on the base with `patch`; the base's own tests are as they were there."""
        key = (digest(patch), digest(author.diff, check, *paths) if paths else digest(author.diff))
        if key in self._crossed:
            return self._crossed[key]
        name = workspace_name(self._facts.d.task_id, "cross", key[0][:8], key[1][:8])
        run = CheckRun("cross", Verdict.MISSING)
        for _ in range(_TRIES):
            try:
                async with (
                    self._places,
                    self._workspaces.open(
                        self._prepared,
                        name,
                        patch=self._exact.get(patch, patch),
                        extra=self._exact.get(author.diff, author.diff),
                        judged=True,
                    ) as workspace,
                ):
                    with checked("cross", name) as noted:
                        run = noted(
                            await workspace.check(check, paths=paths or author.own_tests, deadline=self._facts.d.deadline)
                        )
                break
            except PatchRefused as error:
                run = replace(run, output=error.message)
                break
            except (WorkspaceFailed, SandboxUnavailable) as error:
                run = replace(run, output=error.message)
        self._crossed[key] = run
        return run

    async def _publish_cross(self, proposal: Proposal, author: Proposal, run: CheckRun) -> None:
        outcomes = list(run.cases.values())
        evidence = Evidence(
            check="cross",
            verdict=run.verdict,
            passed=outcomes.count("passed"),
            failed=sum(outcome in _RED for outcome in outcomes),
            skipped=outcomes.count("skipped"),
            duration_ms=run.duration_ms,
            output=clip(run.output, _OUTPUT),
            proven=run.verdict is Verdict.PASSED,
        )
        await self._facts.say(
            EventType.CHECK_FINISHED,
            f"{proposal.candidate}/{proposal.fingerprint}/cross/{author.seat}/{author.fingerprint}",
            seat=proposal.seat,
            candidate=proposal.candidate,
            fingerprint=proposal.fingerprint,
            evidence=dump(evidence),
            cross_author=author.seat,
            cross_fingerprint=author.fingerprint,
        )


def _gone(found: Assessment, runs: Mapping[str, CheckRun], base: Prepared) -> tuple[str, ...]:
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


def _worth_it(judged: Sequence[Judged]) -> bool:
    """Tests of others change something where candidates compete, or where one is not proven yet."""
    passing = [item for item in judged if item.passes]
    return len({item.proposal.diff for item in passing}) > 1 or any(not item.assessment.proven for item in passing)


def _fails(run: CheckRun) -> bool:
    """Tests that ran and were red; a run that came to nothing accepts nothing."""
    return run.status == "success" and any(outcome in _RED for outcome in run.cases.values())


def facts_text(judged: Judged, base: Mapping[str, CheckRun]) -> str:
    """Say what the checks of a candidate showed, for its author or a reviewer. Names nobody."""
    found = judged.assessment
    lines = [] if found.applies else ["The patch is empty or does not apply on a clean checkout."]
    for item in found.evidence:
        lines.append(f"{item.check}: {item.verdict}{counts(item)}{': ' if item.red else ''}{', '.join(item.red[:10])}")
        if item.red_before:
            lines.append(f"Red before and still: {', '.join(item.red_before[:10])}")
        if item.verdict is not Verdict.PASSED and item.output and not judged.details:
            lines.append(clip(item.output, 1500))
    if found.regressions:
        lines.append(f"Passed before and not any more: {', '.join(found.regressions[:10])}")
    lines += [f"{case}:\n{clip(said.strip(), 1500)}" for case, said in list(judged.details.items())[:_TOLD]]
    if any(outcome in _RED for run in base.values() for outcome in run.cases.values()):
        lines.append("A test that failed before passes now." if found.proven else "No test that failed before passes now.")
    if judged.cross:
        lines.append(f"Passes the tests of {sum(run.passed for run in judged.cross)} of {len(judged.cross)} colleagues.")
    return "\n".join(lines)
