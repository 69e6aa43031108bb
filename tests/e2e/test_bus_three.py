"""Three servers with three replicas of each stream, as in a cluster: roles on different servers,
and keys renewed on one server after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.event import Channel, EventType, new_event
from moothall.errors import ConfigurationError
from moothall.events.nats import accounts
from moothall.events.nats.connection import connection
from moothall.events.nats.jetstream import open_bus
from support.three_servers import Three, three_servers

pytestmark = pytest.mark.e2e


@pytest.fixture
async def three_bus_servers(tmp_path: Path) -> AsyncIterator[Three]:
    async with three_servers(tmp_path) as servers:
        yield servers


async def test_roles_work_through_different_servers_and_the_log_survives_renewed_keys(
    three_bus_servers: Three, tmp_path: Path
) -> None:
    old, new = tmp_path / "keys", tmp_path / "new-keys"
    accounts.create_account_files(old)
    for number in range(3):
        await three_bus_servers.start(number, old)
    turn = new_event(EventType.SEAT_TURN, "t", {"task_id": "t", "turn": 1}, ordinal=1)
    async with AsyncExitStack() as stack:
        # The collector is first: it creates the streams, for which the others would wait.
        decides, api, host = [
            await stack.enter_async_context(open_bus(settings, str(settings.url)))
            for settings in (
                three_bus_servers.of(old, name, number)
                for number, name in enumerate(("collector", "api", "hosts"))
            )
        ]
        request = new_event(
            EventType.DELIBERATION_REQUESTED, "t", {"task_id": "t", "description": "x" * 300_000}
        )
        await api.create(request)
        await api.enqueue(Channel.WORK.of("dev"), request)
        finished = asyncio.Event()

        async def handle(_: object) -> None:
            await host.publish(turn)
            finished.set()

        async def state(_: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
            return {"host": "one"}, b""

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            working = [
                group.create_task(host.consume("host-dev", handle)),
                group.create_task(host.answer(Channel.HOSTS.of("fleet"), state)),
            ]
            await finished.wait()
            assert [
                host_state
                async for host_state in api.ask_all(Channel.HOSTS.of("fleet"), {"ask": "state"}, 2)
            ] == [{"host": "one"}]
            for task in working:
                task.cancel()
        assert [
            recorded.event.id async for recorded in decides.replay([Channel.RESULTS.of("t")])
        ] == [
            request.id,
            turn.id,
        ]
    accounts.create_account_files(new, old / "accounts.conf")
    for number in range(3):  # like a StatefulSet
        await three_bus_servers.stop(number)
        await three_bus_servers.start(number, new)
        bus_settings = three_bus_servers.of(new, "services", number)
        async with open_bus(bus_settings, str(bus_settings.url)):
            pass
    services = three_bus_servers.of(new, "services")
    async with open_bus(services, str(services.url)) as bus:
        assert [recorded.event.id async for recorded in bus.replay([Channel.RESULTS.of("t")])] == [
            request.id,
            turn.id,
        ]
        await bus.publish(
            new_event(EventType.SEAT_TURN, "t", {"task_id": "t", "turn": 2}, ordinal=2)
        )
    for number in range(3):
        stale = three_bus_servers.of(old, "services", number)
        with pytest.raises(ConfigurationError, match="refused the connection"):
            async with connection(stale, str(stale.url), on_lost=lambda: None):
                pytest.fail("the connection was accepted")
