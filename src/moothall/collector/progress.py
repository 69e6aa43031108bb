"""Progress of a deliberation: a percentage of its facts, and a sentence for each event. Progress
of each seat of a deliberation, event by event: its turns, tools, checks and last message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.collector.fold import DeliberationState, fold
from moothall.collector.timeline import REVIEW_PHASES
from moothall.domain.codec import list_of, mapping_of
from moothall.domain.event import Data, EventType, Recorded
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.proposal import seat_progress
from moothall.domain.text import as_sentence, count_of
from moothall.errors import InvalidRequest

# Progress of each seat of a deliberation, event by event: its turns, tools, checks and last
# message.
#
# The text is model output of bounded length.


ENDED = "ended"
_RUNS_TOOLS = "runs its tools"
_MAX_MESSAGE_CHARS = 2_000
_MAX_NAME_CHARS = 200
_MAX_TOOLS = 8
_ACTIVITIES: Mapping[EventType, str] = {
    EventType.SEAT_STARTED: "waits for the model",
    EventType.SEAT_TURN: "waits for the model",
    EventType.SEAT_PROPOSED: "waits for checks and reviews",
    EventType.SEAT_REVISED: "waits for checks and reviews",
    EventType.CHECK_FINISHED: "waits for the decision",
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

    activity: what the seat waits for, that it runs its tools, or that it has ended.
    tools: its last tool calls with their results, the latest last.
    tool_call_count: the number of all its tool calls.
    refused: its last refused tool calls as (tool, status, reason), the latest last.
    checks: the checks of its last turn that ran any.
    last_message: the last message of the model, reviews aside.
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
    return replace(progress, approach=_read_text(data.get("approach"), _MAX_NAME_CHARS))


def _on_model_call(progress: SeatProgress, data: Data) -> SeatProgress:
    steering_ids = data.get("told")
    phase = _read_text(data.get("phase"), _MAX_NAME_CHARS)
    answer = "" if phase in REVIEW_PHASES else _read_text(data.get("answer"), _MAX_MESSAGE_CHARS)
    runs_tools = bool(data.get("calls")) and progress.activity == _ACTIVITIES[EventType.SEAT_TURN]
    return replace(
        progress,
        activity=_RUNS_TOOLS if runs_tools else progress.activity,
        phase=phase,
        last_message=answer or progress.last_message,
        steering_ids=tuple(map(str, steering_ids))
        if isinstance(steering_ids, list | tuple)
        else progress.steering_ids,
    )


def _on_turn(progress: SeatProgress, data: Data) -> SeatProgress:
    operations = data.get("operations")
    tool_calls = tuple(
        (
            _read_text(item.get("tool"), _MAX_NAME_CHARS),
            _read_text(item.get("status"), _MAX_NAME_CHARS),
        )
        for item in (operations if isinstance(operations, list | tuple) else ())
        if isinstance(item, Mapping)
    )
    refused = tuple(
        (
            _read_text(item.get("tool"), _MAX_NAME_CHARS),
            _read_text(item.get("status"), _MAX_NAME_CHARS),
            _read_text(item.get("reason"), _MAX_MESSAGE_CHARS),
        )
        for item in map(mapping_of, list_of(data.get("refused_calls")))
    )
    checks = data.get("checks")
    verdicts = (
        {
            _read_text(name, _MAX_NAME_CHARS): _read_text(verdict, _MAX_NAME_CHARS)
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
        last_message=_read_text(data.get("thought"), _MAX_MESSAGE_CHARS) or progress.last_message,
        refused=(*progress.refused, *refused)[-_MAX_TOOLS:],
    )


_HANDLERS: Mapping[EventType, Callable[[SeatProgress, Data], SeatProgress]] = {
    EventType.SEAT_STARTED: _on_started,
    EventType.MODEL_CALLED: _on_model_call,
    EventType.SEAT_TURN: _on_turn,
}


def _read_text(value: object, max_chars: int) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


# Progress of a deliberation: a percentage of its facts, and a sentence for each event.
#
# A seat's share grows with its facts (calls, proposal, re-check, review, end). All seats' shares
# make 5 to 95 percent, the decision 100. The result depends on the set of events only, not on their
# order or repetition.


_STARTED_PERCENT = 5
_MAX_PERCENT = 95
_MAX_SENTENCE_CHARS = 300
_PREPARING = "Preparing"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a deliberation so far.

    percent: never falls.
    seats: the progress of each seat.
    steering: the steering messages by event id: author and text.
    last_step: the last step as a sentence.
    seq: the position of the last event in the log.
    metrics: the last metrics that the agent reported.
    """

    state: DeliberationState | None = None
    status: DeliberationStatus = DeliberationStatus.PENDING
    percent: int = 0
    seats: SeatProgressByName = field(default_factory=dict)
    steering: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    last_step: str = ""
    seq: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The phase of the whole council, in a word or two."""
        state, seats = self.state or DeliberationState(TaskKey("")), self.seats.values()
        proposed = {fact.value.seat for fact in state.proposals.values()}
        all_proposed = all(seat.seat in proposed or seat.activity == ENDED for seat in seats)
        phases = {
            "decided": self.status.ended,
            "stopping": state.cancelled is not None,
            "paused": state.pauses.is_paused,
            "preparing": state.started is None and self.last_step.startswith(_PREPARING),
            "asked for": state.started is None,
            "ranking": bool(seats) and all(seat.activity == ENDED for seat in seats),
            "revising": any(seat.phase == "revise" for seat in seats),
            "reviewing": bool(state.reviews)
            or any(seat.phase == "critique" for seat in seats)
            or (all_proposed and any(seat.about_text for seat in seats)),
            "re-checking": all_proposed,
        }
        return next((name for name, holds in phases.items() if holds), "proposing")


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One step.

    seq: the position of its event in the log.
    agent: '' if no seat acts.
    """

    seq: int
    status: DeliberationStatus
    percent: int
    step: str
    agent: str
    event_type: str
    data: Mapping[str, Any]


