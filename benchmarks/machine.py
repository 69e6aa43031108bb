"""The CPU time and memory of processes by part of the system, and a description of the machine.
Linux only.
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
    "The CPU time of a whole deliberation is not measured, because no control group can be created "
    "to count it. Run as root, or in a delegated group: `systemd-run --user --scope -p "
    "Delegate=yes scripts/bench`."
)
_PERMANENT_PARTS = ("serve", "host", "bus", "ray")
"""Parts whose processes run as long as the system. The rest of the CPU of its group is `sandbox`.
"""
_COMMAND_PATTERNS = (
    ("bus", ("nats-server",)),
    ("host", ("HostActor", "HostMain", "moothall.workers.subprocesses")),
    ("ray", ("gcs_server", "raylet", "ray::", "/ray/", "default_worker.py")),
    ("sandbox", ("bwrap", "moothall.sandbox", "moothall.workspace", "pytest", "git")),
)


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """CPU seconds by part.

    `sandbox` is the CPU of everything except the permanent parts: sandboxes, tests, git, and all
    ended processes. It and the total are nan if no control group counts them.
    """

    cpu: Mapping[str, float]

    @property
    def total(self) -> float:
        """CPU seconds of all parts."""
        return sum(self.cpu.values())

    def plus(self, other: CpuUsage) -> CpuUsage:
        """Return the sum of two usages."""
        return CpuUsage(
            {
                part: self.cpu.get(part, 0.0) + other.cpu.get(part, 0.0)
                for part in {**self.cpu, **other.cpu}
            }
        )

    def over(self, seconds: float) -> CpuUsage:
        """Return the usage per second, as shares of a core."""
        return CpuUsage({part: value / seconds for part, value in self.cpu.items()})

    def since(self, before: CpuUsage) -> CpuUsage:
        """Return the usage since an earlier one."""
        return CpuUsage(
            {part: value - before.cpu.get(part, 0.0) for part, value in self.cpu.items()}
        )


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory in bytes, open files and processes by part. PSS divides shared memory among the
    processes that share it.
    """

    pss: Mapping[str, int]
    rss: Mapping[str, int]
    files: Mapping[str, int]
    processes: Mapping[str, int]


@dataclass(slots=True)
class System:
    """The processes of one system: `root` and its descendants. `group` counts their CPU."""

    root: int
    group: CpuGroup | None = None

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Return every running process with its part."""
        processes = []
        root = psutil.Process(self.root)
        for process in (root, *root.children(recursive=True)):
            try:
                part = "serve" if process.pid == self.root else part_of(process)
                processes.append((part, process))
            except psutil.Error:
                continue
        return processes

    def cpu_usage(self) -> CpuUsage:
        """Return the CPU seconds so far."""
        cpu: defaultdict[str, float] = defaultdict(float)
        for part, process in self.processes():
            if part in _PERMANENT_PARTS:
                with suppress(ProcessLookupError):
                    cpu[part] += process_seconds(process.pid)
        total = self.group.seconds() if self.group else math.nan
        return CpuUsage({**cpu, "sandbox": total - sum(cpu.values())})

    def memory_usage(self) -> MemoryUsage:
        """Return the memory, open files and processes now."""
        pss, rss, files, count = (Counter[str](), Counter[str](), Counter[str](), Counter[str]())
        for part, process in self.processes():
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
                file_count = process.num_fds()
            except (OSError, psutil.Error):
                continue
            pss[part] += _kilobytes(rollup, "Pss") * 1024
            rss[part] += _kilobytes(rollup, "Rss") * 1024
            files[part] += file_count
            count[part] += 1
        return MemoryUsage(dict(pss), dict(rss), dict(files), dict(count))

    def kill(self) -> None:
        """Kill all processes with SIGKILL."""
        for _, process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def part_of(process: psutil.Process) -> str:
    """Return the part of a process, by its command line."""
    line = " ".join(process.cmdline()) or process.name()
    return next(
        (part for part, texts in _COMMAND_PATTERNS if any(text in line for text in texts)), "other"
    )


def _kilobytes(rollup: str, name: str) -> int:
    match = re.search(rf"^{name}: +(\d+) kB", rollup, re.MULTILINE)
    return int(match[1]) if match else 0


def describe() -> dict[str, str]:
    """Return a description of the machine and its Python."""
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
        "build": describe_build(platform.python_compiler(), sysconfig.get_config_vars()),
    }


def describe_build(compiler: str, config: Mapping[str, object]) -> str:
    """Return how an interpreter was built, from its compiler and its `sysconfig` variables."""
    arguments = str(config.get("CONFIG_ARGS") or "")
    flags = str(config.get("PY_CFLAGS") or config.get("CFLAGS") or "")
    levels = re.findall(r"(?<!\S)-O\w+", flags)
    kind = "debug build" if config.get("Py_DEBUG") else "release build"
    steps = ("PGO", "--enable-optimizations"), ("LTO", "--with-lto")
    options = [
        f"{'with' if re.search(f'{flag}(?!=no)', arguments) else 'no'} {step}"
        for step, flag in steps
    ]
    return ", ".join((compiler.strip(), kind, levels[-1] if levels else "no -O", *options))


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the installed versions, without packages that are not installed."""
    installed = {}
    for name in names:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
