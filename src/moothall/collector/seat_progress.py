"""Progress of each seat of a deliberation, event by event: its turns, tools, checks and last
message.

The text is model output of bounded length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from moothall.domain.codec import list_of, mapping_of
from moothall.domain.event import Data, EventType, Recorded

ENDED = "ended"
_MAX_MESSAGE_CHARS = 2_000
_MAX_NAME_CHARS = 200
_MAX_TOOLS = 8
_ACTIVITIES: Mapping[EventType, str] = {
    EventType.SEAT_STARTED: "waits for the model",
    EventType.SEAT_TURN: "waits for the model",
    EventType.SEAT_PROPOSED: "waits for the clean re-check",
    EventType.SEAT_REVISED: "waits for the clean re-check",
    EventType.SEAT_FAILED: ENDED,
    EventType.SEAT_FINISHED: ENDED,
}
_ACTIVITIES_ABOUT_TEXT = {
    **_ACTIVITIES,
    EventType.SEAT_PROPOSED: "waits for the reviews",
    EventType.SEAT_REVISED: "waits for the reviews",
}
WAITING_ACTIVITIES = frozenset({*_ACTIVITIES.values(), *_ACTIVITIES_ABOUT_TEXT.values()}) - {ENDED}
"""The activities in which an active seat waits."""


@dataclass(frozen=True, slots=True)
class SeatProgress:
    """The progress of one seat.

    activity: what the seat waits for, or that it has ended.
    tools: its last tool calls with their results, the latest last.
    tool_call_count: the number of all its tool calls.
    refused: its last refused tool calls as (tool, status, reason), the latest last.
    checks: the checks of its last turn that ran any.
    last_message: the last message of the model.
    steering_ids: the event ids of the steering messages that the seat has received.
    started_at, ended_at: RFC 3339 in UTC; '' if unknown.
    about_text: there is no repository, so nothing is re-checked.
    """

    seat: str
    activity: str = "waits for its turn"
    approach: str = ""
    phase: str = ""
    turns: int = 0
    tools: tuple[tuple[str, str], ...] = ()
    tool_call_count: int = 0
    checks: Mapping[str, str] = field(default_factory=dict)
    last_message: str = ""
    steering_ids: tuple[str, ...] = ()
    started_at: str = ""
    ended_at: str = ""
    about_text: bool = False
    refused: tuple[tuple[str, str, str], ...] = ()


SeatProgressByName = Mapping[str, SeatProgress]


def advance_seats(progress_by_seat: SeatProgressByName, recorded: Recorded) -> SeatProgressByName:
    """Return the progress of all seats after one event. Each event is applied once; malformed
    fields are ignored.
    """
    event = recorded.event
    if event.type is EventType.DELIBERATION_REQUESTED:
        seats = event.data.get("seats")
        about_text = not event.data.get("base_sha")
        seat_names = seats if isinstance(seats, list | tuple) else ()
        return {
            seat: SeatProgress(seat, about_text=about_text)
            for seat in seat_names
            if isinstance(seat, str)
        } or progress_by_seat
    seat = event.data.get("seat")
    if not isinstance(seat, str) or (progress := progress_by_seat.get(seat)) is None:
        return progress_by_seat
    activities = _ACTIVITIES_ABOUT_TEXT if progress.about_text else _ACTIVITIES
    progress = replace(progress, activity=activities.get(event.type, progress.activity))
    time = event.time or recorded.extra.get("time", "")
    if event.type is EventType.SEAT_STARTED:
        progress = replace(progress, started_at=time)
    elif progress.activity == ENDED:
        progress = replace(progress, ended_at=progress.ended_at or time)
    handler = _HANDLERS.get(event.type)
    return {**progress_by_seat, seat: handler(progress, event.data) if handler else progress}


def _on_started(progress: SeatProgress, data: Data) -> SeatProgress:
    return replace(progress, approach=_text(data.get("approach"), _MAX_NAME_CHARS))


def _on_model_call(progress: SeatProgress, data: Data) -> SeatProgress:
    steering_ids = data.get("told")
    return replace(
        progress,
        phase=_text(data.get("phase"), _MAX_NAME_CHARS),
        last_message=_text(data.get("answer"), _MAX_MESSAGE_CHARS) or progress.last_message,
        steering_ids=tuple(map(str, steering_ids))
        if isinstance(steering_ids, list | tuple)
        else progress.steering_ids,
    )


def _on_turn(progress: SeatProgress, data: Data) -> SeatProgress:
    operations = data.get("operations")
    tool_calls = tuple(
        (_text(item.get("tool"), _MAX_NAME_CHARS), _text(item.get("status"), _MAX_NAME_CHARS))
        for item in (operations if isinstance(operations, list | tuple) else ())
        if isinstance(item, Mapping)
    )
    refused = tuple(
        (
            _text(item.get("tool"), _MAX_NAME_CHARS),
            _text(item.get("status"), _MAX_NAME_CHARS),
            _text(item.get("reason"), _MAX_MESSAGE_CHARS),
        )
        for item in map(mapping_of, list_of(data.get("refused_calls")))
    )
    checks = data.get("checks")
    verdicts = (
        {
            _text(name, _MAX_NAME_CHARS): _text(verdict, _MAX_NAME_CHARS)
            for name, verdict in checks.items()
        }
        if isinstance(checks, Mapping)
        else {}
    )
    return replace(
        progress,
        turns=progress.turns + 1,
        tools=(*progress.tools, *tool_calls)[-_MAX_TOOLS:],
        tool_call_count=progress.tool_call_count + len(tool_calls),
        checks=verdicts or progress.checks,
        last_message=_text(data.get("thought"), _MAX_MESSAGE_CHARS) or progress.last_message,
        refused=(*progress.refused, *refused)[-_MAX_TOOLS:],
    )


_HANDLERS: Mapping[EventType, Callable[[SeatProgress, Data], SeatProgress]] = {
    EventType.SEAT_STARTED: _on_started,
    EventType.MODEL_CALLED: _on_model_call,
    EventType.SEAT_TURN: _on_turn,
}


def _text(value: object, max_chars: int) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
