"""A connection of many streams between a host and the link of a pod, over two plain bus topics.

The bus may lose plain messages during a reconnect, so they are numbered. A missing number ends the
connection and with it the workspace, whose work is repeated elsewhere. Unacknowledged messages are
limited, so that neither end is flooded. An end that sends more is hostile, and the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from moothall.errors import BusUnavailable

CONTROL, EXECUTOR, CODE_EXECUTOR, TREES, FIRST_OF_POD = 0, 1, 2, 3, 16
"""Stream numbers: the link itself, the executor, the executor of Python blocks, file trees for the
pod, and the first stream that the pod may open.
"""

BEAT_SECONDS, SILENT_SECONDS = 5.0, 30.0
_HEAD = struct.Struct("!cII")  # kind, number of the message, stream
_DATA, _ACK, _BEAT = b"d", b"a", b"b"
_CHUNK, _WINDOW = 256 * 1024, 32  # bytes of a message; unacknowledged messages in each direction

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Transport:
    """Functions that send a message to a name, and listen to the messages of a name. Each message
    arrives at most once, in order.
    """

    send: Callable[[str, bytes], Awaitable[None]]
    listen: Callable[[str], AsyncGenerator[bytes, None]]


class Multiplexer:
    """One end of a link. `accept` is called with each stream that the other end opened."""

    def __init__(
        self,
        carrier: Transport,
        outgoing: str,
        incoming: str,
        accept: Callable[[int, Streams], None] | None = None,
    ) -> None:
        self._carrier, self._outgoing, self._incoming = carrier, outgoing, incoming
        self._accept = accept
        self._streams: dict[int, asyncio.StreamWriter] = {}
        self._arrived: dict[int, asyncio.Queue[bytes]] = {}
        self._sent = self._acked = self._last_number = self._unacknowledged = 0
        self._window_free = asyncio.Condition()
        self._group: asyncio.TaskGroup | None = None
        self._received = asyncio.Event()
        self._newest = FIRST_OF_POD - 1
        self._pumps: tuple[asyncio.Task[None], ...] = ()
        self.connected = asyncio.Event()
        """Set once a message of the other end has arrived."""
        self.end_reason = ""
        """The reason for the end, unless it was cancelled."""

    async def run(self, connect_seconds: float = SILENT_SECONDS) -> None:
        """Carry messages until the other end is gone or silent, or sends nothing within
        `connect_seconds`, or this is cancelled. Closes all streams.
        """
        try:
            async with asyncio.TaskGroup() as self._group:
                tasks = [
                    self._start(task, "trunk")
                    for task in (self._beat(), self._watch_silence(connect_seconds))
                ]
                await self._close_on_failure(self._receive())
                for task in (*tasks, *self._pumps):
                    task.cancel()
        except* (
            ConnectionError,
            BusUnavailable,
            OSError,
        ) as failures:  # readers of a stream see its end
            self.end_reason = str(failures.exceptions[0])
        finally:
            self.close()
            for writer in self._streams.values():
                writer.transport.abort()
            await asyncio.gather(
                *(writer.wait_closed() for writer in self._streams.values()), return_exceptions=True
            )

    def close(self) -> None:
        """Open no more streams."""
        self._group = None

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        if self._group is None:
            work.close()
            raise ConnectionError("the pod is gone")
        return self._group.create_task(self._close_on_failure(work), name=name)

    async def _close_on_failure(self, work: Coroutine[Any, Any, None]) -> None:
        """Close the link if `work` fails: nothing may be started in a group that is ending."""
        try:
            await work
        except BaseException:
            self.close()
            raise

    async def open(self, number: int) -> socket.socket:
        """Return the local end of a new stream as a socket. Raises `ConnectionError` once the link
        has ended.
        """
        if self._group is None:
            raise ConnectionError("the pod is gone")
        local, remote = socket.socketpair()
        await self.join(number, await asyncio.open_connection(sock=remote))
        return local

    async def join(self, number: int, streams: Streams) -> None:
        """Carry the bytes of `streams` as a stream of this link. Raises `ConnectionError` once the
        link has ended.
        """
        if self._group is None:
            streams[1].transport.abort()
            raise ConnectionError("the pod is gone")
        reader, writer = streams
        self._streams[number] = writer
        queue = self._arrived.setdefault(number, asyncio.Queue())
        self._pumps = (
            *(task for task in self._pumps if not task.done()),
            self._start(self._pump_out(number, reader), f"trunk out {number}"),
            self._start(self._pump_in(number, queue, writer), f"trunk in {number}"),
        )

    async def _pump_out(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._send_data(number, data)
        await self._send_data(number, b"")

    async def _send_data(self, number: int, data: bytes) -> None:
        async with self._window_free:
            await self._window_free.wait_for(lambda: self._sent - self._acked < _WINDOW)
            self._sent += 1
            await self._carrier.send(self._outgoing, _HEAD.pack(_DATA, self._sent, number) + data)

    async def _pump_in(
        self, number: int, queue: asyncio.Queue[bytes], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            message = await queue.get()
            data = message[_HEAD.size :]
            if not data:
                break
            # If the local reader is gone, the bytes are dropped.
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.write(data)
                await writer.drain()
            await self._acknowledge(message)
        await self._acknowledge(message)
        self._streams.pop(number, None)
        self._arrived.pop(number, None)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _acknowledge(self, message: bytes) -> None:
        _, number, stream = _HEAD.unpack_from(message)
        self._unacknowledged -= 1
        await self._carrier.send(self._outgoing, _HEAD.pack(_ACK, number, stream))

    async def _receive(self) -> None:
        async with contextlib.aclosing(self._carrier.listen(self._incoming)) as messages:
            async for message in messages:
                if len(message) < _HEAD.size:
                    raise ConnectionError("a message without a header")
                self._received.set()
                if not self.connected.is_set():
                    self.connected.set()
                    # The other end may have begun to listen after our first beat.
                    await self._send_beat()
                kind, number, stream = _HEAD.unpack_from(message)
                if kind == _ACK:
                    async with self._window_free:
                        self._acked += 1
                        self._window_free.notify_all()
                elif kind == _DATA:
                    if number != self._last_number + 1:
                        raise ConnectionError(f"message {self._last_number + 1} was lost")
                    self._last_number = number
                    self._unacknowledged += 1
                    if self._unacknowledged > _WINDOW or len(message) > _HEAD.size + _CHUNK:
                        raise ConnectionError("the other end exceeded the flow-control window")
                    await self._deliver(stream, message)

    async def _deliver(self, stream: int, message: bytes) -> None:
        if stream not in self._arrived:
            if stream >= FIRST_OF_POD and (self._accept is None or stream <= self._newest):
                await self._acknowledge(message)
                return  # the stream is already closed here
            self._arrived[stream] = asyncio.Queue()
            if stream >= FIRST_OF_POD and self._accept is not None:
                self._newest = stream
                local, remote = socket.socketpair()
                await self.join(stream, await asyncio.open_connection(sock=remote))
                self._accept(stream, await asyncio.open_connection(sock=local))
        self._arrived[stream].put_nowait(message)

    async def _beat(self) -> None:
        while True:
            await self._send_beat()
            await asyncio.sleep(BEAT_SECONDS if self.connected.is_set() else BEAT_SECONDS / 25)

    async def _send_beat(self) -> None:
        await self._carrier.send(self._outgoing, _HEAD.pack(_BEAT, 0, 0))

    async def _watch_silence(self, connect_seconds: float) -> None:
        seconds = connect_seconds
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._received.wait()
            except TimeoutError:
                raise ConnectionError(f"the other end sent nothing for {seconds:g} s") from None
            await asyncio.sleep(SILENT_SECONDS / 10)
            self._received.clear()
            seconds = SILENT_SECONDS
