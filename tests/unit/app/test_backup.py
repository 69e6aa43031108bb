"""Backups of a real bus and data directory while others write, and their restoration."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moothall.api.accounts import AccessTokens
from moothall.app.data_dir import restore_backup, save_backup
from moothall.config import BusSettings, LimitSettings, Settings
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, EventType, new_event
from moothall.domain.ids import Principal, TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import ConfigurationError
from moothall.events.adapter import Bus, embedded_server, open_bus
from moothall.events.delivery import BusLimits
from moothall.events.registry import EVENTS, WORK
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.testing.bus_contract import seat
from support.story import Remembering

pytestmark = pytest.mark.e2e
WHO = Principal("ann", "team-a")


@dataclass
class Writer:
    """A writer that records the same data as a server, as fast as possible."""

    bus: Bus
    data_dir: Path
    events_written: int = 0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def write_events(self) -> None:
        """Record deliberations: every second one ends. Large answers are blobs."""
        service = DeliberationService(self.bus, Remembering(), Defaults(LimitSettings()))
        while not self.stopped.is_set():
            number = self.events_written
            request = DeliberationRequest("Write a haiku", "dev", task_id=f"t-{number}")
            task_key = (await service.submit(request, WHO)).task_id
            await self.bus.publish(seat(1, task_key, answer=f"{number} " + "x" * 3000))
            if number % 2:
                outcome = Outcome(task_id=task_key, status=DeliberationStatus.COMPLETED)
                await self.bus.publish(
                    new_event(EventType.DELIBERATION_DECIDED, task_key, dump(outcome))
                )
            self.events_written += 1

    async def write_files(self) -> None:
        """Commit to a clone, append to an audit chain, and create tokens."""
        clone, audit = self.data_dir / "repos" / "r.git", self.data_dir / "audit" / "team-a"
        audit.mkdir(parents=True)
        tree = await _git(self.data_dir, "init", "-q", "--bare", str(clone)) or await _git(
            clone, "hash-object", "-t", "tree", "-w", "/dev/null"
        )
        commit, number = "", 0
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        while not self.stopped.is_set():
            parent = ("-p", commit) if commit else ()
            commit = await _git(clone, *identity, "commit-tree", tree, *parent, "-m", str(number))
            await _git(clone, "update-ref", f"refs/heads/b{number % 5}", commit)
            with (audit / "w.jsonl").open("a", encoding="ascii") as chain:
                chain.write(json.dumps({"number": number}) + "\n" + '{"torn')
                chain.flush()
                await asyncio.sleep(0)
                chain.write('": 1}\n')
            AccessTokens(self.data_dir).create(f"n-{number}", 3600)
            number += 1


async def _git(folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "git", *arguments, cwd=folder, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, arguments
    return output.decode().strip()


@asynccontextmanager
async def running_writer(settings: Settings) -> AsyncIterator[Writer]:
    """Open a bus, and write until the context ends."""
    async with open_bus(
        settings.bus, settings.bus.url or "", limits=BusLimits(blob_bytes=2000)
    ) as bus:
        writer = Writer(bus, settings.data_dir)
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.write_events())
            group.create_task(writer.write_files())
            yield writer
            writer.stopped.set()


async def wait_for(writer: Writer, count: int) -> None:
    async with asyncio.timeout(60):
        while writer.events_written < count:
            await asyncio.sleep(0.02)


async def test_a_backup_under_load_equals_the_log_up_to_its_position(tmp_path: Path) -> None:
    data_dir, file = tmp_path / "data", tmp_path / "backup.tar"
    data_dir.mkdir(mode=0o700)
    async with embedded_server(BusSettings(), tmp_path / "bus") as url:
        settings = Settings(data_dir=data_dir, bus=BusSettings(url=url))
        async with running_writer(settings) as writer:
            await wait_for(writer, 40)
            count_before = writer.events_written
            report = await save_backup(settings, file, lambda _: None)
            assert writer.events_written > count_before  # it was under load
            await wait_for(writer, writer.events_written + 20)
        async with open_bus(settings.bus, url) as bus:
            original = {raw.seq: raw async for raw in bus.raw(EVENTS.name)}
    assert max(original) > report.mark
    assert file.stat().st_mode & 0o777 == 0o600

    restored = Settings(data_dir=tmp_path / "restored", bus=BusSettings())
    assert await restore_backup(restored, file, lambda _: None) == report
    async with (
        embedded_server(restored.bus, restored.data_dir / "bus") as url,
        open_bus(restored.bus, url, alone=True) as bus,
    ):
        log = [raw async for raw in bus.raw(EVENTS.name)]
        assert log == [original[seq] for seq in sorted(original) if seq <= report.mark]
        assert (log[-1].seq, len(log)) == (report.mark, report.events)
        await check_documents(bus)
        answers = [
            recorded.event.data["answer"]
            async for recorded in bus.replay(())
            if recorded.event.type is EventType.SEAT_TURN
        ]
        assert all(len(answer) > 3000 for answer in answers)  # no blob is missing
        assert await bus.publish(seat(2, "team-a_t-0")) == report.mark + 1
    await check_files(restored.data_dir)


async def check_documents(bus: Bus) -> None:
    """Check that each deliberation has its outcome, or is queued and pending."""
    responses = {
        recorded.event.subject: recorded.event
        async for recorded in bus.replay((Channel.RESPONSES.all,))
    }
    requests = [
        recorded.event.subject
        async for recorded in bus.replay((Channel.RESULTS.all,))
        if recorded.event.type is EventType.DELIBERATION_REQUESTED
    ]
    assert len(responses) > 10
    queued = (await bus.state(WORK.name)).messages
    assert queued == len(requests) - len(responses) > 10
    for name in requests:
        document = await bus.get(TaskKey(name))
        assert document is not None
        expected = DeliberationStatus.COMPLETED if name in responses else DeliberationStatus.PENDING
        assert load(Outcome, document).status is expected


async def check_files(data_dir: Path) -> None:
    """Check that clone, audit and tokens are complete."""
    await _git(data_dir / "repos" / "r.git", "fsck", "--strict", "--no-dangling")
    assert await _git(data_dir / "repos" / "r.git", "rev-list", "--all", "--count") != "0"
    lines = (data_dir / "audit" / "team-a" / "w.jsonl").read_text(encoding="ascii").splitlines()
    assert [json.loads(line) for line in lines]
    assert AccessTokens(data_dir).list()


async def test_a_backup_file_that_cannot_be_restored_or_written_is_named(tmp_path: Path) -> None:
    data_dir, file = tmp_path / "data", tmp_path / "backup.tar"
    settings = Settings(data_dir=data_dir)
    with pytest.raises(ConfigurationError, match="cannot be read as a backup"):
        await restore_backup(settings, file, lambda _: None)
    await save_backup(settings, file, lambda _: None)
    with pytest.raises(ConfigurationError, match="already exists"):
        await save_backup(settings, file, lambda _: None)
    with pytest.raises(ConfigurationError, match=r"is not empty \(it has bus"):
        await restore_backup(settings, file, lambda _: None)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        await save_backup(settings, tmp_path / "none" / "backup.tar", lambda _: None)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    other_settings = Settings(data_dir=tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"not a complete backup|cannot be read"):
        await restore_backup(other_settings, file, lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "data"]
