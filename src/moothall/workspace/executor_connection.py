"""The trusted side's end of an executor's socket: sends requests and matches answers by id."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from moothall.errors import WorkspaceFailed
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack

READY = 0
# Unexpected messages that are allowed for each request: an abandoned one may ask a question and
# then end.
_STRAYS = 4


class ExecutorConnection(asyncio.Protocol):
    """A connection. Answers that nobody waits for are dropped."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = READY
        self._strays = 0
        self._close_reason = ""
        self.ready: asyncio.Future[dict[str, Any]] = self._expect(READY)

    @classmethod
    async def create(cls, end: socket.socket) -> ExecutorConnection:
        """Create a connection over one end of a socket pair."""
        _, link = await asyncio.get_running_loop().create_unix_connection(cls, sock=end)
        return link

    def send(self, message: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request. Return its id, and the future of its answer, which fails with
        `WorkspaceFailed` if the connection is lost.
        """
        if self._close_reason or self._transport is None:
            raise WorkspaceFailed(self._close_reason or "the executor is not connected")
        self._last_id += 1
        answer = self._expect(self._last_id)
        try:
            self._transport.write(pack({**message, "id": self._last_id}))
        except ProtocolError as error:
            del self._pending[self._last_id]
            raise WorkspaceFailed(f"the request cannot be sent: {error}") from error
        return self._last_id, answer

    def expect_more(self, request: int) -> asyncio.Future[dict[str, Any]]:
        """Return the future of the next message of a running request."""
        if self._close_reason:
            raise WorkspaceFailed(self._close_reason)
        return self._expect(request)

    def reply(self, request: int, message: dict[str, Any]) -> None:
        """Answer a question of a running request."""
        if self._close_reason or self._transport is None:
            raise WorkspaceFailed(self._close_reason or "the executor is not connected")
        try:
            self._transport.write(pack({"op": "answer", **message, "id": request}))
        except ProtocolError as error:
            raise WorkspaceFailed(f"the answer cannot be sent: {error}") from error

    def stop(self, request: int, reason: str) -> None:
        """Stop a running request; its answer then has `reason` as its status."""
        if self._transport and not self._close_reason:
            self._transport.write(pack({"op": "stop", "id": request, "reason": reason}))

    def close(self) -> None:
        """Close the socket, which ends the executor."""
        self._fail("the workspace is closed")
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are no subclass, so this cannot be asserted.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Deliver complete answers."""
        try:
            messages = self._frames.feed(data)
        except ProtocolError as error:
            self._break(str(error))
            return
        for message in messages:
            number = message.get("id")
            answer = self._pending.pop(number, None) if isinstance(number, int) else None
            if answer and not answer.done():
                answer.set_result(message)
            else:
                self._strays += 1
        if self._strays > _STRAYS * (self._last_id + 1):
            self._break("it sends too many messages that answer no request")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending requests."""
        self._fail(f"the executor is gone{f' ({exc})' if exc else ''}")

    def _expect(self, number: int) -> asyncio.Future[dict[str, Any]]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        return answer

    def _break(self, reason: str) -> None:
        self._fail(f"the executor broke its protocol: {reason}")
        if self._transport:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        self._close_reason = self._close_reason or reason
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(WorkspaceFailed(self._close_reason))
                answer.exception()  # retrieved, so that asyncio does not warn about it
        self._pending.clear()
