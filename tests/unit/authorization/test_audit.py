from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.audit import AuditEntry, AuditLog, verify, verify_all
from moothall.authorization.audit_chain import (
    Head,
    head_path,
    record_hash,
    render_head,
    render_record,
)
from moothall.domain.ids import TaskKey
from moothall.errors import AuditUnavailable


def entry(number: int = 1, tenant: str = "local") -> AuditEntry:
    return AuditEntry(
        tenant,
        "ann",
        TaskKey("task-1"),
        "agent-dev-001",
        f"request-{number}",
        "files.read",
        "0" * 64,
    )


async def write(data_dir: Path, count: int, *, writer: str = "host-1") -> Path:
    async with AuditLog(data_dir, writer) as audit:
        for number in range(count):
            await audit.append(entry(number))
    return data_dir / "audit" / "local" / f"{writer}.jsonl"


async def test_concurrent_calls_write_one_chain(tmp_path: Path) -> None:
    async with AuditLog(tmp_path, "host-1", sync_records=7) as audit, asyncio.TaskGroup() as group:
        ids = [group.create_task(audit.append(entry(number))) for number in range(100)]
    assert {task.result() for task in ids} == {f"host-1:{seq}" for seq in range(1, 101)}
    report = verify_all(tmp_path)
    assert (report.ok, report.chains, report.records, report.problems) == (True, 1, 100, ())


async def test_calls_without_a_finish_record_are_counted(tmp_path: Path) -> None:
    async with AuditLog(tmp_path, "host-1") as audit:
        for number, phase in (
            (1, "start"),
            (2, "start"),
            (2, "start"),
            (2, "finish"),
            (3, "start"),
            (3, "finish"),
        ):
            kind: Any = phase
            await audit.append(replace(entry(number), phase=kind))
    assert verify_all(tmp_path).unfinished == 2


async def test_a_restart_continues_the_chain(tmp_path: Path) -> None:
    await write(tmp_path, 3)
    path = await write(tmp_path, 2)
    assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5]
    assert verify(path) == ()


async def test_each_tenant_and_writer_has_its_own_chain(tmp_path: Path) -> None:
    async with (
        AuditLog(tmp_path, "host-1") as first_log,
        AuditLog(tmp_path, "host-2") as second_log,
    ):
        await first_log.append(entry(tenant="a"))
        await first_log.append(entry(tenant="b"))
        await second_log.append(entry(tenant="a"))
    for chain in ("a/host-1", "a/host-2", "b/host-1"):
        assert verify(tmp_path / "audit" / f"{chain}.jsonl") == ()
    report = verify_all(tmp_path)
    assert (report.ok, report.chains, report.records) == (True, 3, 3)


async def test_two_processes_cannot_share_a_writer(tmp_path: Path) -> None:
    async with (
        AuditLog(tmp_path, "host-1") as first_log,
        AuditLog(tmp_path, "host-1") as second_log,
    ):
        await first_log.append(entry())
        with pytest.raises(AuditUnavailable, match="a writer name of its own"):
            await second_log.append(entry())


@pytest.mark.parametrize("tenant", ["../up", "", "a/b"])
async def test_a_tenant_must_be_an_id(tmp_path: Path, tenant: str) -> None:
    async with AuditLog(tmp_path, "host-1") as audit:
        with pytest.raises(AuditUnavailable, match="not an id"):
            await audit.append(entry(tenant=tenant))


async def test_a_closed_audit_log_accepts_no_records(tmp_path: Path) -> None:
    async with AuditLog(tmp_path, "host-1") as audit:
        pass
    with pytest.raises(AuditUnavailable, match="closed"):
        await audit.append(entry())