def status_of(state: DeliberationState) -> DeliberationStatus:
    """Return the status of a deliberation."""
    if state.decided is not None:
        return state.decided.value.status
    return DeliberationStatus.PENDING if state.started is None else DeliberationStatus.IN_PROGRESS


def percent_of(state: DeliberationState) -> int:
    """Return the progress of a deliberation in percent."""
    if state.decided is not None:
        return 100
    if state.started is None:
        return 0
    shares = (
        [_seat_share(state, seat) for seat in state.requested.value.seats]
        if state.requested
        else []
    )
    return min(
        _MAX_PERCENT,
        _STARTED_PERCENT
        + int((_MAX_PERCENT - _STARTED_PERCENT) * sum(shares) / max(1, len(shares))),
    )


def _seat_share(state: DeliberationState, seat: str) -> float:
    """Return the progress of a seat, 0..1."""
    proposal_keys = {key for key, fact in state.proposals.items() if fact.value.seat == seat}
    return seat_progress(
        sum(caller == seat for caller, _ in (fact.value for fact in state.calls.values())),
        state.requested.value.max_turns if state.requested else 1,
        proposed=bool(proposal_keys),
        checked=bool(proposal_keys & state.assessments.keys()),
        reviewed=any(key[:2] in proposal_keys for key in state.reviews),
        ended=seat in state.finished or seat in state.failures,
    )


def apply_event(progress: Progress, recorded: Recorded) -> tuple[Progress, ProgressStep]:
    """Return the progress after one more event, and the step of this event. Start with
    `Progress()`.
    """
    event = recorded.event
    agent = str(event.data.get("seat") or "")
    sentence = _sanitize_line(_format_sentence(event.type, agent, event.data))
    steering = progress.steering
    if event.type is EventType.DELIBERATION_STEERED:
        steering = {
            **steering,
            event.id: (str(event.data.get("by", "")), str(event.data.get("message", ""))),
        }
    metrics = progress.metrics
    if (
        event.type is EventType.AGENT_PROGRESS
        and isinstance(reported := event.data.get("metrics"), Mapping)
        and reported
    ):
        metrics = {
            str(name): value for name, value in reported.items() if isinstance(value, int | float)
        }
    updated = replace(
        _fold_event(progress, recorded),
        metrics=metrics,
        steering=steering,
        seats=advance_seats(progress.seats, recorded),
        last_step=sentence,
        seq=recorded.seq,
    )
    step = ProgressStep(
        seq=recorded.seq,
        status=updated.status,
        percent=updated.percent,
        step=sentence,
        agent=agent,
        event_type=event.type.value,
        data=event.data,
    )
    return updated, step


def _fold_event(progress: Progress, recorded: Recorded) -> Progress:
    event = recorded.event
    if event.type is EventType.DELIBERATION_DECIDED:
        # This includes outcomes of a version that the fold cannot read.
        return Progress(progress.state, _parse_status(event.data.get("status")), 100)
    try:
        state = fold(progress.state, event)
    except InvalidRequest:  # the collector has reported it
        return progress
    if progress.status.ended:
        return Progress(state, progress.status, progress.percent)
    return Progress(state, status_of(state), max(progress.percent, percent_of(state)))


def _format_sentence(kind: EventType, agent: str, data: Data) -> str:
    formatter = _SENTENCES.get(kind)
    return (
        formatter(agent, data)
        if formatter
        else f"{kind.value.removeprefix('moothall.').replace('.', ' ')}."
    )


