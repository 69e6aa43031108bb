"""What the log and the documents say of one deliberation, and saying it there: each once, whoever
else is at it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from moothall.collector.fold import DeliberationState, fold
from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.topic import Channel
from moothall.errors import AlreadyExists, InvalidRequest
from moothall.ports import Bus
from moothall.telemetry import get_logger

log = get_logger(__name__)

DOCUMENTS = "deliberations"


def with_time(recorded: Recorded) -> Event:
    """An event without a time of its own has the log's, where the bus tells it."""
    event = recorded.event
    return (
        event
        if event.time or "time" not in recorded.extra
        else replace(event, time=recorded.extra["time"])
    )


def fold_known(state: DeliberationState | None, recorded: Recorded) -> DeliberationState | None:
    """Fold what was recorded. A malformed event is skipped: its own delivery puts it among the dead
    letters.
    """
    try:
        return fold(state, with_time(recorded))
    except InvalidRequest as error:
        log.warning("skipped a malformed event", seq=recorded.seq, reason=error.message)
        return state


def read(bus: Bus, task_id: str) -> AsyncGenerator[Recorded, None]:
    """Yield what the log has of one deliberation."""
    return bus.replay(
        (Channel.RESULTS.of(task_id), Channel.RESPONSES.of(task_id), Channel.WORDS.of(task_id))
    )


async def replay(
    bus: Bus, task_id: str, *, until_settled: bool = False
) -> DeliberationState | None:
    """Fold the log of one deliberation; `until_settled` stops at the first event that calls for a
    decision.
    """
    state: DeliberationState | None = None
    async for recorded in read(bus, task_id):
        settled = state is not None and state.settled
        if until_settled and settled and recorded.event.type is not EventType.DELIBERATION_DECIDED:
            continue
        state = fold_known(state, recorded)
    return state


async def show(bus: Bus, document: Outcome) -> None:
    """Put the document of one under way, unless there is one that is as late or later."""
    bucket = bus.bucket(DOCUMENTS)
    while True:
        known, revision = await bucket.get_with_revision(document.task_id)
        if known is not None and known.get("status") not in {DeliberationStatus.PENDING} - {
            document.status
        }:
            return
        try:
            await bucket.replace(document.task_id, dump(document), revision)
        except AlreadyExists:
            continue  # another was faster, or this is the echo of one that we sent
        return


async def record(bus: Bus, decision: Event, task_id: str) -> Outcome | None:
    """Record a decision unless there is one; then return that one, by whomever."""
    after = -1
    seq = 0
    while seq != after:  # else it was recorded once, and is not there any more
        after = seq
        try:
            await bus.create(decision, after)
        except AlreadyExists:
            async for recorded in bus.replay(
                (Channel.RESPONSES.of(task_id),)
            ):  # a cancel may stand before it
                seq = recorded.message or recorded.seq
                if recorded.event.type is EventType.DELIBERATION_DECIDED:
                    return load(Outcome, recorded.event.data)
        else:
            break
    return None
