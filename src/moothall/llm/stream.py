"""Reading a chat answer as it arrives: server-sent events into chunks, chunks into a reply. No I/O.

The stream is what `/v1/chat/completions` sends with `stream: true`: `data: {chunk}` events, one
with a
`finish_reason`, one with `usage`, then `data: [DONE]`. Comments, other fields and any of the three
line
endings are taken; a piece of the stream may end anywhere, also inside a character.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from moothall.domain.chat import Likely
from moothall.domain.text import encodable, one_line
from moothall.llm.calls import CallReader, ReasoningReader
from moothall.llm.retry import is_retried
from moothall.llm.server_errors import ServerError, describe_error

DONE = "[DONE]"
_NO_CHUNK = frozenset({"", "null", DONE})
_NAME = 200
_DIGITS = 2  # of a number that is looked at: a score has no more
_NUMBERS = 31  # before the last: a review has a score for each requirement, rarely more than ten


class BrokenStream(Exception):
    """What arrived is not a chat stream, or the server reported an error in it, with the HTTP
    status that it means; 0 if it says none.
    """

    def __init__(self, reason: str, error: ServerError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error or ServerError(reason)

    @property
    def permanent(self) -> bool:
        """Whether it will happen again."""
        return self.error.status > 0 and not is_retried(self.error.status)


@dataclass(slots=True)
class EventReader:
    """Cuts a byte stream into the data of its events."""

    _pending: bytearray = field(default_factory=bytearray)
    _data: list[str] = field(default_factory=list)
    _collected: int = 0

    @property
    def held(self) -> int:
        """Bytes of the event that is not complete yet."""
        return len(self._pending) + self._collected

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the data of each event that is complete with this piece."""
        self._pending += piece
        if b"\n" not in piece and b"\r" not in piece:
            return
        # A final CR may be the first half of CRLF: it waits for what follows.
        keep = self._pending.endswith(b"\r")
        lines = bytes(self._pending[: -1 if keep else None]).splitlines(keepends=True)
        rest = b"" if not lines or lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        self._pending = bytearray(rest + (b"\r" if keep else b""))
        for line in lines:
            if (event := self._line(line.rstrip(b"\r\n"))) is not None:
                yield event

    def end(self) -> Iterator[str]:
        """Yield an event that the server left without its blank line."""
        left = bytes(self._pending.rstrip(b"\r"))
        self._pending.clear()
        for line in (left, b""):
            if (event := self._line(line)) is not None:
                yield event

    def _line(self, line: bytes) -> str | None:
        """Return the data of the event that this line ends, if any."""
        if not line:
            event = "\n".join(self._data) if self._data else None
            self._data.clear()
            self._collected = 0
            return event
        if line.startswith(b"data:"):
            self._collected += len(line)
            try:
                self._data.append(line[5:].removeprefix(b" ").decode())
            except UnicodeDecodeError as error:
                raise BrokenStream(f"the stream is not UTF-8: {error.reason}") from error
        return None


