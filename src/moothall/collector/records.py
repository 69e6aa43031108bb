"""Reading and writing of one deliberation's log and status document. Concurrent writers publish
each only once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from moothall.collector.fold import DeliberationState, fold
from moothall.domain.codec import dump, load
from moothall.domain.event import Event, EventType, Recorded
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.topic import Channel
from moothall.errors import AlreadyExists, InvalidRequest
from moothall.ports import Bus
from moothall.telemetry import get_logger

log = get_logger(__name__)

DOCUMENTS = "deliberations"


def with_log_time(recorded: Recorded) -> Event:
    """Return the event, with the log's time if it has none."""
    event = recorded.event
    return (
        event
        if event.time or "time" not in recorded.extra
        else replace(event, time=recorded.extra["time"])
    )


def fold_or_skip(state: DeliberationState | None, recorded: Recorded) -> DeliberationState | None:
    """Fold an event of the log; skip a malformed one, whose own delivery moves it to the dead
    letters.
    """
    try:
        return fold(state, with_log_time(recorded))
    except InvalidRequest as error:
        log.warning("skipped a malformed event", seq=recorded.seq, reason=error.message)
        return state


def read_log(bus: Bus, task_key: TaskKey) -> AsyncGenerator[Recorded, None]:
    """Yield the events of one deliberation from the log."""
    return bus.replay(
        (Channel.RESULTS.of(task_key), Channel.RESPONSES.of(task_key), Channel.WORDS.of(task_key))
    )


async def replay_state(
    bus: Bus, task_key: TaskKey, *, until_settled: bool = False
) -> DeliberationState | None:
    """Return the state of one deliberation from the log, or None.

    until_settled: stop at the first event that requires a decision.
    """
    state: DeliberationState | None = None
    async for recorded in read_log(bus, task_key):
        settled = state is not None and state.settled
        if until_settled and settled and recorded.event.type is not EventType.DELIBERATION_DECIDED:
            continue
        state = fold_or_skip(state, recorded)
    return state


async def publish_status(bus: Bus, document: Outcome) -> None:
    """Publish the status document of an undecided deliberation, unless a later status exists."""
    bucket = bus.bucket(DOCUMENTS)
    while True:
        current, revision = await bucket.get_with_revision(document.task_id)
        if current is not None and current.get("status") not in {DeliberationStatus.PENDING} - {
            document.status
        }:
            return
        try:
            await bucket.replace(document.task_id, dump(document), revision)
        except AlreadyExists:
            continue  # another process was faster, or this is a repeat of our own write
        return


async def record_decision(bus: Bus, decision: Event, task_key: TaskKey) -> Outcome | None:
    """Record a decision. If there is one already, by any process, return it instead."""
    last_seen = -1
    seq = 0
    while seq != last_seen:  # if equal, a decision was recorded once but is gone now
        last_seen = seq
        try:
            await bus.create(decision, last_seen)
        except AlreadyExists:
            # A cancellation may precede the decision.
            async for recorded in bus.replay((Channel.RESPONSES.of(task_key),)):
                seq = recorded.message or recorded.seq
                if recorded.event.type is EventType.DELIBERATION_DECIDED:
                    return load(Outcome, recorded.event.data)
        else:
            break
    return None
