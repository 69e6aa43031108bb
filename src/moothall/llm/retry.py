"""Errors of attempts and the delays before retries. The delays of a call id are always the same."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

from moothall.domain.ids import digest
from moothall.errors import ConfigurationError, ModelReplyInvalid

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
            return ConfigurationError(
                f"{refusal}; requested model {model!r}; set MOOTHALL_LLM__BASE_URL to the root of "
                "an OpenAI-compatible API, which usually ends with /v1"
            )
        case status if status < 400:  # noqa: PLR2004 - redirects
            return ConfigurationError(f"{refusal}; set MOOTHALL_LLM__BASE_URL to the final address")
    return ModelReplyInvalid(refusal)
