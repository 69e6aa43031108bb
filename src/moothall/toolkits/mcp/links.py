"""Links to MCP servers with the official SDK, each a transport: a program in a sandbox of its own,
a program in a workspace, and streamable HTTP; and the servers that run for a workspace between
calls.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from time import monotonic
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from moothall.config import SandboxSettings
from moothall.domain.text import encodable, one_line
from moothall.errors import CallFailed, MoothallError
from moothall.network.destinations import Destinations
from moothall.network.proxy import run_proxy
from moothall.ports import Workspace
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter, interpreter_binds
from moothall.sandbox.spawn import Sandboxed, spawn
from moothall.toolkits.calls import ToolOutput
from moothall.toolkits.mcp import McpServerSettings
from moothall.toolkits.mcp.spec import OfferedTool

# Three links to an MCP server, each a transport of the official SDK: a program in a sandbox of its
# own, a program in a workspace, and streamable HTTP.
#
# The first may last as long as a workspace of one tenant. The others last for one call, so that
# tenants do not share state.


for _name in (
    "mcp.client",
    "mcp.shared",
):  # messages of a server do not belong on the operator's terminal
    logging.getLogger(_name).setLevel(logging.CRITICAL)

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[Any, Any]
"""The streams that the SDK reads and writes."""

_EXEC_ON_SOCKET = (
    "import os, resource, sys; fd, most = map(int, sys.argv[1:3]); os.dup2(fd, 0); os.dup2(fd, 1); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); os.execvp(sys.argv[3], sys.argv[3:])"
)
_END_SECONDS, _CONNECT_SECONDS = 5.0, 10.0


class LinkEnd:
    """The end of a link: its reason if it was unexpected, and how many of `max_bytes` a server in a
    sandbox may still send.
    """

    def __init__(self) -> None:
        self.end_reason = ""
        self.bytes_left = self.max_bytes = 0
        self.ended = asyncio.Event()

    def record_end(self, reason: str) -> None:
        """Record that the link has ended or must end. Only the first reason counts."""
        self.end_reason = self.end_reason or reason
        self.ended.set()


def _read_message(line: str | bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        return ValueError("it sent a line that is not a message of the protocol")


def _text(message: SessionMessage) -> str:
    return message.message.model_dump_json(by_alias=True, exclude_unset=True)


@asynccontextmanager
async def sandbox_link(
    server: McpServerSettings, sandbox: SandboxSettings, max_bytes: int, link_end: LinkEnd
) -> AsyncIterator[Streams]:
    """Run the server in a sandbox of its own, without network and files."""
    link_end.bytes_left = link_end.max_bytes = max_bytes
    local, remote = socket.socketpair()
    with local:
        with remote:
            sandboxed = await spawn(_spec(server, sandbox, remote.fileno()))
        try:
            reader, writer = await asyncio.open_unix_connection(sock=local.dup(), limit=max_bytes)
            try:
                async with (
                    _streams() as (streams, incoming, outgoing),
                    anyio.create_task_group() as group,
                ):
                    group.start_soon(_receive_messages, reader, incoming, sandboxed, link_end)
                    group.start_soon(_send_messages, outgoing, writer)
                    yield streams
                    group.cancel_scope.cancel()
            finally:
                writer.transport.abort()
        finally:
            await sandboxed.close()


async def _receive_messages(
    reader: asyncio.StreamReader, incoming: Incoming, sandboxed: Sandboxed, link_end: LinkEnd
) -> None:
    too_many_bytes = f"it sent more than {link_end.max_bytes} bytes"
    async with incoming:
        try:
            while line := await reader.readline():
                link_end.bytes_left -= len(line)
                if link_end.bytes_left < 0:
                    link_end.record_end(too_many_bytes)
                    return
                await incoming.send(_read_message(line))
        except ValueError:  # a single line exceeds the limit of all lines together
            link_end.record_end(too_many_bytes)
            return
        except OSError:
            pass
        link_end.record_end(f"it ended: {sandboxed.log_tail()[-500:] or 'it logged nothing'}")


async def _send_messages(outgoing: Outgoing, writer: asyncio.StreamWriter) -> None:
    async with outgoing:
        async for message in outgoing:
            try:
                writer.write(f"{_text(message)}\n".encode())
                await writer.drain()
            except OSError:
                return  # it has ended, which the receiving task reports


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
            _EXEC_ON_SOCKET,
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
async def workspace_link(
    server: McpServerSettings,
    workspace: Workspace,
    seconds: float,
    max_bytes: int,
    link_end: LinkEnd,
    *,
    keep_changes: bool,
) -> AsyncIterator[Streams]:
    """Run the server in the workspace's sandbox, with access to its files. Messages to it are
    delivered when its own pending requests are answered.
    """
    async with _streams() as (streams, incoming, outgoing), anyio.create_task_group() as group:
        exchange = _LineExchange(incoming, outgoing, max_bytes, link_end)

        ended = anyio.Event()

        async def run() -> None:
            try:
                async with incoming, outgoing:
                    reason = await workspace.converse(
                        server.command,
                        exchange,
                        seconds=seconds,
                        max_bytes=max_bytes,
                        keep_changes=keep_changes,
                    )
                    link_end.record_end(reason)
            finally:
                ended.set()

        group.start_soon(run)
        yield streams
        # No message follows: the program is asked to end, and its changes are stored after that.
        await streams[1].aclose()
        with anyio.move_on_after(_END_SECONDS):
            await ended.wait()
        group.cancel_scope.cancel()


class _LineExchange:
    """Passes lines to the client, and collects those for the program. See `ports.HandleLines`."""

    def __init__(
        self, incoming: Incoming, outgoing: Outgoing, max_bytes: int, link_end: LinkEnd
    ) -> None:
        self._incoming, self._outgoing, self._max_bytes, self._bytes_left, self._link_end = (
            incoming,
            outgoing,
            max_bytes,
            max_bytes,
            link_end,
        )
        self._awaited_by_client: set[Any] = set()
        """Ids of requests whose answers the client waits for."""
        self._awaited_by_program: set[Any] = set()
        """Ids of requests whose answers the program waits for."""

    async def __call__(self, lines: Sequence[str]) -> Sequence[str] | None:
        try:
            return await self._exchange(lines)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return None

    async def _exchange(self, lines: Sequence[str]) -> Sequence[str] | None:
        for line in lines:
            self._bytes_left -= len(line)
            if self._bytes_left < 0:
                self._link_end.record_end(f"it sent more than {self._max_bytes} bytes")
                await self._incoming.aclose()
                return None
            message = _read_message(line)
            if isinstance(message, SessionMessage):
                content = message.message
                (
                    self._awaited_by_program.add
                    if isinstance(content, JSONRPCRequest)
                    else self._awaited_by_client.discard
                )(getattr(content, "id", None))
            await self._incoming.send(message)
        outgoing: list[str] = []
        while not self._awaited_by_client or self._awaited_by_program:
            message = await self._outgoing.receive()
            content = message.message
            (
                self._awaited_by_client.add
                if isinstance(content, JSONRPCRequest)
                else self._awaited_by_program.discard
            )(getattr(content, "id", None))
            outgoing.append(_text(message))
        return outgoing


@asynccontextmanager
async def _streams() -> AsyncIterator[tuple[Streams, Incoming, Outgoing]]:
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    async with incoming, read, write, outgoing:
        yield (read, write), incoming, outgoing


@asynccontextmanager
async def http_link(
    server: McpServerSettings, destinations: Destinations, max_bytes: int, link_end: LinkEnd
) -> AsyncIterator[Streams]:
    """Connect to the server through a proxy that connects only to the address that was checked.
    Raises `InvalidRequest`, `Refused`.
    """
    address = (await destinations.pin(server.url)).split(":", 2)[2].strip("[]")
    pinned = Destinations(
        networks=(ipaddress.ip_network(address),), only=True, setting=destinations.setting
    )
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    async with (
        run_proxy(pinned, listening, max_bytes) as proxy,
        httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **server.named_credentials()},
            proxy=f"http://127.0.0.1:{listening.getsockname()[1]}",
            trust_env=False,
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
            event_hooks={"response": [_check_encoding]},
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=max_bytes
        ) as streams,
    ):
        try:
            yield streams
        finally:
            if proxy.bytes_left < 0:
                link_end.record_end(f"it sent more than {max_bytes} bytes")


async def _check_encoding(response: httpx2.Response) -> None:
    """Raise `CallFailed` for a compressed response: a few bytes may expand to any number."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise CallFailed("it answered in a content encoding that was not requested")


