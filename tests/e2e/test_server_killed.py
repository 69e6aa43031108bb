"""An API server is killed under callers that wait, poll and listen: they continue at another one
and miss nothing.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from served import ALICE, Served, make_command, run_server

from moothall.config import BusSettings
from moothall.domain.event import Channel, EventType
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.server import embedded_server
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.testing.model import ScriptedModel

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]

HEADERS = {"Authorization": f"Bearer {ALICE}"}
TASK = pb.DeliberateRequest(
    task_description="Write a HAIKU", role="DEV", num_agents=1, task_id="waits"
)
STORY = {
    "title": "Export as CSV",
    "brief": "As a clerk, I want a month as CSV, so that I can book it.",
    "ac": ["a CSV comes"],
}


@asynccontextmanager
async def dependencies(
    folder: Path, model: ScriptedModel
) -> AsyncIterator[tuple[JetStreamBus, list[AsyncExitStack], list[Served]]]:
    """Two API servers and a collector on one bus, without hosts."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_server(BusSettings(), folder / "bus"))
        base = make_command(folder, model.base_url)
        base.extra |= {
            "MOOTHALL_BUS__URL": url,
            "MOOTHALL_WEB__PORT": "0",
            "MOOTHALL_METRICS__ENABLED": "false",
        }
        roles = ('["api"]', '["api", "collector"]')
        ends, open_ = [AsyncExitStack(), AsyncExitStack()], []
        for end, role, end_signal in zip(
            ends, roles, (signal.SIGKILL, signal.SIGTERM), strict=True
        ):
            await stack.enter_async_context(end)
            command = replace(base, extra=base.extra | {"MOOTHALL_SERVE__ONLY": role})
            app = await end.enter_async_context(run_server(command, end_signal))
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(app.command.served_at)
            )  # it outlives the API server
            open_.append(replace(app, channel=channel))
        yield await stack.enter_async_context(open_bus(BusSettings(), url)), ends, open_


@asynccontextmanager
async def hosting(app: Served) -> AsyncIterator[None]:
    """A host that takes work beside the API servers."""
    command = replace(app.command, extra=app.command.extra | {"MOOTHALL_SERVE__ONLY": '["hosts"]'})
    async with run_server(command):
        yield


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


async def watch(app: Served, updates: list[pb.DeliberationUpdate]) -> None:
    """Collect the updates of the task that follow the known ones."""
    request = pb.WatchDeliberationRequest(
        task_id=TASK.task_id, after_seq=updates[-1].seq if updates else 0
    )
    seen_ids = {update.event.id for update in updates}
    async for update in app.stub().WatchDeliberation(request):
        if update.event.id not in seen_ids:
            updates.append(update)  # noqa: PERF401 - as each arrives


async def poll(app: Served, statuses: list[int]) -> None:
    """Query the state until the task has ended."""
    while not statuses or statuses[-1] in {
        pb.DELIBERATION_STATUS_PENDING,
        pb.DELIBERATION_STATUS_IN_PROGRESS,
    }:
        answer = await app.stub().GetDeliberationResult(
            pb.GetDeliberationResultRequest(task_id=TASK.task_id)
        )
        statuses.append(answer.status)
        await asyncio.sleep(0.1)


async def listen(app: Served, board_events: list[tuple[str, str]], count: int) -> None:
    """Read board events that follow the known ones, up to `count` stories."""
    last_event = {"Last-Event-ID": board_events[-1][0]} if board_events else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{app.web}/api/v1/events", headers=HEADERS | last_event) as answer,
    ):
        assert answer.status == 200
        while len(board_events) < count:
            lines = (await answer.content.readuntil(b"\n\n")).decode().splitlines()
            event = dict(line.split(": ", 1) for line in lines if line and not line.startswith(":"))
            if "id" in event:
                board_events.append(
                    (event["id"], str(json.loads(event["data"])["story"]["story_id"]))
                )


async def create(app: Served, title: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://{app.web}/api/v1/stories", headers=HEADERS, json=STORY | {"title": title}
        ) as answer,
    ):
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["story_id"])


async def test_callers_of_a_killed_api_continue_at_another(
    tmp_path: Path, model: ScriptedModel
) -> None:
    updates: list[pb.DeliberationUpdate] = []
    statuses: list[int] = []
    board_events: list[tuple[str, str]] = []
    async with dependencies(tmp_path, model) as (bus, ends, (killed, surviving)):
        calling = asyncio.ensure_future(killed.stub().Deliberate(TASK))
        async with asyncio.timeout(60):
            while await bus.first(Channel.RESULTS.of("team-a_waits")) is None:
                await asyncio.sleep(0.05)
        first = await create(killed, "Export as CSV")
        watchers = [
            asyncio.create_task(item)
            for item in (
                watch(killed, updates),
                poll(killed, statuses),
                listen(killed, board_events, 9),
            )
        ]
        await until(lambda: bool(updates and statuses and board_events))
        await ends[0].aclose()  # with SIGKILL
        for broken in (calling, *watchers[:2]):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await broken
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises((aiohttp.ClientError, asyncio.IncompleteReadError)):
            await watchers[2]
        second = await create(surviving, "Export as ODS")
        async with asyncio.timeout(120), hosting(surviving), asyncio.TaskGroup() as group:
            repeated_call = group.create_task(_of(surviving.stub().Deliberate(TASK)))
            for going_on in (
                watch(surviving, updates),
                poll(surviving, statuses),
                listen(surviving, board_events, 2),
            ):
                group.create_task(going_on)
        assert repeated_call.result().status == statuses[-1] == pb.DELIBERATION_STATUS_COMPLETED
        topics = [channel.of("team-a_waits") for channel in (Channel.RESULTS, Channel.RESPONSES)]
        async with aclosing(bus.replay(topics)) as records:
            recorded = [item.event async for item in records]
        assert {event.id for event in recorded} <= {update.event.id for update in updates}
        assert len({update.event.id for update in updates}) == len(updates)
        assert [event.type for event in recorded].count(EventType.DELIBERATION_DECIDED) == 1
        assert [event.type for event in recorded].count(EventType.DELIBERATION_REQUESTED) == 1
        assert [story for _, story in board_events] == [first, second]


async def _of(call: Any) -> Any:
    return await call