def _format_progress(agent: str, data: Data) -> str:
    current_task, progress = data.get("current_task", ""), data.get("progress")
    if not data.get("agent"):
        return f"{_PREPARING}: {current_task}"
    share = f"at {progress:.0%}" if isinstance(progress, int | float) else "in progress"
    return f"{data.get('agent', '')} is {share}: {agent} {current_task}."


def _format_turn(agent: str, data: Data) -> str:
    tool_calls = count_of(len(list_of(data.get("operations"))), "tool call")
    return f"{agent} finished turn {data.get('turn', '')} with {tool_calls}."


def _format_call(agent: str, data: Data) -> str:
    usage = mapping_of(data.get("usage"))
    total = _positive_int(usage.get("prompt_tokens")) + _positive_int(
        usage.get("completion_tokens")
    )
    caller = "The council" if agent in {"", "-"} else agent
    return f"{caller} asked the model ({data.get('phase', '')}): {total} tokens."


def _format_check(agent: str, data: Data) -> str:
    evidence, author = mapping_of(data.get("evidence")), data.get("cross_author")
    subject = f"tests of {author}" if author else evidence.get("check", "")
    candidate = data.get("candidate") or agent
    return f"Clean re-check of {candidate}: {subject} {evidence.get('verdict', '')}."


def _format_review(agent: str, data: Data) -> str:
    return (
        f"{agent} reviewed {data.get('candidate', '')}: "
        f"{mapping_of(data.get('review')).get('score', '')}."
    )


def _format_report(_: str, data: Data) -> str:
    return as_sentence(str(mapping_of(data.get("report")).get("message", "")))


def _format_failure(agent: str, data: Data) -> str:
    error = mapping_of(data.get("error"))
    return f"{agent} failed: {error.get('message', '')} [{error.get('code', '')}]"


def _evidence_level(data: Data) -> str:
    """Return the winner's level of evidence. Records of earlier versions have only `proven`."""
    return str(
        data.get("evidence_level") or ("proven" if data.get("proven") else "unproven")
    ).replace("_", "-")


def _format_decision(_: str, data: Data) -> str:
    if winner := data.get("winner_id"):
        return f"Decided: {winner} wins, {_evidence_level(data)}."
    return f"Decided: no winner. {data.get('error_message', '')}"


_SENTENCES: Mapping[EventType, Callable[[str, Data], str]] = {
    EventType.DELIBERATION_REQUESTED: lambda _, data: (
        f"Asked for: {len(_read_strings(data.get('seats')))} seats, "
        f"protocol {data.get('protocol', '')}."
        + (f" {data['choice']}." if data.get("choice") else "")
    ),
    EventType.AGENT_PROGRESS: _format_progress,
    EventType.DELIBERATION_STARTED: lambda *_: "The council has begun.",
    EventType.SEAT_STARTED: lambda agent, data: (
        f"{agent} begins: {data['approach']}." if data.get("approach") else f"{agent} begins."
    ),
    EventType.SEAT_TURN: _format_turn,
    EventType.MODEL_CALLED: _format_call,
    EventType.SEAT_PROPOSED: lambda agent, _: f"{agent} proposed an answer.",
    EventType.SEAT_REVISED: lambda agent, _: f"{agent} revised its answer.",
    EventType.CHECK_FINISHED: _format_check,
    EventType.SEAT_REVIEWED: _format_review,
    EventType.EVIDENCE_REPORTED: _format_report,
    EventType.SEAT_FAILED: _format_failure,
    EventType.SEAT_FINISHED: lambda agent, data: (
        f"{agent} is done: {mapping_of(data.get('outcome')).get('status', '')}."
    ),
    EventType.DELIBERATION_CANCELLED: lambda _, data: (
        f"Cancelled: {data.get('reason') or 'no reason given'}."
    ),
    EventType.DELIBERATION_STEERED: lambda _, data: (
        f"{data.get('by', '')} says: {data.get('message', '')}"
    ),
    EventType.DELIBERATION_PAUSED: lambda _, data: f"Paused by {data.get('by', '')}.",
    EventType.DELIBERATION_RESUMED: lambda _, data: f"Resumed by {data.get('by', '')}.",
    EventType.DELIBERATION_DECIDED: _format_decision,
}


def _parse_status(value: object) -> DeliberationStatus:
    statuses = {status.value: status for status in DeliberationStatus}
    return statuses.get(str(value), DeliberationStatus.COMPLETED)


def _read_strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _positive_int(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _sanitize_line(text: str) -> str:
    """Return one printable line of bounded length. Parts of a sentence may be model output."""
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= _MAX_SENTENCE_CHARS else f"{line[: _MAX_SENTENCE_CHARS - 1]}…"
