"""The step that looks at a seat's capability token."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from moothall.domain.tool import ToolCall, ToolStatus
from moothall.errors import Refused
from moothall.guard.paths import covers
from moothall.guard.seat import SeatContext, Stopped
from moothall.guard.steps import Checked
from moothall.guard.tokens import Tokens, request_digest
from moothall.tools.catalogue import granted


def with_token(tokens: Tokens, seat: SeatContext) -> SeatContext:
    """Return the seat with a token for what it is granted, until its deadline."""
    seconds = (seat.deadline - datetime.now(UTC)).total_seconds()
    token = tokens.mint(
        principal=seat.principal.name,
        tenant=seat.tenant,
        workspace=seat.workspace_id,
        role=seat.role,
        persona=seat.persona,
        grant=seat.grant,
        seconds=max(seconds, 1.0) + 1.0,  # claims count in whole seconds
    )
    return replace(seat, token=token)


def check_capability(tokens: Tokens, seat: SeatContext, call: ToolCall, checked: Checked) -> None:
    """The seat's token is good here and now, is this seat's, and covers the tool and what it writes."""
    if not seat.token:
        raise Stopped(ToolStatus.BLOCKED, "there is no capability token; whoever opens a workspace is given one")
    try:
        capability = tokens.check(seat.token, seat.workspace_id)
    except Refused as error:
        raise Stopped(ToolStatus.BLOCKED, error.message, escape=True) from error
    theirs = (capability.tenant, capability.principal, capability.role, capability.persona)
    if theirs != (seat.tenant, seat.principal.name, seat.role, seat.persona):
        raise Stopped(ToolStatus.BLOCKED, "the capability token is somebody else's", escape=True)
    if capability.request and capability.request != request_digest(call):
        raise Stopped(ToolStatus.BLOCKED, "the capability token is bound to another request")
    if not granted(capability.grant, checked.spec.name):
        raise Stopped(ToolStatus.BLOCKED, f"{checked.spec.name} is not covered by the capability token")
    for path in checked.values(checked.spec.writes):
        for pattern in capability.grant.protected:
            if covers(pattern, path):
                raise Stopped(ToolStatus.BLOCKED, f"{path[:80]!r} may not be changed with this token (protected: {pattern})")
