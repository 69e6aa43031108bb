"""What processes use, by the part of the system that they are; and what machine this is. Linux
only.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.accounting import CpuGroup, process_seconds

NOT_COUNTED = (
    "CPU of a whole deliberation is not measured: no control group can be made to count it. Run as "
    "root, or in a delegated group: `systemd-run --user --scope -p Delegate=yes scripts/bench`."
)
_SERVING = ("serve", "host", "bus", "ray")
"""Parts whose processes live as long as the system. The rest of its group's CPU is `sandbox`."""
_MARKS = (
    ("bus", ("nats-server",)),
    ("host", ("HostActor", "HostMain", "moothall.workers.subprocesses")),
    ("ray", ("gcs_server", "raylet", "ray::", "/ray/", "default_worker.py")),
    ("sandbox", ("bwrap", "moothall.sandbox", "moothall.workspace", "pytest", "git")),
)


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds by part.

    `sandbox` is what the system used beside its living parts: sandboxes, tests, git, and all
    processes that ended. It is nan, and so is the total, if no control group counts it.
    """

    cpu: Mapping[str, float]

    @property
    def total(self) -> float:
        """All parts."""
        return sum(self.cpu.values())

    def plus(self, more: Used) -> Used:
        """Both together."""
        return Used(
            {
                part: self.cpu.get(part, 0.0) + more.cpu.get(part, 0.0)
                for part in {**self.cpu, **more.cpu}
            }
        )

    def over(self, seconds: float) -> Used:
        """What was used in a second of so many, as shares of a core."""
        return Used({part: value / seconds for part, value in self.cpu.items()})

    def since(self, before: Used) -> Used:
        """What was used in between."""
        return Used({part: value - before.cpu.get(part, 0.0) for part, value in self.cpu.items()})


@dataclass(frozen=True, slots=True)
class Held:
    """Memory in bytes, descriptors and processes by part. PSS divides what processes share among
    them.
    """

    pss: Mapping[str, int]
    rss: Mapping[str, int]
    files: Mapping[str, int]
    processes: Mapping[str, int]


@dataclass(slots=True)
class System:
    """The processes of one system: `root` and those below it. `group` counts their CPU."""

    root: int
    group: CpuGroup | None = None

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Every living process and the part that it is."""
        found = []
        root = psutil.Process(self.root)
        for process in (root, *root.children(recursive=True)):
            try:
                found.append(("serve" if process.pid == self.root else part_of(process), process))
            except psutil.Error:
                continue
        return found

    def used(self) -> Used:
        """Return the CPU seconds so far."""
        cpu: defaultdict[str, float] = defaultdict(float)
        for part, process in self.processes():
            if part in _SERVING:
                with suppress(ProcessLookupError):
                    cpu[part] += process_seconds(process.pid)
        whole = self.group.seconds() if self.group else math.nan
        return Used({**cpu, "sandbox": whole - sum(cpu.values())})

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
        "build": build_of(platform.python_compiler(), sysconfig.get_config_vars()),
    }


def build_of(compiler: str, config: Mapping[str, object]) -> str:
    """Return how an interpreter was built, from its compiler and its `sysconfig` variables."""
    arguments = str(config.get("CONFIG_ARGS") or "")
    flags = str(config.get("PY_CFLAGS") or config.get("CFLAGS") or "")
    levels = re.findall(r"(?<!\S)-O\w+", flags)
    kind = "debug build" if config.get("Py_DEBUG") else "release build"
    steps = ("PGO", "--enable-optimizations"), ("LTO", "--with-lto")
    named = [
        f"{'with' if re.search(f'{flag}(?!=no)', arguments) else 'no'} {step}"
        for step, flag in steps
    ]
    return ", ".join((compiler.strip(), kind, levels[-1] if levels else "no -O", *named))


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions; what is not installed is left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
