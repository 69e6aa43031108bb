"""What processes use, by the part of the system that they are; and what machine this is. Linux only."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_MARKS = (
    ("bus", ("nats-server",)),
    ("host", ("HostActor", "HostMain")),
    ("ray", ("gcs_server", "raylet", "ray::", "/ray/", "default_worker.py")),
    ("sandbox", ("bwrap", "moothall.sandbox", "moothall.workspace", "pytest", "git")),
)


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds by part, ended children of living processes included."""

    cpu: Mapping[str, float]

    @property
    def total(self) -> float:
        """All parts."""
        return sum(self.cpu.values())

    def plus(self, more: Used) -> Used:
        """Both together."""
        return Used({part: self.cpu.get(part, 0.0) + more.cpu.get(part, 0.0) for part in {**self.cpu, **more.cpu}})

    def over(self, seconds: float) -> Used:
        """What was used in a second of so many, as shares of a core."""
        return Used({part: value / seconds for part, value in self.cpu.items()})

    def since(self, before: Used) -> Used:
        """What was used in between."""
        return Used({part: value - before.cpu.get(part, 0.0) for part, value in self.cpu.items()})


@dataclass(frozen=True, slots=True)
class Held:
    """Memory in bytes, descriptors and processes by part. PSS divides what processes share among them."""

    pss: Mapping[str, int]
    rss: Mapping[str, int]
    files: Mapping[str, int]
    processes: Mapping[str, int]


@dataclass(slots=True)
class System:
    """The processes of one system: those below `root`, itself included, without those below `apart`."""

    root: int
    apart: frozenset[int] = field(default_factory=frozenset)

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Every living process and the part that it is."""
        found = []
        root = psutil.Process(self.root)
        for process in (root, *root.children(recursive=True)):
            if process.pid not in self.apart:
                try:
                    found.append(("serve" if process.pid == self.root else part_of(process), process))
                except psutil.Error:
                    continue
        return found

    def used(self) -> Used:
        """CPU seconds so far."""
        cpu: defaultdict[str, float] = defaultdict(float)
        for part, process in self.processes():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            # A child's seconds come to its parent when it was waited for: nothing is counted twice.
            cpu[part] += times.user + times.system + times.children_user + times.children_system
        return Used(dict(cpu))

    def held(self) -> Held:
        """Memory and descriptors now."""
        pss, rss, files, count = (Counter[str](), Counter[str](), Counter[str](), Counter[str]())
        for part, process in self.processes():
            try:
                rolled = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
                opened = process.num_fds()
            except (OSError, psutil.Error):
                continue
            pss[part] += _kilobytes(rolled, "Pss") * 1024
            rss[part] += _kilobytes(rolled, "Rss") * 1024
            files[part] += opened
            count[part] += 1
        return Held(dict(pss), dict(rss), dict(files), dict(count))

    def kill(self) -> None:
        """End all of it with SIGKILL."""
        for _, process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def part_of(process: psutil.Process) -> str:
    """Which part a process is, by its command line."""
    line = " ".join(process.cmdline()) or process.name()
    return next((part for part, marks in _MARKS if any(mark in line for mark in marks)), "other")


def _kilobytes(rolled: str, name: str) -> int:
    found = re.search(rf"^{name}: +(\d+) kB", rolled, re.MULTILINE)
    return int(found[1]) if found else 0


def describe() -> dict[str, str]:
    """The machine, in words."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = psutil.virtual_memory().total / 2**30
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": model,
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions; what is not installed is left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
