"""CPU seconds from the kernel's own accounts, of a process and of a whole system of processes.

A sum over living processes misses sandboxes: they end with SIGKILL, nobody waits for the processes
in them, and so their seconds reach no parent. A control group counts them. Linux only; standard
library only, since the rivals' environment imports it too.
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
"""The kind of a process's clock that counts nanoseconds on a core (`CPUCLOCK_SCHED`)."""
_END_SECONDS = 10
_numbers = itertools.count()


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of a living process, all threads, without its children.

    Raises `ProcessLookupError` if it has ended.
    """
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError as error:
        raise ProcessLookupError(pid) from error


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """A control group (v1 or v2) that counts the CPU seconds of all processes ever in or below it.

    Processes join `members`, a group below `folder`: in v2, Moothall then makes the groups of its
    sandboxes beside `members`, where they are counted too.
    """

    folder: Path

    @property
    def members(self) -> Path:
        """The group that processes join."""
        return self.folder / "members"

    def command(self, *command: str) -> tuple[str, ...]:
        """Return a command that joins the group and then becomes `command`, under the same pid."""
        join = 'echo 0 >"$0" && exec "$@"'
        return ("/bin/sh", "-c", join, str(self.members / "cgroup.procs"), *command)

    def seconds(self) -> float:
        """Return the CPU seconds so far, of processes that ended too."""
        if (usage := self.folder / "cpuacct.usage").exists():
            return int(usage.read_text(encoding="ascii")) / 1e9
        lines = (self.folder / "cpu.stat").read_text(encoding="ascii").splitlines()
        return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6

    def kill(self) -> None:
        """Send SIGKILL to every process in it and below it."""
        for folder, _, _ in os.walk(self.folder):
            with suppress(OSError):
                for pid in Path(folder, "cgroup.procs").read_text(encoding="ascii").split():
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> bool:
        """Remove it with the groups below it; return False if a process is still in one of them."""
        for folder, _, _ in os.walk(self.folder, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
        return not self.folder.exists()


def make_cpu_group(root: Path = _ROOT) -> CpuGroup | None:
    """Make a group that this process may move its children into, or return None if it may not."""
    for parent in _parents(root):
        group = CpuGroup(parent / f"moothall-bench-{os.getpid()}-{next(_numbers)}")
        try:
            group.folder.mkdir()
            group.members.mkdir()
            join = group.command("true")
            subprocess.run(join, check=True, stderr=subprocess.DEVNULL)  # noqa: S603 - our own line
            group.seconds()
        except (OSError, subprocess.SubprocessError, KeyError):
            group.remove()
            continue
        return group
    return None


def may_count() -> bool:
    """Return whether this process may make a group."""
    group = make_cpu_group()
    return group is not None and group.remove()


@asynccontextmanager
async def cpu_group(
    root: Path = _ROOT,
    *,
    end_seconds: float = _END_SECONDS,
) -> AsyncIterator[CpuGroup | None]:
    """Make a group, or yield None if none can be made; remove it with the context.

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
    """Yield folders in which a group may be made, the best first."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        paths.update((name, path.lstrip("/")) for name in names.split(","))
    if "cpuacct" in paths and (root / "cpuacct").is_dir():
        yield from dict.fromkeys((root / "cpuacct" / paths["cpuacct"], root / "cpuacct"))
    for unified in (root, root / "unified"):
        if "" in paths and (unified / "cgroup.controllers").exists():
            yield from _unified_parents(unified, unified / paths[""])


def _unified_parents(mount: Path, own: Path) -> list[Path]:
    """Return this process's group and its parent, first the one that hands on `memory`.

    Sandboxes limit memory and processes in groups of their own, which are made below this one.
    """
    parents = [path for path in (own, own.parent) if path.is_relative_to(mount) and path.is_dir()]
    for parent in parents:
        with suppress(OSError):  # refused where processes live in it
            (parent / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
    return sorted(parents, key=lambda parent: "memory" not in _controllers(parent))


def _controllers(group: Path) -> str:
    return (group / "cgroup.subtree_control").read_text(encoding="ascii")
