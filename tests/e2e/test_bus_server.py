"""The embedded server: private, persistent between runs, and gone when its process ends."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from nats.js.api import StorageType

from moothall.config import BusSettings
from moothall.domain.event import Channel, Event, EventType, Recorded, new_event
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.events.delivery import BusLimits
from moothall.events.nats.connection import connection, without_credentials
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.server import embedded_server
from support.servers import free_port, relay_port

pytestmark = pytest.mark.e2e

SETTINGS = BusSettings()


def seat(number: int) -> Event:
    return new_event(
        EventType.SEAT_TURN, "task-1", {"task_id": "task-1", "turn": number}, ordinal=number
    )


def server_of(directory: Path) -> psutil.Process:
    [ports] = directory.glob("*.ports")
    return psutil.Process(int(ports.stem.rpartition("_")[2]))


async def test_records_persist_between_runs(tmp_path: Path) -> None:
    directory = tmp_path / 'a "folder" with späces'
    async with embedded_server(SETTINGS, directory) as url, open_bus(SETTINGS, url) as bus:
        await bus.publish(seat(1))
        await bus.put("task-1", {"a": 1})
    async with embedded_server(SETTINGS, directory) as url, open_bus(SETTINGS, url) as bus:
        assert await bus.publish(seat(1)) == 1
        assert [r.event.data["turn"] async for r in bus.replay([Channel.RESULTS.all])] == [1]
        assert await bus.get("task-1") == {"a": 1}


async def test_the_server_listens_on_loopback_and_requires_the_token(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path) as url:
        server = server_of(tmp_path)
        assert {
            c.laddr.ip for c in server.net_connections("tcp") if c.status == psutil.CONN_LISTEN
        } == {"127.0.0.1"}
        for name in ("token", "nats-server.conf"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
        token = (tmp_path / "token").read_text()
        assert all(token not in part for part in server.cmdline())
        with pytest.raises(ConfigurationError, match="refused the connection"):
            async with open_bus(SETTINGS, without_credentials(url)):
                raise AssertionError
        assert token not in without_credentials(url)


async def test_the_server_ends_with_its_context(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path):
        server = server_of(tmp_path)
        assert os.getsid(server.pid) == server.pid, (
            "a separate session, so that Ctrl-C does not reach it"
        )
    assert not server.is_running()


async def test_an_error_of_the_body_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with embedded_server(SETTINGS, tmp_path):
            raise ZeroDivisionError


async def test_a_directory_in_use_is_refused_by_name(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path):
        with pytest.raises(
            ConfigurationError, match=rf"in use by another Moothall process \({os.getpid()}\)"
        ):
            async with embedded_server(SETTINGS, tmp_path):
                raise AssertionError


async def test_an_invalid_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        async with embedded_server(SETTINGS, tmp_path / "file"):
            raise AssertionError


async def test_a_server_that_does_not_start_is_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BusUnavailable, match=r"did not start: .*sync_interval"):
        async with embedded_server(BusSettings(sync_interval="now and then"), tmp_path):
            raise AssertionError


async def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path) as url:
        pass
    with pytest.raises(
        BusUnavailable, match=r"cannot be reached \(nats://127.0.0.1:.*start it, correct bus.url"
    ):
        async with open_bus(SETTINGS, url):
            raise AssertionError


async def test_a_server_that_starts_later_is_waited_for(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path) as url, AsyncExitStack() as stack:
        parts = urlsplit(url)
        port = free_port()
        later_url = parts._replace(
            netloc=parts.netloc.replace(f":{parts.port}", f":{port}")
        ).geturl()
        with pytest.raises(BusUnavailable, match="cannot be reached"):
            async with open_bus(SETTINGS, later_url):
                raise AssertionError

        async with asyncio.TaskGroup() as tasks:
            waiting = open_bus(SETTINGS.model_copy(update={"wait_seconds": 60.0}), later_url)
            bus = tasks.create_task(stack.enter_async_context(waiting))
            await asyncio.sleep(0.1)  # the attempt may come before or after this: both must work
            await stack.enter_async_context(relay_port(("127.0.0.1", parts.port or 0), port=port))
        assert (await bus.result().state("EVENTS")).last_seq == 0


async def test_another_program_at_the_port_is_reported() -> None:
    async def conversation(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(conversation, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises((BusUnavailable, ConfigurationError), match=f"127.0.0.1:{port}"):
            async with open_bus(SETTINGS, f"nats://127.0.0.1:{port}"):
                raise AssertionError


async def test_a_full_store_is_reported(tmp_path: Path) -> None:
    settings = BusSettings(max_store_bytes=10_000_000)
    limits = BusLimits(publish_seconds=2)
    async with (
        embedded_server(settings, tmp_path) as url,
        open_bus(settings, url, limits=limits) as bus,
    ):

        async def fill() -> None:
            for _ in range(200):
                await bus.put_raw("agent.results.task-1", b"x" * 100_000)

        with pytest.raises(BusUnavailable, match=r"store is full .*prune the log"):
            await fill()


COUNT = 3000


@dataclass
class Watched:
    """Publishers, a consumer and a follower of one bus, with everything that they saw."""

    bus: JetStreamBus
    acked: list[int] = field(default_factory=list)
    consumed: set[int] = field(default_factory=set)
    followed: list[int] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, recorded: Recorded) -> None:
        self.consumed.add(recorded.event.data["turn"])
        if len(self.consumed) == COUNT:
            self.complete.set()

    async def publish(self, first: int) -> None:
        for number in range(first, COUNT, 10):
            seq = await self.bus.publish(seat(number))
            self.acked.append(seq)

    async def follow(self) -> None:
        async with aclosing(self.bus.follow([Channel.RESULTS.of("task-1")])) as events:
            async for recorded in events:
                self.followed.append(recorded.seq)
                if len(self.followed) == COUNT:
                    return

    async def kill_twice(self, directory: Path) -> None:
        for share in (0.2, 0.6):
            while len(self.acked) < COUNT * share:
                await asyncio.sleep(0.005)
            server_of(directory).kill()


async def test_nothing_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """SIGKILL twice while publishers and a consumer work: all acknowledged messages exist and are
    consumed.
    """
    # What the server had sent and we had not received is redelivered after this time.
    settings = BusSettings(ack_wait_seconds=1.0)
    async with (
        embedded_server(settings, tmp_path) as url,
        open_bus(settings, url) as bus,
        asyncio.TaskGroup() as group,
    ):
        watched = Watched(bus)
        consumer = group.create_task(bus.consume("collector", watched.handle, concurrency=8))
        async with asyncio.timeout(60), asyncio.TaskGroup() as work:
            work.create_task(watched.kill_twice(tmp_path))
            work.create_task(watched.follow())
            work.create_task(watched.complete.wait())
            for first in range(10):
                work.create_task(watched.publish(first))
        consumer.cancel()
        stored = [recorded.seq async for recorded in bus.replay([Channel.RESULTS.of("task-1")])]
    assert stored == sorted(watched.acked) == watched.followed
    assert len(set(stored)) == COUNT


async def test_messages_in_flight_arrive_in_order_despite_a_kill(tmp_path: Path) -> None:
    async with (
        embedded_server(SETTINGS, tmp_path) as url,
        open_bus(SETTINGS, url, limits=BusLimits(in_flight=4096)) as bus,
        asyncio.timeout(60),
    ):
        answers = []
        for number in range(COUNT):
            answers.append(await bus.post(seat(number)))
            if number in {COUNT // 3, COUNT // 2}:
                await answers[number - 100]
                server_of(tmp_path).kill()
        seqs = [await answer for answer in answers]
        stored = [
            recorded.event.data["turn"]
            async for recorded in bus.replay([Channel.RESULTS.of("task-1")])
        ]
    assert stored == list(range(COUNT))
    assert seqs == sorted(seqs)


async def test_changed_settings_are_applied_to_existing_streams(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path) as url:
        for seconds in (30.0, 7.0):
            async with (
                open_bus(BusSettings(ack_wait_seconds=seconds), url),
                connection(SETTINGS, url, on_lost=lambda: None) as client,
            ):
                assert (
                    await client.jetstream().consumer_info("WORK", "host-dev")
                ).config.ack_wait == seconds


async def test_a_foreign_stream_with_our_name_is_reported(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path) as url:
        async with connection(SETTINGS, url, on_lost=lambda: None) as client:
            await client.jetstream().add_stream(
                name="EVENTS", subjects=["mine"], storage=StorageType.MEMORY
            )
        with pytest.raises(ConfigurationError, match=r"conflicting streams: .*storage type"):
            async with open_bus(SETTINGS, url):
                raise AssertionError


async def test_foreign_subjects_in_the_log_are_reported(tmp_path: Path) -> None:
    async with embedded_server(SETTINGS, tmp_path) as url:
        async with connection(SETTINGS, url, on_lost=lambda: None) as client:
            await client.jetstream().add_stream(name="THEIRS", subjects=["agent.>"])
        with pytest.raises(ConfigurationError, match="overlap"):
            async with open_bus(SETTINGS, url):
                raise AssertionError


@pytest.mark.parametrize("scheme", ["ws", "wss", "http"])
async def test_an_unsupported_scheme_is_reported(scheme: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=rf"bus.url has the unsupported scheme {scheme}://: use nats://host:4222",
    ):
        async with open_bus(SETTINGS, f"nats://127.0.0.1:1,{scheme}://127.0.0.1:1"):
            raise AssertionError


async def test_a_bus_that_stays_down_is_an_error(tmp_path: Path) -> None:
    limits = BusLimits(publish_seconds=0.5)
    async with (
        embedded_server(SETTINGS, tmp_path) as url,
        open_bus(SETTINGS, url, limits=limits) as bus,
    ):
        await bus.publish(seat(1))
        # Stopped, not killed: a killed one would be restarted.
        server = server_of(tmp_path)
        server.suspend()
        while server.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)
        try:
            with pytest.raises(BusUnavailable, match="did not accept a message"):
                await bus.publish(seat(2))
        finally:
            server.resume()
        assert await bus.publish(seat(2)) == 2


PARENT = """
import asyncio, sys
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from moothall.events.nats.server import embedded_server
from moothall.config import BusSettings

