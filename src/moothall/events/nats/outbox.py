"""Writes on their way to the bus: many at once, in order, and again after a restart of the
server.
"""

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
from moothall.events.nats.reply_inbox import ReplyInbox, seq_in
from moothall.telemetry import metrics

ATTEMPT_SECONDS = 3.0
_TICK = 0.1
_FIRST_DELAY, _LONGEST_DELAY = 0.02, 1.0
_FULL = {10023, 10047, 10077}
"""JetStream's error codes for: no resources, no storage left, the stream's limit reached."""

_NOT_THE_FIRST = 10071
"""And for: the subject's last seq is another than the one that was expected."""


def refusal(error: APIError, what: str) -> BusUnavailable | Permanent | None:
    """Say what the server's refusal means; None: trying again may help."""
    if error.err_code in _FULL:
        return BusUnavailable(
            f"the bus did not {what}: its store is full ({error.description}); prune the log, free "
            "the disk or raise bus.max_store_bytes"
        )
    if error.err_code == _NOT_THE_FIRST:
        return AlreadyExists(f"the bus did not {what}: something is recorded there already")
    if error.code is not None and 400 <= error.code < 500:  # noqa: PLR2004 an HTTP-like class of codes
        return Permanent(f"the bus refuses to {what}: {error.description}")
    return None


@dataclass(slots=True)
class _Letter:
    """One write until it is answered. `due` is when it is sent again, `until` when it is given up
    (monotonic seconds).
    """

    subject: str
    data: bytes
    headers: dict[str, str] | None
    answer: asyncio.Future[int]
    began: float
    until: float
    due: float
    to: str
    inbox: str = ""
    delay: float = _FIRST_DELAY
    why: BaseException | None = None


@dataclass(slots=True)
class Outbox:
    """Keeps every write until its ack is here. `limit` are on their way at a time; more wait,
    before they are sent.

    All are sent in the order in which they came, and those without an answer once more in that
    order when the
    connection is back: the server knows a repeat by its id.
    """

    client: FastClient
    acks: ReplyInbox
    seconds: float
    limit: int
    _letters: dict[str, _Letter] = field(default_factory=dict)
    _room: asyncio.Event = field(default_factory=asyncio.Event)
    _away: bool = False

    async def send(
        self, subject: str, data: bytes, headers: Mapping[str, str], to: str = ""
    ) -> asyncio.Future[int]:
        """Send, and return the seq's future. Cancelling the future ends the repetitions. Where `to`
        is given, the
        seconds until the ack are counted under it.

        The future raises `BusUnavailable` once `seconds` are over or the store is full, and
        `Permanent` for what
        the server refuses for good. Raises `InvalidRequest` for a message over the server's limit.
        """
        if len(data) > self.client.max_payload:
            raise InvalidRequest(
                f"the bus did not take a message on {subject}: the message is over its limit of "
                f"{self.client.max_payload}"
            )
        while len(self._letters) >= self.limit:
            self._room.clear()
            await self._room.wait()
        now = time.monotonic()
        answer = asyncio.get_running_loop().create_future()
        letter = _Letter(
            subject,
            data,
            dict(headers) or None,
            answer,
            now,
            now + self.seconds,
            now + ATTEMPT_SECONDS,
            to,
        )
        letter.inbox, token = self.acks.address(lambda message: self._take_ack(token, message))
        self._letters[token] = letter
        if not self._away:
            self._write(letter)
        return answer

    def connection_lost(self) -> None:
        """The connection is gone: from now on writes wait, so that the order stays when it is
        back.
        """
        self._away = True

    async def run(self) -> None:
        """Send again what is due, and give up what is over, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK)
                if self._away and self.client.is_connected:
                    self._come_back()
                if self._letters:
                    self._look()
        finally:
            for token, letter in tuple(self._letters.items()):
                self._fail(
                    token,
                    BusUnavailable(
                        f"the bus was closed before it had taken a message on {letter.subject}"
                    ),
                )

    def _come_back(self) -> None:
        """Send all that has no answer, in order, and with it what comes meanwhile."""
        sent: set[str] = set()
        while left := [token for token in self._letters if token not in sent]:
            for token in left:
                sent.add(token)
                if letter := self._letters.get(token):
                    self._write(letter)
                if not self.client.is_connected:
                    return
        self._away = False

    def _look(self) -> None:
        now = time.monotonic()
        for token, letter in tuple(self._letters.items()):
            if token not in self._letters:
                continue
            if letter.answer.done():  # its sender gave it up
                self._drop(token)
            elif self.client.is_closed or now > letter.until:
                why = reason(letter.why or TimeoutError())
                self._fail(
                    token,
                    BusUnavailable(f"the bus did not take a message on {letter.subject}: {why}"),
                )
            elif not self._away and now > letter.due:
                self._write(letter)

    def _write(self, letter: _Letter) -> None:
        letter.due = time.monotonic() + ATTEMPT_SECONDS
        try:
            self.client.put(letter.subject, letter.data, reply=letter.inbox, headers=letter.headers)
        except (nats.errors.Error, OSError) as error:
            letter.why, letter.due = error, 0.0

    def _take_ack(self, token: str, message: Msg) -> None:
        letter = self._letters.get(token)
        if letter is None:
            return
        try:
            seq = seq_in(message)
        except nats.errors.Error as error:
            refused = (
                refusal(error, f"take a message on {letter.subject}")
                if isinstance(error, APIError)
                else None
            )
            if refused is not None:
                refused.__cause__ = error
                self._fail(token, refused)
                return
            log.debug("write will be repeated", subject=letter.subject, reason=reason(error))
            letter.why, letter.due = error, time.monotonic() + letter.delay
            letter.delay = min(letter.delay * 2, _LONGEST_DELAY)
            return
        self._drop(token)
        if not letter.answer.done():
            letter.answer.set_result(seq)

    def _fail(self, token: str, error: Exception) -> None:
        letter = self._letters[token]
        self._drop(token)
        if not letter.answer.done():
            letter.answer.set_exception(error)
            letter.answer.exception()  # whoever waits for it hears it; nobody need wait

    def _drop(self, token: str) -> None:
        letter = self._letters.pop(token)
        if letter.to:
            metrics.BUS_PUBLISH_SECONDS.observe(time.monotonic() - letter.began, letter.to)
        self.acks.forget(token)
        self._room.set()
