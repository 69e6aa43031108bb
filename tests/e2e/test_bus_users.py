"""The users of a deployment by role on a real NATS server: which subjects each may publish and
subscribe to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from moothall.domain.event import Channel, EventType, new_event
from moothall.errors import BusUnavailable
from moothall.events import registry
from moothall.events.codec import encode
from moothall.events.nats import accounts
from moothall.events.nats.accounts import USERS
from moothall.events.nats.connection import connection
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from support.accounts import App, run_accounts_server, try_operation
from support.tool_server import open_tool_server

pytestmark = pytest.mark.e2e


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    accounts.create_account_files(tmp_path / "keys")
    async with run_accounts_server(tmp_path, tmp_path / "keys") as app:
        yield app


@pytest.fixture
async def decider(app: App) -> AsyncIterator[JetStreamBus]:
    """The bus as the collector sees it, which has created the streams."""
    async with open_bus(app.of("collector"), app.url) as bus:
        yield bus


async def test_the_collector_creates_the_streams_and_other_roles_use_them(app: App) -> None:
    with pytest.raises(BusUnavailable, match="may these credentials create streams"):
        async with open_bus(app.of("hosts"), app.url):
            pytest.fail("a host created the streams")
    async with AsyncExitStack() as stack:
        for name in ("collector", *USERS):
            await stack.enter_async_context(open_bus(app.of(name), app.url))


async def test_an_event_passes_from_role_to_role(app: App, decider: JetStreamBus) -> None:
    async with (
        open_bus(app.of("api"), app.url) as api,
        open_bus(app.of("hosts"), app.url) as host,
    ):
        request = new_event(
            EventType.DELIBERATION_REQUESTED, "t", {"task_id": "t", "description": "x" * 300_000}
        )  # stored as a blob
        await api.create(request)
        await api.enqueue(Channel.WORK.of("dev"), request)
        queue: asyncio.Queue[str] = asyncio.Queue()

        async def handle(recorded: object) -> None:
            await host.publish(
                new_event(EventType.SEAT_TURN, "t", {"task_id": "t", "turn": 1}, ordinal=1)
            )
            queue.put_nowait(str(recorded))

        async def state(_: object) -> tuple[dict[str, str], bytes]:
            return {"host": "one"}, b""

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            working = group.create_task(host.consume("host-dev", handle))
            answering = group.create_task(host.answer(Channel.HOSTS.of("fleet"), state))
            assert "xxx" in await queue.get()
            states = [
                entry async for entry in api.ask_all(Channel.HOSTS.of("fleet"), {"ask": "state"}, 1)
            ]
            working.cancel()
            answering.cancel()
        assert states == [{"host": "one"}]
        kinds = [entry.event.type async for entry in decider.replay([Channel.RESULTS.of("t")])]
        assert kinds == [EventType.DELIBERATION_REQUESTED, EventType.SEAT_TURN]
        assert (await decider.state("WORK")).messages == 0


async def test_a_caller_works_in_a_workspace_of_the_tools_role(
    app: App, decider: JetStreamBus, tmp_path: Path
) -> None:
    async with open_tool_server(
        tmp_path, {"src/a.py": "A = 1\n", "Makefile": "test:\n\ttrue\n"}, at=app.of("tools")
    ) as tools:
        opened = await tools.open()
        write = await tools.call(opened, "files.write", "r-1", path="src/b.py", content="B = 2\n")
        tests = await tools.call(opened, "tests.make", "r-2")
        assert (write.status, tests.status) == ("success", "success")
        kinds = [recorded.event.type async for recorded in decider.replay([Channel.TOOLS.all])]
        assert kinds == [EventType.TOOL_FINISHED] * 2
    audit = [recorded.event.type async for recorded in decider.replay([Channel.AUDIT.all])]
    assert EventType.AUDIT_RECORDED in audit


_COLLECTOR = "$JS.API.CONSUMER.{}.EVENTS.collector"
_HOST = "$JS.API.CONSUMER.{}.WORK.host-dev"


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        # what only the collector decides, and what only API servers receive
        *(
            ("hosts", foreign_subject)
            for foreign_subject in (
                "agent.responses.t",
                "agent.words.t",
                "agile.events.s",
                "agent.requests.DEV",
                "council.local",
                "tool.requests.w",
                "$KV.deliberations.t",
                "$KV.tools.local.x",
                "$KV.revoked.x",
                "$KV.leases.graph",
                "$JS.ACK.EVENTS.collector.1.1.1.1.1",
                "_INBOX.collector.x",
                "$JS.API.STREAM.CREATE.MINE",
                "$JS.API.STREAM.UPDATE.EVENTS",
                "$JS.API.STREAM.PURGE.EVENTS",
                "$JS.API.STREAM.DELETE.EVENTS",
                "$JS.API.STREAM.MSG.DELETE.EVENTS",
                *(_COLLECTOR.format(act) for act in ("CREATE", "DELETE", "MSG.NEXT")),
            )
        ),
        # the permissions of a host
        *(
            (user, foreign_subject)
            for user in ("api", "tools")
            for foreign_subject in (
                "agent.progress.a",
                "agent.taken.t",
                "agent.text.t",
                "agent.metrics.host",
                "$JS.ACK.WORK.host-dev.1.1.1.1.1",
                *(_HOST.format(act) for act in ("CREATE", "DELETE", "MSG.NEXT")),
            )
        ),
        *(
            ("api", foreign_subject)
            for foreign_subject in (
                "workspace.link.job-1-in",
                "tool.results.w",
                "audit.local",
                "$KV.rates.x",
            )
        ),
        *(
            ("collector", foreign_subject)
            for foreign_subject in (
                "workspace.link.job-1-in",
                "tool.results.w",
                _HOST.format("MSG.NEXT"),
            )
        ),
    ],
)
async def test_no_role_may_publish_the_subjects_of_another(
    app: App, user: str, subject: str
) -> None:
    assert "permissions violation for publish" in await try_operation(app.of(user), publish=subject)


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        *(
            (user, foreign_subject)
            for user in USERS
            for foreign_subject in (
                "_INBOX.>",
                ">",
                "agent.>",
                "agent.responses.t",
                "$KV.>",
                "$JS.>",
            )
        ),
        *(
            (user, foreign_subject)
            for user in ("api", "collector")
            for foreign_subject in ("workspace.link.job-1-out", "host.requests.fleet")
        ),
        *((user, "graph.questions.*") for user in ("api", "tools", "hosts")),
        ("hosts", "repository.requests.house"),
    ],
)
async def test_nobody_receives_messages_of_others(app: App, user: str, subject: str) -> None:
    assert "permissions violation for subscription" in await try_operation(
        app.of(user), subscribe=subject
    )


async def test_a_host_serves_requests_for_repositories_and_none_meant_for_the_server(
    app: App, decider: JetStreamBus
) -> None:
    subjects: list[str] = []

    async def note(message: Any) -> None:
        subjects.append(message.subject)

    async with (
        connection(app.of("hosts"), app.url, on_lost=lambda: None) as host,
        connection(app.of("api"), app.url, on_lost=lambda: None) as api,
    ):
        await host.subscribe("repository.requests.*", cb=note)
        await host.flush()
        for recipient in ("house", "another"):
            await api.publish(f"repository.requests.{recipient}", b"{}")
        await api.flush()
        async with asyncio.timeout(10):
            while not subjects:
                await asyncio.sleep(0.05)
    assert subjects == ["repository.requests.another"]


async def test_a_decision_on_a_seats_subject_is_not_accepted(
    app: App, decider: JetStreamBus
) -> None:
    decided = new_event(
        EventType.DELIBERATION_DECIDED, "t", {"task_id": "t", "status": "COMPLETED"}
    )
    async with open_bus(app.of("hosts"), app.url) as host:
        await host.put_raw("agent.results.t", encode(decided), message_id="forged")
    assert (await decider.state("EVENTS")).messages == 1
    assert [entry async for entry in decider.replay()] == []
    handled: list[str] = []

    async def handle(recorded: object) -> None:
        handled.append(str(recorded))

    async with asyncio.TaskGroup() as group:
        working = group.create_task(decider.consume("collector", handle))
        async with asyncio.timeout(20):
            while (await decider.state("DEAD")).messages < 1:
                await asyncio.sleep(0.05)
        working.cancel()
    assert handled == []


async def test_a_consumer_cannot_copy_messages_into_the_log(
    app: App, decider: JetStreamBus
) -> None:
    """The server delivers for a consumer only if there is a subscriber, and no role may subscribe
    to a stored subject (see above).
    """
    async with connection(app.of("hosts"), app.url, on_lost=lambda: None) as client:
        await client.publish(
            "$KV.budgets.local.x",
            encode(new_event(EventType.DELIBERATION_DECIDED, "t", {"task_id": "t"})),
        )
        for number, deliver in enumerate(
            ("agent.responses.t", "agent.requests.dev", "$KV.deliberations.t")
        ):
            config = {"name": f"c{number}", "deliver_subject": deliver, "ack_policy": "none"}
            payload = json.dumps({"stream_name": "KV_budgets", "config": config}).encode()
            answer = await client.request(f"$JS.API.CONSUMER.CREATE.KV_budgets.c{number}", payload)
            assert json.loads(answer.data)["config"]["deliver_subject"] == deliver
        await asyncio.sleep(1)
    assert (await decider.state("KV_budgets")).messages == 1
    for stream in ("EVENTS", "WORK", "KV_deliberations"):
        assert (await decider.state(stream)).messages == 0


def test_every_stored_subject_may_be_published_by_some_role() -> None:
    publishable = {channel for user in USERS.values() for channel in user.publishes}
    stored = {
        channel
        for channel in Channel
        if any(
            registry.covers(stored_subject, registry.subject(channel.all))
            for stream in registry.STREAMS
            for stored_subject in stream.subjects
        )
    }
    assert stored <= publishable
    assert set(registry.DURABLES) == {
        durable for user in USERS.values() for durable in user.consumes
    }
