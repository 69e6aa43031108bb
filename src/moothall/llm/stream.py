"""Read a chat response as it arrives: server-sent events into chunks, chunks into a reply.
Readers of HTTP responses: one for complete bodies, one for chat replies, streamed or not.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from moothall.domain.chat import Likely
from moothall.domain.text import encodable, one_line
from moothall.errors import ModelReplyInvalid
from moothall.llm import server_errors
from moothall.llm.reply_parts import CallReader, ReasoningReader
from moothall.llm.server_errors import (
    Failed,
    Rejected,
    ServerError,
    describe_error,
    is_retried,
    read_error,
)

# Read a chat response as it arrives: server-sent events into chunks, chunks into a reply. No I/O.
#
# The stream is the response of `/v1/chat/completions` with `stream: true`: `data: {chunk}` events,
# one with a `finish_reason`, one with `usage`, then `data: [DONE]`. Comments and other fields are
# ignored, and all three line endings are accepted. A piece of the stream may end anywhere, even
# within a character.


DONE = "[DONE]"
_NO_CHUNK = frozenset({"", "null", DONE})
_MAX_NAME_CHARS = 200
_MAX_DIGITS = 2  # of a number: scores have at most two digits
_MAX_NUMBERS = 31  # before the last: a review has a score for each requirement, rarely over ten


class BrokenStream(Exception):
    """The response is not a chat stream, or the server reported an error in it. `error.status` is
    the HTTP status that the error corresponds to; 0 if it names none.
    """

    def __init__(self, reason: str, error: ServerError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error or ServerError(reason)

    @property
    def permanent(self) -> bool:
        """Whether a retry would fail again."""
        return self.error.status > 0 and not is_retried(self.error.status)


@dataclass(slots=True)
class EventReader:
    """Splits a byte stream into the data of its events."""

    _pending: bytearray = field(default_factory=bytearray)
    _data: list[str] = field(default_factory=list)
    _data_bytes: int = 0

    @property
    def pending_bytes(self) -> int:
        """The size of the incomplete event."""
        return len(self._pending) + self._data_bytes

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the data of each event that this piece completes."""
        self._pending += piece
        if b"\n" not in piece and b"\r" not in piece:
            return
        # A final CR may be the first half of CRLF, so it stays pending.
        ends_in_cr = self._pending.endswith(b"\r")
        lines = bytes(self._pending[: -1 if ends_in_cr else None]).splitlines(keepends=True)
        rest = b"" if not lines or lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._pending = bytearray(rest + (b"\r" if ends_in_cr else b""))
        for line in lines:
            if (event := self._read_line(line.rstrip(b"\r\n"))) is not None:
                yield event

    def finish(self) -> Iterator[str]:
        """Yield the last event if the server did not end it with a blank line."""
        last_line = bytes(self._pending.rstrip(b"\r"))
        self._pending.clear()
        for line in (last_line, b""):
            if (event := self._read_line(line)) is not None:
                yield event

    def _read_line(self, line: bytes) -> str | None:
        """Return the data of the event that this line ends, if any."""
        if not line:
            event = "\n".join(self._data) if self._data else None
            self._data.clear()
            self._data_bytes = 0
            return event
        if line.startswith(b"data:"):
            self._data_bytes += len(line)
            try:
                self._data.append(line[5:].removeprefix(b" ").decode())
            except UnicodeDecodeError as error:
                raise BrokenStream(f"the stream is not UTF-8: {error.reason}") from error
        return None