@dataclass(slots=True)
class PartialReply:
    """A reply in the making. `usage` is the server's own count, empty where it gave none. `size`
    counts the bytes of text, calls and reasoning.
    """

    text: list[str] = field(default_factory=list)
    size: int = 0
    finish_reason: str = ""
    model: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    digits: list[Likely] = field(default_factory=list)
    earlier_digits: deque[tuple[Likely, ...]] = field(
        default_factory=lambda: deque(maxlen=_NUMBERS)
    )
    calls: CallReader = field(default_factory=CallReader)
    reasoning: ReasoningReader = field(default_factory=ReasoningReader)
    refusal: list[str] = field(default_factory=list)
    _within: bool = False

    def take(self, data: str) -> str:
        """Add one event; return the text that it brought. Raises `BrokenStream`."""
        chunk = read_chunk(data)
        if chunk is None:
            self.done = self.done or data.strip() == DONE
            return ""
        if not self.model:
            self.model = one_line(str(chunk.get("model") or ""), _NAME)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        text = "".join(map(self._take_choice, _choices(chunk)))
        if not text:
            return ""
        # JSON can spell halves of surrogate pairs, and no log or hash takes such a text.
        encoded = text.encode(errors="replace")
        self.text.append(encoded.decode())
        self.size += len(encoded)
        return self.text[-1]

    def reasoning_fields(self) -> dict[str, Any]:
        """Return what is sent back with the reply in later calls. Complete after the calls are."""
        return self.reasoning.fields() | (
            {"extras": extras} if (extras := self.calls.extras) else {}
        )

    def _take_choice(self, choice: Mapping[str, Any]) -> str:
        """Add a choice; return its text. Raises `BrokenStream` for one that ends in an error."""
        if isinstance(choice.get("error"), dict) or choice.get("finish_reason") == "error":
            told = describe_error({"error": choice.get("error") or "the reply ended in an error"})
            raise BrokenStream(f"the server reported: {told.message}", told)
        self._note(choice.get("logprobs"))
        if ended := choice.get("finish_reason"):
            self.finish_reason = one_line(str(ended), _NAME)
        whole = "delta" not in choice
        delta = choice.get("message" if whole else "delta")
        if not isinstance(delta, dict):
            return ""
        self.size += self.calls.read(delta.get("tool_calls"), whole=whole) + self.reasoning.read(
            delta
        )
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self.refusal.append(encodable(refusal))
            self.size += len(refusal)
        return self._text(delta.get("content"))

    def _text(self, content: object) -> str:
        """Return the text of a content, which may be a list of parts."""
        if not isinstance(content, list):
            return str(content or "") if not isinstance(content, dict) else self._text([content])
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict) and isinstance(part.get("thinking"), str | list):
                thinking = part["thinking"]
                parts = [item.get("text") if isinstance(item, dict) else item for item in thinking]
                thought = (
                    thinking
                    if isinstance(thinking, str)
                    else "".join(item for item in parts if isinstance(item, str))
                )
                self.reasoning.add("thinking", thought)
                self.size += len(thought)
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "".join(texts)

    def _note(self, told: object) -> None:
        """Keep what is told of the tokens of the last number. Of anything else nothing is kept, and
        what is malformed tells nothing.
        """
        tokens = told.get("content") if isinstance(told, dict) else None
        for token in tokens if isinstance(tokens, list) else ():
            found = _likely(token)
            if found and not self._within:
                if self.digits:
                    self.earlier_digits.append(tuple(self.digits))
                self.digits = []
            self._within = bool(found)
            self.digits += [found] if found and len(self.digits) < _DIGITS else []


def _likely(token: object) -> Likely:
    """Return the numbers that might have stood in the place of a token that is one, the likeliest
    of each once; () of any other.
    """
    if not isinstance(token, dict):
        return ()
    others = token.get("top_logprobs")
    found: dict[str, float] = {}
    for one in (token, *(others if isinstance(others, list) else ())):
        text, value = (
            (one.get("token"), one.get("logprob")) if isinstance(one, dict) else ("", None)
        )
        number = text.strip() if isinstance(text, str) else ""
        if (
            number.isascii()
            and number.isdecimal()
            and len(number) <= _DIGITS
            and isinstance(value, int | float)
            and value <= 0
        ):
            found.setdefault(number, round(math.exp(value), 6))
        elif one is token:
            return ()
    return tuple(found.items())


def _load(data: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)  # which takes half a surrogate pair, and says what is wrong


def read_chunk(data: str) -> dict[str, Any] | None:
    """Return the object of an event; None for the end of the stream and for what only keeps the
    connection open. Raises `BrokenStream`.
    """
    if data.strip() in _NO_CHUNK:
        return None
    try:
        chunk = _load(data)
    except (ValueError, RecursionError) as error:
        raise BrokenStream(f"a part of the answer is not JSON: {data[:80]!r}") from error
    if not isinstance(chunk, dict):
        raise BrokenStream(f"a part of the answer is not a JSON object: {data[:80]!r}")
    if chunk.get("error") or chunk.get("object") == "error":
        told = describe_error(chunk)
        raise BrokenStream(f"the server reported: {told.message}", told)
    return chunk


def _choices(chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices") or []
    if isinstance(choices, list):
        ours = [
            choice
            for choice in choices
            if not isinstance(choice, dict) or choice.get("index", 0) == 0
        ]
        if all(isinstance(choice, dict) for choice in ours):
            return ours
    raise BrokenStream("a part of the answer has no list of choices")
