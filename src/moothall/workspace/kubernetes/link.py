"""The link of a workspace's pod: the only container that talks to the bus, over one connection of
many streams; it runs no code that a model wrote.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import socket
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moothall.errors import BusUnavailable, MoothallError, PatchRefused, WorkspaceFailed
from moothall.network.proxy import receive_listener
from moothall.repositories.changes import ChangeCaps, ChangeScan, Stamp, measure, stamp, stamps
from moothall.sandbox_runtime.protocol import (
    FrameReader,
    ProtocolError,
    pack,
    pack_path,
    unpack_path,
)
from moothall.workspace import archive

# A connection of many streams between a host and the link of a pod, over two plain bus topics.
#
# The bus may lose plain messages during a reconnect, so they are numbered. A missing number ends
# the connection and with it the workspace, whose work is repeated elsewhere. Unacknowledged
# messages are limited, so that neither end is flooded. An end that sends more is hostile, and the
# connection ends.


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
        self._sent_count = self._acked = self._last_number = self._unacknowledged = 0
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
                    self._start_task(task, "trunk")
                    for task in (self._send_heartbeats(), self._watch_silence(connect_seconds))
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

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
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
            self._start_task(self._pump_out(number, reader), f"trunk out {number}"),
            self._start_task(self._pump_in(number, queue, writer), f"trunk in {number}"),
        )

    async def _pump_out(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._send_data(number, data)
        await self._send_data(number, b"")

    async def _send_data(self, number: int, data: bytes) -> None:
        async with self._window_free:
            await self._window_free.wait_for(lambda: self._sent_count - self._acked < _WINDOW)
            self._sent_count += 1
            await self._carrier.send(
                self._outgoing, _HEAD.pack(_DATA, self._sent_count, number) + data
            )

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

    async def _send_heartbeats(self) -> None:
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


# The link. It gives the host's files to the containers beside it, forwards messages between them
# and the host, and reports what was written. It ends when the host is gone or silent, and the pod
# ends with it.


LINK = "WORKSPACE_LINK"
"""The environment variable with the link's settings: JSON of `name`, `names` and `proxied`."""
_PIECE_BYTES = 2_000_000  # bytes of a returned tree in one answer
_MAX_NEW_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class Folders:
    """The mount points of the link's volumes: `links` has a folder for the socket of each container
    beside it, `shown` has further volumes by number.
    """

    tree: Path = Path("/workspace")
    env: Path = Path("/env")
    config: Path = Path("/opt/config")
    links: Path = Path("/links")
    shown: Path = Path("/shown")

    def path(self, name: str) -> Path:
        """Return the mount point of a volume. A number is a folder that is shown at the same path
        as on the host. Raises `WorkspaceFailed`.
        """
        volumes = {"tree": self.tree, "env": self.env, "config": self.config}
        if name in volumes or name.isdecimal():
            return volumes.get(name, self.shown / name)
        raise WorkspaceFailed(
            f"no volume {name[:80]!r}; the volumes are {', '.join(volumes)} and numbers"
        )


