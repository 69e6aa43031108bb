"""One connection of many streams between a host and the link of a pod, over two plain topics of the
bus.

The bus may lose plain messages where it is left and comes back, so they are numbered: a number that
is missing ends the trunk, and with it the workspace, whose work is done again elsewhere. What is
not acknowledged yet is bounded, so that nobody is flooded; an end that sends more all the same is
hostile, and heard no further.
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

CONTROL, HANDS, CODE, FILES, FIRST = 0, 1, 2, 3, 16
"""Streams: the link itself, the executor, the one of blocks of Python, trees for the pod, and the
first of those that the pod opens.
"""

BEAT_SECONDS, SILENT_SECONDS = 5.0, 30.0
_HEAD = struct.Struct("!cII")  # kind, number of the message, stream
_DATA, _ACK, _BEAT = b"d", b"a", b"b"
_CHUNK, _WINDOW = 256 * 1024, 32  # bytes of a message; messages under way in each direction

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Transport:
    """How bytes travel: `send` to whoever listens under a name, `hear` what is sent under one. Each
    message at most once, in order.
    """

    send: Callable[[str, bytes], Awaitable[None]]
    hear: Callable[[str], AsyncGenerator[bytes, None]]


class Multiplexer:
    """One end. `accept` is called with a stream that the other end opened."""

    def __init__(
        self,
        carrier: Transport,
        there: str,
        here: str,
        accept: Callable[[int, Streams], None] | None = None,
    ) -> None:
        self._carrier, self._there, self._here = carrier, there, here
        self._accept = accept
        self._streams: dict[int, asyncio.StreamWriter] = {}
        self._arrived: dict[int, asyncio.Queue[bytes]] = {}
        self._sent = self._acked = self._last = self._under_way = 0
        self._room = asyncio.Condition()
        self._group: asyncio.TaskGroup | None = None
        self._heard = asyncio.Event()
        self._newest = FIRST - 1
        self._pumps: tuple[asyncio.Task[None], ...] = ()
        self.connected = asyncio.Event()
        """Set once the other end was heard."""
        self.why = ""
        """Why it ended, where nobody ended it."""

    async def run(self, first: float = SILENT_SECONDS) -> None:
        """Carry until the other end is gone or silent, or not heard within `first` seconds, or this
        is cancelled. Closes all streams.
        """
        try:
            async with asyncio.TaskGroup() as self._group:
                tasks = [
                    self._start(one, "trunk")
                    for one in (self._beat(), self._listen_for_silence(first))
                ]
                await self._until_over(self._receive())
                for task in (*tasks, *self._pumps):
                    task.cancel()
        except* (
            ConnectionError,
            BusUnavailable,
            OSError,
        ) as over:  # who waits for a stream sees its end
            self.why = str(over.exceptions[0])
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
        return self._group.create_task(self._until_over(work), name=name)

    async def _until_over(self, work: Coroutine[Any, Any, None]) -> None:
        """What ends one part ends all: nothing may be started in a group that ends."""
        try:
            await work
        except BaseException:
            self.close()
            raise

    async def open(self, number: int) -> socket.socket:
        """Return our end of a new stream, for whoever reads and writes it as a socket. Raises
        `ConnectionError` once the trunk has ended.
        """
        if self._group is None:
            raise ConnectionError("the pod is gone")
        ours, theirs = socket.socketpair()
        await self.join(number, await asyncio.open_connection(sock=theirs))
        return ours

    async def join(self, number: int, streams: Streams) -> None:
        """Carry what one reads and writes there as a stream. Raises `ConnectionError` once the
        trunk has ended.
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
        async with self._room:
            await self._room.wait_for(lambda: self._sent - self._acked < _WINDOW)
            self._sent += 1
            await self._carrier.send(self._there, _HEAD.pack(_DATA, self._sent, number) + data)

    async def _pump_in(
        self, number: int, queue: asyncio.Queue[bytes], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            message = await queue.get()
            data = message[_HEAD.size :]
            if not data:
                break
            with contextlib.suppress(
                ConnectionError, RuntimeError
            ):  # its reader is gone: so are the bytes
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
        self._under_way -= 1
        await self._carrier.send(self._there, _HEAD.pack(_ACK, number, stream))

    async def _receive(self) -> None:
        async with contextlib.aclosing(self._carrier.hear(self._here)) as messages:
            async for message in messages:
                if len(message) < _HEAD.size:
                    raise ConnectionError("a message without a head")
                self._heard.set()
                self.connected.set()
                kind, number, stream = _HEAD.unpack_from(message)
                if kind == _ACK:
                    async with self._room:
                        self._acked += 1
                        self._room.notify_all()
                elif kind == _DATA:
                    if number != self._last + 1:
                        raise ConnectionError(f"message {self._last + 1} was lost on the way")
                    self._last = number
                    self._under_way += 1
                    if self._under_way > _WINDOW or len(message) > _HEAD.size + _CHUNK:
                        raise ConnectionError("the other end sent more than it may have under way")
                    await self._take(stream, message)

    async def _take(self, stream: int, message: bytes) -> None:
        if stream not in self._arrived:
            if stream >= FIRST and (self._accept is None or stream <= self._newest):
                await self._acknowledge(message)
                return  # for what is closed here already
            self._arrived[stream] = asyncio.Queue()
            if stream >= FIRST and self._accept is not None:
                self._newest = stream
                ours, theirs = socket.socketpair()
                await self.join(stream, await asyncio.open_connection(sock=theirs))
                self._accept(stream, await asyncio.open_connection(sock=ours))
        self._arrived[stream].put_nowait(message)

    async def _beat(self) -> None:
        while True:
            await self._carrier.send(self._there, _HEAD.pack(_BEAT, 0, 0))
            await asyncio.sleep(BEAT_SECONDS if self.connected.is_set() else BEAT_SECONDS / 25)

    async def _listen_for_silence(self, first: float) -> None:
        seconds = first
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._heard.wait()
            except TimeoutError:
                raise ConnectionError(
                    f"nothing was heard of the other end for {seconds:g} s"
                ) from None
            await asyncio.sleep(SILENT_SECONDS / 10)
            self._heard.clear()
            seconds = SILENT_SECONDS
