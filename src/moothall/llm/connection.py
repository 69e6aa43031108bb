"""One connection to a model server, in HTTP/1.1: a request goes out, and what comes back is handed
to its taker as it arrives.

httptools reads the bytes. An answer has one timer, and its taker belongs to one call: the next call
may have the connection before the coroutine of this one runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httptools

from moothall.llm.response_readers import WholeResponseReader
from moothall.llm.retry import Failed

_AROUND_BYTES = 65_536
_AROUND_SHARE = 64
"""So much may be around a body: head, sizes of chunks, trailers; and so many times the body, for
chunks of a byte.
"""
_REST_SECONDS = 1.0
_INFORMATIONAL = 200


class Connection(asyncio.Protocol):
    """A connection that is kept. `release` is called when it is free for the next request, and
    `closed` says that it never will be.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, release: Callable[[Connection], None]
    ) -> None:
        self.closed = False
        self.free_since = 0.0
        self._loop = loop
        self._release = release
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._taker: WholeResponseReader | None = None
        self._answer: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = self._idle = self._heard = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._status = self._received = self._body = 0
        self._watched = False

    async def ask(
        self, request: bytes, taker: WholeResponseReader, *, until: float, idle: float
    ) -> None:
        """Send a request, and return when `taker` has its answer. `until` is a time of the loop,
        `idle` the most seconds between two pieces of a body.

        Raises `Failed`, `TimeoutError` at `until`, and what the taker raises. Where this is
        cancelled the connection closes.
        """
        if self.closed or self._transport is None:
            raise Failed("Server disconnected", at_once=True)
        answer = self._answer = self._loop.create_future()
        self._taker, self._until, self._idle = taker, until, idle
        self._status = self._received = self._body = 0
        self._headers, self._watched = {}, False
        self._timer = self._loop.call_at(until, self._look)
        self._transport.write(request)
        try:
            await answer
        except BaseException:
            if self._answer is answer:
                self.close()
            raise

    def close(self) -> None:
        """End it at once."""
        self.closed = True
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's own transports are no subclass

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Failed(f"what arrived is not HTTP: {error}"))
            return
        if self._answer is None:
            if self._received:
                self.close()
        elif self._received - self._body > _AROUND_BYTES + _AROUND_SHARE * self._body:
            self._fail(Failed(f"more than {_AROUND_BYTES} bytes of headers"))
        elif self._heard and not self._watched and self._timer is not None:
            self._watched = True
            self._timer.cancel()
            self._timer = self._loop.call_at(min(self._until, self._heard + self._idle), self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits; a body without a length ends here."""
        self.closed = True
        self._transport = None
        if not self._status:
            self._fail(
                Failed(
                    f"Server disconnected: {exc}" if exc else "Server disconnected", at_once=True
                )
            )
        elif exc is None and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.on_message_complete()
        else:
            self._fail(
                Failed(
                    f"Payload not completed: the connection was closed after {self._body} bytes of "
                    "it"
                )
            )

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for: the next call must not take it for its own."""
        if self._answer is None:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of an answer, or of the end of a body, where nobody needs it."""
        if not self._status:
            self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """Hand over the head."""
        status = self._parser.get_status_code()
        if status < _INFORMATIONAL:  # another follows
            self._headers = {}
            return
        self._status, self._heard = status, 0.0
        if self._taker is not None:
            try:
                self._taker.head(status, self._headers)
            except Exception as error:  # noqa: BLE001 - whoever waits hears it
                self._fail(error)

    def on_body(self, data: bytes) -> None:
        """Hand over a piece of the body."""
        self._heard = self._loop.time()
        self._body += len(data)
        if self._taker is None:
            return
        try:
            enough = self._taker.piece(data)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        if enough and self._timer is not None:
            # The rest is its end; where that does not come the connection is of no use.
            self._taker = None
            self._timer.cancel()
            self._timer = self._loop.call_later(_REST_SECONDS, self.close)
            self._watched = True
            _resolve(self._answer, None)

    def on_message_complete(self) -> None:
        """Be free for the next request, then tell whoever waits: its taker has all it needs."""
        if self._answer is None or not self._status:
            return
        error: Exception | None = None
        if self._taker is not None:
            try:
                self._taker.end()
            except Exception as found:  # noqa: BLE001 - as above
                error = found
        answer = self._forget()
        if self._transport is None or not self._parser.should_keep_alive():
            self.close()
        else:
            self.free_since = self._loop.time()
            self._received = 0
            self._release(self)
        _resolve(answer, error)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._until:
            self._fail(TimeoutError())
        elif self._watched and now >= self._heard + self._idle:
            self._fail(Failed(f"silence for {self._idle:g} s in the middle of an answer"))
        else:
            due = min(self._until, self._heard + self._idle) if self._watched else self._until
            self._timer = self._loop.call_at(due, self._look)

    def _fail(self, error: Exception) -> None:
        answer = self._forget()
        self.close()
        _resolve(answer, error)

    def _forget(self) -> asyncio.Future[None] | None:
        if self._timer is not None:
            self._timer.cancel()
        answer, self._answer, self._taker, self._timer = self._answer, None, None, None
        return answer


def _resolve(answer: asyncio.Future[None] | None, error: Exception | None) -> None:
    if answer is None or answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