async def main():
    async with embedded_server(BusSettings(), Path(sys.argv[1])):
        print("up", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        async with asyncio.timeout(30):
            assert await parent.stdout.readline() == b"up\n"
        server = server_of(tmp_path)
        assert server.is_running()
    finally:
        parent.kill()
        await parent.wait()
    ended, alive = await asyncio.to_thread(psutil.wait_procs, [server], timeout=10)
    assert (len(ended), alive) == (1, [])
    # Nothing holds the directory any longer.
    async with embedded_server(SETTINGS, tmp_path) as url:
        assert url


@pytest.mark.parametrize("alone", [True, False])
async def test_work_in_progress_at_a_kill_of_all_processes_is_redelivered_immediately(
    tmp_path: Path, *, alone: bool
) -> None:
    settings = BusSettings(ack_wait_seconds=120.0)
    in_hand: asyncio.Queue[Recorded] = asyncio.Queue()

    async def hold(recorded: Recorded) -> None:
        in_hand.put_nowait(recorded)
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        async with embedded_server(settings, tmp_path) as url:
            bus = await stack.enter_async_context(open_bus(settings, url))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            holding = group.create_task(bus.consume("host-dev", hold))
            stack.callback(holding.cancel)
            request = new_event(EventType.DELIBERATION_REQUESTED, "task-1", {"task_id": "task-1"})
            await bus.enqueue(Channel.WORK.of("dev"), request, fresh=True)
            await in_hand.get()
        # The next server has another address: the host that holds the work is not notified.
        url = await stack.enter_async_context(embedded_server(settings, tmp_path))
        async with open_bus(settings, url, alone=alone) as bus, asyncio.TaskGroup() as group:
            taking = group.create_task(bus.consume("host-dev", hold))
            try:
                async with asyncio.timeout(20 if alone else 2):
                    redelivered = await in_hand.get()
                assert alone
                assert int(redelivered.extra["deliveries"]) > 1
                assert "fresh" not in redelivered.extra
            except TimeoutError:
                assert not alone
            info = await bus._stored.js.consumer_info("WORK", "host-dev")
            assert info.config.ack_wait == settings.ack_wait_seconds
            taking.cancel()
