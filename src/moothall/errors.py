"""All errors that a caller may act on.

    MoothallError
    ├── Temporary            try again, after `retry_after` seconds
    │   ├── ModelUnavailable
    │   ├── BusUnavailable
    │   ├── AuditUnavailable
    │   ├── GraphUnavailable
    │   ├── PolicyUnavailable    no valid answer from the policy engine: everything is denied
    │   ├── Superseded           another host has taken over the work
    │   └── RateLimited
    │       └── QuotaExceeded    a quota of the tenant is used up
    └── Permanent            the same request will fail again
        ├── InvalidRequest       the request is invalid
        ├── NotFound
        ├── AlreadyExists
        ├── ConcurrentUpdate     another change came first; the message says what it led to
        ├── NoCouncil            the role's council was deleted or has no seats
        ├── Skipped              a task depends on one that has no winner
        ├── Refused              denied because of identity, grants or policy
        │   └── Unauthenticated      the credentials are missing, unknown, expired or revoked
        ├── BudgetExceeded
        ├── LimitExceeded        an agent exceeded one of its own limits
        ├── DeadlineExceeded
        ├── RepositoryError      a repository cannot be used
        ├── PatchRefused         a patch may not leave its workspace
        ├── SandboxUnavailable   a layer of the sandbox is missing
        ├── WorkspaceFailed      the executor inside a workspace died or broke its protocol
        ├── ModelReplyInvalid    the reply of the model server is invalid
        │   └── ContextOverflow      the conversation is longer than the model's window
        └── ConfigurationError

An error is reported to the model (the result of a refused or failed tool) or to the caller (`code`
is the stable code for programs). A bug is not caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError


class MoothallError(Exception):
    """The base class: a message for users, and a stable UPPER_SNAKE code for programs."""

    code = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Temporary(MoothallError):
    """May succeed when tried again after `retry_after` seconds (None: the caller chooses)."""

    code = "UNAVAILABLE"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelUnavailable(Temporary):
    """The model server could not be reached, or kept failing until the retries were used up."""

    code = "MODEL_UNAVAILABLE"


class BusUnavailable(Temporary):
    """The bus did not accept or deliver a message."""

    code = "BUS_UNAVAILABLE"


class AuditUnavailable(Temporary):
    """The audit could not be written, so the operation to record is not performed."""

    code = "AUDIT_UNAVAILABLE"


class FleetUnavailable(Temporary):
    """Ray or the hosts did not start in time, or a host ended by itself."""

    code = "RAY_UNAVAILABLE"


class GraphUnavailable(Temporary):
    """The graph could not be read or written. It is built from the log, so nothing is lost."""

    code = "GRAPH_UNAVAILABLE"


class PolicyUnavailable(Temporary):
    """The policy engine gave no valid answer, so the operation is denied."""

    code = "POLICY_UNAVAILABLE"


class Superseded(Temporary):
    """Another host has taken over the work. The earlier host publishes nothing more about it, not
    even its end.
    """

    code = "SUPERSEDED"


class RateLimited(Temporary):
    """Too many calls in a time window."""

    code = "RATE_LIMITED"


class QuotaExceeded(RateLimited):
    """A quota of the tenant is used up; the message names it, its use, and when it resets."""

    code = "QUOTA_EXCEEDED"


class Permanent(MoothallError):
    """The same request will fail again."""

    code = "FAILED"


class InvalidRequest(Permanent):
    """The request is invalid; the message says what would be valid."""

    code = "INVALID_REQUEST"


class NotFound(Permanent):
    """The requested object does not exist."""

    code = "NOT_FOUND"


class AlreadyExists(Permanent):
    """The id is already used by another object."""

    code = "ALREADY_EXISTS"


class ConcurrentUpdate(Permanent):
    """Another change came first: read the current state, and decide again."""

    code = "OVERTAKEN"


class NoCouncil(Permanent):
    """The role's council was deleted or has no seats."""

    code = "NO_COUNCIL"


class Skipped(Permanent):
    """A task of a plan depends on one that has no winner."""

    code = "SKIPPED"


class Refused(Permanent):
    """The request is denied because of identity, grants or policy."""

    code = "REFUSED"


class Unauthenticated(Refused):
    """The credentials are missing, unknown, expired or revoked; the message says which."""

    code = "UNAUTHENTICATED"


class BudgetExceeded(Permanent):
    """A budget of tokens, seconds, calls or money would be exceeded."""

    code = "BUDGET_EXCEEDED"


class LimitExceeded(Permanent):
    """An agent exceeded one of its own limits."""

    code = "LIMIT_EXCEEDED"


class DeadlineExceeded(Permanent):
    """The deadline has passed."""

    code = "DEADLINE_EXCEEDED"


class CallFailed(Permanent):
    """The other side could not be called, or its answer is invalid."""

    code = "CALL_FAILED"


class RepositoryError(Permanent):
    """The repository cannot be used in its current state."""

    code = "REPOSITORY_UNUSABLE"


class NothingToJudge(RepositoryError):
    """A required check of a repository judges nothing on the unchanged base, so no candidate could
    win.
    """


class PatchRefused(Permanent):
    """The patch may not leave its workspace."""

    code = "PATCH_REFUSED"


class MergeConflict(PatchRefused):
    """Two changes cannot be merged; the message names the files and shows the conflicts."""

    code = "MERGE_CONFLICT"


class SandboxUnavailable(Permanent):
    """A layer of the sandbox is missing; the message says which one and how to fix it."""

    code = "SANDBOX_UNAVAILABLE"


class WorkspaceFailed(Permanent):
    """The executor inside a workspace died or broke its protocol."""

    code = "WORKSPACE_FAILED"


class ModelReplyInvalid(Permanent):
    """The reply of the model server is invalid."""

    code = "MODEL_REPLY_INVALID"


class ContextOverflow(ModelReplyInvalid):
    """The conversation is longer than the model's window. `window` is its size in tokens as the
    server reports it; 0 if it reports none.
    """

    code = "CONTEXT_OVERFLOW"

    def __init__(self, message: str, window: int = 0) -> None:
        super().__init__(message)
        self.window = window


class ConfigurationError(Permanent):
    """A setting is wrong or a configured part is missing."""

    code = "CONFIGURATION"


class WrongField(NamedTuple):
    """An invalid field: its path, pydantic's name of the error, and a sentence that does not
    contain the value.
    """

    place: tuple[str | int, ...]
    fault: str
    sentence: str


def wrong_fields(error: ValidationError) -> list[WrongField]:
    """Return the invalid fields in the order of validation."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        WrongField(item["loc"], item["type"], item["msg"].removeprefix("Value error, "))
        for item in details
    ]
