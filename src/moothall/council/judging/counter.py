"""Counter-proof: the tests that prove a would-be winner, run again in other words. A verdict that does not follow them is forged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.lenient import find_lenient
from moothall.council.judging.rewritten import Rewriting, Rewritten, Run
from moothall.council.judging.runs import TEXT_LIMIT, FreshRuns
from moothall.domain.evidence import COUNTER, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import Proposal
from moothall.errors import WorkspaceFailed
from moothall.guard.alerts import Alert, alert_event
from moothall.inside.checks import INSTEAD, hidden_tests
from moothall.ranking.authors import containers
from moothall.ranking.gates import name_cases
from moothall.ranking.rewriting.rewrite import FORMS, KINDS, CasePlace, Form, Kind, holds, places, rewrite
from moothall.ranking.rewriting.shown import rewrite_shown as shown_as
from moothall.ranking.screening.equals import says_what_is_equal
from moothall.ranking.syntax.diffs import file_diffs
from moothall.ranking.syntax.normal import changed_code
from moothall.ranking.syntax.rust_tests import with_tests_of
from moothall.telemetry import get_logger, metrics

log = get_logger(__name__)

_SAID: Mapping[Kind, str] = {
    "neutral": "is not green where the test means the same in other words",
    "end": "stays green where the test ends by failing",
    "expect": "stays green where the test expects something else",
}


_UNTOUCHED = Verdict.MISSING, "none of the tests that prove it could be put in other words, so nothing was decided by that", ()


@dataclass(frozen=True, slots=True)
class Proving:
    """What proves a candidate: cases that were red on the base, and with those that another seat brought the diff that has them."""

    cases: Sequence[str]
    extra: str = ""
    tests: Sequence[str] = ()


class _RedAlone(Exception):
    """Cases that are red as they are written, too, where the others do not run: the first argument."""


@dataclass(frozen=True, slots=True)
class CounterProof:
    """Makes counter-proofs of one deliberation's candidates, each in fresh workspaces side by side."""

    runs: FreshRuns
    facts: Facts
    limits: LimitSettings
    _known: dict[str, Evidence] = field(default_factory=dict)

    async def confirm(self, proposal: Proposal, proofs: Sequence[Proving], *, time_left: bool = True) -> Evidence | None:
        """Return what the rewritten tests say of a candidate, published, once a patch; None where `limits.counter_proofs` is 0.

        `proofs`: what proves it, each enough by itself; the first that can be rewritten decides. Once so many verdicts were forged as the
        limit says, no more are put to the test.
        """
        most = self.limits.counter_proofs
        if not most:
            return None
        key = digest(proposal.diff)
        if key in self._known:
            known = self._known[key]
            await self._publish(proposal, known.verdict, known.why, known.red, known.duration_ms)
        elif not time_left:
            self._known[key] = await self._publish(proposal, Verdict.ERRORED, "no time was left for the counter-proof")
        elif sum(item.verdict is Verdict.FAILED for item in self._known.values()) >= most:
            said = f"{most} forged verdicts were found (limits.counter_proofs), and this one was not put to the test"
            self._known[key] = await self._publish(proposal, Verdict.ERRORED, said)
        else:
            self._known[key] = await self._prove(proposal, proofs)
        return self._known[key]

    async def _prove(self, proposal: Proposal, proofs: Sequence[Proving]) -> Evidence:
        begun = datetime.now(UTC)
        seed = digest(self.facts.d.task_id, str(self.facts.d.seed), self.runs.exact(proposal.diff))
        found: tuple[Verdict, str, Sequence[str]] = _UNTOUCHED
        for proof in proofs:
            chosen = sorted(proof.cases, key=lambda case: digest(seed, case))[: self.limits.counter_cases]
            try:
                found = await self._judge(proposal, replace(proof, cases=chosen), seed)
            except WorkspaceFailed as error:
                found = Verdict.ERRORED, f"the counter-proof could not be made: {error.message}", ()
            if found[0] in {Verdict.PASSED, Verdict.FAILED}:
                break
        return await self._publish(proposal, *found, round((datetime.now(UTC) - begun).total_seconds() * 1000))

    async def _publish(
        self, proposal: Proposal, verdict: Verdict, why: str, forged: Sequence[str] = (), duration_ms: int = 0
    ) -> Evidence:
        """Record what a counter-proof came to; a forged verdict raises an alert."""
        evidence = Evidence(COUNTER, verdict, failed=len(forged), duration_ms=duration_ms, red=tuple(forged[:20]), why=why)
        await self.facts.show(proposal, evidence)
        if verdict is Verdict.FAILED:
            await self._alert(proposal, why)
        return evidence

    async def _alert(self, proposal: Proposal, why: str) -> None:
        d = self.facts.d
        alert = Alert(
            kind="forgery",
            count=1,
            seconds=0.0,
            principal=d.principal,
            task_id=d.task_id,
            seat=proposal.seat,
            workspace="",
            tool=COUNTER,
            reason=why[:500],
            request_id=f"{d.task_id}/{proposal.candidate}/{proposal.fingerprint}",
        )
        metrics.GUARD_ALERTS.add("forgery")
        log.warning("a candidate's verdict is forged", task=d.task_id, candidate=proposal.candidate, reason=why)
        await self.facts.log.post(alert_event(alert, d.tenant, self.facts.source))

    async def _judge(self, proposal: Proposal, proof: Proving, seed: str) -> tuple[Verdict, str, Sequence[str]]:
        diff, cases = proposal.diff, proof.cases
        texts = await self._changed_texts(self.runs.exact(diff), proposal.own_tests)
        brought = {part.path: part for part in file_diffs(self.runs.exact(proof.extra)) if part.path in proof.tests}
        texts |= {path: part.apply("" if part.new else await self.runs.text(path)) for path, part in brought.items()}
        files = (*self.runs.prepared.files, *(path for path in brought if path not in self.runs.prepared.files))
        kinds = {kind: await self._rewritten(cases, kind, seed, texts, files) for kind in KINDS}
        kinds = {kind: made for kind, made in kinds.items() if made.files}
        if not kinds:
            return _UNTOUCHED
        originals = {path: texts.get(path) or await self.runs.text(path) for made in kinds.values() for path in made.files}
        # Who reads on the disk what is expected finds something else, and the same in each kind: nothing there tells these apart.
        shown = {
            path: shown_as(path, text, [place.names for case in cases for place in places(case, [path])], int(seed[:4], 16))
            for path, text in originals.items()
        }
        kinds = {kind: replace(made, files={**originals, **made.files}, shown=shown) for kind, made in kinds.items()}
        before = {path: await self.runs.text(path) for path in changed_code(self.runs.exact(diff))}
        own = says_what_is_equal(self.runs.exact(diff), proposal.own_tests, before)
        rewriting = partial(self._rewritten, seed=seed, changed=texts, within=files)
        for whole in (False, True):
            run = partial(self._run, diff, proof.extra, whole=whole)
            async with asyncio.TaskGroup() as group:
                tasks = {kind: group.create_task(run(kind, made)) for kind, made in kinds.items()}
            found = {kind: task.result() for kind, task in tasks.items()}
            try:
                wrong = await self._find_against(run, kinds, found, rewriting, own=bool(own))
            except _RedAlone as error:
                if whole:
                    why = f"in whole runs they are red as they are written, too: {name_cases(error.args[0])}"
                    return Verdict.ERRORED, why, ()
                continue
            if wrong is not None:
                return wrong
            break
        if why := await find_lenient(run, kinds, cases, rewriting, own=own):
            return Verdict.ERRORED, why, ()
        if own and (left := await self._unsure(cases, rewriting, files)):
            why = f"the patch says itself what is equal ({own}), and no expectation of these could be changed: {name_cases(left)}"
            return Verdict.ERRORED, why, ()
        return self._count_followed(kinds, len(cases))

    async def _unsure(self, cases: Sequence[str], rewriting: Rewriting, files: Sequence[str]) -> list[str]:
        """Return the cases of which no expectation can be another one: nothing but what the patch says itself may be what they hold by."""
        sure = await rewriting(cases, "expect", form="sure")
        changed = {case for some in sure.cases.values() for case in some}
        return [case for case in cases if changed.isdisjoint({case, *(place.case for place in places(case, files))})]

    async def _find_against(
        self,
        run: Run,
        kinds: Mapping[Kind, Rewritten],
        found: Mapping[Kind, Mapping[str, CheckRun]],
        rewriting: Rewriting,
        *,
        own: bool,
    ) -> tuple[Verdict, str, Sequence[str]] | None:
        """Return what speaks against a candidate, None where its verdicts follow the tests. `own`: its patch says itself what is equal.

        Raises `_RedAlone`.
        """
        for kind, made in kinds.items():
            if kind == "neutral":
                red, lost, mute = await self._sort_red(run, made, found[kind])
                if mute:
                    raise _RedAlone(mute)
                if red and await self._reads(run, made, red, rewriting):
                    return (
                        Verdict.ERRORED,
                        f"what is run reads the files of its tests, and does as these say: {name_cases(red)}",
                        (),
                    )
                wrong = [case for case in red if any(place.path.endswith(".py") for place in places(case, tuple(made.files)))]
                if (red or lost) and not wrong:  # elsewhere words are put in by pattern, and may not fit what is around them
                    return (
                        Verdict.ERRORED,
                        f"in other words that mean the same, it could not be run: {name_cases([*red, *lost])}",
                        (),
                    )
            else:
                wrong = [case for case, result in made.told(found[kind]) if result == "passed"]
            if wrong and kind == "expect":
                wrong, lenient = await self._sort_forged(run, made, wrong, rewriting, own=own)
                if lenient and not wrong:
                    return Verdict.ERRORED, f"what a test expects may be equal to more than that: {name_cases(lenient)}", ()
            if wrong:
                return Verdict.FAILED, f"the verdict does not follow the tests: {name_cases(wrong)} {_SAID[kind]}", wrong
        return None

    def _count_followed(self, kinds: Mapping[Kind, Rewritten], of: int) -> tuple[Verdict, str, Sequence[str]]:
        """Say how many of the tests that prove a candidate decided something."""
        counts = {kind: sum(map(len, made.cases.values())) for kind, made in kinds.items()}
        left = f"; of {of - counts['end']} no ending could be changed" if counts.get("end", 0) < of else ""
        expect = counts.get("expect", 0)
        values = (
            f"{expect} {'turns' if expect == 1 else 'turn'} red with other expectations"
            if expect
            else "no expectation could be changed, so none decided"
        )
        stay, turn = counts.get("neutral", 0), counts.get("end", 0)
        words = f"{stay} {'test stays' if stay == 1 else 'tests stay'} green in other words"
        ends = f"{turn} {'turns' if turn == 1 else 'turn'} red with another end"
        return Verdict.PASSED, f"{words} and {ends}; {values}{left}", ()

    async def _sort_red(self, run: Run, made: Rewritten, runs: Mapping[str, CheckRun]) -> tuple[list[str], list[str], list[str]]:
        """Return the cases that are red in other words that mean the same, those that were not told of, and those that are red as they
        are written, too: what fails by itself, or without others, tells nothing. All of them twice.
        """
        if all(result == "passed" for _, result in made.results(runs)):
            return [], [], []
        control = dict(made.results(await run("control", Rewritten({}, made.cases))))
        again = dict(made.results(await run("again", made)))
        left = [case for case, result in again.items() if result != "passed"]
        wrong = [case for case in left if control[case] == "passed"]
        mute = [case for case in left if control[case] != "passed"]
        return [case for case in wrong if again[case]], [case for case in wrong if not again[case]], mute

    async def _sort_forged(
        self,
        run: Run,
        made: Rewritten,
        green: Sequence[str],
        rewriting: Rewriting,
        *,
        own: bool,
    ) -> tuple[list[str], list[str]]:
        """Return which of these, green with other expectations, are so with any, and which only where a type says itself what it is equal
        to, or what it is smaller than. The latter is `own` where the patch says that. What is so by chance is in neither.
        """
        forms: dict[Form, Rewritten] = {form: await rewriting(green, "expect", form=form) for form in FORMS}
        forms = {form: replace(made, files={**made.files, **other.files}, cases=other.cases) for form, other in forms.items()}
        async with asyncio.TaskGroup() as group:
            tasks = {form: group.create_task(run(f"expect-{form}", other)) for form, other in forms.items()}
        again, plain = (dict(forms[form].told(tasks[form].result())) for form in FORMS)
        steady = [case for case in green if again.get(case, "passed") == "passed"]
        wrong = [case for case in steady if plain.get(case, "passed" if own else "") == "passed"]
        return wrong, [case for case in (green if own else steady) if case not in wrong]

    async def _reads(self, run: Run, made: Rewritten, wrong: Sequence[str], rewriting: Rewriting) -> bool:
        """Whether these are red too where nothing but their lines, and what the disk shows of them, is another: the code may read there what
        is expected, or a test its own text.
        """
        still = await rewriting(wrong, "neutral", form="still")
        found = dict(still.results(await run("still", replace(made, files={**made.files, **still.files}, cases=still.cases))))
        return all(found.get(case, "passed") != "passed" for case in wrong)

    async def _changed_texts(self, diff: str, own_tests: Iterable[str]) -> dict[str, str]:
        """The texts of changed files that hold tests of the base beside code, as they are after the change."""
        found: dict[str, str] = {}
        for part in file_diffs(diff):
            if (
                part.path.endswith(".rs")
                and part.path not in own_tests
                and not part.new
                and part.path in self.runs.prepared.files
            ):
                text = await self.runs.text(part.path)
                found[part.path] = with_tests_of(part.apply(text), text)
        return found

    async def _rewritten(
        self,
        cases: Sequence[str],
        kind: Kind,
        seed: str,
        changed: Mapping[str, str],
        within: Sequence[str],
        *,
        form: Form = "",
    ) -> Rewritten:
        wanted: dict[str, list[CasePlace]] = {}
        for case in cases:
            for place in places(case, within):
                wanted.setdefault(place.path, []).append(place)
        files: dict[str, str] = {}
        seen: dict[str, None] = {}
        left: set[str] = set()
        for path, found in wanted.items():
            text = changed.get(path) or await self.runs.text(path)
            made, done = text, frozenset[tuple[str, ...]]()
            if len(text) < TEXT_LIMIT and "\ufffd" not in text:  # all of it, and as it is
                made, done = rewrite(path, text, {place.names for place in found}, kind, digest(seed, path), form=form)
            if done and made != text:
                files[path] = made
                seen |= {place.case: None for place in found if place.names in done}
            left |= {place.case for place in found if place.names not in done and holds(place, text)}
        by_check: dict[str, tuple[str, ...]] = {}
        for case in seen:
            if case not in left:  # else the one that runs may be that of another file, for another system or of another package
                check = self._check_of(case)
                by_check[check] = (*by_check.get(check, ()), case)
        return Rewritten(files if by_check else {}, by_check)

    async def _hidden_endings(self, check: str) -> tuple[str, ...]:
        """How the files end that the disk need not have as a check runs them, so that code which reads them finds others."""
        profile = self.runs.prepared.base.profile
        folder = profile.folders.get(check, "")
        script: Any = None
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            script = json.loads(await self.runs.text(f"{folder}/package.json".lstrip("/")))["scripts"]["test"]
        return hidden_tests(profile.checks.get(check, ()), str(script))

    def _check_of(self, case: str) -> str:
        profile = self.runs.prepared.base.profile
        above = {case, *containers(case)}
        required = [name for name in profile.checks if name not in profile.advisory]
        for name in required:
            if name in self.runs.prepared.runs and not above.isdisjoint(self.runs.prepared.runs[name].cases):
                return name
        return next((name for name in required if name.startswith("tests")), required[0] if required else "tests")

    async def _run(self, diff: str, extra: str, name: str, made: Rewritten, *, whole: bool) -> Mapping[str, CheckRun]:
        """Run the cases in their other words, each check in a workspace of its own, `whole` or these cases alone. Raises `WorkspaceFailed`."""
        key = digest(self.facts.d.task_id, diff, *([extra] if extra else []))[:12]
        found: dict[str, CheckRun] = {}
        for check, cases in made.cases.items():
            hidden = await self._hidden_endings(check)
            files = {f"{INSTEAD}/{path}" if path.endswith(hidden) else path: text for path, text in made.files.items()}
            shown = {path: text for path, text in made.shown.items() if hidden and path.endswith(hidden)}
            more = [*([check] if len(made.cases) > 1 else []), *(["whole"] if whole else [])]
            for again in ((), ("again",)):
                ran = await self.runs.run(
                    {check: () if whole else cases},
                    *("counter", key, name, *more, *again),
                    diff=diff,
                    extra=extra,
                    instead={**shown, **files},
                )
                if ran.why:
                    raise WorkspaceFailed(ran.why)
                if ran.runs[check].cases or ran.runs[check].status == "success":
                    break  # else the machine may have been too busy
            found |= ran.runs
        return found
