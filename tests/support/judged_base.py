"""Patches on a small repository, judged by the same re-check as the candidates of a
deliberation.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moothall.deliberation.event_writer import EventWriter
from moothall.deliberation.judging.clean_runs import CleanCheckoutRunner
from moothall.deliberation.judging.evaluator import Evaluator
from moothall.domain.ids import TaskKey
from moothall.domain.proposal import Candidate, CandidateRank, Proposal
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.ports import NOTHING
from moothall.ranking import rank
from moothall.repositories import patch_rules
from moothall.repositories.profile import PROTECTED, read_profile
from moothall.sandbox.bubblewrap import interpreter
from moothall.testing.bus import MemoryBus
from support.local import PACKAGES, Local, local

PYTEST = ("env", f"PYTHONPATH={PACKAGES}", str(interpreter()), "-m", "pytest", "-q")
UNITTEST = (str(interpreter()), "-m", "unittest", "discover", "-t", ".", "-s", "tests")
TASK = "Make discount() take the percents off, so that the failing tests pass"


@dataclass(slots=True)
class JudgedBase:
    """A prepared base and functions that judge patches against it."""

    app: Local
    prepared: Prepared
    repo: Path
    task: str = TASK

    def diff(self, files: Mapping[str, str]) -> str:
        """Return the files as a git diff against the base."""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "--quiet", str(self.repo), folder], check=True)
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            git = ["git", "-C", folder]
            subprocess.run([*git, "add", "--all", "--force"], check=True)
            return subprocess.run(
                [*git, "diff", "--cached", "--binary"], check=True, capture_output=True
            ).stdout.decode()

    def proposal(self, files: Mapping[str, str], seat: int = 1) -> Proposal:
        """Return a proposal of a seat with this patch."""
        tests = tuple(path for path in files if patch_rules.is_test(path))
        return Proposal(f"agent-dev-{seat:03d}", "dev", "", self.diff(files), own_tests=tests)

    def evaluator(self) -> Evaluator:
        """Return the evaluator for the candidates of one deliberation on this base."""
        d = Deliberation(
            task_id=TaskKey("task-1"),
            description=self.task,
            role="dev",
            protocol="vote",
            seats=("agent-dev-001", "agent-dev-002", "agent-dev-003"),
            rounds=0,
            deadline=datetime.now(UTC) + timedelta(seconds=1200),  # for a busy machine
            max_turns=1,
            repository=RepositoryRef(id=self.prepared.base.repository),
            base_sha=self.prepared.base.sha,
        )
        runs = CleanCheckoutRunner(
            d, self.prepared, self.app.workspaces, self._read, asyncio.Semaphore(3)
        )
        return Evaluator(runs, EventWriter(MemoryBus(), d))

    async def confirmed(
        self, files: Mapping[str, str], evaluator: Evaluator | None = None
    ) -> Candidate:
        """Evaluate a patch, and confirm it, as it is done with the one that ranks first."""
        evaluator = evaluator or self.evaluator()
        judged = await evaluator.evaluate(self.proposal(files))
        (confirmed,) = await evaluator.confirm_first((judged,))
        return confirmed

    async def rank(self, *patches: Mapping[str, str]) -> tuple[CandidateRank, ...]:
        """Rank the patches of this many seats, like a council without reviews."""
        evaluator = self.evaluator()
        proposals = [self.proposal(files, seat) for seat, files in enumerate(patches, 1)]
        judged = await asyncio.gather(*map(evaluator.evaluate, proposals))
        return rank(await evaluator.confirm_first(await evaluator.run_cross_tests(judged)))

    async def _read(self, base: Base, path: str, limit: int) -> str:
        return (await self.app.clone.read(base.sha, path, limit)).decode()


@asynccontextmanager
async def judged_base(
    folder: Path,
    files: Mapping[str, str],
    argv: Sequence[str] = (),
    *,
    task: str = TASK,
    hidden: Mapping[str, str] = NOTHING,
    **limits: Any,
) -> AsyncIterator[JudgedBase]:
    """Prepare a base. `argv` is the command of its tests; the default is the detected command."""
    if "Cargo.toml" in files:
        output = subprocess.run(
            ["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True
        ).stdout
        limits = {
            "toolchains": (PACKAGES, Path(output.strip())),
            "memory_bytes": 2_000_000_000,
            **limits,
        }
    async with local(folder, files, **limits) as app:
        if argv:
            bare = await app.prepared({"tests": tuple(argv)}, protected=PROTECTED)
            base = Base("sample", app.sha, bare.base.profile)
            prepared = await app.preparer._run_checks(
                Prepared(base, bare.key, bare.files), lambda _: None
            )
        else:
            base = Base("sample", app.sha, await read_profile(app.clone, app.sha))
            prepared = await app.preparer.prepare(base)
        yield JudgedBase(app, replace(prepared, hidden=hidden), folder / "repo", task)