# A client of an MCP server with the official SDK. Errors are translated, and the server's texts are
# cleaned.


_PAGES = 20
_TEXT_CHARS = 200_000
_DEPTH = 20
_REASON_CHARS = 600

Link = Callable[[LinkEnd], AbstractAsyncContextManager[Streams]]


@asynccontextmanager
async def connect(
    name: str, link: Link, seconds: float, link_end: LinkEnd
) -> AsyncIterator[Client]:
    """Connect to a server. `seconds` is the time limit of each answer. Raises what
    `translated_errors` raises.
    """
    with translated_errors(name, link_end):
        async with Client(link(link_end), read_timeout_seconds=seconds, cache=None) as client:
            yield client


@contextmanager
def translated_errors(name: str, link_end: LinkEnd) -> Iterator[None]:
    """Translate any exception of the SDK into `CallFailed` with the reason. Our own errors are
    raised unchanged.
    """
    try:
        yield
    except MoothallError:
        raise
    except Exception as error:
        raise _as_error(name, link_end.end_reason, tuple(_innermost_errors(error))) from error


def _innermost_errors(error: Exception) -> Iterator[Exception]:
    """Yield the innermost exceptions of an exception or a group."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _innermost_errors(inner)
    else:
        yield error


def _as_error(name: str, reason: str, errors: Sequence[Exception]) -> MoothallError:
    """Translate exceptions of the MCP SDK or its transport into an error."""
    for error in errors:
        if isinstance(error, MoothallError):
            return error
    answer = next(
        (f"it answered: {error.args[1]}" for error in errors if isinstance(error, MCPError)), ""
    )
    description = (
        reason or answer or f"its answer does not follow the protocol ({type(errors[0]).__name__})"
    )
    return CallFailed(f"the MCP server {name}: {one_line(description, _REASON_CHARS)}")


async def list_tools(client: Client) -> tuple[OfferedTool, ...]:
    """Return all tools that a server offers. Raises `CallFailed` if the list does not end."""
    tools: list[OfferedTool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [
            OfferedTool(
                encodable(tool.name),
                encodable(tool.description or tool.title or ""),
                tool.input_schema,
            )
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise CallFailed(f"the list of its tools has more than {_PAGES} pages")


async def call_tool(client: Client, tool: str, arguments: Mapping[str, Any]) -> ToolOutput:
    """Call a tool and return its output. Raises `CallFailed` if the tool reports a failure.

    The SDK's own method is not used, because it validates answers by patterns of the server, whose
    matching may take forever.
    """
    request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
    result = await client.session.send_request(request, CallToolResult)
    texts, skipped_types = [], []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            texts.append(block.resource.text)
        else:
            skipped_types.append(block.type)
    text = remove_invisible("\n".join(texts)[:_TEXT_CHARS])
    if result.is_error:
        raise CallFailed(text or "it failed without a message")
    return {"text": text, "data": _clean(result.structured_content), "left_out": skipped_types[:20]}


def remove_invisible(text: str) -> str:
    """Return a text without invisible characters, such as those that change its direction. Line
    breaks are kept.
    """
    return "".join(
        character for character in text if character.isprintable() or character in "\n\t"
    )


def _clean(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH:
        return None
    if isinstance(value, str):
        return remove_invisible(value)
    if isinstance(value, Mapping):
        return {remove_invisible(str(key)): _clean(item, depth + 1) for key, item in value.items()}
    return [_clean(item, depth + 1) for item in value] if isinstance(value, list) else value


# Persistent MCP servers: each runs for a workspace between calls, so that its state, such as a
# login, is available to the next call.
#
# Each connection has a task of its own, because it must end in the task in which it began. A server
# that has ended stays registered until the next call fails with the reason. Its state is lost, and
# a call that silently got a new server might do something unintended.


Key = tuple[str, str, str]
"""Tenant, workspace, server."""


class LiveServer:
    """A persistent server. `call_lock` is held by the call that it works for."""

    def __init__(self, name: str, link: Link, seconds: float, keep_seconds: float) -> None:
        self.link_end, self.call_lock, self.last_used = LinkEnd(), asyncio.Lock(), monotonic()
        self._name, self._seconds, self._keep_seconds = name, seconds, keep_seconds
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._keep_connected(link), name=f"mcp server {name}")

    def end(self, reason: str) -> None:
        """End the server. The reason is reported to its next call, unless it ended by itself."""
        self.link_end.record_end(reason)
        if not self.client.done():  # it is connecting, which would have to finish first
            self.task.cancel()

    def has_ended(self) -> bool:
        """Return whether it has ended or is ending."""
        return self.link_end.ended.is_set()

    async def _keep_connected(self, link: Link) -> None:
        try:
            async with connect(self._name, link, self._seconds, self.link_end) as client:
                self.client.set_result(client)
                await self._wait_unused()
        except MoothallError as error:
            self._fail(error)
        finally:
            self._fail(
                CallFailed(
                    f"the MCP server {self._name}: {self.link_end.end_reason or 'it was ended'}"
                )
            )
            self.end("it was ended")

    def _fail(self, error: MoothallError) -> None:
        if not self.client.done():
            self.client.set_exception(error)
            self.client.exception()  # retrieved, because perhaps nobody waits for it

    async def _wait_unused(self) -> None:
        """Return when it is ended, has ended by itself, or was unused for long enough."""
        while (
            remaining := self.last_used + self._keep_seconds - monotonic()
        ) > 0 or self.call_lock.locked():
            try:
                await asyncio.wait_for(self.link_end.ended.wait(), max(remaining, 1.0))
            except TimeoutError:
                continue
            return
        self.end(f"nobody called it for {self._keep_seconds:g} s (keep_seconds)")


class ServerPool:
    """The servers of a process, at most `max_servers`. If there are too many, the least recently
    used one ends.
    """

    def __init__(self, max_servers: int, slots: asyncio.Semaphore) -> None:
        self._max_servers, self._slots = max_servers, slots
        self._servers: dict[Key, LiveServer] = {}
        self._ending: dict[asyncio.Task[None], str] = {}
        """Servers that are no longer registered but have not ended: task → workspace."""

    @asynccontextmanager
    async def call(self, key: Key, start: Callable[[], LiveServer]) -> AsyncIterator[Client]:
        """Yield a server for one call. Raises `CallFailed` if it ended since the last call, or ends
        now; the next call starts another one.
        """
        server = self._servers.get(key) or self._start(key, start)
        async with server.call_lock, self._slots:
            if server.has_ended():
                self._forget(key, server)
                raise CallFailed(
                    f"the MCP server {key[2]} has ended since its last call: "
                    f"{server.link_end.end_reason}; "
                    "its state is lost, and the next call restarts it"
                )
            try:
                server.link_end.bytes_left = server.link_end.max_bytes
                with translated_errors(key[2], server.link_end):
                    yield await asyncio.shield(server.client)
            except asyncio.CancelledError:  # it may never answer, so later calls must not wait
                server.end("its last call took too long")
                self._forget(key, server)
                raise
            except MoothallError:  # the error is reported to this call
                if server.has_ended():
                    self._forget(key, server)
                raise
            finally:
                server.last_used = monotonic()

    async def close_workspace(self, workspace: str) -> None:
        """End the servers of a workspace that ends."""
        await self._end_links(
            [key for key in self._servers if key[1] == workspace],
            "its workspace has ended",
            workspace,
        )

    async def close(self) -> None:
        """End all servers."""
        await self._end_links(list(self._servers), "the server closes")

    async def _end_links(self, keys: list[Key], reason: str, workspace: str = "") -> None:
        for key in keys:
            self._forget(key, self._servers[key], reason)
        if ending := [task for task, owner in self._ending.items() if workspace in {"", owner}]:
            await asyncio.wait(ending)

    def _start(self, key: Key, start: Callable[[], LiveServer]) -> LiveServer:
        running = [server for server in self._servers.values() if not server.has_ended()]
        if len(running) >= self._max_servers:
            idle = [server for server in running if not server.call_lock.locked()]
            if not idle:
                raise CallFailed(
                    f"all {self._max_servers} MCP servers are busy; try again when one of them "
                    "is idle"
                )
            min(idle, key=lambda server: server.last_used).end(
                f"it was replaced by another one, because {self._max_servers} of them run"
            )
        return self._servers.setdefault(key, start())

    def _forget(self, key: Key, server: LiveServer, reason: str = "it was ended") -> None:
        if self._servers.get(key) is server:
            del self._servers[key]
            server.end(reason)
            self._ending[server.task] = key[1]
            server.task.add_done_callback(lambda task: self._ending.pop(task, None))
