"""The link of a workspace's pod: the one container that speaks with the bus, and runs nothing that
a model wrote.

It shows the host's files to the containers beside it, carries what the host and they say to each
other, and tells what was written. It ends when the host is gone or silent, and the pod with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moothall.errors import MoothallError, PatchRefused, WorkspaceFailed
from moothall.network.proxy import listener
from moothall.repositories.changes import ChangeCaps, ChangeScan, Stamp, measure, stamp, stamps
from moothall.sandbox_runtime.protocol import (
    FrameReader,
    ProtocolError,
    pack,
    pack_path,
    unpack_path,
)
from moothall.workspace.kubernetes import archive
from moothall.workspace.kubernetes.multiplexer import (
    CONTROL,
    FILES,
    FIRST,
    HANDS,
    SILENT_SECONDS,
    Multiplexer,
    Transport,
)

LINK = "WORKSPACE_LINK"
"""What the link is told, in its environment: JSON of `name`, `names` and `proxied`."""
_PIECE = 2_000_000  # bytes of a tree that goes back, in one answer
_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the link's volumes are mounted: `links` holds a folder for the socket of each container
    beside it, `shown` more by number.
    """

    tree: Path = Path("/workspace")
    env: Path = Path("/env")
    config: Path = Path("/opt/config")
    links: Path = Path("/links")
    shown: Path = Path("/shown")

    def of(self, name: str) -> Path:
        """Return the one that the host calls so, a number for a folder that is shown as on the
        host. Raises `WorkspaceFailed`.
        """
        known = {"tree": self.tree, "env": self.env, "config": self.config}
        if name in known or name.isdecimal():
            return known.get(name, self.shown / name)
        raise WorkspaceFailed(f"no volume {name[:80]!r}; there are {', '.join(known)} and numbers")


