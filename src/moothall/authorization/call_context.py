"""Who calls, and why a call stops at the gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from moothall.domain.budget import Ledger
from moothall.domain.identity import Principal
from moothall.domain.tool import Grant, ToolStatus
from moothall.ports import Workspace


@dataclass(slots=True)
class Meter:
    """What one seat has used of its tools. Belongs to one event loop; nothing here awaits."""

    calls: int = 0
    in_flight: int = 0
    seconds: float = 0.0
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CallContext:
    """A seat as the gate knows it: made by the trusted side from credentials and the deliberation,
    never from
    what a model said. `ledger` is the deliberation's, None where no budget was set. `deadline` is a
    UTC instant.
    `meter` counts this seat's calls. `token` is its capability token (`Gate.with_token` gives one).
    """

    principal: Principal
    tenant: str
    task_id: str
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
    """A step of the gate says no. Becomes a tool result; never leaves the gate. `may_be_allowed`:
    by an operator. `escape`: nobody asks this by mistake alone: a path that leaves the workspace,
    another's identity.
    """

    def __init__(
        self, status: ToolStatus, reason: str, *, may_be_allowed: bool = False, escape: bool = False
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.may_be_allowed = may_be_allowed
        self.escape = escape
