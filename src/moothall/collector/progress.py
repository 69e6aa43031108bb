"""How far a deliberation is, told in steps: the log's events in the order of the log, folded into a
percentage that never falls and a sentence for people.

A seat's share grows with its phases (started, each turn, proposed, checked, reviewed or revised,
finished); all seats' shares make 5 to 95 percent, the decision 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.domain.event import Data, EventType, Recorded
from moothall.domain.outcome import DeliberationStatus

_SHARES: Mapping[EventType, float] = {
    EventType.SEAT_STARTED: 0.05,
    EventType.SEAT_FAILED: 1.0,
    EventType.SEAT_PROPOSED: 0.7,
    EventType.CHECK_FINISHED: 0.8,
    EventType.SEAT_REVIEWED: 0.85,
    EventType.SEAT_REVISED: 0.9,
    EventType.SEAT_FINISHED: 1.0,
}
_TURNS_FROM, _TURNS_TO = 0.05, 0.6
_CHARS = 300


@dataclass(frozen=True, slots=True)
class Progress:
    """What the percentage depends on: how far each seat is, 0..1, and how many turns one may take."""

    status: DeliberationStatus = DeliberationStatus.PENDING
    percent: int = 0
    max_turns: int = 1
    seats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `seq` is the event's place in the log; `agent` is empty where no seat acts."""

    seq: int
    status: DeliberationStatus
    percent: int
    step: str
    agent: str
    event_type: str
    data: Mapping[str, Any]


def describe(progress: Progress, recorded: Recorded) -> tuple[Progress, Step]:
    """Return the progress with one event more and the step that it is. Begin with `Progress()`."""
    event = recorded.event
    agent = str(event.data.get("seat") or "")
    after = _advance(progress, event.type, agent, event.data)
    step = Step(
        seq=recorded.seq,
        status=after.status,
        percent=after.percent,
        step=_plain(_sentence(event.type, agent, event.data)),
        agent=agent,
        event_type=event.type.value,
        data=event.data,
    )
    return after, step


def _advance(progress: Progress, kind: EventType, agent: str, data: Mapping[str, Any]) -> Progress:
    if kind is EventType.DELIBERATION_DECIDED:
        return replace(progress, status=_status(data.get("status")), percent=100)
    if progress.status.ended:
        return progress
    if kind is EventType.DELIBERATION_REQUESTED:
        seats = {seat: progress.seats.get(seat, 0.0) for seat in _strings(data.get("seats"))}
        return replace(progress, seats={**progress.seats, **seats}, max_turns=max(1, _whole(data.get("max_turns"))))
    seats = dict(progress.seats)
    if agent:
        seats[agent] = max(seats.get(agent, 0.0), _share(progress, kind, data))
    percent = 5 + int(90 * sum(seats.values()) / max(1, len(seats)))
    return replace(progress, status=DeliberationStatus.IN_PROGRESS, seats=seats, percent=min(95, max(progress.percent, percent)))


def _share(progress: Progress, kind: EventType, data: Mapping[str, Any]) -> float:
    if kind is EventType.SEAT_TURN:
        done = min(1.0, _whole(data.get("turn")) / progress.max_turns)
        return _TURNS_FROM + done * (_TURNS_TO - _TURNS_FROM)
    return _SHARES.get(kind, 0.0)


def _sentence(kind: EventType, agent: str, data: Data) -> str:
    say = _SENTENCES.get(kind)
    return say(agent, data) if say else f"{kind.value.removeprefix('moothall.').replace('.', ' ')}."


def _turned(agent: str, data: Data) -> str:
    operations = data.get("operations")
    return (
        f"{agent} finished turn {data.get('turn', '')} with {len(operations) if isinstance(operations, list) else 0} tool calls."
    )


def _called(agent: str, data: Data) -> str:
    usage = _object(data.get("usage"))
    total = _whole(usage.get("prompt_tokens")) + _whole(usage.get("completion_tokens"))
    return f"{agent or 'The council'} asked the model ({data.get('phase', '')}): {total} tokens."


def _checked(agent: str, data: Data) -> str:
    evidence, author = _object(data.get("evidence")), data.get("cross_author")
    what = f"tests of {author}" if author else evidence.get("check", "")
    return f"Clean re-check of {data.get('candidate') or agent}: {what} {evidence.get('verdict', '')}."


def _reviewed(agent: str, data: Data) -> str:
    return f"{agent} reviewed {data.get('candidate', '')}: {_object(data.get('review')).get('score', '')}."


def _failed(agent: str, data: Data) -> str:
    error = _object(data.get("error"))
    return f"{agent} failed: {error.get('message', '')} [{error.get('code', '')}]"


def _decided(_: str, data: Data) -> str:
    if winner := data.get("winner_id"):
        return f"Decided: {winner} wins, {'proven' if data.get('proven') else 'unproven'}."
    return f"Decided: no winner. {data.get('error_message', '')}"


_SENTENCES: Mapping[EventType, Callable[[str, Data], str]] = {
    EventType.DELIBERATION_REQUESTED: lambda _, data: (
        f"Asked for: {len(_strings(data.get('seats')))} seats, protocol {data.get('protocol', '')}."
    ),
    EventType.AGENT_PROGRESS: lambda _, data: f"Preparing: {data.get('current_task', '')}",
    EventType.DELIBERATION_STARTED: lambda *_: "The council has begun.",
    EventType.SEAT_STARTED: lambda agent, data: f"{agent} begins: {data.get('approach') or 'no particular approach'}.",
    EventType.SEAT_TURN: _turned,
    EventType.MODEL_CALLED: _called,
    EventType.SEAT_PROPOSED: lambda agent, _: f"{agent} proposes an answer.",
    EventType.SEAT_REVISED: lambda agent, _: f"{agent} revised its answer.",
    EventType.CHECK_FINISHED: _checked,
    EventType.SEAT_REVIEWED: _reviewed,
    EventType.SEAT_FAILED: _failed,
    EventType.SEAT_FINISHED: lambda agent, data: f"{agent} is done: {_object(data.get('outcome')).get('status', '')}.",
    EventType.DELIBERATION_CANCELLED: lambda _, data: f"Cancelled: {data.get('reason') or 'no reason given'}.",
    EventType.DELIBERATION_DECIDED: _decided,
}


def _status(value: object) -> DeliberationStatus:
    known = {status.value: status for status in DeliberationStatus}
    return known.get(str(value), DeliberationStatus.COMPLETED)


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _plain(text: str) -> str:
    """Parts of a sentence may come from a model: one printable line of bounded length."""
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= _CHARS else f"{line[: _CHARS - 1]}…"
