"""Three ways to an MCP server, each a transport of the official SDK: a sandbox of its own, among a
workspace's files, streamable HTTP.

The first may last as long as a workspace of one tenant, the others for one call, so that nothing of
one tenant's is met by another's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from moothall.config import SandboxSettings
from moothall.errors import CallFailed
from moothall.network.destinations import Destinations
from moothall.network.proxy import proxying
from moothall.ports import Workspace
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter, interpreter_binds
from moothall.sandbox.spawn import Sandboxed, spawn
from moothall.toolkits.mcp.settings import McpServerSettings

for _name in (
    "mcp.client",
    "mcp.shared",
):  # what a server sent is nothing for the operator's terminal
    logging.getLogger(_name).setLevel(logging.CRITICAL)

Coming = MemoryObjectSendStream[SessionMessage | Exception]
Going = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[Any, Any]
"""What the SDK reads from and writes to."""

_BECOME = (
    "import os, resource, sys; fd, most = map(int, sys.argv[1:3]); os.dup2(fd, 0); os.dup2(fd, 1); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); os.execvp(sys.argv[3], sys.argv[3:])"
)
_LEAVING, _CONNECT = 5.0, 10.0


class LinkEnd:
    """Why a link ended, where that was not asked of it, and how many bytes a server in a sandbox
    may still send before it is ended, of `most`.
    """

    def __init__(self) -> None:
        self.why = ""
        self.left = self.most = 0
        self.over = asyncio.Event()

    def because(self, why: str) -> None:
        """It has ended, or is to. The first reason counts."""
        self.why = self.why or why
        self.over.set()


def _read(line: str | bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        return ValueError("it sent a line that is no message of the protocol")


def _text(message: SessionMessage) -> str:
    return message.message.model_dump_json(by_alias=True, exclude_unset=True)


@asynccontextmanager
async def in_sandbox(
    server: McpServerSettings, sandbox: SandboxSettings, most: int, ended: LinkEnd
) -> AsyncIterator[Streams]:
    """Run it in a sandbox of its own, which has no network and no files but the system's."""
    ended.left = ended.most = most
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            inside = await spawn(_spec(server, sandbox, theirs.fileno()))
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours.dup(), limit=most)
            try:
                async with (
                    _streams() as (streams, coming, going),
                    anyio.create_task_group() as group,
                ):
                    group.start_soon(_listen, reader, coming, inside, ended)
                    group.start_soon(_speak, going, writer)
                    yield streams
                    group.cancel_scope.cancel()
            finally:
                writer.transport.abort()
        finally:
            await inside.close()


async def _listen(
    reader: asyncio.StreamReader, coming: Coming, inside: Sandboxed, ended: LinkEnd
) -> None:
    flooded = f"it sent more than {ended.most} bytes (mcp.receive_bytes)"
    async with coming:
        try:
            while line := await reader.readline():
                ended.left -= len(line)
                if ended.left < 0:
                    ended.because(flooded)
                    return
                await coming.send(_read(line))
        except ValueError:  # one line is longer than all may be
            ended.because(flooded)
            return
        except OSError:
            pass
        ended.because(f"it ended: {inside.log_tail()[-500:] or 'it said nothing'}")


async def _speak(going: Going, writer: asyncio.StreamWriter) -> None:
    async with going:
        async for message in going:
            try:
                writer.write(f"{_text(message)}\n".encode())
                await writer.drain()
            except OSError:
                return  # it has ended, as is heard where it is listened to


def _spec(server: McpServerSettings, sandbox: SandboxSettings, descriptor: int) -> SandboxSpec:
    folders = sandbox.toolchains
    path = ":".join(
        (*(f"{folder}/bin" for folder in folders), "/usr/local/bin", "/usr/bin", "/bin")
    )
    return SandboxSpec(
        name=f"mcp-{secrets.token_hex(4)}",
        argv=(
            str(interpreter()),
            "-I",
            "-S",
            "-c",
            _BECOME,
            str(descriptor),
            str(sandbox.disk_bytes),
            *server.command,
        ),
        limits=sandbox,
        ro=(*interpreter_binds(), *((folder, str(folder)) for folder in folders)),
        env={"HOME": "/tmp", "PATH": path, "LANG": "C.UTF-8", **server.named_credentials()},  # noqa: S108 - inside
        fds=(descriptor,),
    )


