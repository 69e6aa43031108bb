"""A server's errors and its list of models, sanitized; errors of attempts, and delays of
retries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

from moothall.domain.ids import digest
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError, ModelReplyInvalid

# Read a server's errors and its list of models, sanitized for logs and terminals. No I/O.


_MAX_NAME_CHARS = 200
_MAX_TEXT_CHARS = 4000
_MESSAGE_KEYS = ("error", "message", "detail")


@dataclass(frozen=True, slots=True)
class ServerError:
    """A server's error: a printable line, the complete text, the parameter and the code that it
    names, and the HTTP status that the code corresponds to, 0 if unknown.
    """

    message: str
    text: str = ""
    param: str = ""
    code: str = ""
    status: int = 0


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of `/v1/models`: its owner and its window, 0 if unknown."""

    owner: str = ""
    window: int = 0


def error_message(raw: bytes) -> str:
    """Return the message of an error response as one short line."""
    return read_error(raw).message


def read_error(raw: bytes) -> ServerError:
    """Read an error response of any shape."""
    text = raw.decode(errors="replace")
    try:
        return describe_error(json.loads(text))
    except (ValueError, RecursionError):
        return ServerError(one_line(text), text[:_MAX_TEXT_CHARS])


def describe_error(value: Any) -> ServerError:
    """Return the error that a JSON value describes."""
    text = one_line(json.dumps(value, ensure_ascii=False), _MAX_TEXT_CHARS)
    if isinstance(value, list) and value:  # Google
        value = value[0]
    parent = value
    for key in _MESSAGE_KEYS:
        if isinstance(value, dict) and key in value:
            parent = value if isinstance(value[key], str) else parent
            value = value[key]
    error = (
        parent.get("error")
        if isinstance(parent, dict) and isinstance(parent.get("error"), dict)
        else parent
    )
    error = error if isinstance(error, dict) else {}
    param, code, error_type = (
        one_line(str(error.get(key) or ""), _MAX_NAME_CHARS) for key in ("param", "code", "type")
    )
    return ServerError(one_line(str(value)), text, param, code, _http_status(code, error_type))


_TEMPORARY = re.compile(
    r"rate|overload|unavailable|timeout|timed_out|server_error|internal|busy|capacity",
    re.IGNORECASE,
)
_PERMANENT = re.compile(
    r"invalid|badrequest|bad_request|context_length|exceed_context|unsupported|not_?found|content_filter|unprocessable",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"auth|permission|forbidden|quota|billing|credit|payment", re.IGNORECASE)


def _http_status(code: str, error_type: str) -> int:
    """Return the HTTP status that corresponds to the code or type of an error; 0 if unknown."""
    if code.isdecimal() and len(code) == len("400"):
        return int(code)
    for text in (code, error_type):
        for status, pattern in ((403, _FORBIDDEN), (400, _PERMANENT), (503, _TEMPORARY)):
            if pattern.search(text):
                return status
    return 0


_WINDOW_FIELDS = (
    "loaded_context_length",  # LM Studio
    "max_model_len",  # vLLM, SGLang
    "context_window",  # Groq
    "context_length",  # OpenRouter
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic
    "inputTokenLimit",  # Google
    "n_ctx",  # llama.cpp
)
"""The fields in which servers list a model's window."""


def read_models(raw: bytes) -> dict[str, ListedModel]:
    """Return the models of a `/v1/models` response. Raises `ValueError` for any other content."""
    try:
        return {
            one_line(model["id"], _MAX_NAME_CHARS): ListedModel(
                one_line(str(model.get("owned_by") or ""), _MAX_NAME_CHARS), window_of(model)
            )
            for model in json.loads(raw)["data"]
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the response is not a list of models") from error


def window_of(model: Mapping[str, Any]) -> int:
    """Return the window in a model's description, or 0."""
    meta = model.get("meta")
    for fields in (model, meta if isinstance(meta, dict) else {}):
        for name in _WINDOW_FIELDS:
            if window := read_count(fields.get(name)):
                return window
    return 0


_MAX_COUNT = 1_000_000_000  # larger numbers cannot be token counts


def read_count(value: object) -> int:
    """Return a count of tokens; 0 for invalid values, such as true, NaN, -5 or a number with a
    thousand digits.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value <= _MAX_COUNT else 0


# Errors of attempts and the delays before retries. The delays of a call id are always the same.


MAX_DELAY = 30.0
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_PERMANENT_STATUSES = frozenset({501, 505})  # not implemented, wrong HTTP version
_SERVER_ERROR = 500


def is_retried(status: int) -> bool:
    """Return whether an HTTP status may be temporary: 408, 425, 429 and 5xx except 501 and 505."""
    return status in _TEMPORARY_STATUSES or (
        status >= _SERVER_ERROR and status not in _PERMANENT_STATUSES
    )


def delay_before(
    attempt: int, call_id: str, first: float, retry_after: float | None = None
) -> float:
    """Return the seconds to wait before the `attempt`-th retry (from 1).

    The delay starts at `first`, doubles with each attempt, and is at most 30 seconds. It is then
    reduced by up to a half, depending on the call id, so that calls that failed together are not
    repeated together. The result is never less than `retry_after`, the server's request.
    """
    delay: float = min(MAX_DELAY, first * 2.0 ** min(attempt - 1, 16))
    share = 0.5 + int(digest(call_id, str(attempt))[:8], 16) / 2**33
    return max(delay * share, retry_after or 0.0)


def read_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the delay in seconds from a Retry-After header (seconds or an HTTP date); None if it
    is missing or invalid.
    """
    if not header:
        return None
    try:
        seconds = float(header)
        return max(0.0, seconds) if isfinite(seconds) else None
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())


class Failed(Exception):
    """An attempt failed for a reason that may be temporary. `at_once`: it can be repeated without
    delay, since the server had only closed an idle connection.
    """

    def __init__(
        self, reason: str, *, retry_after: float | None = None, at_once: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.at_once = at_once


class Rejected(Exception):
    """The server refused the request, and would refuse it again. `message` is one line for people.
    `text` is the complete error, for finding out which part was refused. `param` and `code` come
    from the server, '' if it named none.
    """

    def __init__(
        self, status: int, message: str, *, text: str = "", param: str = "", code: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.text = f"{text or message} {param} {code}"
        self.param = param
        self.code = code


def translate_refusal(
    error: Rejected, url: str, model: str
) -> ConfigurationError | ModelReplyInvalid:
    """Return the error for the operator or the caller that corresponds to a refusal."""
    refusal = f"{url} answered HTTP {error.status}"
    if error.message:
        refusal += f": {error.message}"
    match error.status:
        case 401 | 403:
            return ConfigurationError(
                f"{refusal}; set the key with MOOTHALL_LLM__API_KEY or MOOTHALL_LLM__API_KEY_FILE"
            )
        case 404:
            requested = f"; requested model {model!r}" if model else ""
            return ConfigurationError(
                f"{refusal}{requested}; set MOOTHALL_LLM__BASE_URL to the root of "
                "an OpenAI-compatible API, which usually ends with /v1"
            )
        case status if status < 400:  # noqa: PLR2004 - redirects
            return ConfigurationError(f"{refusal}; set MOOTHALL_LLM__BASE_URL to the final address")
    return ModelReplyInvalid(refusal)
