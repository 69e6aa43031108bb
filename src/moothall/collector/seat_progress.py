"""What each seat of a deliberation is at: its turns, tools, checks and last words, event by event.
Text is as a model wrote it, bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from moothall.domain.event import Data, EventType, Recorded

ENDED = "ended"
_SAID, _NAME, _TOOLS = 2_000, 200, 8
_WAITS: Mapping[EventType, str] = {
    EventType.SEAT_STARTED: "waits for the model",
    EventType.SEAT_TURN: "waits for the model",
    EventType.SEAT_PROPOSED: "waits for the clean re-check",
    EventType.SEAT_REVISED: "waits for the clean re-check",
    EventType.SEAT_FAILED: ENDED,
    EventType.SEAT_FINISHED: ENDED,
}
_WAITS_ABOUT_TEXT = {
    **_WAITS,
    EventType.SEAT_PROPOSED: "waits for the reviews",
    EventType.SEAT_REVISED: "waits for the reviews",
}
AWAITED = frozenset({*_WAITS.values(), *_WAITS_ABOUT_TEXT.values()}) - {ENDED}
"""What a seat at work may wait for, in words."""


@dataclass(frozen=True, slots=True)
class SeatProgress:
    """What one seat did so far. `waits` says for what it waits, or that it has ended; `said` is
    what the model said last, `tools` are its last tool calls with how each ended, the latest last,
    of `called`; `checks` are those of its last turn that ran any, `told` the ids of what was said
    to it, as far as it heard that. `began` and `ended` are RFC 3339 in UTC, empty where they are
    not known. `about_text`: there is no repository, so nothing is re-checked.
    """

    seat: str
    waits: str = "waits for its turn"
    approach: str = ""
    phase: str = ""
    turns: int = 0
    tools: tuple[tuple[str, str], ...] = ()
    called: int = 0
    checks: Mapping[str, str] = field(default_factory=dict)
    said: str = ""
    told: tuple[str, ...] = ()
    began: str = ""
    ended: str = ""
    about_text: bool = False


Lanes = Mapping[str, SeatProgress]


def advance(lanes: Lanes, recorded: Recorded) -> Lanes:
    """Return the lanes with what one event says; each is given once. What is malformed says
    nothing.
    """
    event = recorded.event
    if event.type is EventType.DELIBERATION_REQUESTED:
        seats = event.data.get("seats")
        about_text = not event.data.get("base_sha")
        named = seats if isinstance(seats, list | tuple) else ()
        return {
            seat: SeatProgress(seat, about_text=about_text)
            for seat in named
            if isinstance(seat, str)
        } or lanes
    seat = event.data.get("seat")
    if not isinstance(seat, str) or (lane := lanes.get(seat)) is None:
        return lanes
    waits = _WAITS_ABOUT_TEXT if lane.about_text else _WAITS
    lane = replace(lane, waits=waits.get(event.type, lane.waits))
    time = event.time or recorded.extra.get("time", "")
    if event.type is EventType.SEAT_STARTED:
        lane = replace(lane, began=time)
    elif lane.waits == ENDED:
        lane = replace(lane, ended=lane.ended or time)
    tell = _TELLS.get(event.type)
    return {**lanes, seat: tell(lane, event.data) if tell else lane}


def _start(lane: SeatProgress, data: Data) -> SeatProgress:
    return replace(lane, approach=_text(data.get("approach"), _NAME))


def _call(lane: SeatProgress, data: Data) -> SeatProgress:
    told = data.get("told")
    return replace(
        lane,
        phase=_text(data.get("phase"), _NAME),
        said=_text(data.get("answer"), _SAID) or lane.said,
        told=tuple(map(str, told)) if isinstance(told, list | tuple) else lane.told,
    )


def _turn(lane: SeatProgress, data: Data) -> SeatProgress:
    asked = data.get("operations")
    done = tuple(
        (_text(item.get("tool"), _NAME), _text(item.get("status"), _NAME))
        for item in (asked if isinstance(asked, list | tuple) else ())
        if isinstance(item, Mapping)
    )
    checks = data.get("checks")
    found = (
        {_text(name, _NAME): _text(verdict, _NAME) for name, verdict in checks.items()}
        if isinstance(checks, Mapping)
        else {}
    )
    return replace(
        lane,
        turns=lane.turns + 1,
        tools=(*lane.tools, *done)[-_TOOLS:],
        called=lane.called + len(done),
        checks=found or lane.checks,
        said=_text(data.get("thought"), _SAID) or lane.said,
    )


_TELLS: Mapping[EventType, Callable[[SeatProgress, Data], SeatProgress]] = {
    EventType.SEAT_STARTED: _start,
    EventType.MODEL_CALLED: _call,
    EventType.SEAT_TURN: _turn,
}


def _text(value: object, most: int) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= most else f"{text[: most - 1]}…"
