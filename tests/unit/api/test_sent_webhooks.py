"""Outgoing webhooks: signed, in order, at least once, and without text of a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr, ValidationError

from moothall.api.webhooks import BUCKET, open_webhooks
from moothall.concurrency import run_in_background
from moothall.config import WebhookSettings
from moothall.domain.event import EventType, new_event
from moothall.errors import ConfigurationError
from moothall.events.registry import EVENTS
from moothall.forge.watch import is_signed
from moothall.testing.bus import MemoryBus

SECRET = "a secret of these tests"


@dataclass
class Hook:
    """A webhook server. `statuses`: those of its next responses, then 204."""

    statuses: list[int] = field(default_factory=list)
    accepted: list[Mapping[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    request_count: int = 0
    slept: list[float] = field(default_factory=list)
    url: str = ""

    async def hear(self, request: web.Request) -> web.Response:
        """Accept or refuse a webhook."""
        self.request_count += 1
        body = await request.read()
        status = self.statuses.pop(0) if self.statuses else 204
        if status == 204:
            assert is_signed(SECRET, body, request.headers["X-Moothall-Signature-256"])
            assert not is_signed(
                "another secret", body, request.headers["X-Moothall-Signature-256"]
            )
            self.accepted.append(json.loads(body))
            self.headers.append(request.headers)
        return web.Response(status=status, headers={"Location": self.url} if status == 302 else {})

    async def sleep(self, seconds: float) -> None:
        """Record the delay without waiting for it."""
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def until_requested(self, times: int) -> None:
        """Wait until this many requests have arrived."""
        async with asyncio.timeout(10):
            while self.request_count < times:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def hearing(*statuses: int) -> AsyncIterator[Hook]:
    hook, app = Hook(list(statuses)), web.Application()
    app.router.add_post("/hook", hook.hear)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hook.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        yield hook
    finally:
        await runner.cleanup()


@asynccontextmanager
async def delivering(bus: MemoryBus, hook: Hook, *, tries: int = 8) -> AsyncIterator[None]:
    settings = WebhookSettings(url=hook.url, secret=SecretStr(SECRET))
    async with open_webhooks(bus, settings, tries) as webhooks:
        webhooks._sleep = hook.sleep
        async with run_in_background(
            webhooks.deliver_events((await bus.state(EVENTS.name)).last_seq), "webhooks"
        ):
            while await bus.bucket(BUCKET).entries() == {}:
                await asyncio.sleep(0)
            yield


async def decide(bus: MemoryBus, task_id: str) -> None:
    data = {
        "task_id": task_id,
        "status": "COMPLETED",
        "winner_id": "agent-dev-001",
        "proven": True,
        "branch": f"moothall/{task_id}",
        "results": [{"content": "what a model wrote"}],
        "error_message": "what a model wrote",
    }
    await bus.publish(
        new_event(EventType.SEAT_STARTED, task_id, {"task_id": task_id, "seat": "s"}, ordinal="1")
    )
    await bus.publish(
        new_event(EventType.DELIBERATION_DECIDED, task_id, data, ordinal="2", tenant="acme")
    )


async def test_each_decision_is_sent_once_in_order_without_model_text() -> None:
    bus = MemoryBus()
    await decide(bus, "before")
    async with hearing() as hook, delivering(bus, hook):
        for task_id in ("t-1", "t-2"):
            await decide(bus, task_id)
        await hook.until_requested(2)
    assert [body["task_id"] for body in hook.accepted] == ["t-1", "t-2"], (
        "decisions before the webhook existed are not sent"
    )
    first = dict(hook.accepted[0])
    assert first.pop("id") == hook.headers[0]["X-Moothall-Delivery"]
    assert first.pop("seq") > 0
    assert first.pop("time") is not None
    assert first == {
        "version": 1,
        "event": "moothall.deliberation.decided",
        "tenant": "acme",
        "task_id": "t-1",
        "status": "COMPLETED",
        "winner_id": "agent-dev-001",
        "proven": True,
        "branch": "moothall/t-1",
    }


async def test_a_storys_transition_is_sent_between_decisions_without_its_comment() -> None:
    bus = MemoryBus()
    moved = {
        "story_id": "s-1",
        "to_state": "planning",
        "event": "approve",
        "actor": "ann",
        "comment": "x",
    }
    async with hearing() as hook, delivering(bus, hook):
        await decide(bus, "t-1")
        await bus.publish(
            new_event(
                EventType.STORY_COMMENTED, "s-1", {"story_id": "s-1", "comment": "x"}, ordinal="1"
            )
        )
        await bus.publish(
            new_event(EventType.STORY_TRANSITIONED, "s-1", moved, ordinal="2", tenant="acme")
        )
        await decide(bus, "t-2")
        await hook.until_requested(3)
    assert [body["event"].removeprefix("moothall.") for body in hook.accepted] == [
        "deliberation.decided",
        "story.transitioned",
        "deliberation.decided",
    ]
    transition = {
        name: value for name, value in hook.accepted[1].items() if name not in {"id", "seq", "time"}
    }
    assert transition == {
        "version": 1,
        "event": "moothall.story.transitioned",
        "tenant": "acme",
        "story_id": "s-1",
        "to_state": "planning",
    }


async def test_a_failed_delivery_is_retried_and_redirects_are_not_followed() -> None:
    bus = MemoryBus()
    async with hearing(500, 302, 404) as hook, delivering(bus, hook):
        await decide(bus, "t-1")
        await hook.until_requested(4)
        await decide(bus, "t-2")
        await hook.until_requested(5)
    assert [body["task_id"] for body in hook.accepted] == ["t-1", "t-2"]
    assert hook.slept == [1.0, 2.0, 4.0]


async def test_an_undeliverable_event_is_skipped_in_the_end() -> None:
    bus = MemoryBus()
    async with hearing(500, 500, 500) as hook, delivering(bus, hook, tries=3):
        await decide(bus, "t-1")
        await decide(bus, "t-2")
        await hook.until_requested(4)
    assert [body["task_id"] for body in hook.accepted] == ["t-2"]


async def test_decisions_made_while_the_sender_was_down_are_sent_later_and_once() -> None:
    bus = MemoryBus()
    async with hearing() as hook:
        async with delivering(bus, hook):
            await decide(bus, "t-1")
            await hook.until_requested(1)
            async with asyncio.timeout(10):
                while [entry["seq"] for entry in (await bus.bucket(BUCKET).entries()).values()] != [
                    hook.accepted[0]["seq"]
                ]:
                    await asyncio.sleep(0)
        await decide(bus, "t-2")
        async with delivering(bus, hook):
            await hook.until_requested(2)
    assert [body["task_id"] for body in hook.accepted] == ["t-1", "t-2"]


def test_receivers_can_verify_the_sender() -> None:
    with pytest.raises(ValidationError, match=r"webhook\.secret is missing"):
        WebhookSettings(url="https://hooks.example/x")


async def test_only_this_machine_is_answered_over_a_plain_connection() -> None:
    settings = WebhookSettings(url="http://hooks.example/x", secret=SecretStr(SECRET))
    with pytest.raises(ConfigurationError, match="https://"):
        async with open_webhooks(MemoryBus(), settings):
            pass
