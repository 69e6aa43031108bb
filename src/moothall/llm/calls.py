"""Read native tool calls and reasoning from the chunks of a chat answer. No I/O.

Servers differ a lot here. They identify the fragments of a call by `index`, by id or by order. They
send an id once, in each fragment, or never; a name complete, in parts, or repeatedly; arguments as
text in parts, or as a complete object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.chat import FunctionCall
from moothall.domain.ids import digest
from moothall.domain.text import encodable

MAX_CALLS = 64
_ID_CHARS = 9  # Mistral accepts only ids of nine letters and digits
_EXTRA_FIELDS = ("extra_content",)
"""Fields beside a call that must be sent back with it, such as Google's thought signatures."""
_REASONING_TEXT_FIELDS = ("reasoning_content", "reasoning")


@dataclass(slots=True)
class _Call:
    index: object = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class CallReader:
    """Assembles the calls of one reply."""

    calls: list[_Call] = field(default_factory=list)

    def read(self, fragments: object, *, complete: bool = False) -> int:
        """Add fragments and return their size in bytes. `complete`: each fragment is a complete
        call.
        """
        size = 0
        for fragment in fragments if isinstance(fragments, list) else ():
            if isinstance(fragment, dict):
                size += self._read(fragment, complete=complete)
        return size

    def finish(self, seed: str) -> tuple[FunctionCall, ...]:
        """Return the calls. Missing and repeated ids are replaced by ids derived from `seed`, so
        that the same reply always gets the same ids.
        """
        used: set[str] = set()
        calls = []
        for number, call in enumerate(self.calls):
            call_id = call.call_id
            if not call_id or call_id in used:
                call_id = short_id(seed, str(number))
            used.add(call_id)
            call.call_id = call_id
            calls.append(FunctionCall(call_id, call.name, call.arguments))
        return tuple(calls)

    @property
    def extras(self) -> dict[str, Any]:
        """The fields to send back with each call, by call id. Complete after `finish`."""
        return {call.call_id: call.extra for call in self.calls if call.extra}

    def _read(self, fragment: Mapping[str, Any], *, complete: bool) -> int:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name, arguments = (
            _text(fragment.get("id")),
            _text(function.get("name")),
            function.get("arguments"),
        )
        call = None if complete else self._find(fragment.get("index"), call_id, name)
        if call is None:
            if len(self.calls) >= MAX_CALLS:
                return 0
            call = _Call(fragment.get("index"))
            self.calls.append(call)
        call.call_id = call.call_id or call_id
        if name != call.name:  # some servers repeat the name in each fragment
            call.name += name
        if isinstance(arguments, str):
            call.arguments += encodable(arguments)
        elif isinstance(arguments, dict):
            call.arguments = encodable(json.dumps(arguments, ensure_ascii=False))
        call.extra |= {key: fragment[key] for key in _EXTRA_FIELDS if fragment.get(key)}
        size = (
            len(arguments)
            if isinstance(arguments, str)
            else len(call.arguments)
            if arguments
            else 0
        )
        return size + len(name) + (len(json.dumps(call.extra)) if call.extra else 0)

    def _find(self, index: object, call_id: str, name: str) -> _Call | None:
        """Return the call that a fragment continues, or None if it begins a new call."""
        if isinstance(index, int):
            call = next((call for call in reversed(self.calls) if call.index == index), None)
        elif call_id:
            call = next((call for call in reversed(self.calls) if call.call_id == call_id), None)
        else:
            call = self.calls[-1] if self.calls else None
        if call is None or not name:
            return call
        differs = bool(call_id and call.call_id and call_id != call.call_id)
        repeated = bool(call_id) and call_id == call.call_id
        return None if differs or (not repeated and _is_object(call.arguments)) else call


@dataclass(slots=True)
class ReasoningReader:
    """Collects the model's reasoning from a reply, to be sent back unchanged."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)

    def read(self, delta: Mapping[str, Any]) -> int:
        """Add a delta and return the size of its reasoning in bytes."""
        size = 0
        for name in _REASONING_TEXT_FIELDS:
            text = delta.get(name)
            if isinstance(text, dict):  # some gateways wrap the text in an object
                text = text.get("content") or text.get("text")
            if isinstance(text, str) and text:
                self.add(name, text)
                size += len(text)
        details = delta.get("reasoning_details")
        for item in details if isinstance(details, list) else ():
            if isinstance(item, dict):
                size += self._read_detail(item)
        return size

    def add(self, name: str, text: str) -> None:
        """Add a text to one of the fields."""
        self.texts.setdefault(name, []).append(encodable(text))

    def fields(self) -> dict[str, Any]:
        """Return the fields to send back. A text that repeats another field is left out."""
        texts = {name: "".join(parts) for name, parts in self.texts.items()}
        if texts.get("reasoning") == texts.get("reasoning_content") or self.details:
            texts.pop("reasoning", None)
        return texts | ({"reasoning_details": self.details} if self.details else {})

    def _read_detail(self, item: dict[str, Any]) -> int:
        """Add a fragment of OpenRouter's `reasoning_details`. Consecutive fragments of one index
        and type form one item.
        """
        last = self.details[-1] if self.details else None
        if (
            last is None
            or any(last.get(key) != item.get(key) for key in ("type", "index"))
            or item.get("index") is None
        ):
            self.details.append(dict(item))
        else:
            for key, value in item.items():
                joined = (
                    key in {"text", "summary", "data"}
                    and isinstance(value, str)
                    and isinstance(last.get(key), str)
                )
                if value is not None:
                    last[key] = last[key] + value if joined else value
        return len(json.dumps(item))


def short_id(*parts: str) -> str:
    """Return an id that every server accepts, the same for the same parts."""
    if len(parts) == 1 and len(parts[0]) == _ID_CHARS and parts[0].isalnum() and parts[0].isascii():
        return parts[0]
    return digest(*parts)[:_ID_CHARS]


def _text(value: object) -> str:
    return encodable(value[:200]) if isinstance(value, str) else ""


def _is_object(text: str) -> bool:
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
