"""Readers of HTTP responses: one for complete bodies, one for chat replies, streamed or not. No
I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from moothall.domain.text import one_line
from moothall.errors import ModelReplyInvalid
from moothall.llm import retry
from moothall.llm.retry import Failed, Rejected
from moothall.llm.server_errors import ServerError, read_error
from moothall.llm.stream import DONE, EventReader, PartialReply

_FIRST_REFUSAL = 300
_SERVER_ERROR = 500
_FORBIDDEN = 403  # also the status of errors about quotas and bills, which no retry can fix
_ERROR_BYTES = 65_536
_BATCH_BYTES = 65_536
_STREAM_OVERHEAD = 32  # bytes of stream per byte of text: small chunks come in large envelopes
_END = DONE.encode()


_UNSUPPORTED = re.compile(
    r"not (?:be )?support|unsupported|requires --|not implemented|does not support", re.IGNORECASE
)


def _is_unsupported(status: int, error: ServerError) -> bool:
    """Return whether a server error means that the server does not support a part of the request,
    such as llama.cpp's error for tools without --jinja.
    """
    return status == _SERVER_ERROR and bool(_UNSUPPORTED.search(error.text))


class WholeResponseReader:
    """Collects a body of at most `limit` bytes; for a refusal, as much as the error message needs.
    `url` appears in errors.
    """

    def __init__(self, url: str, limit: int) -> None:
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self._url, self._limit = url, limit
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0

    @property
    def body(self) -> bytes:
        """The part of the body that has arrived."""
        return b"".join(self._pieces)

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events."""
        return False

    @property
    def content_type(self) -> str:
        """The content type, without its parameters."""
        return (
            self.header(b"content-type").partition(";")[0].strip().lower()
            or "application/octet-stream"
        )

    def header(self, name: bytes) -> str:
        """Return the header with this lower-case name; '' if it is missing."""
        return self.headers.get(name, b"").decode("utf-8", "replace").strip()

    def start(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Store status and headers. Raises `ModelReplyInvalid`."""
        self.status, self.headers = status, headers
        if encoding := self.header(b"content-encoding").replace("identity", ""):
            # Never requested, and not unpacked: a few kilobytes can expand to gigabytes.
            raise ModelReplyInvalid(
                f"{self._url} answered in the content encoding {one_line(encoding)!r}, which was "
                "not requested"
            )

    def feed(self, data: bytes) -> bool:
        """Add a piece of the body; return whether no more is needed. Raises `ModelReplyInvalid`."""
        self._pieces.append(data)
        self._buffered_bytes += len(data)
        if self.status >= _FIRST_REFUSAL:
            return self._buffered_bytes >= _ERROR_BYTES
        self._check_size(self._buffered_bytes)
        return False

    def finish(self) -> None:
        """Process the end of the body."""

    def raise_refusal(self) -> None:
        """Raise an error unless the status is a success: `Failed` if it may be temporary, else
        `Rejected`.
        """
        if self.status < _FIRST_REFUSAL:
            return
        error = read_error(self.body[:_ERROR_BYTES])
        if (
            retry.is_retried(self.status)
            and not _is_unsupported(self.status, error)
            and error.status != _FORBIDDEN
        ):
            retry_after = retry.read_retry_after(self.header(b"retry-after"), datetime.now(UTC))
            raise Failed(f"HTTP {self.status} {error.message}".rstrip(), retry_after=retry_after)
        if location := self.header(b"location"):
            raise Rejected(self.status, f"redirects to {one_line(location)}")
        raise Rejected(
            self.status, error.message, text=error.text, param=error.param, code=error.code
        )

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise ModelReplyInvalid(
                f"{self._url} sent more than {self._limit} bytes of response; "
                "the call was cancelled"
            )


class ChatResponseReader(WholeResponseReader):
    """Reads a chat response into `reply`. With `on_text` it is read piece by piece. Without, it is
    read in batches, because a piece of a few bytes costs as much as a long one.
    """

    def __init__(
        self,
        url: str,
        limit: int,
        on_text: Callable[[str], None] | None,
        reply: PartialReply | None = None,
    ) -> None:
        super().__init__(url, limit)
        self.reply = reply or PartialReply()
        self._on_text = on_text
        self._events: EventReader | None = None
        self._received_bytes = 0
        self._tail = b""

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events."""
        return self._events is not None

    def start(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Select the format from the headers. Raises `ModelReplyInvalid`."""
        super().start(status, headers)
        if status >= _FIRST_REFUSAL:
            return
        content_type = self.content_type
        if content_type == "text/event-stream":
            self._events = EventReader()
        elif content_type != "application/json":  # the response of a server that does not stream
            raise ModelReplyInvalid(
                f"{self._url} answered with {one_line(content_type)}, not with a chat stream; "
                "check MOOTHALL_LLM__BASE_URL"
            )

    def feed(self, data: bytes) -> bool:
        """Add a piece of the body; return whether the reply is complete. Raises
        `ModelReplyInvalid`, and `BrokenStream` for data that is not a chat response.
        """
        if self._events is None:
            return super().feed(data)
        self._pieces.append(data)
        self._buffered_bytes += len(data)
        self._received_bytes += len(data)
        window = self._tail + data
        self._tail = window[-len(_END) :]
        if self._on_text is not None or self._buffered_bytes >= _BATCH_BYTES or _END in window:
            self._read_batch(self._events)
        return self.reply.done

    def finish(self) -> None:
        """Read the rest of the body. Raises the same errors as `feed`."""
        if self.status >= _FIRST_REFUSAL:
            return
        if self._events is not None:
            self._read_batch(self._events)
            self._add_events(self._events.finish())
        else:
            self._add_events((self.body.decode(errors="replace"),))

    def _read_batch(self, events: EventReader) -> None:
        batch = self.body
        self._pieces.clear()
        self._buffered_bytes = 0
        self._add_events(events.feed(batch))
        stream_size = self._received_bytes // _STREAM_OVERHEAD
        self._check_size(max(self.reply.size, events.pending_bytes, stream_size))

    def _add_events(self, events: Iterable[str]) -> None:
        for data in events:
            text = self.reply.add_event(data)
            if text and self._on_text is not None:
                self._on_text(text)
            if self.reply.done:
                return
