"""Every error that a caller may act on.

    MoothallError
    ├── Temporary            try again, after `retry_after` seconds
    │   ├── ModelUnavailable
    │   ├── BusUnavailable
    │   ├── AuditUnavailable
    │   ├── GraphUnavailable
    │   ├── PolicyUnavailable    the policy engine gave no answer: nothing is allowed
    │   ├── Superseded           another has taken this work up
    │   └── RateLimited
    │       └── QuotaExceeded    a quota of the tenant is used up
    └── Permanent            the same request will fail again
        ├── InvalidRequest       the caller sent something that cannot be right
        ├── NotFound
        ├── AlreadyExists
        ├── Overtaken            another change came first; the message says what it led to
        ├── NoCouncil            the role's council was deleted, or nobody sits in it
        ├── Skipped              a task builds on one that has no winner
        ├── Refused              policy, grants or identity say no
        │   └── Unauthenticated      the credentials are missing, unknown, expired or revoked
        ├── BudgetExceeded
        ├── LimitExceeded        an agent hit a limit of its own
        ├── DeadlineExceeded
        ├── RepositoryError      a repository that cannot be used
        ├── PatchRefused         a patch that may not leave its workspace
        ├── SandboxUnavailable   a layer of the sandbox is missing
        ├── WorkspaceFailed      the executor inside a workspace died or broke its protocol
        ├── ModelReplyInvalid    the server answered, but not with what was asked for
        │   └── ContextOverflow      the conversation is longer than the model's window
        └── ConfigurationError

An error goes to one of three places: the model (a refused or failed tool is a tool result), the
caller (`code` is the stable machine code), or nobody (a bug is not caught).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError


class MoothallError(Exception):
    """Base of all: a sentence for people, a stable UPPER_SNAKE code for programs."""

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
    """The bus did not take or give a message."""

    code = "BUS_UNAVAILABLE"


class AuditUnavailable(Temporary):
    """The audit could not be written: what it should record does not happen."""

    code = "AUDIT_UNAVAILABLE"


class FleetUnavailable(Temporary):
    """Ray or the hosts did not start in time, or a host ended by itself."""

    code = "RAY_UNAVAILABLE"


class GraphUnavailable(Temporary):
    """The graph did not take or give anything. It is behind the log, so nothing is lost."""

    code = "GRAPH_UNAVAILABLE"


class PolicyUnavailable(Temporary):
    """The policy engine gave no answer, or none that is one: what it should decide does not
    happen.
    """

    code = "POLICY_UNAVAILABLE"


class Superseded(Temporary):
    """Another has taken this work up: whoever had it says no more about it, not even that it is
    done.
    """

    code = "SUPERSEDED"


class RateLimited(Temporary):
    """Too many calls in a window."""

    code = "RATE_LIMITED"


class QuotaExceeded(RateLimited):
    """A quota of the tenant is used up; the message names it, its use, and when it resets."""

    code = "QUOTA_EXCEEDED"


class Permanent(MoothallError):
    """The same request will fail again."""

    code = "FAILED"


class InvalidRequest(Permanent):
    """The caller sent something that cannot be right; the message says what would be."""

    code = "INVALID_REQUEST"


class NotFound(Permanent):
    """No such thing."""

    code = "NOT_FOUND"


class AlreadyExists(Permanent):
    """The id is taken by something else."""

    code = "ALREADY_EXISTS"


class ConcurrentUpdate(Permanent):
    """Another change came first: look again, and decide anew."""

    code = "OVERTAKEN"


class NoCouncil(Permanent):
    """The role's council was deleted, or nobody sits in it."""

    code = "NO_COUNCIL"


class Skipped(Permanent):
    """A task of a plan builds on one that has no winner."""

    code = "SKIPPED"


class Refused(Permanent):
    """Identity, grants or policy say no."""

    code = "REFUSED"


class Unauthenticated(Refused):
    """The credentials are missing, unknown, expired or revoked; the message says which."""

    code = "UNAUTHENTICATED"


class BudgetExceeded(Permanent):
    """Tokens, seconds, calls or money would be overspent."""

    code = "BUDGET_EXCEEDED"


class LimitExceeded(Permanent):
    """An agent hit a limit of its own."""

    code = "LIMIT_EXCEEDED"


class DeadlineExceeded(Permanent):
    """The time allowed is over."""

    code = "DEADLINE_EXCEEDED"


class CallFailed(Permanent):
    """The other side could not be called, or what it said is no answer."""

    code = "CALL_FAILED"


class RepositoryError(Permanent):
    """A repository that cannot be used as it is."""

    code = "REPOSITORY_UNUSABLE"


class NothingToJudge(RepositoryError):
    """A required check of a repository judges nothing on its untouched base, so that nobody could
    win.
    """


class PatchRefused(Permanent):
    """A patch that may not leave its workspace."""

    code = "PATCH_REFUSED"


class MergeConflict(PatchRefused):
    """Two changes that were to be brought together disagree; the message names the files and shows
    what disagrees.
    """

    code = "MERGE_CONFLICT"


class SandboxUnavailable(Permanent):
    """A layer of the sandbox is missing; the message says which and how to mend it."""

    code = "SANDBOX_UNAVAILABLE"


class WorkspaceFailed(Permanent):
    """The executor inside a workspace died or broke its protocol."""

    code = "WORKSPACE_FAILED"


class ModelReplyInvalid(Permanent):
    """The model server answered, but not with what was asked for."""

    code = "MODEL_REPLY_INVALID"


class ContextOverflow(ModelReplyInvalid):
    """The conversation is longer than the model's window; `window` is what the server said of it in
    tokens, 0 for nothing.
    """

    code = "CONTEXT_OVERFLOW"

    def __init__(self, message: str, window: int = 0) -> None:
        super().__init__(message)
        self.window = window


class ConfigurationError(Permanent):
    """A setting is wrong or a configured part is missing."""

    code = "CONFIGURATION"


class WrongField(NamedTuple):
    """A field that is not what it has to be: where it is, pydantic's name of the fault, and a
    sentence without its value.
    """

    place: tuple[str | int, ...]
    fault: str
    sentence: str


def wrong_fields(error: ValidationError) -> list[WrongField]:
    """Return the fields that are wrong, in the order in which they were found."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        WrongField(item["loc"], item["type"], item["msg"].removeprefix("Value error, "))
        for item in found
    ]