@dataclass(slots=True)
class PartialReply:
    """A reply that is still arriving. `usage` is the server's count; empty if it sent none. `size`
    is the number of bytes of text, calls and reasoning.
    """

    text: list[str] = field(default_factory=list)
    size: int = 0
    finish_reason: str = ""
    model: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    digits: list[Likely] = field(default_factory=list)
    earlier_digits: deque[tuple[Likely, ...]] = field(
        default_factory=lambda: deque(maxlen=_MAX_NUMBERS)
    )
    calls: CallReader = field(default_factory=CallReader)
    reasoning: ReasoningReader = field(default_factory=ReasoningReader)
    refusal: list[str] = field(default_factory=list)
    _in_number: bool = False

    def add_event(self, data: str) -> str:
        """Add one event; return its text. Raises `BrokenStream`."""
        chunk = read_chunk(data)
        if chunk is None:
            self.done = self.done or data.strip() == DONE
            return ""
        if not self.model:
            self.model = one_line(str(chunk.get("model") or ""), _MAX_NAME_CHARS)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        text = "".join(map(self._add_choice, _choices_of(chunk)))
        if not text:
            return ""
        # JSON may contain lone surrogates, which logs and hashes cannot encode.
        encoded = text.encode(errors="replace")
        self.text.append(encoded.decode())
        self.size += len(encoded)
        return self.text[-1]

    def reasoning_fields(self) -> dict[str, Any]:
        """Return the fields to send back with the reply in later requests. They are complete after
        `calls.finish`.
        """
        return self.reasoning.fields() | (
            {"extras": extras} if (extras := self.calls.extras) else {}
        )

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        """Add a choice; return its text. Raise `BrokenStream` if it ends in an error."""
        if isinstance(choice.get("error"), dict) or choice.get("finish_reason") == "error":
            error = describe_error({"error": choice.get("error") or "the reply ended in an error"})
            raise BrokenStream(f"the server reported: {error.message}", error)
        self._record_digits(choice.get("logprobs"))
        if finish_reason := choice.get("finish_reason"):
            self.finish_reason = one_line(str(finish_reason), _MAX_NAME_CHARS)
        complete = "delta" not in choice
        delta = choice.get("message" if complete else "delta")
        if not isinstance(delta, dict):
            return ""
        self.size += self.calls.read(delta.get("tool_calls"), complete=complete)
        self.size += self.reasoning.read(delta)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self.refusal.append(encodable(refusal))
            self.size += len(refusal)
        return self._content_text(delta.get("content"))

    def _content_text(self, content: object) -> str:
        """Return the text of a message's content, which may be a list of parts."""
        if not isinstance(content, list):
            return (
                str(content or "")
                if not isinstance(content, dict)
                else self._content_text([content])
            )
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict) and isinstance(part.get("thinking"), str | list):
                thinking = part["thinking"]
                parts = [item.get("text") if isinstance(item, dict) else item for item in thinking]
                reasoning = (
                    thinking
                    if isinstance(thinking, str)
                    else "".join(item for item in parts if isinstance(item, str))
                )
                self.reasoning.add("thinking", reasoning)
                self.size += len(reasoning)
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "".join(texts)

    def _record_digits(self, logprobs: object) -> None:
        """Record the probabilities of the last numbers' tokens. Ignore other tokens and malformed
        data.
        """
        tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
        for token in tokens if isinstance(tokens, list) else ():
            probabilities = _number_probabilities(token)
            if probabilities and not self._in_number:
                if self.digits:
                    self.earlier_digits.append(tuple(self.digits))
                self.digits = []
            self._in_number = bool(probabilities)
            if probabilities and len(self.digits) < _MAX_DIGITS:
                self.digits.append(probabilities)


def _number_probabilities(token: object) -> Likely:
    """Return the possible numbers at the position of a token and their probabilities; () if the
    token is not a number.
    """
    if not isinstance(token, dict):
        return ()
    alternatives = token.get("top_logprobs")
    probabilities: dict[str, float] = {}
    for entry in (token, *(alternatives if isinstance(alternatives, list) else ())):
        text, value = (
            (entry.get("token"), entry.get("logprob")) if isinstance(entry, dict) else ("", None)
        )
        number = text.strip() if isinstance(text, str) else ""
        if (
            number.isascii()
            and number.isdecimal()
            and len(number) <= _MAX_DIGITS
            and isinstance(value, int | float)
            and value <= 0
        ):
            probabilities.setdefault(number, round(math.exp(value), 6))
        elif entry is token:
            return ()
    return tuple(probabilities.items())


def _load_json(data: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)  # accepts lone surrogates, and has better error messages


def read_chunk(data: str) -> dict[str, Any] | None:
    """Return the JSON object of an event; None for the end of the stream and for keep-alive events.
    Raises `BrokenStream`.
    """
    if data.strip() in _NO_CHUNK:
        return None
    try:
        chunk = _load_json(data)
    except (ValueError, RecursionError) as error:
        raise BrokenStream(f"a part of the response is not JSON: {data[:80]!r}") from error
    if not isinstance(chunk, dict):
        raise BrokenStream(f"a part of the response is not a JSON object: {data[:80]!r}")
    if chunk.get("error") or chunk.get("object") == "error":
        server_error = describe_error(chunk)
        raise BrokenStream(f"the server reported: {server_error.message}", server_error)
    return chunk


def _choices_of(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices") or []
    if isinstance(choices, list):
        first_choices = [
            choice
            for choice in choices
            if not isinstance(choice, dict) or choice.get("index", 0) == 0
        ]
        if all(isinstance(choice, dict) for choice in first_choices):
            return first_choices
    raise BrokenStream("a part of the response has no list of choices")


# Readers of HTTP responses: one for complete bodies, one for chat replies, streamed or not. No I/O.


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
            server_errors.is_retried(self.status)
            and not _is_unsupported(self.status, error)
            and error.status != _FORBIDDEN
        ):
            retry_after = server_errors.read_retry_after(
                self.header(b"retry-after"), datetime.now(UTC)
            )
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
