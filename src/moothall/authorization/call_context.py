"""The caller of a tool, and the exception that stops a call in the gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from moothall.domain.budget import Ledger
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskKey
from moothall.domain.tool import Grant, ToolStatus
from moothall.ports import Workspace


@dataclass(slots=True)
class Meter:
    """What one seat has used of its tool limits. Belongs to one event loop. Nothing here awaits."""

    calls: int = 0
    in_flight: int = 0
    seconds: float = 0.0
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CallContext:
    """A seat as the gateway knows it. The trusted side builds it from credentials and the
    deliberation, never from model output. `task_id` is the key of the task; in a tool session, the
    name of its workspace. `ledger` is the deliberation's, or None without a budget.
    `deadline` is in UTC. `meter` counts this seat's calls. `token` is its capability token
    (`ToolGateway.with_token` sets one).
    """

    principal: Principal
    tenant: str
    task_id: TaskKey
    seat: str
    role: str
    grant: Grant
    workspace: Workspace
    workspace_id: str
    deadline: datetime
    ledger: Ledger | None = None
    meter: Meter = field(default_factory=Meter)
    persona: str = ""
    token: str = ""


class Stopped(Exception):
    """A call that the gateway refuses. It becomes a tool result and never leaves the gateway.
    `may_be_allowed`: an operator can allow the call. `escape`: the call is unlikely to be a
    mistake, such as a path outside the workspace or the identity of another seat.
    """

    def __init__(
        self, status: ToolStatus, reason: str, *, may_be_allowed: bool = False, escape: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.may_be_allowed = may_be_allowed
        self.escape = escape
