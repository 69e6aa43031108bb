"""How far a deliberation is: a percentage of its facts, and for who watches a sentence for each
event.

A seat's share grows with its facts (calls, proposal, re-check, review, end); all seats' shares make
5 to 95 percent, the decision 100. Whoever asks gets the same: of the events so far, in whatever
order and however often they came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.collector.fold import DeliberationState, fold
from moothall.collector.seat_progress import ENDED, Lanes, advance
from moothall.domain.codec import mapping_of
from moothall.domain.event import Data, EventType, Recorded
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.proposal import way
from moothall.domain.text import as_sentence
from moothall.errors import InvalidRequest

_BEGUN, _MOST = 5, 95
_CHARS = 300
_PREPARING = "Preparing"


@dataclass(frozen=True, slots=True)
class Progress:
    """What was seen so far; `percent` never falls. `words` is what was said to it, and by whom, by
    event id; `metrics` is what its agent told last of itself, `said` is the last step in words,
    `seq` its place in the log.
    """

    state: DeliberationState | None = None
    status: DeliberationStatus = DeliberationStatus.PENDING
    percent: int = 0
    lanes: Lanes = field(default_factory=dict)
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    said: str = ""
    seq: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """What the council as a whole is at, in a word or two."""
        state, lanes = self.state or DeliberationState(""), self.lanes.values()
        proposed = {fact.value.seat for fact in state.proposals.values()}
        all_proposed = all(lane.seat in proposed or lane.waits == ENDED for lane in lanes)
        phases = {
            "decided": self.status.ended,
            "stopping": state.cancelled is not None,
            "paused": state.pauses.held,
            "preparing": state.started is None and self.said.startswith(_PREPARING),
            "asked for": state.started is None,
            "ranking": bool(lanes) and all(lane.waits == ENDED for lane in lanes),
            "revising": any(lane.phase == "revise" for lane in lanes),
            "reviewing": bool(state.reviews)
            or any(lane.phase == "critique" for lane in lanes)
            or (all_proposed and any(lane.about_text for lane in lanes)),
            "re-checking": all_proposed,
        }
        return next((name for name, holds in phases.items() if holds), "proposing")


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One step. `seq` is the event's place in the log; `agent` is empty where no seat acts."""

    seq: int
    status: DeliberationStatus
    percent: int
    step: str
    agent: str
    event_type: str
    data: Mapping[str, Any]


def status_of(state: DeliberationState) -> DeliberationStatus:
    """Return how a deliberation stands."""
    if state.decided is not None:
        return state.decided.value.status
    return DeliberationStatus.PENDING if state.started is None else DeliberationStatus.IN_PROGRESS


def percent_of(state: DeliberationState) -> int:
    """Return how far a deliberation is."""
    if state.decided is not None:
        return 100
    if state.started is None:
        return 0
    shares = (
        [_share(state, seat) for seat in state.requested.value.seats] if state.requested else []
    )
    return min(_MOST, _BEGUN + int(90 * sum(shares) / max(1, len(shares))))


def _share(state: DeliberationState, seat: str) -> float:
    """How far a seat is, 0..1."""
    names = {key for key, fact in state.proposals.items() if fact.value.seat == seat}
    return way(
        sum(caller == seat for caller, _ in (fact.value for fact in state.calls.values())),
        state.requested.value.max_turns if state.requested else 1,
        proposed=bool(names),
        checked=bool(names & state.assessments.keys()),
        reviewed=any(key[:2] in names for key in state.reviews),
        ended=seat in state.finished or seat in state.failures,
    )


def describe(progress: Progress, recorded: Recorded) -> tuple[Progress, ProgressStep]:
    """Return the progress with one event more and the step that it is. Begin with `Progress()`."""
    event = recorded.event
    agent = str(event.data.get("seat") or "")
    said = _plain(_sentence(event.type, agent, event.data))
    words = progress.words
    if event.type is EventType.DELIBERATION_STEERED:
        words = {
            **words,
            event.id: (str(event.data.get("by", "")), str(event.data.get("message", ""))),
        }
    metrics = progress.metrics
    if (
        event.type is EventType.AGENT_PROGRESS
        and isinstance(told := event.data.get("metrics"), Mapping)
        and told
    ):
        metrics = {
            str(name): value for name, value in told.items() if isinstance(value, int | float)
        }
    after = replace(
        _advance(progress, recorded),
        metrics=metrics,
        words=words,
        lanes=advance(progress.lanes, recorded),
        said=said,
        seq=recorded.seq,
    )
    step = ProgressStep(
        seq=recorded.seq,
        status=after.status,
        percent=after.percent,
        step=said,
        agent=agent,
        event_type=event.type.value,
        data=event.data,
    )
    return after, step


