"""What a server says about itself and its errors, made fit for logs, terminals and error messages.
No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moothall.domain.text import one_line

_NAME = 200
_TEXT_CHARS = 4000
_KEYS = ("error", "message", "detail")


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error of a server: a printable line, the text behind it, the parameter and the code that
    it names, and the status that its code means, 0 for none.
    """

    message: str
    text: str = ""
    param: str = ""
    code: str = ""
    status: int = 0


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of `/v1/models`: its owner and its window, 0 if it is not told."""

    owner: str = ""
    window: int = 0


def error_message(raw: bytes) -> str:
    """Return what an error answer says, as one short line."""
    return read_error(raw).message


def read_error(raw: bytes) -> ServerError:
    """Read an error answer of any shape."""
    text = raw.decode(errors="replace")
    try:
        return describe_error(json.loads(text))
    except (ValueError, RecursionError):
        return ServerError(one_line(text), text[:_TEXT_CHARS])


def describe_error(value: Any) -> ServerError:
    """Return the error that a JSON value describes."""
    whole = one_line(json.dumps(value, ensure_ascii=False), _TEXT_CHARS)
    if isinstance(value, list) and value:  # Google
        value = value[0]
    about = value
    for key in _KEYS:
        if isinstance(value, dict) and key in value:
            about = value if isinstance(value[key], str) else about
            value = value[key]
    named = (
        about.get("error")
        if isinstance(about, dict) and isinstance(about.get("error"), dict)
        else about
    )
    named = named if isinstance(named, dict) else {}
    param, code, kind = (
        one_line(str(named.get(key) or ""), _NAME) for key in ("param", "code", "type")
    )
    return ServerError(one_line(str(value)), whole, param, code, _status(code, kind))


_TRANSIENT = re.compile(
    r"rate|overload|unavailable|timeout|timed_out|server_error|internal|busy|capacity",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r"invalid|badrequest|bad_request|context_length|exceed_context|unsupported|not_?found|content_filter|unprocessable",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"auth|permission|forbidden|quota|billing|credit|payment", re.IGNORECASE)


def _status(code: str, kind: str) -> int:
    """Return the HTTP status that the code or the type of an error means; 0 if they say nothing."""
    if code.isdecimal() and len(code) == len("400"):
        return int(code)
    for text in (code, kind):
        for status, pattern in ((403, _REFUSED), (400, _PERMANENT), (503, _TRANSIENT)):
            if pattern.search(text):
                return status
    return 0


_WINDOWS = (
    "loaded_context_length",  # LM Studio
    "max_model_len",  # vLLM, SGLang
    "context_window",  # Groq
    "context_length",  # OpenRouter
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic
    "inputTokenLimit",  # Google
    "n_ctx",  # llama.cpp
)
"""How servers name the window of a listed model."""


def read_models(raw: bytes) -> dict[str, ListedModel]:
    """Return the models of a `/v1/models` answer. Raises `ValueError` for what is no such list."""
    try:
        return {
            one_line(model["id"], _NAME): ListedModel(
                one_line(str(model.get("owned_by") or ""), _NAME), window_of(model)
            )
            for model in json.loads(raw)["data"]
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("this is no list of models") from error


def window_of(model: Mapping[str, Any]) -> int:
    """Return the window that a description of a model tells, 0 if it tells none."""
    meta = model.get("meta")
    for place in (model, meta if isinstance(meta, dict) else {}):
        for name in _WINDOWS:
            if window := read_count(place.get(name)):
                return window
    return 0


_MOST = 1_000_000_000  # more tokens than anything has; what is above is no count


def read_count(value: object) -> int:
    """Return a count of tokens; 0 for what is none, such as true, NaN, -5 or a number of a thousand
    digits.
    """
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
        else 0
    )
