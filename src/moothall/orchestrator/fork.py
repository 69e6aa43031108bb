"""Forks: another run of a task that begins with recorded turns of one of its seats. None of their
model calls is made again; what they did is done again in a workspace of its own, as after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from moothall.domain.budget import Usage
from moothall.domain.causation import steering_event_id
from moothall.domain.codec import dump, load
from moothall.domain.event import Data, Event, EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, key_of, own_id, seat_named
from moothall.domain.protocol import PROTOCOLS
from moothall.domain.task import Beginning, Deliberation, Fork
from moothall.domain.tool import ToolStatus
from moothall.domain.topic import deliberation_topics
from moothall.errors import InvalidRequest, NotFound
from moothall.orchestrator.conversation_history import find_request
from moothall.orchestrator.planning import Defaults
from moothall.ports import Bus, Log
from moothall.telemetry.events import write_of
from moothall.tools.spec import ToolSpec


async def fork_of(
    log: Log, fork: Fork, who: Principal, defaults: Defaults, now: datetime
) -> Deliberation:
    """Return another run of a task, with the id of that task still: its one seat begins with
    recorded turns. It is of no story: what a story's plan waits for is the run that it began
    itself.

    Raises `NotFound`, and `InvalidRequest` that says what there is.
    """
    key = key_of(check_id(fork.task_id, "the task to fork"), who.tenant)
    asked = await find_request(log, key)
    if asked is None or asked.event.tenant != who.tenant:
        raise NotFound(f"no deliberation {fork.task_id!r} to fork")
    if len(fork.words) > defaults.limits.steer_chars:
        raise InvalidRequest(
            f"the words have {len(fork.words)} characters; at most {defaults.limits.steer_chars} "
            "(limits.steer_chars)"
        )
    source = load(Deliberation, asked.event.data)
    events = [recorded.event async for recorded in log.replay(deliberation_topics(key))]
    begins = _begin_from(source, events, fork, who, defaults.tools())
    seconds = (
        source.constraints.timeout_seconds
        or source.budget.seconds
        or defaults.limits.deliberation_seconds
    )
    return replace(
        source,
        seats=(begins.seat,),
        fork=begins,
        deadline=now + timedelta(seconds=min(seconds, defaults.limits.deliberation_seconds)),
        max_turns=source.max_turns - (source.fork.turn if source.fork else 0) + begins.turn,
        principal=who.name,
        adaptive=False,
        story_id="",
        plan_id="",
        origin="",
    )


def _begin_from(
    source: Deliberation,
    events: Sequence[Event],
    fork: Fork,
    who: Principal,
    tools: Mapping[str, ToolSpec],
) -> Beginning:
    name = own_id(source.task_id, who.tenant)
    seat = _seat(source, events, fork.seat, name)
    turns = {
        _step(event.data): event.data
        for event in events
        if event.type is EventType.SEAT_TURN and event.data.get("seat") == seat
    }
    if not 1 <= fork.turn <= len(turns):
        has = f"1 to {len(turns)}" if turns else "none yet"
        raise InvalidRequest(
            f"{seat} of {name} has no turn {fork.turn} to fork from; its turns: {has}"
        )
    steps = list(turns)[: fork.turn]
    _check(
        source,
        {number: (step, turns[step]) for number, step in enumerate(steps, 1)},
        f"{seat} of {name}",
        tools,
    )
    began: Data = next(
        (
            event.data
            for event in events
            if event.type is EventType.SEAT_STARTED and event.data.get("seat") == seat
        ),
        {},
    )
    return Beginning(
        task_id=source.task_id,
        seat=seat,
        turn=fork.turn,
        step=steps[-1],
        number=source.fork.number if source.fork else source.seats.index(seat),
        approach=str(began.get("approach") or ""),
        temperature=float(began.get("temperature") or 0.0),
        words=fork.words.strip(),
    )


def _seat(source: Deliberation, events: Sequence[Event], named: str, name: str) -> str:
    if not named:
        won = [
            str(event.data.get("winner_id"))
            for event in events
            if event.type is EventType.DELIBERATION_DECIDED
        ]
        return next((seat for seat in won if seat in source.seats), source.seats[0])
    if (found := seat_named(named, source.seats)) is None:
        raise NotFound(f"no seat {named[:80]!r} in {name}; there are {', '.join(source.seats)}")
    return found


def _step(data: Data) -> str:
    return f"{data.get('phase')}/{data.get('round')}.{data.get('turn')}"


def _check(
    source: Deliberation,
    turns: Mapping[int, tuple[str, Data]],
    whose: str,
    tools: Mapping[str, ToolSpec],
) -> None:
    """Raise `InvalidRequest` for turns that cannot be done again by one seat in a workspace. A tool
    that ran and is unknown here may be any.
    """
    alone = PROTOCOLS[source.protocol].revises_on != "reviews"
    for number, (step, data) in turns.items():
        last = (
            f"fork from turn {number - 1} or one before it" if number > 1 else "it cannot be forked"
        )
        if step.startswith("revise/") and not alone:
            raise InvalidRequest(
                f"turn {number} of {whose} answers reviews of other seats, which a fork does not "
                f"have; {last}"
            )
        for item in data.get("operations") or ():
            spec = tools.get(str(item.get("tool")))
            if spec.outside if spec else item.get("status") != ToolStatus.INVALID:
                acted = (
                    f"acted outside with {spec.name}"
                    if spec
                    else f"acted with {item.get('tool')!s:.60}, which is unknown here"
                )
                raise InvalidRequest(
                    f"turn {number} of {whose} {acted}, which must not be done again; {last}"
                )


async def take_over(bus: Bus, d: Deliberation, own: Sequence[Event]) -> Sequence[Event]:
    """Return what is known of a fork: its own events, and what it takes over of the run that it
    comes from, which is recorded as its own where that is not done yet. Raises `NotFound` where
    that run was removed before.
    """
    if (begins := d.fork) is None:
        return own
    source = [recorded.event async for recorded in bus.replay(deliberation_topics(begins.task_id))]
    known = {event.id for event in own}
    if not source and f"{d.task_id}/{begins.seat}/{begins.step}" not in {
        event.data.get("call_id") for event in own
    }:
        raise NotFound(
            f"the turns that it begins with are gone: {own_id(begins.task_id, d.tenant)} was "
            "removed"
        )
    facts = [
        write_of(d, kind, data, ordinal=ordinal, source="host")
        for kind, ordinal, data in _facts_taken_over(d, begins, source)
    ]
    fresh = [event for event in facts if event.id not in known]
    for event in fresh:
        await bus.publish(event)
    return [*own, *fresh, *_turns(begins, source)]


def _turns(begins: Beginning, events: Sequence[Event]) -> Sequence[Event]:
    """Return the recorded turns with which a fork begins, in order."""
    turns: dict[str, Event] = {}
    for event in events:
        if (
            event.type is EventType.SEAT_TURN
            and event.data.get("seat") == begins.seat
            and begins.step not in turns
        ):
            turns.setdefault(_step(event.data), event)
    return list(turns.values())


def _facts_taken_over(
    d: Deliberation, begins: Beginning, events: Sequence[Event]
) -> Sequence[tuple[EventType, str, Data]]:
    """Return as facts of the fork (type, ordinal, data): the words that its turns heard, then their
    answers, which cost nothing this time; that of the last turn stands last.
    """
    steps = {_step(event.data) for event in _turns(begins, events)}
    own = f"{begins.task_id}/{begins.seat}/"
    calls = {
        str(data["call_id"]): data
        for event in events
        if _is_answer(data := event.data, event.type, own, steps)
    }
    heard = {str(name) for data in calls.values() for name in data.get("told") or ()}
    facts: list[tuple[EventType, str, Data]] = [
        (
            EventType.DELIBERATION_STEERED,
            event.id,
            {name: event.data.get(name) for name in ("message", "by")},
        )
        for event in events
        if event.type is EventType.DELIBERATION_STEERED and event.id in heard
    ]
    for name, data in sorted(calls.items(), key=lambda call: call[0] == f"{own}{begins.step}"):
        call_id = f"{d.task_id}/{name.partition('/')[2]}"
        told = (
            {"told": [steering_event_id(d.task_id, str(one)) for one in data["told"]]}
            if data.get("told")
            else {}
        )
        said = {key: value for key, value in data.items() if key != "task_id"}
        facts.append(
            (
                EventType.MODEL_CALLED,
                call_id,
                {**said, **told, "call_id": call_id, "usage": dump(Usage()), "inherited": True},
            )
        )
    return facts


def _is_answer(data: Data, kind: EventType, own: str, steps: set[str]) -> bool:
    """Whether it is an answer of the model in one of the steps, to the seat or to a sub-agent."""
    call_id = str(data.get("call_id"))
    if kind is not EventType.MODEL_CALLED or not call_id.startswith(own):
        return False
    phase, _, place = call_id.removeprefix(own).partition("/")
    return f"{phase}/{'.'.join(place.split('.')[:2])}" in steps