@asynccontextmanager
async def in_workspace(
    server: McpServerSettings,
    workspace: Workspace,
    seconds: float,
    most: int,
    ended: LinkEnd,
    *,
    keeps: bool,
) -> AsyncIterator[Streams]:
    """Run it where the workspace's own commands run, among its files. It hears what the client says
    when it has said what it was asked.
    """
    async with _streams() as (streams, coming, going), anyio.create_task_group() as group:
        hearing = _Hearing(coming, going, most, ended)

        over = anyio.Event()

        async def run() -> None:
            try:
                async with coming, going:
                    why = await workspace.converse(
                        server.command, hearing, seconds=seconds, most=most, keeps=keeps
                    )
                    ended.because(why)
            finally:
                over.set()

        group.start_soon(run)
        yield streams
        await streams[
            1
            # nothing comes any more: the program is told to end, and has its files written when it
            # has
        ].aclose()
        with anyio.move_on_after(_LEAVING):
            await over.wait()
        group.cancel_scope.cancel()


class _Hearing:
    """Hands lines over, and collects those that go back. See `ports.Hear`."""

    def __init__(self, coming: Coming, going: Going, most: int, ended: LinkEnd) -> None:
        self._coming, self._going, self._most, self._left, self._ended = (
            coming,
            going,
            most,
            most,
            ended,
        )
        self._asked: set[Any] = set()  # what the client waits for
        self._owed: set[Any] = set()  # what the program waits for

    async def __call__(self, lines: Sequence[str]) -> Sequence[str] | None:
        try:
            return await self._exchange(lines)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return None

    async def _exchange(self, lines: Sequence[str]) -> Sequence[str] | None:
        for line in lines:
            self._left -= len(line)
            if self._left < 0:
                self._ended.because(f"it sent more than {self._most} bytes (mcp.receive_bytes)")
                await self._coming.aclose()
                return None
            message = _read(line)
            if isinstance(message, SessionMessage):
                one = message.message
                (self._owed.add if isinstance(one, JSONRPCRequest) else self._asked.discard)(
                    getattr(one, "id", None)
                )
            await self._coming.send(message)
        going: list[str] = []
        while not self._asked or self._owed:
            message = await self._going.receive()
            one = message.message
            (self._asked.add if isinstance(one, JSONRPCRequest) else self._owed.discard)(
                getattr(one, "id", None)
            )
            going.append(_text(message))
        return going


@asynccontextmanager
async def _streams() -> AsyncIterator[tuple[Streams, Coming, Going]]:
    coming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, going = anyio.create_memory_object_stream[SessionMessage](0)
    async with coming, read, write, going:
        yield (read, write), coming, going


@asynccontextmanager
async def over_http(
    server: McpServerSettings, destinations: Destinations, most: int, ended: LinkEnd
) -> AsyncIterator[Streams]:
    """Speak to it through a proxy that connects to the one address that was judged. Raises
    `InvalidRequest`, `Refused`.
    """
    address = (await destinations.pin(server.url)).split(":", 2)[2].strip("[]")
    only = Destinations(
        networks=(ipaddress.ip_network(address),), only=True, setting=destinations.setting
    )
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    async with (
        proxying(only, listening, most) as proxy,
        httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **server.named_credentials()},
            proxy=f"http://127.0.0.1:{listening.getsockname()[1]}",
            trust_env=False,
            timeout=httpx2.Timeout(None, connect=_CONNECT),
            event_hooks={"response": [_check_encoding]},
        ) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=most) as streams,
    ):
        try:
            yield streams
        finally:
            if proxy.left < 0:
                ended.because(f"it sent more than {most} bytes (mcp.receive_bytes)")


async def _check_encoding(response: httpx2.Response) -> None:
    """A few packed bytes may unpack to any number."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise CallFailed("it answered in a content encoding that was not asked for")