@dataclass(slots=True)
class PodLink:
    """The link of a pod. `names` are the containers beside it, by the stream of each. `proxied`:
    the first of them opens a port for the proxy, its network access.
    """

    folders: Folders
    names: Mapping[int, str]
    proxied: bool = False
    _initial_stamps: dict[str, Stamp] = field(default_factory=dict)
    _initial_size: int = 0
    _port: int = 0
    _packing: archive.Pipe | None = None
    _next_stream: int = FIRST_OF_POD
    _scan: ChangeScan | None = None

    async def run(
        self, carrier: Transport, name: str, connect_seconds: float = SILENT_SECONDS
    ) -> None:
        """Serve the host of a workspace until it is gone, or does not connect within
        `connect_seconds`.
        """
        listeners = {
            stream: await asyncio.to_thread(_listen, self.folders.links / name)
            for stream, name in self.names.items()
        }
        trunk = Multiplexer(carrier, f"{name}-out", f"{name}-in")
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for listener_socket in listeners.values():
                stack.enter_context(listener_socket)
            carrying = group.create_task(trunk.run(connect_seconds), name="trunk")
            serving = group.create_task(self._serve(trunk, listeners), name="serving")
            await carrying
            serving.cancel()

    async def _serve(self, trunk: Multiplexer, listening: Mapping[int, socket.socket]) -> None:
        """Connect the containers and answer the host, once it has connected."""
        await trunk.connected.wait()
        try:
            control = await trunk.open(CONTROL)
            tree_reader, tree_writer = await asyncio.open_connection(sock=await trunk.open(TREES))
            try:
                async with asyncio.TaskGroup() as group:
                    for stream, server_socket in listening.items():
                        group.create_task(
                            self._accept_container(trunk, stream, server_socket),
                            name=f"container {stream}",
                        )
                    group.create_task(self._answer(control, tree_reader), name="control")
            finally:
                tree_writer.transport.abort()
        except* ConnectionError:
            pass  # the host disconnected at once

    async def _accept_container(
        self, trunk: Multiplexer, stream: int, listening: socket.socket
    ) -> None:
        """Accept one connection of a container; the socket is then removed."""
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(listening)
        await asyncio.to_thread(os.unlink, listening.getsockname())
        listening.close()
        servers = []
        if self.proxied and stream == EXECUTOR:
            listener = await receive_listener(connection)
            self._port = listener.getsockname()[1]
            servers.append(
                await asyncio.start_server(
                    lambda *streams: self._open_connection(trunk, streams), sock=listener
                )
            )
        await trunk.join(stream, await asyncio.open_connection(sock=connection))
        try:
            await asyncio.Event().wait()
        finally:
            for server in servers:
                server.close()

    async def _open_connection(
        self, trunk: Multiplexer, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self._next_stream += 1
        with contextlib.suppress(ConnectionError):
            await trunk.join(self._next_stream, streams)

    async def _answer(self, control: socket.socket, files: asyncio.StreamReader) -> None:
        """Answer the host's requests, one after the other; trees arrive through `files`."""
        reader, writer = await asyncio.open_connection(sock=control)
        frames = FrameReader()
        writer.write(pack({"id": 0, "status": "ready"}))
        try:
            while data := await reader.read(1 << 20):
                for request in frames.feed(data):
                    answer = await self._answer_to(request, files)
                    writer.write(pack({**answer, "id": request["id"]}))
                    await writer.drain()
        except (ProtocolError, ConnectionError):
            return  # the host notices that its control stream has ended
        finally:
            writer.transport.abort()

    async def _answer_to(
        self, request: dict[str, Any], files: asyncio.StreamReader
    ) -> dict[str, Any]:
        try:
            return await (
                self._unpack(request, files)
                if request["op"] == "unpack"
                else asyncio.to_thread(self._execute, request)
            )
        except PatchRefused as error:
            return {"status": "refused", "error": error.message}
        except (MoothallError, OSError) as error:
            return {"status": "error", "error": str(error)}

    def _execute(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "begin":
                self._initial_stamps = stamps(self.folders.tree)
                self._initial_size, _ = measure(self.folders.tree, sys.maxsize, sys.maxsize)
                return {"status": "success"}
            case "measure":
                size, entries = measure(
                    self.folders.tree,
                    int(request["most"]) + self._initial_size,
                    len(self._initial_stamps) + _MAX_NEW_ENTRIES,
                )
                return {
                    "status": "success",
                    "full": size > int(request["most"]) + self._initial_size
                    or entries > len(self._initial_stamps) + _MAX_NEW_ENTRIES,
                }
            case "changes":
                files, caps = [*map(unpack_path, request["files"])], ChangeCaps(*request["caps"])
                self._scan = ChangeScan(self.folders.tree, files, caps, stamps=self._initial_stamps)
                return self._describe_scan(self._scan)
            case "ignored" if self._scan is not None:
                self._scan.apply_ignore_rules(
                    {unpack_path(path): str(rule) for path, rule in request["rules"].items()}
                )
                return self._describe_scan(self._scan)
            case "port":
                return {"status": "success", "port": self._port}
            case "pack":
                return self._pack(str(request["where"]))
        raise WorkspaceFailed(f"unknown operation {str(request['op'])[:80]!r}")

    async def _unpack(self, request: dict[str, Any], files: asyncio.StreamReader) -> dict[str, Any]:
        """Receive and unpack the next tree."""
        unpack = functools.partial(
            archive.unpack,
            root=self.folders.path(str(request["where"])),
            max_bytes=int(request["most"]),
        )
        async with archive.piped(unpack, reads=True) as pipe:
            await archive.receive(pipe, files)
        return {"status": "success"}

    def _pack(self, volume: str) -> dict[str, Any]:
        """Return a piece of a tree; an empty piece is the end. Of the checkout, only changed files
        are returned.
        """
        if self._packing is None:
            root = self.folders.path(volume)
            include = self._is_changed if volume == "tree" else archive.include_all
            self._packing = archive.Pipe(
                lambda target: archive.pack(root, target, include), reads=False
            )
        piece = self._packing.read(_PIECE_BYTES)
        if not piece:
            pipe, self._packing = self._packing, None
            pipe.finish()
        return {"status": "success", "data": base64.b64encode(piece).decode()}

    def _is_changed(self, path: str, status: os.stat_result) -> bool:
        return self._initial_stamps.get(path) != stamp(status)

    def _describe_scan(self, scan: ChangeScan) -> dict[str, Any]:
        """Ask the host which new paths are ignored, or report what was written."""
        if (new := scan.list_new_paths()) is not None:
            lists = {pack_path(path): _to_base64(text) for path, text in new.lists.items()}
            folders, files = ([*map(pack_path, paths)] for paths in (new.folders, new.files))
            return {
                "status": "success",
                "new": {"folders": folders, "files": files, "lists": lists},
            }
        self._scan = None
        written = scan.read()
        changes = [
            {
                "path": pack_path(change.path),
                "mode": change.mode,
                "content": _to_base64(change.content),
            }
            for change in written.changes
        ]
        return {
            "status": "success",
            "changes": changes,
            "ignored": [*map(pack_path, written.ignored)],
        }


def _to_base64(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _listen(folder: Path) -> socket.socket:
    folder.mkdir(exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "link.sock"))
    listening.listen(1)
    listening.setblocking(False)
    return listening
