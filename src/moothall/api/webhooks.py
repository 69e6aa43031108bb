"""Webhooks that the server sends: a server that the operator names is told of each decision and
each
move of a story, in the order of the log and at least once.

The payload holds no word of a model or a caller but names and ids; who wants more asks for the
result. It is signed as forges sign theirs.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import orjson

from moothall.api.identity import check_address
from moothall.config import WebhookSettings as Settings
from moothall.domain.event import EventType, Recorded
from moothall.domain.ids import digest
from moothall.domain.topic import Channel
from moothall.errors import Temporary
from moothall.ports import Bus
from moothall.telemetry import get_logger

log = get_logger(__name__)

BUCKET = "webhooks"
VERSION = 1
_FIELDS = {
    EventType.DELIBERATION_DECIDED: (
        "task_id",
        "status",
        "final_state",
        "winner_id",
        "proven",
        "evidence_level",
        "branch",
        "commit_sha",
    ),
    EventType.STORY_TRANSITIONED: (
        "story_id",
        "to_state",
    ),  # where it came from may be a caller's word
}
"""What is told, and what of it."""
_PAUSE_SECONDS, _LONGEST_PAUSE = 1.0, 60.0
_OK = range(200, 300)


class Webhooks:
    """Sends them. How far it has come is kept on the bus, a document for each URL; before the first
    it begins with what comes after.
    """

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        session: aiohttp.ClientSession,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bus = bus
        self._url = settings.url or ""
        self._secret = settings.secret.get_secret_value().encode() if settings.secret else b""
        self._tries = settings.tries
        self._session = session
        self._sleep = sleep

    async def run(self, last_seq: int) -> None:
        """Tell what comes after what was told last, until cancelled. `last_seq`: the log's end
        now.
        """
        bucket, key = self._bus.bucket(BUCKET), digest("webhook", self._url)[:32]
        while True:
            try:
                kept = await bucket.get(key)
                if kept is None:
                    kept = {"seq": last_seq}
                    await bucket.put(key, kept)
                async with aclosing(
                    self._bus.follow([Channel.RESPONSES.all, Channel.STORIES.all], int(kept["seq"]))
                ) as records:
                    async for recorded in records:
                        if recorded.event.type in _FIELDS:
                            await self._deliver(recorded)
                            await bucket.put(key, {"seq": recorded.seq})
            except Temporary as error:
                log.warning("webhooks wait for the bus", reason=error.message)
                await self._sleep(_PAUSE_SECONDS)

    async def _deliver(self, recorded: Recorded) -> None:
        """Send it, again after a growing pause where nobody takes it; after the last try it is left
        out, and said so.
        """
        body = orjson.dumps(payload(recorded), option=orjson.OPT_SORT_KEYS)
        signature = hmac.new(self._secret, body, sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "moothall",
            "X-Moothall-Event": recorded.event.type.value,
            "X-Moothall-Delivery": recorded.event.id,
            "X-Moothall-Signature-256": f"sha256={signature}",
        }
        for number in range(self._tries):
            if number:
                await self._sleep(min(_PAUSE_SECONDS * 2 ** (number - 1), _LONGEST_PAUSE))
            why = await self._send(body, headers)
            if not why:
                return
            log.info(
                "a webhook was not taken", delivery=recorded.event.id, tried=number + 1, reason=why
            )
        about = recorded.event.data.get("task_id") or recorded.event.data.get("story_id")
        log.warning(
            "a webhook is left out", delivery=recorded.event.id, about=about, tried=self._tries
        )

    async def _send(self, body: bytes, headers: Mapping[str, str]) -> str:
        """Return why it was not taken, '' where it was."""
        try:
            # A redirect would carry what is told elsewhere.
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return "" if answer.status in _OK else f"HTTP {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or type(error).__name__


def payload(recorded: Recorded) -> dict[str, Any]:
    """Return what is told of an event of `_FIELDS`."""
    event = recorded.event
    told = {name: event.data[name] for name in _FIELDS[event.type] if name in event.data}
    return {
        "version": VERSION,
        "event": event.type.value,
        "id": event.id,
        "seq": recorded.seq,
        "time": event.time,
        "tenant": event.tenant,
    } | told


@asynccontextmanager
async def open_webhooks(bus: Bus, settings: Settings) -> AsyncIterator[Webhooks]:
    """Connect. Raises `ConfigurationError` for an address over which others could read along."""
    check_address("webhook.url", settings.url or "")
    limit = aiohttp.ClientTimeout(total=settings.seconds)
    async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Webhooks(bus, settings, session)
