from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.accounting import CpuGroup, cpu_group, make_cpu_group, process_seconds
from benchmarks.environment import MissingRequirement, ensure_restate
from benchmarks.machine import System, describe_build
from benchmarks.report import format_figure
from benchmarks.rivals.__main__ import _read_cpu

_GROUPS = Path("/sys/fs/cgroup")
_BURNT = 0.3
_CHILD = f"""
import signal, time
while time.process_time() < {_BURNT}:
    pass
print("burnt", flush=True)
signal.pause()
"""
_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print("child", child.pid, flush=True)
sys.stdin.read()
"""
_ROOT = """
import subprocess, sys
parent = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=subprocess.PIPE)
print("parent", parent.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def _running(group: CpuGroup | None, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python in the group; kill it with the context."""
    python = (sys.executable, "-c", *command)
    with subprocess.Popen(
        group.command(*python) if group else python,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _kill(*pids: int) -> None:
    """Kill processes, one after the other, and return once all have ended."""
    ends = [os.pidfd_open(pid) for pid in pids]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for end in ends:
        select.select([end], [], [])
        os.close(end)


@pytest.mark.e2e  # starts and kills processes
@pytest.mark.parametrize("mount", [_GROUPS, _GROUPS / "unified"], ids=["cgroup", "unified"])
async def test_the_cpu_time_of_killed_children_is_counted(mount: Path) -> None:
    async with cpu_group(mount) as group:
        if group is None:
            pytest.skip(f"no control group can be made in {mount}: run as root")
        with _running(group, _ROOT, _PARENT, _CHILD) as root:
            assert root.stdout
            lines = dict(root.stdout.readline().split() for _ in range(2))
            system = System(root.pid, group)
            assert system.cpu_usage().total > _BURNT
            # Nobody waits for the child of a killed parent: its CPU seconds are added to no parent.
            _kill(int(lines["parent"]), int(lines["child"]))
            usage = system.cpu_usage()
            assert usage.total > _BURNT
            assert usage.cpu["sandbox"] > _BURNT, "ended processes count for no living part"
            assert usage.cpu["serve"] == pytest.approx(process_seconds(root.pid), rel=0.2)
    assert not group.folder.exists()


@pytest.mark.e2e
async def test_processes_left_in_a_group_are_killed() -> None:
    async with cpu_group(end_seconds=0) as group:
        if group is None:
            pytest.skip("no control group can be made: run as root")
        command = group.command("/bin/sh", "-c", "echo joined; exec sleep 600")
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout
        assert process.stdout.readline() == b"joined\n"
    with process:
        assert process.wait() == -signal.SIGKILL
    assert not group.folder.exists()


def test_without_a_control_group_the_total_is_not_measured(tmp_path: Path) -> None:
    assert make_cpu_group(tmp_path) is None, "no controllers are mounted there"
    with _running(None, "import sys; print(1, flush=True); sys.stdin.read()") as root:
        assert root.stdout
        root.stdout.readline()
        usage = System(root.pid).cpu_usage()
    assert usage.cpu["serve"] > 0, "living processes can be read all the same"
    assert math.isnan(usage.since(usage).total)
    assert format_figure(usage.total) == "not measured"


def test_an_ended_process_has_no_cpu_time() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        process_seconds(process.pid)


@pytest.mark.e2e
def test_the_cpu_of_another_systems_server_is_counted() -> None:
    cpu_before = _read_cpu()
    with _running(None, _CHILD) as server:
        assert server.stdout
        server.stdout.readline()
        assert _read_cpu()["server"] - cpu_before["server"] > _BURNT * 0.9


async def test_a_missing_dependency_of_restate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirement, match=r"npm is missing; install Node\.js"):
        await ensure_restate(tmp_path / "restate")


@pytest.mark.parametrize(
    ("config", "description"),
    [
        (
            {"CONFIG_ARGS": "'--enable-shared'", "PY_CFLAGS": "-g -O3 -Wall"},
            "release build, -O3, no PGO, no LTO",
        ),
        (
            {
                "CONFIG_ARGS": "'--enable-optimizations' '--with-lto=thin'",
                "PY_CFLAGS": "-O2 -O3",
                "Py_DEBUG": 0,
            },
            "release build, -O3, with PGO, with LTO",
        ),
        (
            {"CONFIG_ARGS": "--with-pydebug --with-lto=no", "PY_CFLAGS": "-Og", "Py_DEBUG": 1},
            "debug build, -Og, no PGO, no LTO",
        ),
    ],
)
def test_the_build_of_an_interpreter_is_named(config: dict[str, object], description: str) -> None:
    assert describe_build("GCC 12.2.0", config) == f"GCC 12.2.0, {description}"
