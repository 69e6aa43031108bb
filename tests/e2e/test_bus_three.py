"""Three servers with three replicas of each stream, as in a cluster: roles on different servers,
and keys renewed on one server after the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moothall.config import BusSettings
from moothall.domain.event import EventType, new_event
from moothall.domain.topic import Channel
from moothall.errors import ConfigurationError
from moothall.events.nats import accounts
from moothall.events.nats.connection import connection
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import _binary
from support.servers import free_port

pytestmark = pytest.mark.e2e


@dataclass(slots=True)
class Three:
    """The servers by number, each with fixed ports and a fixed folder."""

    folder: Path
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(3)])
    routes: list[int] = field(default_factory=lambda: [free_port() for _ in range(3)])
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, number: int, keys: Path) -> None:
        """Start a server with keys, on the data that it stored before."""
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        store = json.dumps(str(self.folder / f"js-{number}"))
        config = (
            f"listen: 127.0.0.1:{self.ports[number]}\nserver_name: nats-{number}\njetstream {{ "
            f"store_dir: {store} }}\n"
            f"cluster {{ name: moothall, listen: 127.0.0.1:{self.routes[number]}, routes: "
            f"[{routes}] }}\n"
        )
        conf = self.folder / f"{number}.conf"
        conf.write_text(
            config + (keys / "accounts.conf").read_text(encoding="utf-8"), encoding="utf-8"
        )
        log = str(self.folder / f"{number}.log")
        self.running[number] = await asyncio.create_subprocess_exec(
            _binary(), "-c", str(conf), "-l", log
        )

    async def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.running[number].terminate()
        await self.running[number].wait()

    def of(self, keys: Path, name: str, *numbers: int) -> BusSettings:
        """Return the bus settings of a user, for some of the servers."""
        url = ",".join(f"nats://127.0.0.1:{self.ports[number]}" for number in numbers or range(3))
        return BusSettings.model_validate(
            {
                "url": url,
                "credentials_file": keys / f"{name}.creds",
                "replicas": 3,
                "wait_seconds": 60,
            }
        )


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    servers = Three(tmp_path)
    yield servers
    for number in tuple(servers.running):
        await servers.stop(number)


async def test_roles_work_through_different_servers_and_the_log_outlives_the_keys(
    three: Three, tmp_path: Path
) -> None:
    old, new = tmp_path / "keys", tmp_path / "new-keys"
    accounts.create_account_files(old)
    for number in range(3):
        await three.start(number, old)
    turn = new_event(EventType.SEAT_TURN, "t", {"task_id": "t", "turn": 1}, ordinal=1)
    async with AsyncExitStack() as stack:
        # The collector is first: it creates the streams, for which the others would wait.
        decides, api, host = [
            await stack.enter_async_context(open_bus(settings, str(settings.url)))
            for settings in (
                three.of(old, name, number)
                for number, name in enumerate(("collector", "api", "hosts"))
            )
        ]
        request = new_event(
            EventType.DELIBERATION_REQUESTED, "t", {"task_id": "t", "description": "x" * 300_000}
        )
        await api.create(request)
        await api.enqueue(Channel.WORK.of("dev"), request)
        done = asyncio.Event()

        async def handle(_: object) -> None:
            await host.publish(turn)
            done.set()

        async def state(_: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
            return {"host": "one"}, b""

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            working = [
                group.create_task(host.consume("host-dev", handle)),
                group.create_task(host.answer(Channel.HOSTS.of("fleet"), state)),
            ]
            await done.wait()
            assert [
                host_state
                async for host_state in api.ask_all(Channel.HOSTS.of("fleet"), {"ask": "state"}, 2)
            ] == [{"host": "one"}]
            for task in working:
                task.cancel()
        assert [one.event.id async for one in decides.replay([Channel.RESULTS.of("t")])] == [
            request.id,
            turn.id,
        ]
    accounts.create_account_files(new, old / "accounts.conf")
    for number in range(3):  # like a StatefulSet
        await three.stop(number)
        await three.start(number, new)
        one = three.of(new, "services", number)
        async with open_bus(one, str(one.url)):
            pass
    services = three.of(new, "services")
    async with open_bus(services, str(services.url)) as bus:
        assert [one.event.id async for one in bus.replay([Channel.RESULTS.of("t")])] == [
            request.id,
            turn.id,
        ]
        await bus.publish(
            new_event(EventType.SEAT_TURN, "t", {"task_id": "t", "turn": 2}, ordinal=2)
        )
    for number in range(3):
        stale = three.of(old, "services", number)
        with pytest.raises(ConfigurationError, match="refused the connection"):
            async with connection(stale, str(stale.url), on_lost=lambda: None):
                pytest.fail("the connection was accepted")
