"""The counter-proof of `honest.py` without the house: released sources of Python that lie here, their pytest under this interpreter.

`python tests/forgeries/honest_here.py [--most N] [--own] FOLDER...`, each what an sdist holds; --own as in `honest.py`. No sandbox and
nothing installed: what a suite needs besides pytest has to be there, and what it cannot import is not green. The code is run as it is, so
take what you would install.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judge import OWN, alone
from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.counter import CounterProof, Proving
from moothall.council.judging.runs import CheckRuns
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.proposal import Proposal
from moothall.domain.repository import Base, Prepared, Profile
from moothall.errors import NotFound
from moothall.inside import checks, plugins
from moothall.testing.bus import MemoryBus

_OPTIONS = ("-o", "addopts=", "-o", "asyncio_default_fixture_loop_scope=function")  # the latter where a warning is an error
ARGV = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *_OPTIONS)
_SECONDS = 900


@dataclass(slots=True)
class Here:
    """Runs the tests of a folder in copies of it, as `FreshRuns` does in workspaces."""

    folder: Path
    prepared: Prepared = field(init=False)

    def __post_init__(self) -> None:
        files = tuple(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        self.prepared = Prepared(Base(self.folder.name, "0" * 40, Profile(checks={"tests": ARGV})), "", files)

    def exact(self, diff: str) -> str:
        return diff

    async def read(self, path: str) -> str:
        if path not in self.prepared.files:
            raise NotFound(path)
        return (self.folder / path).read_text(encoding="utf-8", errors="replace")

    async def run(self, wanted: Mapping[str, Sequence[str]], *_: str, instead: Mapping[str, str] = {}, **__: Any) -> CheckRuns:
        (cases,) = wanted.values()
        with tempfile.TemporaryDirectory() as place:
            top, reports = Path(place, "top"), Path(place, "reports")
            shutil.copytree(self.folder, top)
            reports.mkdir()
            for path, text in instead.items():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).write_text(text, encoding="utf-8")
            argv = checks.command(ARGV, cases=cases)
            ours = str(Path(plugins.__file__).parent)
            env = {**os.environ, **checks.variables(argv, seconds=120, plugins=ours, folder=str(reports))}
            env["PYTHONPATH"] = os.pathsep.join([ours, str(top / "src"), str(top)])
            running = await asyncio.create_subprocess_exec(
                *argv, cwd=top, env=env, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
            await asyncio.wait_for(running.wait(), _SECONDS)
            lines = [json.loads(line) for path in reports.iterdir() for line in path.read_text(encoding="utf-8").splitlines()]
        told = {line["case"]: line["result"] for line in lines if "case" in line}
        return CheckRuns({"tests": CheckRun("tests", Verdict.PASSED, told)})


async def one(folder: Path, most: int, *, own: bool) -> None:
    """Print how many tests were put in other words, and which did not follow."""
    here = Here(folder)
    told = (await here.run({"tests": ()})).runs["tests"]
    here.prepared = Prepared(here.prepared.base, "", here.prepared.files, {"tests": told})
    green = [case for case, result in told.cases.items() if result == "passed"]
    runs: Any = here
    proof = CounterProof(
        runs, Facts(MemoryBus(), alone("here", here.prepared.base, seconds=_SECONDS)), LimitSettings(counter_cases=most)
    )
    evidence = await proof.confirm(Proposal("agent-dev-001", "dev", "", OWN if own else ""), [Proving(green)])
    assert evidence is not None
    print(f"{folder.name}: {len(green)} green, {evidence.verdict}: {evidence.why}", flush=True)
    for case in evidence.red:
        print("   ", case, flush=True)


async def main(words: list[str]) -> None:
    """Take the folders that are named."""
    most = int(words.pop(words.index("--most") + 1)) if "--most" in words else 1000
    for word in words:
        if not word.startswith("--"):
            try:
                await one(Path(word).resolve(), most, own="--own" in words)
            except Exception as error:  # noqa: BLE001 - the next one is tried
                print(f"{word}: {error!r}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
