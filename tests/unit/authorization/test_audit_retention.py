"""Old audit records are removed, and the remaining ones still verify."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moothall.authorization.audit import AuditEntry, AuditLog, prune_chain, verify_all
from moothall.authorization.audit_chain import (
    GENESIS,
    Head,
    StreamChains,
    head_mac,
    head_path,
    read_anchor,
    record_hash,
    render_anchor,
    render_head,
    render_record,
)
from moothall.domain.ids import TaskKey

KEY = b"the key of the server"
START = datetime(2026, 10, 1, tzinfo=UTC)


def entry(number: int) -> AuditEntry:
    return AuditEntry(
        "local", "ann", TaskKey("task-1"), "seat-1", f"request-{number}", "files.read", "0" * 64
    )


def write_days(folder: Path, days: int, writer: str = "host-1") -> Path:
    """Write a chain with a start and a finish of a call on each day since START."""
    path = folder / "audit" / "local" / f"{writer}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    last, lines = Head(0, GENESIS), []
    for number in range(2 * days):
        time = (START + timedelta(days=number // 2)).isoformat(timespec="milliseconds")
        record: dict[str, Any] = {
            "seq": number + 1,
            "time": time,
            "task_id": "task-1",
            "request_id": f"request-{number // 2}",
            "phase": ("start", "finish")[number % 2],
            "prev": last.hash,
        }
        record["hash"] = record_hash(record)
        last = Head(number + 1, record["hash"])
        lines.append(render_record(record) + b"\n")
    path.write_bytes(b"".join(lines))
    head_path(path).write_bytes(render_head(last, head_mac(KEY, path, last)))
    return path


def day(number: int) -> datetime:
    return START + timedelta(days=number)


def test_the_rest_of_a_pruned_chain_verifies(tmp_path: Path) -> None:
    path = write_days(tmp_path, 10)
    hashes = {
        record["seq"]: record["hash"] for record in map(json.loads, path.read_text().splitlines())
    }
    assert prune_chain(path, KEY, day(4)) == 8
    assert prune_chain(path, KEY, day(4)) == 0
    assert prune_chain(path, KEY, day(6)) == 4
    report = verify_all(tmp_path, KEY, StreamChains({("local", "host-1"): hashes}))
    assert (report.problems, report.records, report.pruned, report.unfinished) == ((), 8, 12, 0)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_pruning_keeps_the_last_record_and_the_chain_continues(tmp_path: Path) -> None:
    path = write_days(tmp_path, 2)
    assert prune_chain(path, KEY, day(1000)) == 3
    async with AuditLog(tmp_path, "host-1", key=KEY) as audit:
        assert await audit.append(entry(9)) == "host-1:5"
    report = verify_all(tmp_path, KEY)
    assert (report.problems, report.records, report.pruned) == ((), 2, 3)


async def test_a_writer_removes_its_own_old_records_and_those_of_former_writers(
    tmp_path: Path,
) -> None:
    for writer in ("host-1", "host-2"):
        write_days(tmp_path, 3, writer)
    async with AuditLog(tmp_path, "host-1", key=KEY, keep_days=1) as audit:
        await audit.append(entry(9))
    report = verify_all(tmp_path, KEY)
    assert report.problems == ()
    assert report.records + report.pruned == 13
    assert report.pruned >= 10  # the last record of a chain stays


async def test_a_chain_in_use_by_a_process_is_not_pruned(tmp_path: Path) -> None:
    path = write_days(tmp_path, 3)
    async with AuditLog(tmp_path, "host-1", key=KEY) as audit:
        await audit.append(entry(9))
        assert prune_chain(path, KEY, day(1000)) == 0
    assert prune_chain(path, KEY, day(1000)) == 6


def remove_first(lines: list[bytes], path: Path) -> list[bytes]:
    del path
    return lines[1:]


def remove_anchor_s_follower(lines: list[bytes], path: Path) -> list[bytes]:
    del path
    return [lines[0], *lines[2:]]


def forge_anchor(lines: list[bytes], path: Path) -> list[bytes]:
    record = json.loads(lines[1])
    return [render_anchor(b"another key", path, Head(record["seq"], record["hash"])), *lines[2:]]


def unsign_anchor(lines: list[bytes], path: Path) -> list[bytes]:
    anchor = read_anchor(lines[0])
    assert anchor
    return [render_anchor(b"", path, anchor.last), *lines[1:]]


def change(lines: list[bytes], path: Path) -> list[bytes]:
    del path
    return [lines[0], lines[1].replace(b"task-1", b"task-2"), *lines[2:]]


@pytest.mark.parametrize(
    "touch", [remove_first, remove_anchor_s_follower, forge_anchor, unsign_anchor, change]
)
def test_a_change_to_a_pruned_chain_is_detected_and_not_pruned(
    tmp_path: Path, touch: Callable[[list[bytes], Path], list[bytes]]
) -> None:
    path = write_days(tmp_path, 6)
    assert prune_chain(path, KEY, day(2)) == 4
    path.write_bytes(b"\n".join(touch(path.read_bytes().splitlines(), path)) + b"\n")
    assert not verify_all(tmp_path, KEY).ok
    assert prune_chain(path, KEY, day(5)) == 0
    assert not verify_all(tmp_path, KEY).ok


def test_an_anchor_that_differs_from_the_stream_is_detected(tmp_path: Path) -> None:
    path = write_days(tmp_path, 3)
    prune_chain(path, KEY, day(1))
    report = verify_all(tmp_path, KEY, StreamChains({("local", "host-1"): {2: "f" * 64}}))
    assert [problem.message for problem in report.problems] == [
        "pruned record 2 differs from the one in the AUDIT stream"
    ]


def test_a_call_started_in_the_pruned_part_is_not_unfinished(tmp_path: Path) -> None:
    path = write_days(tmp_path, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[0])
    path.write_bytes(
        render_anchor(KEY, path, Head(last["seq"], last["hash"])) + b"\n" + b"".join(lines[1:])
    )
    report = verify_all(tmp_path, KEY)
    assert (report.problems, report.unfinished) == ((), 0)
