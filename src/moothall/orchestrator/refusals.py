"""Deliberations that end before a seat has started: every seat fails with the same reason."""

from __future__ import annotations

from datetime import datetime, timedelta

from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId, key_of, read_role, seat_id
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.protocol import DEFAULT_PROTOCOL
from moothall.domain.task import Deliberation, DeliberationRequest
from moothall.ports import Log
from moothall.telemetry.events import write_of

_DEADLINE = timedelta(hours=1)
"""Long enough to record the seat's failure, even after a restart."""


async def fail_seats(
    log: Log, deliberation: Deliberation, code: str, message: str, source: str
) -> None:
    """Record that every seat has failed with this error. Repeating this records nothing new."""
    for seat in deliberation.seats:
        outcome = SeatOutcome(
            seat=seat, status=SeatStatus.FAILED, error_code=code, error_message=message
        )
        data = {"task_id": deliberation.task_id, "seat": seat, "outcome": dump(outcome)}
        await log.publish(
            write_of(deliberation, EventType.SEAT_FINISHED, data, ordinal=seat, source=source)
        )


def refused_deliberation(
    request: DeliberationRequest, who: Principal, now: datetime
) -> Deliberation:
    """Return the record of a request that cannot start: one seat, no rounds.

    Raises `InvalidRequest` for an unknown role.
    """
    role = read_role(request.role)
    return Deliberation(
        task_id=key_of(TaskId(request.task_id), who.tenant),
        description=request.description,
        role=role,
        protocol=DEFAULT_PROTOCOL,
        seats=(seat_id(role, 1),),
        rounds=0,
        deadline=now + _DEADLINE,
        max_turns=1,
        constraints=request.constraints,
        repository=request.repository,
        story_id=request.story_id,
        plan_id=request.plan_id,
        origin=request.origin,
        tenant=who.tenant,
        principal=who.name,
    )
