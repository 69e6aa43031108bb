"""A plain loop that does the work of a council: a git worktree for each seat, a shell, and pytest
as a subprocess.

Nothing is isolated, recorded or ranked. The tests run as often as a council runs them in the first
deliberation on a commit: twice by each of three seats, once on each candidate, twice more on the
winner, and twice on the base.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import Operation
from benchmarks.stub import SOLVED, WRONG
from benchmarks.workload import UnexpectedOutcome

_SEATS = 3
_FURTHER_RUNS = 2
_FILE = "src/utils.py"


def read_cpu() -> Mapping[str, float]:
    """Return the CPU seconds of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"plain loop": time.process_time() + children.ru_utime + children.ru_stime}


@dataclass(slots=True)
class PlainLoop:
    """A loop that works on `repository`, in worktrees below the empty `folder`.

    python: an interpreter with pytest. delay: seconds that replace a model call.
    """

    repository: Path
    folder: Path
    python: str
    delay: float
    _git: asyncio.Lock = field(default_factory=asyncio.Lock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def operation(self) -> Operation:
        """The work of one council."""
        return self._work

    async def _work(self) -> None:
        candidates = await asyncio.gather(*(self._propose(number) for number in range(_SEATS)))
        checks = [self._check_diff(candidate) for candidate in candidates]
        checks += [self._check_diff(candidates[0]) for _ in range(_FURTHER_RUNS)]
        if not all(await asyncio.gather(*checks)):
            raise UnexpectedOutcome("a candidate of the plain loop fails its tests")
        if any(await asyncio.gather(*(self._check_diff("") for _ in range(_FURTHER_RUNS)))):
            raise UnexpectedOutcome("the base of the plain loop passes its tests")

    async def _propose(self, number: int) -> str:
        tree = await self._open_worktree()
        path = tree / _FILE
        original = path.read_text(encoding="utf-8")
        await asyncio.sleep(self.delay)
        await self._run_command(f"cat {_FILE}", tree)
        for text in (WRONG, f"{SOLVED.rstrip()}  # {number}\n"):
            await asyncio.sleep(self.delay)
            path.write_text(original + text, encoding="utf-8")
            await self._run_tests(tree)
        _, diff = await self._run_command("git diff", tree)
        await self._close_worktree(tree)
        return diff

    async def _check_diff(self, diff: str) -> bool:
        tree = await self._open_worktree()
        if diff:
            (tree / ".patch").write_text(diff, encoding="utf-8")
            await self._run_command("git apply .patch && rm .patch", tree)
        passed = await self._run_tests(tree)
        await self._close_worktree(tree)
        return passed

    async def _run_tests(self, tree: Path) -> bool:
        command = f"{shlex.quote(self.python)} -m pytest -q -p no:cacheprovider"
        code, _ = await self._run_command(command, tree)
        return code == 0

    async def _open_worktree(self) -> Path:
        tree = self.folder / f"tree-{next(self._numbers)}"
        async with self._git:
            await self._run_command(f"git worktree add -q --detach {shlex.quote(str(tree))}")
        return tree

    async def _close_worktree(self, tree: Path) -> None:
        async with self._git:
            await self._run_command(f"git worktree remove --force {shlex.quote(str(tree))}")

    async def _run_command(self, command: str, folder: Path | None = None) -> tuple[int, str]:
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=folder or self.repository,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()
