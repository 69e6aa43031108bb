"""Spans, as all rooms see them. `telemetry.record` switches them on; until then they are nothing.

A traceparent is W3C's: `00-<trace id>-<span id>-<flags>`. It reaches us with a call's metadata or
an event, and leaves us with events and with calls to the model. With the exporter off a caller's
traceparent is still passed on unchanged; none
is made up. It is never part of an id, a prompt or a digest: a repeat under another trace is the
same repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Literal, Self

from moothall.telemetry.context import here

Value = str | int | float | bool
Kind = Literal["internal", "server", "client", "producer", "consumer"]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Span:
    """A span that is not recorded; entered, it changes nothing. Its methods say what a recorded one
    does.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        return None

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes. Texts are scrubbed of secrets and cut."""

    def fail(self, code: str, message: str = "") -> None:
        """Mark the span as failed with a stable code. An exception that leaves the span does so by
        itself.
        """


class _PassedOn(Span):
    """Inside, the traceparent is another's: it is passed on, and nothing is recorded."""

    __slots__ = ("_parent", "_token")

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._token: Token[str] | None = None

    def __enter__(self) -> Self:
        self._token = here.set(self._parent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        if self._token is not None:
            here.reset(self._token)


MakeSpan = Callable[[str, Mapping[str, Value] | None, Kind, str | None, Sequence[str]], Span]
"""Makes a span that is recorded from when it is entered: name, attributes, kind, parent, links."""

_NOTHING = Span()


class _Switch:
    """How this process records now; None: not at all."""

    make: MakeSpan | None = None
    content: bool = False


def record_with(make: MakeSpan | None, *, content: bool = False) -> None:
    """Record this process's spans from now on, or no more. `content`: prompts and answers are
    wanted in them.
    """
    _Switch.make, _Switch.content = make, content


def span(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    links: Sequence[str] = (),
) -> Span:
    """Return a span to be entered with `with`. Its parent is the span around it, or the traceparent
    `parent`.

    `links` are the traceparents of other spans that led here. Names are few and fixed; ids belong
    into attributes.
    """
    if _Switch.make is not None:
        return _Switch.make(name, attributes, kind, parent, links)
    if parent:
        return _PassedOn(read_traceparent(parent))
    return _NOTHING


def wants_content() -> bool:
    """Whether prompts and answers belong into spans. Ask before making them up: they are long."""
    return _Switch.content


def traceparent() -> str:
    """Return where the running code is, for whoever is called from here; empty where there is no
    trace.
    """
    return here.get()


def headers() -> dict[str, str]:
    """Return the HTTP headers that let another server's spans join ours."""
    current = here.get()
    return {"traceparent": current} if current else {}


def read_traceparent(text: str) -> str:
    """Return a traceparent from outside if it is one, else nothing: a malformed one begins a new
    trace, as W3C says.
    """
    match = _TRACEPARENT.fullmatch(text) if len(text) <= 128 else None  # noqa: PLR2004 - room for a later version's fields
    if match is None or match[1] == _NO_TRACE or match[2] == _NO_SPAN or text.startswith("ff"):
        return ""
    if text.startswith("00") and len(text) != 55:  # noqa: PLR2004 - version 00 has nothing after its flags
        return ""
    return f"00-{match[1]}-{match[2]}-{text[53:55]}"
