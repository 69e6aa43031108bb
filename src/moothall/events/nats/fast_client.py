"""The NATS client with a shorter way for what happens thousands of times a second: one write, one
message heard.

The client's own `publish` and its subscriptions cost several times what they do: a header is
checked letter by letter,
and each message passes a queue and a task of its subscription. What is built on here is private to
the client, and no
other file touches it: its version is locked, and `tests/unit/events/nats/test_fast_client.py` fails
where a
release changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

Hear = Callable[[Msg], None]
_LINE_ENDS = str.maketrans("\r\n", "  ")


class FastClient(Client):
    """Everything that the client is, and `put`, `hear`, `stay` and `leave`."""

    def __init__(self) -> None:
        super().__init__()
        self._hearing: dict[int, Hear] = {}

    def put(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send, like `publish`, but without waiting: there is nothing in it that could be
        cancelled.

        Raises the client's errors: closed, or too much unsent while the connection is away.
        """
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if not self.is_connected and len(data) + self._pending_data_size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        if len(data) > self._max_payload:
            raise nats.errors.MaxPayloadError
        if headers:
            lines = "".join(
                [f"{name}: {value.translate(_LINE_ENDS)}\r\n" for name, value in headers.items()]
            )
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            sizes = f"{len(head)} {len(head) + len(data)}"
            command = b"HPUB %b\r\n%b%b\r\n" % (_words(subject, reply, sizes), head, data)
        else:
            command = b"PUB %b\r\n%b\r\n" % (_words(subject, reply, str(len(data))), data)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(data)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def stay(self) -> None:
        """From now on come back when the connection is lost. Asked for while connecting, it would
        try for ever also where we are turned away.
        """
        self.options["allow_reconnect"] = True

    async def leave(self) -> None:
        """Close. What is unsent while the connection is away is dropped: the client's own `close`
        fails over it.
        """
        if not self.is_connected:
            self._pending = []
            self._pending_data_size = 0
        await heed_cancel(self.close())

    async def hear(self, subject: str, told: Hear, *, queue: str = "") -> Subscription:
        """Subscribe; `told` is called with each message at once, in the order in which they come.
        It must not fail. Of those that name the same `queue`, one hears a message.
        """
        subscription = await heed_cancel(self.subscribe(subject, queue))
        self._hearing[subscription._id] = told  # noqa: SLF001 - the client tells messages apart by it
        while not subscription._pending_queue.empty():  # noqa: SLF001 - what came before it was known who listens
            told(subscription._pending_queue.get_nowait())  # noqa: SLF001
        return subscription

    async def unhear(self, subscription: Subscription) -> None:
        """End what `hear` began. Raises the client's errors."""
        self._hearing.pop(subscription._id, None)  # noqa: SLF001
        if not self.is_closed:
            await heed_cancel(subscription.unsubscribe())

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        told = self._hearing.get(sid)
        if told is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        lines = await self._process_headers(headers) if headers else None
        told(
            Msg(
                _client=self,
                subject=subject.decode(),
                reply=reply.decode(),
                data=data,
                headers=lines,
                _sid=sid,
            )
        )

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Not character by character, which is half of what receiving costs. Servers write them as
        below.
        """
        pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").split("\r\n"))
        return {name: value.strip() for name, separator, value in pairs if separator}


def _words(subject: str, reply: str, sizes: str) -> bytes:
    names = subject + reply
    if not subject or " " in names or not names.isprintable():  # it would be another command
        raise nats.errors.BadSubjectError
    return f"{subject} {reply} {sizes}".encode()


T = TypeVar("T")


async def heed_cancel(call: Awaitable[T]) -> T:
    """Return what a call of the client returns; a cancellation that got lost in it is raised all
    the same.

    Every call of the client that may wait goes through here. The client waits with
    `asyncio.wait_for`, which
    on Python 3.11 returns the answer and forgets the cancellation when both come in the same turn
    of the
    loop, and its writes swallow one outright. What is lost so never comes again, and a loop goes on
    for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        # Compared, not just asked: a task that cleans up after its cancellation may still call.
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
