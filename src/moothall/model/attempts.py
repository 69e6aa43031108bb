"""How one attempt at a call may end badly, and what that means to whoever asked."""

from __future__ import annotations

from moothall.errors import ConfigurationError, ModelReplyInvalid


class Failed(Exception):
    """An attempt failed for a reason that may go away. `at_once`: a kept connection had been closed meanwhile."""

    def __init__(self, reason: str, *, retry_after: float | None = None, at_once: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.at_once = at_once


class Rejected(Exception):
    """The server understood and said no: an HTTP status that would be the same again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def translated(error: Rejected, url: str, model: str) -> ConfigurationError | ModelReplyInvalid:
    """Return what a refusal means: what the operator can mend, or an answer that is none."""
    answer = f"{url} answered HTTP {error.status}" + (f": {error.message}" if error.message else "")
    match error.status:
        case 401 | 403:
            return ConfigurationError(f"{answer}; set the key with MOOTHALL_LLM__API_KEY or MOOTHALL_LLM__API_KEY_FILE")
        case 404:
            return ConfigurationError(
                f"{answer}; asked for model {model!r}; MOOTHALL_LLM__BASE_URL names an OpenAI-compatible root and usually ends with /v1"
            )
        case status if status < 400:  # noqa: PLR2004 - redirects
            return ConfigurationError(f"{answer}; give the final address as MOOTHALL_LLM__BASE_URL")
    return ModelReplyInvalid(answer)
