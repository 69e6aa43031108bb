"""How an attempt at a call may fail, and when it is repeated: the same call id always waits the
same times.
"""

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
    """Tell whether an HTTP status may be temporary: 408, 425, 429 and every 5xx but 501 and 505."""
    return status in _TEMPORARY_STATUSES or (
        status >= _SERVER_ERROR and status not in _PERMANENT_STATUSES
    )


def delay_before(
    attempt: int, call_id: str, first: float, retry_after: float | None = None
) -> float:
    """Return the seconds to wait before the `attempt`-th retry (from 1).

    The delay doubles from `first` and is at most 30. A share of it between a half and the whole is
    used, derived from the call id, so that calls that failed together are not repeated together. It
    is never less than the server requested.
    """
    delay: float = min(MAX_DELAY, first * 2.0 ** min(attempt - 1, 16))
    share = 0.5 + int(digest(call_id, str(attempt))[:8], 16) / 2**33
    return max(delay * share, retry_after or 0.0)


def read_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, given in seconds or as an HTTP date; None if it
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
    """An attempt failed for a reason that may be temporary. `at_once`: it may be repeated at once,
    since only a kept connection had been closed meanwhile.
    """

    def __init__(
        self, reason: str, *, retry_after: float | None = None, at_once: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.at_once = at_once


class Rejected(Exception):
    """The server refused the request with an HTTP status that would be the same again. `message` is
    one line for people, `text` is everything to search for what was refused; `param` and `code` are
    those of the server, '' if it named none.
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
    answer = f"{url} answered HTTP {error.status}" + (f": {error.message}" if error.message else "")
    match error.status:
        case 401 | 403:
            return ConfigurationError(
                f"{answer}; set the key with MOOTHALL_LLM__API_KEY or MOOTHALL_LLM__API_KEY_FILE"
            )
        case 404:
            return ConfigurationError(
                f"{answer}; asked for model {model!r}; MOOTHALL_LLM__BASE_URL names an "
                "OpenAI-compatible root and usually ends with /v1"
            )
        case status if status < 400:  # noqa: PLR2004 - redirects
            return ConfigurationError(f"{answer}; give the final address as MOOTHALL_LLM__BASE_URL")
    return ModelReplyInvalid(answer)
