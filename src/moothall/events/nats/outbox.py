"""Writes on their way to the bus: many at once, in order, and repeated after a server restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import APIError

from moothall.errors import AlreadyExists, BusUnavailable, InvalidRequest, Permanent
from moothall.events.nats.connection import log, reason
from moothall.events.nats.fast_client import FastClient
from moothall.events.nats.requests import ReplyInbox, parse_seq
from moothall.telemetry import metrics

ATTEMPT_SECONDS = 3.0
_TICK_SECONDS = 0.1
_FIRST_DELAY, _LONGEST_DELAY = 0.02, 1.0
_STORE_FULL_CODES = {10023, 10047, 10077}
"""JetStream's error codes for: no resources, no storage left, the stream's limit reached."""

_WRONG_LAST_SEQ = 10071
"""JetStream's error code for: the subject's last seq is not the expected one."""


def refusal(error: APIError, action: str) -> BusUnavailable | Permanent | None:
    """Return the error for a refusal by the server; None if trying again may help."""
    if error.err_code in _STORE_FULL_CODES:
        return BusUnavailable(
            f"the bus did not {action}: its store is full ({error.description}); prune the log, "
            "free the disk or raise bus.max_store_bytes"
        )
    if error.err_code == _WRONG_LAST_SEQ:
        return AlreadyExists(f"the bus did not {action}: something is recorded there already")
    if error.code is not None and 400 <= error.code < 500:  # noqa: PLR2004 an HTTP-like class of codes
        return Permanent(f"the bus refuses to {action}: {error.description}")
    return None


@dataclass(slots=True)
class _Write:
    """One write that is not yet answered. It is sent again at `due` and given up at `deadline`
    (monotonic seconds).
    """

    subject: str
    data: bytes
    headers: dict[str, str] | None
    answer: asyncio.Future[int]
    began: float
    deadline: float
    due: float
    label: str
    inbox: str = ""
    delay: float = _FIRST_DELAY
    error: BaseException | None = None


@dataclass(slots=True)
class Outbox:
    """Stores every write until it is acknowledged. At most `limit` writes are unacknowledged at a
    time; further ones wait before they are sent.

    Writes are sent in order of arrival. After a reconnect, unanswered writes are sent again in that
    order: the server recognises a repeat by its id.
    """

    client: FastClient
    acks: ReplyInbox
    seconds: float
    limit: int
    _pending: dict[str, _Write] = field(default_factory=dict)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    _written: asyncio.Event = field(default_factory=asyncio.Event)
    _disconnected: bool = False

    async def send(
        self, subject: str, data: bytes, headers: Mapping[str, str], label: str = ""
    ) -> asyncio.Future[int]:
        """Send a message and return the future of its seq. Cancelling the future ends the
        repetitions. With `label`, the seconds until the ack are recorded under that label.

        The future raises `BusUnavailable` after `seconds` or if the store is full, and `Permanent`
        for what the server refuses for good. Raises `InvalidRequest` for a message over the
        server's size limit.
        """
        if len(data) > self.client.max_payload:
            raise InvalidRequest(
                f"the bus did not accept a message on {subject}: the message is over its limit of "
                f"{self.client.max_payload} bytes"
            )
        while len(self._pending) >= self.limit:
            self._has_room.clear()
            await self._has_room.wait()
        now = time.monotonic()
        answer = asyncio.get_running_loop().create_future()
        write = _Write(
            subject,
            data,
            dict(headers) or None,
            answer,
            now,
            now + self.seconds,
            now + ATTEMPT_SECONDS,
            label,
        )
        write.inbox, token = self.acks.address(lambda message: self._receive_ack(token, message))
        self._pending[token] = write
        self._written.set()
        if not self._disconnected:
            self._publish(write)
        return answer

    def connection_lost(self) -> None:
        """Hold back writes from now on, so that the order is kept when the connection is back."""
        self._disconnected = True

    async def run(self) -> None:
        """Repeat the writes that are due and give up those that are too old, until cancelled."""
        try:
            while True:
                if not self._pending:
                    self._written.clear()
                    await self._written.wait()
                await asyncio.sleep(_TICK_SECONDS)
                if self._disconnected and self.client.is_connected:
                    self._resend_all()
                if self._pending:
                    self._check_pending()
        finally:
            for token, write in tuple(self._pending.items()):
                self._fail(
                    token,
                    BusUnavailable(
                        f"the bus was closed before it accepted a message on {write.subject}"
                    ),
                )

    def _resend_all(self) -> None:
        """Send all unanswered writes in order, including those that arrive meanwhile."""
        resent: set[str] = set()
        while unsent := [token for token in self._pending if token not in resent]:
            for token in unsent:
                resent.add(token)
                if write := self._pending.get(token):
                    self._publish(write)
                if not self.client.is_connected:
                    return
        self._disconnected = False

    def _check_pending(self) -> None:
        now = time.monotonic()
        for token, write in tuple(self._pending.items()):
            if token not in self._pending:
                continue
            if write.answer.done():  # its sender cancelled it
                self._remove(token)
            elif self.client.is_closed or now > write.deadline:
                cause = reason(write.error or TimeoutError())
                self._fail(
                    token,
                    BusUnavailable(f"the bus did not accept a message on {write.subject}: {cause}"),
                )
            elif not self._disconnected and now > write.due:
                self._publish(write)

    def _publish(self, write: _Write) -> None:
        write.due = time.monotonic() + ATTEMPT_SECONDS
        try:
            self.client.publish_nowait(
                write.subject, write.data, reply=write.inbox, headers=write.headers
            )
        except (nats.errors.Error, OSError) as error:
            write.error, write.due = error, 0.0

    def _receive_ack(self, token: str, message: Msg) -> None:
        write = self._pending.get(token)
        if write is None:
            return
        try:
            seq = parse_seq(message)
        except nats.errors.Error as error:
            refused = (
                refusal(error, f"accept a message on {write.subject}")
                if isinstance(error, APIError)
                else None
            )
            if refused is not None:
                refused.__cause__ = error
                self._fail(token, refused)
                return
            log.debug("write will be repeated", subject=write.subject, reason=reason(error))
            write.error, write.due = error, time.monotonic() + write.delay
            write.delay = min(write.delay * 2, _LONGEST_DELAY)
            return
        self._remove(token)
        if not write.answer.done():
            write.answer.set_result(seq)

    def _fail(self, token: str, error: Exception) -> None:
        write = self._pending[token]
        self._remove(token)
        if not write.answer.done():
            write.answer.set_exception(error)
            write.answer.exception()  # mark it as retrieved: nobody has to await it

    def _remove(self, token: str) -> None:
        write = self._pending.pop(token)
        if write.label:
            metrics.BUS_PUBLISH_SECONDS.observe(time.monotonic() - write.began, write.label)
        self.acks.forget(token)
        self._has_room.set()
