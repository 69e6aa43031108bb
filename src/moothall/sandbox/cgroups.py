"""A separate cgroup for each sandbox, if this process is allowed to create one (v1 or v2)."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from moothall.sandbox.orphans import GROUP_PREFIX, remove_groups

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = GROUP_PREFIX


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup folders of one sandbox: one for each controller in v1, the same one in v2."""

    memory: Path
    pids: Path

    @property
    def procs_files(self) -> tuple[str, ...]:
        """The files to which a process writes its pid to join the cgroup."""
        return tuple(
            str(folder / "cgroup.procs") for folder in dict.fromkeys((self.memory, self.pids))
        )

    def count_memory_kills(self) -> int:
        """Return how many processes the kernel killed in it because it ran out of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                match = re.search(
                    r"^oom_kill (\d+)$",
                    (self.memory / name).read_text(encoding="ascii"),
                    re.MULTILINE,
                )
                if match:
                    return int(match[1])
        return 0

    def kill(self) -> None:
        """Kill every process in it."""
        for entrance in self.procs_files:
            with contextlib.suppress(OSError):
                for pid in Path(entrance).read_text(encoding="ascii").split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Remove the folders; one that still holds a dying process is left to the next sweep."""
        for folder in {self.memory, self.pids}:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _read_own_paths() -> Mapping[str, str]:
    """Return this process's cgroup path by controller; the key is '' for v2."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, names, path = line.split(":", 2)
            paths.update((name, path) for name in names.split(","))
    return paths


def _find_writable(candidates: tuple[Path, ...], required_file: str) -> Path | None:
    """Return the first folder in which a child that has the file `required_file` can be created."""
    for folder in candidates:
        trial = folder / f"{_PREFIX}trial-{os.getpid()}"
        try:
            trial.mkdir()
        except OSError:
            continue
        try:
            if (trial / required_file).exists() and os.access(trial / required_file, os.W_OK):
                return folder
        finally:
            with contextlib.suppress(OSError):
                trial.rmdir()
    return None


def _find_v1(paths: Mapping[str, str], controller: str, required_file: str) -> Path | None:
    if controller not in paths:
        return None
    mount = _ROOT / controller
    return _find_writable((mount / paths[controller].lstrip("/"), mount), required_file)


def _find_v2(paths: Mapping[str, str]) -> Path | None:
    if "" not in paths or not (_ROOT / "cgroup.controllers").exists():
        return None
    own_group = _ROOT / paths[""].lstrip("/")
    candidates = tuple(
        folder for folder in (own_group, own_group.parent) if folder.is_relative_to(_ROOT)
    )
    for folder in candidates:
        # refused where the folder has processes: then the parent is tried
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
    return _find_writable(candidates, "memory.max")


def cores() -> int:
    """Return how many cores this process may use: its CPU affinity, or the quota of its cgroup if
    that is lower.
    """
    quotas = [float(len(os.sched_getaffinity(0))), *map(quota, _own_folders("cpu"))]
    return max(1, math.ceil(min(quotas)))


def memory() -> int:
    """Return how many bytes of memory this process may use: those of the machine, or the limit of
    its cgroup if that is lower.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min([float(total), *map(memory_limit, _own_folders("memory"))]))


def _own_folders(controller: str) -> Iterator[Path]:
    """Yield the cgroups of this process, with v1 and v2, and those above them."""
    paths = _read_own_paths()
    for own_path, mount in (
        (paths.get("", "/"), _ROOT),
        (paths.get(controller, "/"), _ROOT / controller),
    ):
        folder = mount / own_path.lstrip("/")
        yield from (
            ancestor for ancestor in (folder, *folder.parents) if ancestor.is_relative_to(mount)
        )


def quota(folder: Path) -> float:
    """Return the cores that a cgroup may use; infinite if it has no quota."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip()
                for name in ("quota", "period")
            )
        return int(quota) / int(period) if quota not in {"max", "-1"} else math.inf
    except (OSError, ValueError):
        return math.inf


def memory_limit(folder: Path) -> float:
    """Return the bytes of memory that a cgroup may use; infinite if it has no limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # v2 says "max"
            return int((folder / name).read_text(encoding="ascii"))
    return math.inf


@functools.cache
def parents() -> tuple[Path, Path] | None:
    """Return where cgroups for memory and pids can be created, or None if this is not allowed."""
    paths = _read_own_paths()
    memory, pids = (
        _find_v1(paths, "memory", "memory.limit_in_bytes"),
        _find_v1(paths, "pids", "pids.max"),
    )
    if memory and pids:
        return memory, pids
    unified = _find_v2(paths)
    return (unified, unified) if unified else None


def describe() -> str:
    """Return what limits memory and processes on this machine, in words for operators."""
    folders = parents()
    if folders is None:
        return "rlimits, and by polling the process tree many times a second: no cgroup is writable"
    return "cgroup v2" if folders[0] == folders[1] else "cgroup v1"


def create_cgroup(name: str, memory_bytes: int, processes: int) -> Cgroup | None:
    """Create a cgroup with these limits, or return None if none can be created."""
    folders = parents()
    if folders is None:
        return None
    group = Cgroup(*(parent / f"{_PREFIX}{name}" for parent in folders))
    try:
        for folder in {group.memory, group.pids}:
            folder.mkdir()
        v2 = (group.memory / "memory.max").exists()
        (group.memory / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(
            str(memory_bytes), encoding="ascii"
        )
        (group.pids / "pids.max").write_text(str(processes), encoding="ascii")
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            if (group.memory / swap).exists():
                (group.memory / swap).write_text("0" if v2 else str(memory_bytes), encoding="ascii")
    except OSError:
        group.remove()
        raise
    return group


def sweep(prefix: str) -> bool:
    """Remove empty cgroups whose name begins with `prefix`, which a killed process left behind.

    Return whether none is left; a cgroup that holds a dying process is.
    """
    return remove_groups(f"{_PREFIX}{prefix}*", set(parents() or ()))
