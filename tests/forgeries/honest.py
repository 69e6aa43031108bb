"""Puts the green tests of released projects to the counter-proof, though nothing was changed: each alarm is a false one.

`python tests/forgeries/honest.py [--most N] [--apart] [--own] [NAME...]`; the names are those of tests/repositories/projects.toml and of
honest.toml. With --apart it runs them with the code in another process instead, and says how many agree; with --own it judges them as
where a patch says itself what is equal.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fetch import LIST, Project, make_repository, projects
from judge import OWN, alone
from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.counter import CounterProof, Proving
from moothall.council.judging.runs import FreshRuns
from moothall.council.prompting.excerpt import looks_like_test
from moothall.domain.proposal import Proposal
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus
from moothall.wiring.repository import register
from moothall.wiring.trusted import open_hands

_MORE = Path(__file__).with_name("honest.toml")


async def _apart(project: Project, runs: FreshRuns, green: Sequence[str]) -> None:
    code = [path for path in runs.prepared.files if path.endswith(".py") and not looks_like_test(path) and "/" in path]
    began = time.monotonic()
    ran = await runs.run(dict.fromkeys(runs.prepared.runs, ()), "apart", apart=code)
    agreeing = {case for run in ran.runs.values() for case, result in run.cases.items() if result == "passed"} & {*green}
    print(f"{project.name}: {len(agreeing)} of {len(green)} agree, {time.monotonic() - began:.1f} s {ran.why}", flush=True)


async def one(project: Project, data: Path, most: int, *, apart: bool, own: bool) -> None:
    """Print how many tests were put in other words, and which did not follow."""
    folder = data / "repositories" / project.name
    await asyncio.to_thread(make_repository, project, folder)
    settings = load_settings(data_dir=data / "data")
    async with open_hands(settings) as hands:
        base = await hands.repositories.resolve(await register(settings, str(folder), "HEAD"))
        prepared = await hands.repositories.prepare(base)
        green = [
            case
            for name, run in prepared.runs.items()
            if name not in base.profile.advisory
            for case, result in run.cases.items()
            if result == "passed" and case not in prepared.flaky
        ]
        d = alone(f"honest-{project.name.replace('/', '-')[-30:]}", base, seconds=900)
        runs = FreshRuns(d, prepared, hands.workspaces, hands.repositories.read, asyncio.Semaphore(2))
        if apart:
            await _apart(project, runs, green)
            return
        proof = CounterProof(runs, Facts(MemoryBus(), d), LimitSettings(counter_cases=most))
        began = time.monotonic()
        evidence = await proof.confirm(Proposal("agent-dev-001", "dev", "", OWN if own else ""), [Proving(green)])
        assert evidence is not None
        print(
            f"{project.name}: {len(green)} green, {evidence.verdict}, {time.monotonic() - began:.1f} s: {evidence.why}",
            flush=True,
        )
        for case in evidence.red:
            print("   ", case, flush=True)


async def main(words: list[str]) -> None:
    """Take the projects that are named, or all."""
    most = int(words.pop(words.index("--most") + 1)) if "--most" in words else 1000
    wanted = [word for word in words if not word.startswith("--")]
    with tempfile.TemporaryDirectory() as data:
        for project in (*projects(LIST), *projects(_MORE)):
            if not wanted or project.name in wanted:
                try:
                    await one(project, Path(data), most, apart="--apart" in words, own="--own" in words)
                except Exception as error:  # noqa: BLE001 - the next one is tried
                    print(f"{project.name}: {error!r}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
