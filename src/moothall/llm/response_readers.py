"""What becomes of an answer as it arrives: a whole body, or a chat answer, streamed or not. No
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

_REFUSED = 300
_SERVER_ERROR = 500
_FORBIDDEN = 403  # what an error means that a quota or a bill is behind: no waiting mends it
_ERROR_BYTES = 65_536
_BATCH_BYTES = 65_536
_STREAM_OVERHEAD = (
    32  # bytes of stream that a byte of text may cost: small chunks in large envelopes
)
_END = DONE.encode()


_LACKING = re.compile(
    r"not (?:be )?support|unsupported|requires --|not implemented|does not support", re.IGNORECASE
)


def _lacks(status: int, error: ServerError) -> bool:
    """Return whether a server error means that the server lacks what was asked for, as llama.cpp's
    for tools without --jinja.
    """
    return status == _SERVER_ERROR and bool(_LACKING.search(error.text))


class WholeResponseReader:
    """Takes a body of at most `limit` bytes; of a refusal as much as an error needs. `url` is for
    the words of errors.
    """

    def __init__(self, url: str, limit: int) -> None:
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self._url, self._limit = url, limit
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def body(self) -> bytes:
        """What has come of it."""
        return b"".join(self._pieces)

    @property
    def streams(self) -> bool:
        """Whether the answer comes in events."""
        return False

    @property
    def kind(self) -> str:
        """The content type, without its parameters."""
        return (
            self.header(b"content-type").partition(";")[0].strip().lower()
            or "application/octet-stream"
        )

    def header(self, name: bytes) -> str:
        """Return a header, empty where there is none; its name is in lower case."""
        return self.headers.get(name, b"").decode("utf-8", "replace").strip()

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the head. Raises `ModelReplyInvalid`."""
        self.status, self.headers = status, headers
        if encoding := self.header(b"content-encoding").replace("identity", ""):
            # Never asked for, and a few kilobytes of it can be gigabytes: it is not unpacked.
            raise ModelReplyInvalid(
                f"{self._url} answered in the content encoding {one_line(encoding)!r}, which "
                "nobody asked for"
            )

    def piece(self, data: bytes) -> bool:
        """Take a piece. Raises `ModelReplyInvalid`."""
        self._pieces.append(data)
        self._held += len(data)
        if self.status >= _REFUSED:
            return self._held >= _ERROR_BYTES
        self._check_size(self._held)
        return False

    def end(self) -> None:
        """There is nothing more to do."""

    def raise_refusal(self) -> None:
        """Raise for every status but success: `Failed` for what may go away by itself, else
        `Rejected`.
        """
        if self.status < _REFUSED:
            return
        error = read_error(self.body[:_ERROR_BYTES])
        if (
            retry.is_retried(self.status)
            and not _lacks(self.status, error)
            and error.status != _FORBIDDEN
        ):
            after = retry.read_retry_after(self.header(b"retry-after"), datetime.now(UTC))
            raise Failed(f"HTTP {self.status} {error.message}".rstrip(), retry_after=after)
        if moved := self.header(b"location"):
            raise Rejected(self.status, f"redirects to {one_line(moved)}")
        raise Rejected(
            self.status, error.message, text=error.text, param=error.param, code=error.code
        )

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise ModelReplyInvalid(
                f"{self._url} went on past {self._limit} bytes of answer "
                "(MOOTHALL_LLM__MAX_REPLY_BYTES); the call was ended"
            )


class ChatResponseReader(WholeResponseReader):
    """Takes a chat answer into `assembly`. Where `on_text` follows it is read piece by piece, else
    in batches, because a piece of a few bytes costs as much as a long one.
    """

    def __init__(
        self,
        url: str,
        limit: int,
        on_text: Callable[[str], None] | None,
        assembly: PartialReply | None = None,
    ) -> None:
        super().__init__(url, limit)
        self.assembly = assembly or PartialReply()
        self._on_text = on_text
        self._events: EventReader | None = None
        self._received = 0
        self._tail = b""

    @property
    def streams(self) -> bool:
        """Whether the answer comes in events."""
        return self._events is not None

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Find out what comes. Raises `ModelReplyInvalid`."""
        super().head(status, headers)
        if status >= _REFUSED:
            return
        kind = self.kind
        if kind == "text/event-stream":
            self._events = EventReader()
        elif kind != "application/json":  # that of a server that does not stream
            raise ModelReplyInvalid(
                f"{self._url} answered with {one_line(kind)}, not with a chat stream; is "
                "MOOTHALL_LLM__BASE_URL right?"
            )

    def piece(self, data: bytes) -> bool:
        """Take a piece. Raises `ModelReplyInvalid`, and `BrokenStream` for what is no chat
        answer.
        """
        if self._events is None:
            return super().piece(data)
        self._pieces.append(data)
        self._held += len(data)
        self._received += len(data)
        seen = self._tail + data
        self._tail = seen[-len(_END) :]
        if self._on_text is not None or self._held >= _BATCH_BYTES or _END in seen:
            self._read(self._events)
        return self.assembly.done

    def end(self) -> None:
        """Read what is left. Raises as `piece` does."""
        if self.status >= _REFUSED:
            return
        if self._events is not None:
            self._read(self._events)
            self._take(self._events.end())
        else:
            self._take((self.body.decode(errors="replace"),))

    def _read(self, events: EventReader) -> None:
        whole = self.body
        self._pieces.clear()
        self._held = 0
        self._take(events.feed(whole))
        self._check_size(max(self.assembly.size, events.held, self._received // _STREAM_OVERHEAD))

    def _take(self, events: Iterable[str]) -> None:
        for data in events:
            said = self.assembly.take(data)
            if said and self._on_text is not None:
                self._on_text(said)
            if self.assembly.done:
                return
