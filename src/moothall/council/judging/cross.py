"""Cross-tests: the tests that an author brought, run on the answers of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moothall.council.facts import Facts
from moothall.council.judging.counter import Proving
from moothall.council.judging.runs import FreshRuns
from moothall.council.prompting.text import clip
from moothall.domain.evidence import RED, CheckRun, Evidence, Verdict
from moothall.domain.ids import digest
from moothall.domain.proposal import CrossRun, Proposal

_OUTPUT = 8000


@dataclass(frozen=True, slots=True)
class CrossTests:
    """Runs the tests that candidates of one deliberation brought; the same tests on the same patch once."""

    runs: FreshRuns
    facts: Facts
    _known: dict[tuple[str, str], CheckRun] = field(default_factory=dict)

    async def run(self, authors: Sequence[Proposal], candidates: Sequence[Proposal]) -> Mapping[str, tuple[CrossRun, ...]]:
        """Return by candidate how it fared under the tests of others, published.

        An author's tests are accepted only if they fail on the base; they never score the author's own
        candidates, nor one that is the same patch. Each author has one vote, with its latest tests.
        """
        latest = {author.seat: author for author in authors}
        pairs = [
            (item, author)
            for item in candidates
            for author in latest.values()
            if item.seat != author.seat and item.diff != author.diff
        ]
        accepted = await self._seats_red_on_base({author.seat: author for _, author in pairs})
        pairs = [(item, author) for item, author in pairs if author.seat in accepted]
        async with asyncio.TaskGroup() as group:
            for diff, author in {(item.diff, author) for item, author in pairs}:
                group.create_task(self.tests(diff, author))
        votes: dict[str, tuple[CrossRun, ...]] = {}
        for item, author in pairs:
            run = await self.tests(item.diff, author)
            await self._publish(item, author, run)
            votes[item.candidate] = (*votes.get(item.candidate, ()), CrossRun(author.seat, run.verdict is Verdict.PASSED))
        return votes

    async def _seats_red_on_base(self, authors: Mapping[str, Proposal]) -> set[str]:
        """Return the seats whose tests ran on the base and were red there; a run that came to nothing accepts nothing."""
        async with asyncio.TaskGroup() as group:
            tasks = {seat: group.create_task(self.tests("", author)) for seat, author in authors.items()}
        runs = {seat: task.result() for seat, task in tasks.items()}
        return {seat for seat, run in runs.items() if run.status == "success" and RED & {*run.cases.values()}}

    async def proving(self, proposal: Proposal, authors: Sequence[Proposal]) -> tuple[Proving, ...]:
        """Return by author the cases that prove a candidate: red on the base, where they may not even be found, and green with it."""
        found = []
        for author in authors:
            base, now = await self.tests("", author), await self.tests(proposal.diff, author)
            green = (case for case, result in now.cases.items() if result == "passed")
            cases = [case for case in green if base.cases.get(case) != "passed"]
            found.append(Proving(cases, author.diff, author.own_tests))
        return tuple(found)

    async def tests(self, diff: str, author: Proposal, check: str = "tests", paths: Sequence[str] = ()) -> CheckRun:
        """Run the author's tests, or `paths` of them, on the base with `diff`; the base's own tests are as they were there."""
        key = (digest(diff), digest(author.diff, check, *paths) if paths else digest(author.diff))
        if key not in self._known:
            ran = await self.runs.run(
                {check: ()},
                "cross",
                key[0][:8],
                key[1][:8],
                diff=diff,
                extra=author.diff,
                paths=paths or author.own_tests,
                label="cross",
            )
            self._known[key] = ran.runs.get(check) or CheckRun("cross", Verdict.MISSING, output=ran.why)
        return self._known[key]

    async def _publish(self, proposal: Proposal, author: Proposal, run: CheckRun) -> None:
        outcomes = list(run.cases.values())
        evidence = Evidence(
            check="cross",
            verdict=run.verdict,
            passed=outcomes.count("passed"),
            failed=sum(outcome in RED for outcome in outcomes),
            skipped=outcomes.count("skipped"),
            duration_ms=run.duration_ms,
            output=clip(run.output, _OUTPUT),
            proven=run.verdict is Verdict.PASSED,
        )
        at = f"cross/{author.seat}/{author.fingerprint}"
        await self.facts.show(proposal, evidence, at, cross_author=author.seat, cross_fingerprint=author.fingerprint)