@pytest.mark.e2e  # a process whose disk is full
def test_a_full_disk_is_reported_and_the_chain_continues_afterwards(tmp_path: Path) -> None:
    # RLIMIT_FSIZE makes the kernel cut a write short and refuse the rest, as a full disk does.
    script = f"""
import asyncio, resource, signal
from pathlib import Path
from moothall.errors import AuditUnavailable
from moothall.authorization.audit import AuditLog, AuditEntry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    async with AuditLog(Path({str(tmp_path)!r}), "host-1") as audit:
        for n in range(20):
            if n == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1800, resource.RLIM_INFINITY))
            if n == 9:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            try:
                await audit.append(AuditEntry("local", "ann", "task-1", "seat", f"r-{{n}}", "files.read", "0" * 64))
                print("wrote", end=" ")
            except AuditUnavailable:
                print("refused", end=" ")
asyncio.run(main())
"""  # noqa: E501 - a line of embedded text
    completed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30
    )
    outcomes = [word for word in completed.stdout.split() if word in {"wrote", "refused"}]
    assert outcomes[:4] == ["wrote"] * 4
    assert outcomes[4:9].count("refused") >= 3
    assert outcomes[9:] == ["wrote"] * 11
    report = verify_all(tmp_path)
    assert report.ok, report.problems
    assert [problem.serious for problem in report.problems].count(False) == 1


async def test_a_record_torn_by_a_crash_is_marked_and_not_treated_as_tampering(
    tmp_path: Path,
) -> None:
    path = await write(tmp_path, 3)
    with path.open("ab") as file:
        file.write(b'{"seq":4,"time":"2026-')
    assert [problem.serious for problem in verify(path)] == [True]

    await write(tmp_path, 2)
    (problem,) = verify(path)
    assert not problem.serious
    assert "torn" in problem.message
    phases = [
        json.loads(line)["phase"]
        for number, line in enumerate(path.read_text().splitlines())
        if number != 3
    ]
    assert phases == ["start"] * 3 + ["torn"] + ["start"] * 2


async def test_a_complete_record_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = await write(tmp_path, 3)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    await write(tmp_path, 1)
    assert verify(path) == ()
    assert len(path.read_text().splitlines()) == 4


async def test_a_head_that_lags_after_a_crash_is_no_problem(tmp_path: Path) -> None:
    path = await write(tmp_path, 3)
    old = head_path(path).read_bytes()
    await write(tmp_path, 1)
    head_path(path).write_bytes(old)
    assert verify(path) == ()
    await write(tmp_path, 1)
    assert verify(path) == ()


@pytest.mark.parametrize("keep", [0, 1, 4])
async def test_a_truncated_chain_is_detected_even_after_a_restart(
    tmp_path: Path, keep: int
) -> None:
    path = await write(tmp_path, 5)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))
    assert any("cut off" in problem.message for problem in verify(path))
    await write(tmp_path, 2)
    assert any(problem.serious and "removed" in problem.message for problem in verify(path))


async def test_a_removed_file_is_detected(tmp_path: Path) -> None:
    path = await write(tmp_path, 2)
    path.unlink()
    assert not verify_all(tmp_path).ok


async def test_a_removed_head_is_detected(tmp_path: Path) -> None:
    path = await write(tmp_path, 2)
    head_path(path).unlink()
    assert not verify_all(tmp_path).ok


Lines = list[bytes]


def change(lines: Lines, at: int, dice: random.Random) -> Lines:
    spot = dice.randrange(len(lines[at]))
    old = lines[at][spot : spot + 1]
    new = dice.choice([bytes([code]) for code in range(32, 127) if bytes([code]) != old])
    return [*lines[:at], lines[at][:spot] + new + lines[at][spot + 1 :], *lines[at + 1 :]]


def remove(lines: Lines, at: int, dice: random.Random) -> Lines:
    del dice
    return [*lines[:at], *lines[at + 1 :]]


def swap(lines: Lines, at: int, dice: random.Random) -> Lines:
    other_index = (at + dice.randrange(1, len(lines))) % len(lines)
    swapped = list(lines)
    swapped[at], swapped[other_index] = lines[other_index], lines[at]
    return swapped


