from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moothall.authorization.audit import AuditEntry, AuditLog, verify_all
from moothall.authorization.audit_chain import Head, StreamChains, head_mac, head_path
from moothall.authorization.audit_export import read_stream_chains
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.ids import TaskKey
from moothall.domain.text import HOLE
from moothall.errors import BusUnavailable

KEY = b"k" * 32


def entry(number: int, tenant: str = "local") -> AuditEntry:
    return AuditEntry(
        tenant,
        "ann",
        TaskKey("task-1"),
        "agent-dev-001",
        f"request-{number}",
        "files.read",
        "0" * 64,
    )


class Stream:
    """A stream that records published records; while down, it refuses them."""

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


async def test_every_record_is_sent_in_order(tmp_path: Path) -> None:
    stream = Stream()
    await write(tmp_path, stream, 150)
    assert {event.type for event in stream.events} == {EventType.AUDIT_RECORDED}
    published = [
        record
        for event in stream.events
        for record in (*event.data["records"], event.data["record"])
    ]
    assert [record["seq"] for record in published] == list(range(1, 151))
    report = verify_all(tmp_path, KEY, await read_stream_chains(stream.replay(), KEY))
    assert (report.ok, report.problems) == (True, ())


async def test_restored_older_files_are_detected_by_the_stream(tmp_path: Path) -> None:
    stream = Stream()
    path = await write(tmp_path, stream, 3)
    files_before = path.read_bytes(), head_path(path).read_bytes()
    await write(tmp_path, stream, 2)
    path.write_bytes(files_before[0])
    head_path(path).write_bytes(files_before[1])
    assert verify_all(tmp_path, KEY).ok, "the files alone are a complete chain"
    report = verify_all(tmp_path, KEY, await read_stream_chains(stream.replay(), KEY))
    assert not report.ok
    assert "ends at record 3, the AUDIT stream has 5" in report.problems[0].message
    await write(tmp_path, stream, 9)
    grown = verify_all(tmp_path, KEY, await read_stream_chains(stream.replay(), KEY))
    assert "record 5 differs from the one in the AUDIT stream" in [
        problem.message for problem in grown.problems
    ]


async def test_a_missing_chain_is_detected(tmp_path: Path) -> None:
    stream = Stream()
    path = await write(tmp_path, stream, 3, "acme")
    path.unlink()
    head_path(path).unlink()
    assert verify_all(tmp_path, KEY).chains == 0
    report = verify_all(tmp_path, KEY, await read_stream_chains(stream.replay(), KEY))
    assert [problem.path for problem in report.problems] == [path]


async def test_records_without_a_valid_signature_are_ignored(tmp_path: Path) -> None:
    stream, other_stream = Stream(), Stream()
    await write(tmp_path, stream, 3)
    async with AuditLog(
        tmp_path / "other", "host-1", key=b"x" * 32, publish=other_stream.publish
    ) as audit:
        for number in range(9):
            await audit.append(entry(number))
    for forged in (
        {},
        {"writer": 1},
        {"writer": "host-1", "record": {"seq": "9"}},
        {"writer": "host-1", "record": {"seq": 9, "hash": "0"}},
    ):
        other_stream.events.append(Event("x", EventType.AUDIT_RECORDED, "local", forged))
    assert await read_stream_chains(other_stream.replay(), KEY) == StreamChains({}, {})
    assert verify_all(
        tmp_path,
        KEY,
        await read_stream_chains(stream.replay([*stream.events, *other_stream.events]), KEY),
    ).ok


async def test_calls_go_on_while_the_bus_is_down_and_the_next_record_covers_them(
    tmp_path: Path,
) -> None:
    stream = Stream()
    stream.down = True
    async with AuditLog(tmp_path, "host-1", key=KEY, publish=stream.publish) as audit:
        async with asyncio.timeout(20):
            assert await audit.append(entry(1)) == "host-1:1"
            while audit._publisher._waiting:  # type: ignore[union-attr]  # until it gave that one up
                await asyncio.sleep(0.01)
        stream.down = False
        await audit.append(entry(2))
    heads = await read_stream_chains(stream.replay(), KEY)
    assert list(heads.heads["local", "host-1"]) == [2]
    assert verify_all(tmp_path, KEY, heads).ok


HOSTS = b"h" * 32


async def write_remote_chain(folder: Path, stream: Stream, count: int, key: bytes = HOSTS) -> None:
    """Write as a host with a disk of its own."""
    async with AuditLog(folder, "host-1-far", key=key, publish=stream.publish) as audit:
        for number in range(count):
            await audit.append(entry(number))


