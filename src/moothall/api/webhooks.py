"""Outgoing webhooks: an operator's server receives each decision and each move of a story, in the
order of the log and at least once.

The payload has only names and ids, no text of models or callers; receivers request the result if
they need more. It is signed as forges sign theirs.
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
from moothall.domain.event import Channel, EventType, Recorded
from moothall.domain.ids import digest
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
    ),  # the previous state may be text of a caller
}
"""The events that are sent, with the fields of their data."""
_RETRY_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 60.0
_ATTEMPT_SECONDS = 10.0
_MAX_ATTEMPTS = 8
_SUCCESS_STATUSES = range(200, 300)


class Webhooks:
    """The sender of webhooks. Its position is stored on the bus, one document for each URL; without
    one it begins with the next event.
    """

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        session: aiohttp.ClientSession,
        *,
        max_attempts: int = _MAX_ATTEMPTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bus = bus
        self._url = settings.url or ""
        self._secret = settings.secret.get_secret_value().encode() if settings.secret else b""
        self._max_attempts = max_attempts
        self._session = session
        self._sleep = sleep

    async def deliver_events(self, last_seq: int) -> None:
        """Send all events after the stored position until cancelled. `last_seq` is the current end
        of the log, where delivery begins if no position is stored.
        """
        bucket, key = self._bus.bucket(BUCKET), digest("webhook", self._url)[:32]
        while True:
            try:
                position = await bucket.get(key)
                if position is None:
                    position = {"seq": last_seq}
                    await bucket.put(key, position)
                async with aclosing(
                    self._bus.follow(
                        [Channel.RESPONSES.all, Channel.STORIES.all], int(position["seq"])
                    )
                ) as records:
                    async for recorded in records:
                        if recorded.event.type in _FIELDS:
                            await self._deliver(recorded)
                            await bucket.put(key, {"seq": recorded.seq})
            except Temporary as error:
                log.warning("webhooks are waiting for the bus", reason=error.message)
                await self._sleep(_RETRY_PAUSE_SECONDS)

    async def _deliver(self, recorded: Recorded) -> None:
        """Send an event, and again after growing pauses if that fails. After the last try, skip and
        log it.
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
        for attempt in range(self._max_attempts):
            if attempt:
                await self._sleep(
                    min(_RETRY_PAUSE_SECONDS * 2 ** (attempt - 1), _MAX_PAUSE_SECONDS)
                )
            failure = await self._send(body, headers)
            if not failure:
                return
            log.info(
                "a webhook was not accepted",
                delivery=recorded.event.id,
                tried=attempt + 1,
                reason=failure,
            )
        subject = recorded.event.data.get("task_id") or recorded.event.data.get("story_id")
        log.warning(
            "a webhook is skipped",
            delivery=recorded.event.id,
            about=subject,
            tried=self._max_attempts,
        )

    async def _send(self, body: bytes, headers: Mapping[str, str]) -> str:
        """Return why the receiver did not accept the event, '' if it did."""
        try:
            # A redirect would send the payload to another server.
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return "" if response.status in _SUCCESS_STATUSES else f"HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or type(error).__name__


def payload(recorded: Recorded) -> dict[str, Any]:
    """Return the payload for an event of `_FIELDS`."""
    event = recorded.event
    event_fields = {name: event.data[name] for name in _FIELDS[event.type] if name in event.data}
    return {
        "version": VERSION,
        "event": event.type.value,
        "id": event.id,
        "seq": recorded.seq,
        "time": event.time,
        "tenant": event.tenant,
    } | event_fields


@asynccontextmanager
async def open_webhooks(
    bus: Bus, settings: Settings, max_attempts: int = _MAX_ATTEMPTS
) -> AsyncIterator[Webhooks]:
    """Open the HTTP session. Raises `ConfigurationError` for a URL without encryption."""
    check_address("webhook.url", settings.url or "")
    limit = aiohttp.ClientTimeout(total=_ATTEMPT_SECONDS)
    async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Webhooks(bus, settings, session, max_attempts=max_attempts)
