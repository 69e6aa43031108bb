"""The NATS client with faster code for what happens thousands of times a second: sending and
receiving one message.

The client's own `publish` and subscriptions cost several times more: headers are checked character
by character, and each message passes through a queue and a task of its subscription. This file
relies on private parts of the client, and no other file does. The version of the client is
pinned, and `tests/unit/events/nats/test_fast_client.py` fails if a release changes those parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from moothall.telemetry import get_logger

log = get_logger(__name__)

MessageCallback = Callable[[Msg], None]
_LINE_ENDS = str.maketrans("\r\n", "  ")


class FastClient(Client):
    """The client with faster methods for sending and listening, and a safe close."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: dict[int, MessageCallback] = {}
        self.readers: set[Callable[[], None]] = set()
        """Called when the connection is lost, restored or closed."""

    def wake_readers(self) -> None:
        """Tell the readers that the connection has changed."""
        for wake in tuple(self.readers):
            wake()

    async def connection_restored(self) -> None:
        """Wake the readers: their requests were lost."""
        self.wake_readers()
        log.info("bus connection is back")

    async def connection_closed(self) -> None:
        """Wake the readers, which end."""
        self.wake_readers()

    def publish_nowait(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send like `publish`, but without waiting, so that it cannot be cancelled midway.

        Raises the client's errors: the connection is closed, or too much is unsent while it is
        lost.
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
            command = b"HPUB %b\r\n%b%b\r\n" % (
                _command_arguments(subject, reply, sizes),
                head,
                data,
            )
        else:
            command = b"PUB %b\r\n%b\r\n" % (
                _command_arguments(subject, reply, str(len(data))),
                data,
            )
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(data)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def enable_reconnect(self) -> None:
        """Reconnect from now on when the connection is lost. If this were set while connecting, the
        client would also retry forever when it is refused.
        """
        self.options["allow_reconnect"] = True

    async def close_safely(self) -> None:
        """Close. If the connection is lost, unsent data is dropped, since the client's own `close`
        would fail.
        """
        if not self.is_connected:
            self._pending = []
            self._pending_data_size = 0
        await keep_cancellation(self.close())

    async def listen(
        self, subject: str, callback: MessageCallback, *, queue: str = ""
    ) -> Subscription:
        """Subscribe; `callback` is called at once with each message, in order of arrival. It must
        not fail. Each message goes to one of the subscribers that share a `queue`.
        """
        subscription = await keep_cancellation(self.subscribe(subject, queue))
        self._callbacks[subscription._id] = callback  # noqa: SLF001 - the client tells messages apart by it
        while not subscription._pending_queue.empty():  # noqa: SLF001 - arrived before `callback` was registered
            callback(subscription._pending_queue.get_nowait())  # noqa: SLF001
        return subscription

    async def stop_listening(self, subscription: Subscription) -> None:
        """End a subscription made by `listen`. Raises the client's errors."""
        self._callbacks.pop(subscription._id, None)  # noqa: SLF001
        if not self.is_closed:
            await keep_cancellation(subscription.unsubscribe())

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        callback = self._callbacks.get(sid)
        if callback is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        lines = await self._process_headers(headers) if headers else None
        callback(
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
        """Parse header lines at once and not character by character, which would take half of the
        time of receiving. Servers write headers in this simple form.
        """
        pairs = (line.partition(":") for line in raw.decode("utf-8", "replace").split("\r\n"))
        return {name: value.strip() for name, separator, value in pairs if separator}


def _command_arguments(subject: str, reply: str, sizes: str) -> bytes:
    names = subject + reply
    if not subject or " " in names or not names.isprintable():  # it would form another command
        raise nats.errors.BadSubjectError
    return f"{subject} {reply} {sizes}".encode()


T = TypeVar("T")


async def keep_cancellation(call: Awaitable[T]) -> T:
    """Await a call of the client, and raise a cancellation that was lost in it.

    Every call of the client that may wait goes through here. The client uses `asyncio.wait_for`,
    which on Python 3.11 returns the answer and forgets the cancellation when both come in the same
    turn of the event loop, and some of its writes swallow a cancellation. A lost cancellation is
    never repeated, so a loop would go on for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        # Compared with the number before, since a task may call this while it cleans up after its
        # cancellation.
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