async def test_chains_of_remote_hosts_are_read_from_the_stream(tmp_path: Path) -> None:
    stream = Stream()
    await write(tmp_path / "server", stream, 3)
    await write_remote_chain(tmp_path / "far", stream, 100)
    await write_remote_chain(tmp_path / "far", stream, 7)
    chains = await read_stream_chains(stream.replay([*stream.events, *stream.events]), KEY, HOSTS)
    report = verify_all(tmp_path / "server", KEY, chains, HOSTS)
    assert (report.problems, report.chains, report.records, report.unfinished) == ((), 2, 110, 110)
    # If the disk is shared, the file is the chain.
    shared = verify_all(tmp_path / "far", KEY, chains, HOSTS)
    assert [problem.path.stem for problem in shared.problems] == ["host-1"]


async def test_a_change_to_a_remote_chain_is_detected(tmp_path: Path) -> None:
    stream = Stream()
    await write_remote_chain(tmp_path / "far", stream, 3)
    await write_remote_chain(tmp_path / "far", stream, 3)
    first, second = stream.events
    record = first.data["records"][1]
    changed = replace(
        first,
        data={**first.data, "records": [first.data["records"][0], {**record, "tool": "shell.run"}]},
    )
    scrubbed = replace(
        first,
        data={**first.data, "records": [first.data["records"][0], {**record, "tool": f"a{HOLE}"}]},
    )
    forged = replace(
        first,
        data={
            **first.data,
            "records": [{**record, "seq": 1, "hash": "0"}, *first.data["records"][1:]],
        },
    )
    unsigned = replace(first, data={**first.data, "mac": "0"})
    for events, ok, problem_text in (
        ([changed, second], False, "its hash is wrong"),
        ([scrubbed, second], True, "possible secrets were removed"),
        ([forged, second], True, "lacks records 1 to 1"),
        ([unsigned, second], True, "lacks records 1 to 3"),
        ([second], True, "lacks records 1 to 3"),
    ):
        report = verify_all(
            tmp_path / "server",
            KEY,
            await read_stream_chains(stream.replay(events), KEY, HOSTS),
            HOSTS,
        )
        assert (report.ok, [problem_text in problem.message for problem in report.problems]) == (
            ok,
            [True],
        )
    other_stream = Stream()
    await write_remote_chain(
        tmp_path / "other", other_stream, 2
    )  # another chain with the same name
    report = verify_all(
        tmp_path / "server",
        KEY,
        await read_stream_chains(stream.replay([first, *other_stream.events]), KEY, HOSTS),
        HOSTS,
    )
    assert not report.ok
    assert (await read_stream_chains(stream.replay(), KEY)).remote == {}


def signed_event(record: dict[str, Any], records: list[Any], **fields: Any) -> Event:
    """Return a false record of a host, signed with the key of hosts."""
    mac = head_mac(HOSTS, Path("local", "far"), Head(int(record["seq"]), record["hash"]))
    data = {"writer": "far", "record": record, "mac": mac, "records": records, **fields}
    return Event("x", EventType.AUDIT_RECORDED, "local", data)


@pytest.mark.parametrize(
    "event",
    [
        signed_event({"seq": 9, "hash": "0"}, []),
        signed_event({"seq": 9, "hash": "0", "prev": []}, [{"seq": 8, "hash": []}]),
        signed_event({"seq": 9, "hash": "0", "prev": None}, [{"seq": 8}]),
        signed_event({"seq": 9, "hash": "0", "prev": "1"}, [{"seq": 8, "hash": "1"}]),
        signed_event(
            {"seq": 9.5, "hash": "0", "prev": "1"}, [{"seq": 8.5, "hash": "1", "prev": "0"}]
        ),
        signed_event({"seq": -9, "hash": "0", "prev": "1"}, []),
        signed_event({"seq": 9, "hash": "0", "prev": "1"}, [], mac={}),
        signed_event({"seq": 9, "hash": "0", "prev": "1", "phase": []}, []),
        signed_event({"seq": 9, "hash": "0", "prev": "1", "tool": None}, []),
        signed_event({"seq": 9, "hash": "0", "prev": "1", "phase": "approved", "time": [1]}, []),
    ],
    ids=lambda event: str(event.data["record"]),
)
async def test_an_invalid_chain_signed_by_a_host_is_reported_and_verification_continues(
    tmp_path: Path, event: Event
) -> None:
    stream = Stream()
    await write(tmp_path, stream, 3)
    chains = await read_stream_chains(stream.replay([event, *stream.events]), KEY, HOSTS)
    report = verify_all(tmp_path, KEY, chains, HOSTS)
    assert report.records >= 3
    assert report.ok == (not chains.remote)
