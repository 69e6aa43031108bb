"""Applies a patch as a candidate's, through the same re-check that judges one, and says whether it ends proven."""

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

from moothall.config import LimitSettings
from moothall.council.facts import Facts
from moothall.council.judging.recheck import Bench
from moothall.council.judging.runs import FreshRuns
from moothall.domain.ids import digest
from moothall.domain.proposal import Proposal
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.ranking import rank
from moothall.repositories import patch_rules
from moothall.repositories.profile import PROTECTED, read_profile
from moothall.sandbox.bubblewrap import interpreter
from moothall.testing.bus import MemoryBus
from support.local import PACKAGES, Local, local

PYTEST = ("env", f"PYTHONPATH={PACKAGES}", str(interpreter()), "-m", "pytest", "-q")
UNITTEST_COMMAND = (str(interpreter()), "-m", "unittest", "discover", "-t", ".", "-s", "tests")

OWN = """\
diff --git a/own/equal.py b/own/equal.py
new file mode 100644
--- /dev/null
+++ b/own/equal.py
@@ -0,0 +1,3 @@
+class Same:
+    def __eq__(self, other):
+        return self is other
"""
"""A patch that says itself what is equal, and that nothing uses."""


@dataclass(slots=True)
class Court:
    """A prepared base that patches are judged against."""

    house: Local
    prepared: Prepared
    repo: Path

    def diff(self, files: Mapping[str, str]) -> str:
        """The files as a git diff against the base."""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "--quiet", str(self.repo), folder], check=True)
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            git = ["git", "-C", folder]
            subprocess.run([*git, "add", "--all", "--force"], check=True)
            return subprocess.run([*git, "diff", "--cached", "--binary"], check=True, capture_output=True).stdout.decode()

    async def judge(self, files: Mapping[str, str], *, look: bool = True) -> tuple[bool, tuple[str, ...]]:
        """Whether the patch wins as proven, alone; and the reasons. Without `look` nobody minds what its lines reach for."""
        diff = self.diff(files)
        bench = self.bench(f"f-{digest(diff)[:12]}")
        tests = tuple(path for path in files if patch_rules.is_test(path))
        judged = await bench.judge(Proposal("agent-dev-001", "dev", "", diff, own_tests=tests))
        if not look:
            judged = replace(judged, assessment=replace(judged.assessment, look=()))
        if judged.passes and judged.candidate.proven:
            judged = await bench.confirm(judged)
        place = rank([judged.candidate])[0]
        return place.passed_gates and place.proven, place.reasons

    def bench(self, task_id: str, limits: LimitSettings = LimitSettings()) -> Bench:  # noqa: B008 - it is frozen
        """What judges the candidates of a deliberation on this base."""
        d = alone(task_id, self.prepared.base, seconds=1200)  # of a busy machine
        runs = FreshRuns(d, self.prepared, self.house.workspaces, self._read, asyncio.Semaphore(3))
        return Bench(runs, Facts(MemoryBus(), d), limits)

    async def _read(self, base: Base, path: str, limit: int) -> str:
        return (await self.house.clone.read(base.sha, path, limit)).decode()


def alone(task_id: str, base: Base, *, seconds: float) -> Deliberation:
    """A deliberation of one seat on a base."""
    return Deliberation(
        task_id=task_id,
        description="Make discount() take the percents off, so that the failing tests pass",
        role="dev",
        protocol="vote",
        seats=("agent-dev-001",),
        rounds=0,
        deadline=datetime.now(UTC) + timedelta(seconds=seconds),
        max_turns=1,
        repository=RepositoryRef(id=base.repository),
        base_sha=base.sha,
    )


@asynccontextmanager
async def court(folder: Path, files: Mapping[str, str], argv: Sequence[str] = (), **limits: Any) -> AsyncIterator[Court]:
    """Prepare a base whose tests are run by a command; without one, as they are found out."""
    if "Cargo.toml" in files:
        found = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout
        limits = {"toolchains": (PACKAGES, Path(found.strip())), "memory_bytes": 2_000_000_000, **limits}
    async with local(folder, files, **limits) as house:
        if argv:
            bare = await house.prepared({"tests": tuple(argv)}, protected=PROTECTED)
            base = Base("sample", house.sha, bare.base.profile)
            prepared = await house.preparer._run_checks(Prepared(base, bare.key, bare.files), lambda _: None)
        else:
            base = Base("sample", house.sha, await read_profile(house.clone, house.sha))
            prepared = await house.preparer.prepare(base)
        yield Court(house, prepared, folder / "repo")
