"""The trusted side's end of an executor's socket: requests out, answers in, by id."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from moothall.errors import WorkspaceFailed
from moothall.sandbox_runtime.protocol import FrameReader, ProtocolError, pack

READY = 0
# messages that nobody waits for any more, for each request: one that was given up asks, and then
# ends
_STRAYS = 4


class ExecutorConnection(asyncio.Protocol):
    """One connection. Answers that nobody waits for any more are dropped."""

    def __init__(self) -> None:
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last = READY
        self._strays = 0
        self._gone = ""
        self.ready: asyncio.Future[dict[str, Any]] = self._expect(READY)

    @classmethod
    async def over(cls, end: socket.socket) -> ExecutorConnection:
        """Take over one end of a socket pair."""
        _, link = await asyncio.get_running_loop().create_unix_connection(cls, sock=end)
        return link

    def ask(self, message: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request; return its id and the future of its answer (`WorkspaceFailed` once the
        link is gone).
        """
        if self._gone or self._transport is None:
            raise WorkspaceFailed(self._gone or "the executor is not connected")
        self._last += 1
        answer = self._expect(self._last)
        try:
            self._transport.write(pack({**message, "id": self._last}))
        except ProtocolError as error:
            del self._asked[self._last]
            raise WorkspaceFailed(f"the request cannot be sent: {error}") from error
        return self._last, answer

    def more(self, request: int) -> asyncio.Future[dict[str, Any]]:
        """Return the future of what a request that runs says next."""
        if self._gone:
            raise WorkspaceFailed(self._gone)
        return self._expect(request)

    def reply(self, request: int, message: dict[str, Any]) -> None:
        """Answer what a request that runs asked us."""
        if self._gone or self._transport is None:
            raise WorkspaceFailed(self._gone or "the executor is not connected")
        try:
            self._transport.write(pack({"op": "answer", **message, "id": request}))
        except ProtocolError as error:
            raise WorkspaceFailed(f"the answer cannot be sent: {error}") from error

    def stop(self, request: int, reason: str) -> None:
        """Ask for the end of a request that runs; its answer will have `reason` as its status."""
        if self._transport and not self._gone:
            self._transport.write(pack({"op": "stop", "id": request, "reason": reason}))

    def close(self) -> None:
        """Close the socket: the executor ends."""
        self._fail("the workspace is closed")
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are no subclass, so this cannot be asserted.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that are complete."""
        try:
            messages = self._frames.feed(data)
        except ProtocolError as error:
            self._break(str(error))
            return
        for message in messages:
            number = message.get("id")
            answer = self._asked.pop(number, None) if isinstance(number, int) else None
            if answer and not answer.done():
                answer.set_result(message)
            else:
                self._strays += 1
        if self._strays > _STRAYS * (self._last + 1):
            self._break("it says what nobody asked")

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all who wait."""
        self._fail(f"the executor is gone{f' ({exc})' if exc else ''}")

    def _expect(self, number: int) -> asyncio.Future[dict[str, Any]]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        return answer

    def _break(self, why: str) -> None:
        self._fail(f"the executor broke its protocol: {why}")
        if self._transport:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        self._gone = self._gone or why
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(WorkspaceFailed(self._gone))
                answer.exception()  # heard: who gave up waiting must not be warned of it
        self._asked.clear()