def _advance(progress: Progress, recorded: Recorded) -> Progress:
    event = recorded.event
    if (
        event.type is EventType.DELIBERATION_DECIDED
    ):  # also one of a version that the fold cannot read
        return Progress(progress.state, _status(event.data.get("status")), 100)
    try:
        state = fold(progress.state, event)
    except InvalidRequest:  # the collector has said so
        return progress
    if progress.status.ended:
        return Progress(state, progress.status, progress.percent)
    return Progress(state, status_of(state), max(progress.percent, percent_of(state)))


def _sentence(kind: EventType, agent: str, data: Data) -> str:
    say = _SENTENCES.get(kind)
    return say(agent, data) if say else f"{kind.value.removeprefix('moothall.').replace('.', ' ')}."


def _tell_progress(agent: str, data: Data) -> str:
    said, progress = data.get("current_task", ""), data.get("progress")
    if not data.get("agent"):
        return f"{_PREPARING}: {said}"
    share = f"{progress:.0%} of its way" if isinstance(progress, int | float) else "on its way"
    return f"{data.get('agent', '')} is at {share}: {agent} {said}."


def _tell_turn(agent: str, data: Data) -> str:
    operations = data.get("operations")
    return (
        f"{agent} finished turn {data.get('turn', '')} with "
        f"{len(operations) if isinstance(operations, list) else 0} tool calls."
    )


def _tell_call(agent: str, data: Data) -> str:
    usage = mapping_of(data.get("usage"))
    total = _whole(usage.get("prompt_tokens")) + _whole(usage.get("completion_tokens"))
    return f"{agent or 'The council'} asked the model ({data.get('phase', '')}): {total} tokens."


def _tell_check(agent: str, data: Data) -> str:
    evidence, author = mapping_of(data.get("evidence")), data.get("cross_author")
    what = f"tests of {author}" if author else evidence.get("check", "")
    return (
        f"Clean re-check of {data.get('candidate') or agent}: {what} {evidence.get('verdict', '')}."
    )


def _tell_review(agent: str, data: Data) -> str:
    return (
        f"{agent} reviewed {data.get('candidate', '')}: "
        f"{mapping_of(data.get('review')).get('score', '')}."
    )


def _tell_report(_: str, data: Data) -> str:
    return as_sentence(str(mapping_of(data.get("report")).get("message", "")))


def _tell_failure(agent: str, data: Data) -> str:
    error = mapping_of(data.get("error"))
    return f"{agent} failed: {error.get('message', '')} [{error.get('code', '')}]"


def _level(data: Data) -> str:
    """The winner's level of evidence; records of earlier versions have `proven` alone."""
    return str(
        data.get("evidence_level") or ("proven" if data.get("proven") else "unproven")
    ).replace("_", "-")


def _tell_decision(_: str, data: Data) -> str:
    if winner := data.get("winner_id"):
        return f"Decided: {winner} wins, {_level(data)}."
    return f"Decided: no winner. {data.get('error_message', '')}"


_SENTENCES: Mapping[EventType, Callable[[str, Data], str]] = {
    EventType.DELIBERATION_REQUESTED: lambda _, data: (
        f"Asked for: {len(_strings(data.get('seats')))} seats, protocol {data.get('protocol', '')}."
    ),
    EventType.AGENT_PROGRESS: _tell_progress,
    EventType.DELIBERATION_STARTED: lambda *_: "The council has begun.",
    EventType.SEAT_STARTED: lambda agent, data: (
        f"{agent} begins: {data.get('approach') or 'no particular approach'}."
    ),
    EventType.SEAT_TURN: _tell_turn,
    EventType.MODEL_CALLED: _tell_call,
    EventType.SEAT_PROPOSED: lambda agent, _: f"{agent} proposes an answer.",
    EventType.SEAT_REVISED: lambda agent, _: f"{agent} revised its answer.",
    EventType.CHECK_FINISHED: _tell_check,
    EventType.SEAT_REVIEWED: _tell_review,
    EventType.EVIDENCE_REPORTED: _tell_report,
    EventType.SEAT_FAILED: _tell_failure,
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
    EventType.DELIBERATION_RESUMED: lambda _, data: f"{data.get('by', '')} lets it go on.",
    EventType.DELIBERATION_DECIDED: _tell_decision,
}


def _status(value: object) -> DeliberationStatus:
    known = {status.value: status for status in DeliberationStatus}
    return known.get(str(value), DeliberationStatus.COMPLETED)


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _plain(text: str) -> str:
    """Parts of a sentence may come from a model: one printable line of bounded length."""
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= _CHARS else f"{line[: _CHARS - 1]}…"