def double(lines: Lines, at: int, dice: random.Random) -> Lines:
    del dice
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def forge(lines: Lines, at: int, dice: random.Random) -> Lines:
    """Change a record and recompute its hash."""
    record = json.loads(lines[at])
    record["tool"] = f"files.{dice.randrange(99)}"
    record["hash"] = record_hash(record)
    return [*lines[:at], render_record(record), *lines[at + 1 :]]


def respell(lines: Lines, at: int, dice: random.Random) -> Lines:
    del dice
    return [
        *lines[:at],
        lines[at].replace(b'{"seq"', b'{"tool":"git.push","seq"'),
        *lines[at + 1 :],
    ]


def cut(lines: Lines, at: int, dice: random.Random) -> Lines:
    del dice
    return lines[:at]


@pytest.fixture(scope="module")
def untouched() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = asyncio.run(write(Path(folder), 12))
        assert verify(path) == ()
        return path.read_bytes(), head_path(path).read_bytes()


@given(
    st.sampled_from([change, remove, swap, double, forge, respell, cut]),
    st.integers(0, 11),
    st.randoms(use_true_random=False),
)
def test_any_change_to_the_chain_is_detected(
    untouched: tuple[bytes, bytes],
    touch: Callable[[Lines, int, random.Random], Lines],
    at: int,
    dice: random.Random,
) -> None:
    lines = touch(untouched[0].splitlines(), at, dice)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit" / "local" / "host-1.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        head_path(path).write_bytes(untouched[1])
        assert not verify_all(Path(folder)).ok


@pytest.mark.e2e  # a process that is killed
def test_a_kill_9_loses_no_confirmed_record(tmp_path: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from moothall.authorization.audit import AuditLog, AuditEntry
async def main():
    async with AuditLog(Path({str(tmp_path)!r}), "host-1") as audit:
        while True:
            seq = await audit.append(AuditEntry("local", "ann", "task-1", "seat", "r", "files.read", "0" * 64))
            print(seq, flush=True)
asyncio.run(main())
"""  # noqa: E501 - a line of embedded text
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(50)]
        os.kill(process.pid, 9)
        lines += process.stdout.readlines()
    answered = max(int(line.partition(":")[2]) for line in lines if line.endswith("\n"))
    asyncio.run(write(tmp_path, 1))
    report = verify_all(tmp_path)
    assert report.ok, report.problems
    assert report.records > answered


KEY = b"k" * 32


async def write_signed(data_dir: Path, count: int) -> Path:
    async with AuditLog(data_dir, "host-1", key=KEY) as audit:
        for number in range(count):
            await audit.append(entry(number))
    return data_dir / "audit" / "local" / "host-1.jsonl"


async def test_a_truncated_chain_with_a_forged_head_is_detected_by_the_signature(
    tmp_path: Path,
) -> None:
    path = await write_signed(tmp_path, 5)
    assert verify(path, KEY) == ()
    lines = path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[2])
    path.write_bytes(b"".join(lines[:3]))
    for mac in ("", "0" * 64):
        head_path(path).write_bytes(render_head(Head(3, last["hash"]), mac))
        (problem,) = verify(path, KEY)
        assert (problem.serious, "sign" in problem.message) == (bool(mac), True)
    assert verify(path) == (), "without the key nothing is detected"
    await write_signed(tmp_path, 2)
    (problem,) = verify(path, KEY)
    assert (problem.serious, "another key" in problem.message) == (True, True), (
        "later records do not sign earlier ones"
    )


async def test_a_chain_without_signatures_stays_readable_and_is_named_so(
    tmp_path: Path,
) -> None:
    path = await write(tmp_path, 3)
    (finding_before,) = verify(path, KEY)
    assert (finding_before.serious, "not signed" in finding_before.message) == (False, True)
    await write_signed(tmp_path, 1)
    (finding_after,) = verify(path, KEY)
    assert (finding_after.serious, finding_after.line) == (False, 4)
    assert verify_all(tmp_path, KEY).ok
