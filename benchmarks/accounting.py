"""CPU seconds of a process and of a group of processes, from the kernel's accounting.

A sum over running processes misses sandboxes: they end with SIGKILL, no parent waits for their
processes, and their seconds are lost. A control group counts them. Linux only. It imports only the
standard library, because the environment of the rivals imports it too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SCHEDULED = 2
"""The clock of a process that counts its nanoseconds on a core (`CPUCLOCK_SCHED`)."""
_END_SECONDS = 10
_numbers = itertools.count()


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a running process, without its children.

    Raises `ProcessLookupError` if it has ended.
    """
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError as error:
        raise ProcessLookupError(pid) from error


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """A control group (v1 or v2) that counts the CPU seconds of all processes that were ever in it.

    Processes join `members`, a group below `folder`. In v2, Moothall creates the groups of its
    sandboxes next to `members`, so they are counted too.
    """

    folder: Path

    @property
    def members(self) -> Path:
        """The subgroup that processes join."""
        return self.folder / "members"

    def command(self, *command: str) -> tuple[str, ...]:
        """Return a command that joins the group and then executes `command` with the same pid."""
        join = 'echo 0 >"$0" && exec "$@"'
        return ("/bin/sh", "-c", join, str(self.members / "cgroup.procs"), *command)

    def seconds(self) -> float:
        """Return the CPU seconds so far, including those of ended processes."""
        if (usage := self.folder / "cpuacct.usage").exists():
            return int(usage.read_text(encoding="ascii")) / 1e9
        lines = (self.folder / "cpu.stat").read_text(encoding="ascii").splitlines()
        return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6

    def kill(self) -> None:
        """Send SIGKILL to every process in the group and its subgroups."""
        for folder, _, _ in os.walk(self.folder):
            with suppress(OSError):
                for pid in Path(folder, "cgroup.procs").read_text(encoding="ascii").split():
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the group and its subgroups; return False if one still contains a process."""
        for folder, _, _ in os.walk(self.folder, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
        return not self.folder.exists()


def make_cpu_group(root: Path = _ROOT) -> CpuGroup | None:
    """Create a group that children of this process can join; return None if not permitted."""
    for parent in _parents(root):
        group = CpuGroup(parent / f"moothall-bench-{os.getpid()}-{next(_numbers)}")
        try:
            group.folder.mkdir()
            group.members.mkdir()
            join = group.command("true")
            subprocess.run(join, check=True, stderr=subprocess.DEVNULL)  # noqa: S603 - a constant command
            group.seconds()
        except (OSError, subprocess.SubprocessError, KeyError):
            group.remove()
            continue
        return group
    return None


def can_count_cpu() -> bool:
    """Return whether this process can create a group."""
    group = make_cpu_group()
    return group is not None and group.remove()


@asynccontextmanager
async def cpu_group(
    root: Path = _ROOT,
    *,
    end_seconds: float = _END_SECONDS,
) -> AsyncIterator[CpuGroup | None]:
    """Create a group for the duration of the context; yield None if none can be created.

    Processes that are still in it `end_seconds` after the end of the context are killed.
    """
    group = make_cpu_group(root)
    try:
        yield group
    finally:
        if group:
            await _remove(group, end_seconds)


async def _remove(group: CpuGroup, end_seconds: float) -> None:
    until = time.monotonic() + end_seconds
    while not group.remove():
        if time.monotonic() > until:
            group.kill()
        await asyncio.sleep(0.05)


def _parents(root: Path) -> Iterator[Path]:
    """Yield folders in which a group may be created, the best first."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        paths.update((name, path.lstrip("/")) for name in names.split(","))
    if "cpuacct" in paths and (root / "cpuacct").is_dir():
        yield from dict.fromkeys((root / "cpuacct" / paths["cpuacct"], root / "cpuacct"))
    for unified in (root, root / "unified"):
        if "" in paths and (unified / "cgroup.controllers").exists():
            yield from _unified_parents(unified, unified / paths[""])


def _unified_parents(mount: Path, own_group: Path) -> list[Path]:
    """Return this process's group and its parent, first the one that delegates `memory`.

    Sandboxes limit memory and processes in their own groups, which are created below it.
    """
    parents = [
        path
        for path in (own_group, own_group.parent)
        if path.is_relative_to(mount) and path.is_dir()
    ]
    for parent in parents:
        with suppress(OSError):  # refused if the group contains processes
            (parent / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
    return sorted(parents, key=lambda parent: "memory" not in _controllers(parent))


def _controllers(group: Path) -> str:
    return (group / "cgroup.subtree_control").read_text(encoding="ascii")
