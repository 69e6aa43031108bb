"""The audit is sent from its chains on disk, until the collector accepts each record."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moothall.authorization.audit import AuditEntry, AuditLog, prune_chain
from moothall.authorization.audit_export import AuditShipper, ship_in_background
from moothall.domain.ids import TaskKey

KEY = b"k" * 32


class Collector:
    """Accepts records unless it is down."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.down = False
        self.calls = 0

    def send(self, records: Sequence[Mapping[str, Any]]) -> bool:
        self.calls += 1
        if not self.down:
            self.records += records
        return not self.down

    def seqs(self, tenant: str = "acme") -> list[int]:
        return [record["seq"] for record in self.records if record["tenant"] == tenant]


async def write(folder: Path, count: int, tenant: str = "acme", writer: str = "host-1") -> Path:
    async with AuditLog(folder, writer, key=KEY) as audit:
        for number in range(count):
            await audit.append(
                AuditEntry(
                    tenant, "ann", TaskKey("t"), "a-1", f"r-{number}", "files.read", "0" * 64
                )
            )
    return folder / "audit" / tenant / f"{writer}.jsonl"


async def test_a_collector_that_is_down_gets_everything_once_it_is_back(tmp_path: Path) -> None:
    collector = Collector()
    shipper = AuditShipper(tmp_path, collector.send, 1)
    await write(tmp_path, 3)
    assert shipper.send_new()
    collector.down = True
    await write(tmp_path, 1200)
    assert not shipper.send_new()
    await write(tmp_path, 2, "other")
    assert not shipper.send_new()
    collector.down = False
    assert shipper.send_new()
    assert collector.seqs() == list(range(1, 1204))
    assert collector.seqs("other") == [1, 2]
    assert {record["writer"] for record in collector.records} == {"host-1"}
    calls = collector.calls
    assert shipper.send_new()
    assert collector.calls == calls, "nothing is new"


async def test_the_next_process_continues_and_only_one_of_several_sends(tmp_path: Path) -> None:
    first, second = Collector(), Collector()
    await write(tmp_path, 2)
    first_shipper = AuditShipper(tmp_path, first.send, 1)
    second_shipper = AuditShipper(tmp_path, second.send, 1)
    assert first_shipper.send_new()
    await write(tmp_path, 2, writer="host-2")
    assert second_shipper.send_new()
    assert second.calls == 0, "another process of this disk sends"
    first_shipper.finish()
    await write(tmp_path, 3)
    assert second_shipper.send_new()
    assert (first.seqs(), second.seqs()) == ([1, 2, 1, 2], [3, 4, 5])


async def test_a_damaged_chain_delays_no_other(tmp_path: Path) -> None:
    collector = Collector()
    shipper = AuditShipper(tmp_path, collector.send, 1)
    (tmp_path / "audit/acme/host-1.jsonl").mkdir(parents=True)
    await write(tmp_path, 2, "zeta")
    assert shipper.send_new()
    assert collector.seqs("zeta") == [1, 2]


async def test_a_pruned_chain_continues_and_a_restored_one_is_not_skipped(tmp_path: Path) -> None:
    collector = Collector()
    shipper = AuditShipper(tmp_path, collector.send, 1)
    path = await write(tmp_path, 5)
    assert shipper.send_new()
    assert prune_chain(path, KEY, datetime.now(UTC)) > 0
    await write(tmp_path, 2)
    assert shipper.send_new()
    assert collector.seqs() == [1, 2, 3, 4, 5, 6, 7]
    shipper.finish()
    # A backup of the chain at its second record, with a later position.
    (tmp_path / "audit/acme").rename(tmp_path / "lost")
    await write(tmp_path, 2)
    restarted = AuditShipper(tmp_path, collector.send, 1)
    assert restarted.send_new()
    await write(tmp_path, 1)
    assert restarted.send_new()
    assert collector.seqs()[7:] == [3]


async def test_damaged_positions_and_torn_lines_lose_nothing(tmp_path: Path) -> None:
    collector = Collector()
    path = await write(tmp_path, 2)
    (tmp_path / "audit/sent.json").write_text("[1]", encoding="utf-8")
    with path.open("a", encoding="ascii") as chain:
        chain.write('{"seq":3,"torn')
    shipper = AuditShipper(tmp_path, collector.send, 1)
    assert shipper.send_new()
    assert collector.seqs() == [1, 2]
    await write(tmp_path, 1)  # records the torn line as a record of its own first
    assert shipper.send_new()
    assert collector.seqs() == [1, 2, 3, 4]
    assert json.loads((tmp_path / "audit/sent.json").read_bytes()) == {"acme/host-1": 4}


async def test_the_rest_is_sent_at_the_end_and_a_hanging_collector_delays_it_briefly(
    tmp_path: Path,
) -> None:
    collector, hangs = Collector(), threading.Event()
    shipper = AuditShipper(tmp_path, collector.send, 3600)
    async with ship_in_background(shipper, lambda: None, 10):
        await write(tmp_path, 4)
    assert collector.seqs() == [1, 2, 3, 4]

    def send(_records: Sequence[Mapping[str, Any]]) -> bool:
        hangs.wait(60)
        return False

    async with (
        asyncio.timeout(10),
        ship_in_background(AuditShipper(tmp_path, send, 3600), hangs.set, 0.1),
    ):
        await write(tmp_path, 1)
    assert hangs.is_set(), "the call that hung was ended"