@dataclass(slots=True)
class PodLink:
    """A link on its folders. `names`: the containers beside it, by the stream of each; `proxied`:
    the first opens a way out.
    """

    folders: Folders
    names: Mapping[int, str]
    proxied: bool = False
    _before: dict[str, Stamp] = field(default_factory=dict)
    _size: int = 0
    _port: int = 0
    _packing: archive.Pipe | None = None
    _next: int = FIRST
    _survey: ChangeScan | None = None

    async def run(self, carrier: Transport, name: str, first: float = SILENT_SECONDS) -> None:
        """Serve the host of a workspace until it is gone, or was not heard within `first`
        seconds.
        """
        listening = {
            stream: await asyncio.to_thread(_listen, self.folders.links / name)
            for stream, name in self.names.items()
        }
        trunk = Multiplexer(carrier, f"{name}-out", f"{name}-in")
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for waiting in listening.values():
                stack.enter_context(waiting)
            carrying = group.create_task(trunk.run(first), name="trunk")
            serving = group.create_task(self._serve(trunk, listening), name="serving")
            await carrying
            serving.cancel()

    async def _serve(self, trunk: Multiplexer, listening: Mapping[int, socket.socket]) -> None:
        """Let the containers in and answer the host, once it was heard."""
        await trunk.connected.wait()
        try:
            control = await trunk.open(CONTROL)
            files, held = await asyncio.open_connection(sock=await trunk.open(FILES))
            try:
                async with asyncio.TaskGroup() as group:
                    for stream, where in listening.items():
                        group.create_task(
                            self._join(trunk, stream, where), name=f"container {stream}"
                        )
                    group.create_task(self._answer(control, files), name="control")
            finally:
                held.transport.abort()
        except* ConnectionError:
            pass  # it was gone again at once

    async def _join(self, trunk: Multiplexer, stream: int, listening: socket.socket) -> None:
        """Let the container in, once: whoever connects later finds nothing there."""
        loop = asyncio.get_running_loop()
        taken, _ = await loop.sock_accept(listening)
        await asyncio.to_thread(os.unlink, listening.getsockname())
        listening.close()
        ways = []
        if self.proxied and stream == HANDS:
            opened = await listener(taken)
            self._port = opened.getsockname()[1]
            ways.append(
                await asyncio.start_server(lambda *streams: self._out(trunk, streams), sock=opened)
            )
        await trunk.join(stream, await asyncio.open_connection(sock=taken))
        try:
            await asyncio.Event().wait()
        finally:
            for way in ways:
                way.close()

    async def _out(
        self, trunk: Multiplexer, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self._next += 1
        with contextlib.suppress(ConnectionError):
            await trunk.join(self._next, streams)

    async def _answer(self, control: socket.socket, files: asyncio.StreamReader) -> None:
        """Answer the host's requests, one after the other; trees come by `files`."""
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
            return  # the host hears that its control has ended
        finally:
            writer.transport.abort()

    async def _answer_to(
        self, request: dict[str, Any], files: asyncio.StreamReader
    ) -> dict[str, Any]:
        try:
            return await (
                self._unpack(request, files)
                if request["op"] == "unpack"
                else asyncio.to_thread(self._do, request)
            )
        except PatchRefused as error:
            return {"status": "refused", "error": error.message}
        except (MoothallError, OSError) as error:
            return {"status": "error", "error": str(error)}

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "begin":
                self._before = stamps(self.folders.tree)
                self._size, _ = measure(self.folders.tree, sys.maxsize, sys.maxsize)
                return {"status": "success"}
            case "measure":
                size, entries = measure(
                    self.folders.tree,
                    int(request["most"]) + self._size,
                    len(self._before) + _ENTRIES,
                )
                return {
                    "status": "success",
                    "full": size > int(request["most"]) + self._size
                    or entries > len(self._before) + _ENTRIES,
                }
            case "changes":
                files, caps = [*map(unpack_path, request["files"])], ChangeCaps(*request["caps"])
                self._survey = ChangeScan(self.folders.tree, files, caps, stamps=self._before)
                return self._look(self._survey)
            case "ignored" if self._survey is not None:
                self._survey.apply_ignore_rules(
                    {unpack_path(path): str(rule) for path, rule in request["rules"].items()}
                )
                return self._look(self._survey)
            case "port":
                return {"status": "success", "port": self._port}
            case "pack":
                return self._pack(str(request["where"]))
        raise WorkspaceFailed(f"the link knows no {str(request['op'])[:80]!r}")

    async def _unpack(self, request: dict[str, Any], files: asyncio.StreamReader) -> dict[str, Any]:
        """Take the next tree that is sent."""
        unpack = functools.partial(
            archive.unpack, root=self.folders.of(str(request["where"])), most=int(request["most"])
        )
        async with archive.piped(unpack, reads=True) as pipe:
            await archive.receive(pipe, files)
        return {"status": "success"}

    def _pack(self, where: str) -> dict[str, Any]:
        """Give a piece of a tree, of the checkout what was written only; an empty one is its
        end.
        """
        if self._packing is None:
            root = self.folders.of(where)
            keep = self._is_written if where == "tree" else archive.everything
            self._packing = archive.Pipe(
                lambda target: archive.pack(root, target, keep), reads=False
            )
        piece = self._packing.read(_PIECE)
        if not piece:
            pipe, self._packing = self._packing, None
            pipe.finish()
        return {"status": "success", "data": base64.b64encode(piece).decode()}

    def _is_written(self, path: str, status: os.stat_result) -> bool:
        return self._before.get(path) != stamp(status)

    def _look(self, survey: ChangeScan) -> dict[str, Any]:
        """Ask which new paths are ignored, or tell what was written."""
        if (new := survey.list_new_paths()) is not None:
            lists = {pack_path(path): _text(text) for path, text in new.lists.items()}
            folders, files = ([*map(pack_path, paths)] for paths in (new.folders, new.files))
            return {
                "status": "success",
                "new": {"folders": folders, "files": files, "lists": lists},
            }
        self._survey = None
        written = survey.read()
        changes = [
            {"path": pack_path(one.path), "mode": one.mode, "content": _text(one.content)}
            for one in written.changes
        ]
        return {
            "status": "success",
            "changes": changes,
            "ignored": [*map(pack_path, written.ignored)],
        }


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _listen(folder: Path) -> socket.socket:
    folder.mkdir(exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "link.sock"))
    listening.listen(1)
    listening.setblocking(False)
    return listening
