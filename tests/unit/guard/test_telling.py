from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from moothall.domain.event import Event, EventType, Recorded
from moothall.errors import BusUnavailable
from moothall.guard.audit import AuditLog, Entry, verify_all
from moothall.guard.chain import head_path
from moothall.guard.telling import told_heads

KEY = b"k" * 32


def entry(number: int, tenant: str = "local") -> Entry:
    return Entry(tenant, "ann", "task-1", "agent-dev-001", f"request-{number}", "files.read", "0" * 64)


class Stream:
    """Remembers what it is told; down, it takes nothing."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.down = False

    async def publish(self, event: Event) -> None:
        if self.down:
            raise BusUnavailable("the bus is down")
        self.events.append(event)

    async def replay(self, events: Sequence[Event] | None = None) -> AsyncIterator[Recorded]:
        for seq, event in enumerate(self.events if events is None else events, 1):
            yield Recorded(seq, event)


async def write(folder: Path, stream: Stream, count: int, tenant: str = "local") -> Path:
    async with AuditLog(folder, "host-1", key=KEY, publish=stream.publish) as audit:
        for number in range(count):
            await audit.append(entry(number, tenant))
    return folder / "audit" / tenant / "host-1.jsonl"


async def test_every_record_is_told_in_its_order(tmp_path: Path) -> None:
    stream = Stream()
    await write(tmp_path, stream, 150)
    assert {event.type for event in stream.events} == {EventType.AUDIT_RECORDED}
    told = [record for event in stream.events for record in (*event.data["records"], event.data["record"])]
    assert [record["seq"] for record in told] == list(range(1, 151))
    report = verify_all(tmp_path, KEY, await told_heads(stream.replay(), KEY))
    assert (report.ok, report.problems) == (True, ())


async def test_an_older_genuine_file_and_head_that_are_put_back_show(tmp_path: Path) -> None:
    stream = Stream()
    path = await write(tmp_path, stream, 3)
    before = path.read_bytes(), head_path(path).read_bytes()
    await write(tmp_path, stream, 2)
    path.write_bytes(before[0])
    head_path(path).write_bytes(before[1])
    assert verify_all(tmp_path, KEY).ok, "the files alone are a whole chain"
    report = verify_all(tmp_path, KEY, await told_heads(stream.replay(), KEY))
    assert not report.ok
    assert "ends at record 3, the AUDIT stream tells of 5" in report.problems[0].what
    await write(tmp_path, stream, 9)
    grown = verify_all(tmp_path, KEY, await told_heads(stream.replay(), KEY))
    assert "record 5 is not the one that the AUDIT stream tells of" in [problem.what for problem in grown.problems]


async def test_a_chain_that_is_gone_shows(tmp_path: Path) -> None:
    stream = Stream()
    path = await write(tmp_path, stream, 3, "acme")
    path.unlink()
    head_path(path).unlink()
    assert verify_all(tmp_path, KEY).chains == 0
    report = verify_all(tmp_path, KEY, await told_heads(stream.replay(), KEY))
    assert [problem.path for problem in report.problems] == [path]


async def test_what_is_not_signed_with_the_key_says_nothing(tmp_path: Path) -> None:
    stream, other = Stream(), Stream()
    await write(tmp_path, stream, 3)
    async with AuditLog(tmp_path / "other", "host-1", key=b"x" * 32, publish=other.publish) as audit:
        for number in range(9):
            await audit.append(entry(number))
    for forged in (
        {},
        {"writer": 1},
        {"writer": "host-1", "record": {"seq": "9"}},
        {"writer": "host-1", "record": {"seq": 9, "hash": "0"}},
    ):
        other.events.append(Event("x", EventType.AUDIT_RECORDED, "local", forged))
    assert await told_heads(other.replay(), KEY) == {}
    assert verify_all(tmp_path, KEY, await told_heads(stream.replay([*stream.events, *other.events]), KEY)).ok


async def test_a_bus_that_is_away_stops_no_call_and_the_next_record_vouches_for_all(tmp_path: Path) -> None:
    stream = Stream()
    stream.down = True
    async with AuditLog(tmp_path, "host-1", key=KEY, publish=stream.publish) as audit:
        async with asyncio.timeout(20):
            assert await audit.append(entry(1)) == "host-1:1"
            while audit._telling._waiting:  # type: ignore[union-attr]  # until it gave that one up
                await asyncio.sleep(0.01)
        stream.down = False
        await audit.append(entry(2))
    heads = await told_heads(stream.replay(), KEY)
    assert list(heads["local", "host-1"]) == [2]
    assert verify_all(tmp_path, KEY, heads).ok
