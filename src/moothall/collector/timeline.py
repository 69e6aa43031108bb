"""The timeline of a deliberation: what each seat and each judging agent did, and when, from the
events of its log. The prompts and replies of a deliberation's model calls, from the events of
its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from moothall.domain.chat import Prompt, Prompts, step_of
from moothall.domain.codec import list_of, mapping_of, text_of
from moothall.domain.event import Data, EventType, Recorded, parse_time

# The prompts and replies of a deliberation's model calls, from the events of its log.


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call. `prompt` is None if the log does not have it, because an older version recorded
    the call. `tool_calls` are the native tool calls of the reply: names and arguments.
    """

    prompt: Prompt | None
    reply: str
    tool_calls: tuple[tuple[str, str], ...]


class ModelCallReader:
    """Reads the model calls from a deliberation's events, one after the other."""

    def __init__(self) -> None:
        self._prompts = Prompts()
        self.calls: dict[str, ModelCall] = {}
        """The calls by step; the first event about a call counts."""

    def add(self, recorded: Recorded) -> None:
        """Add an event. Malformed fields are ignored."""
        event = recorded.event
        step = step_of(text_of(event.data.get("call_id")))
        if event.type is not EventType.MODEL_CALLED or not step or step in self.calls:
            return
        tool_calls = tuple(
            (text_of(call.get("name")), text_of(call.get("arguments")))
            for call in map(mapping_of, list_of(event.data.get("calls")))
        )
        prompt = self._prompts.read(step, event.data.get("prompt"))
        self.calls[step] = ModelCall(prompt, text_of(event.data.get("answer")), tool_calls)


# The timeline of a deliberation: what each seat and each judging agent did, and when, from the
# events of its log.


Kind = Literal["model", "review", "tools", "check"]
MODEL_KINDS = ("model", "review")
"""The kinds of steps that are model calls."""
REVIEW_PHASES = frozenset({"critique", "verify"})
_MIN_SECONDS = 0.05
"""Shorter blocks of tools and checks are left out."""
_MAX_TEXT_CHARS = 1_000
_MAX_LANE_BLOCKS = 500


@dataclass(frozen=True, slots=True)
class Block:
    """One step of a lane, in seconds from the request. `text` is the beginning of the model's
    reply, or the tools and checks with their results. `call` is the step of the model call, or ''.
    For tools it is the step of the next call, because its prompt contains their output.
    """

    kind: Kind
    start: float
    end: float
    label: str
    text: str = ""
    tokens: int = 0
    cost_usd: float = 0.0
    call: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """The steps of a seat or a judging agent, in order. `outcome` is the result of a seat."""

    name: str
    blocks: tuple[Block, ...]
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lanes of a deliberation, in order of their first event, its length in seconds, and the
    number of later steps that are left out.
    """

    lanes: tuple[Lane, ...]
    seconds: float
    omitted: int = 0


class TimelineReader:
    """Reads the timeline from a deliberation's events, one after the other."""

    def __init__(self) -> None:
        self._start: datetime | None = None
        self._seconds = 0.0
        self._lanes: dict[str, _OpenLane] = {}

    def add(self, recorded: Recorded) -> None:
        """Add an event. Malformed fields are ignored."""
        event = recorded.event
        time = parse_time(event.time or recorded.extra.get("time", ""))
        if time is None:
            return
        self._start = self._start or time
        at = max(0.0, (time - self._start).total_seconds())
        self._seconds = max(self._seconds, at)
        seat = event.data.get("seat")
        if not isinstance(seat, str) or not seat:
            return
        lane = self._lanes.setdefault(seat, _OpenLane(free_from=at))
        if (handler := _HANDLERS.get(event.type)) is not None:
            handler(lane, at, event.data)

    def timeline(self) -> Timeline:
        """Return the timeline so far."""
        lanes = tuple(
            Lane(name, tuple(lane.blocks), lane.outcome)
            for name, lane in self._lanes.items()
            if lane.blocks or lane.outcome
        )
        return Timeline(lanes, self._seconds, sum(lane.omitted for lane in self._lanes.values()))


@dataclass(slots=True)
class _OpenLane:
    """A lane that grows. `free_from` is the end of its last step."""

    free_from: float
    blocks: list[Block] = field(default_factory=list)
    omitted: int = 0
    outcome: str = ""

    def add(self, block: Block) -> None:
        self.free_from = max(self.free_from, block.end)
        if len(self.blocks) < _MAX_LANE_BLOCKS:
            self.blocks.append(block)
        else:
            self.omitted += 1


def _on_model_call(lane: _OpenLane, at: float, data: Data) -> None:
    duration = data.get("duration_ms")
    seconds = duration / 1000 if isinstance(duration, int | float) and duration >= 0 else 0.0
    phase = _read_text(data.get("phase"))
    usage = data.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    tokens = sum(
        value
        for name in ("prompt_tokens", "completion_tokens")
        if isinstance(value := usage.get(name), int)
    )
    cost = usage.get("cost_usd")
    call = step_of(text_of(data.get("call_id")))
    if lane.blocks and (last := lane.blocks[-1]).kind == "tools" and not last.call:
        lane.blocks[-1] = replace(last, call=call)
    lane.add(
        Block(
            "review" if phase in REVIEW_PHASES else "model",
            max(0.0, at - seconds),
            at,
            phase or "model",
            _read_text(data.get("answer")),
            tokens,
            float(cost) if isinstance(cost, int | float) else 0.0,
            call,
        )
    )


def _on_turn(lane: _OpenLane, at: float, data: Data) -> None:
    operations, checks = data.get("operations"), data.get("checks")
    lines = [
        f"{item.get('tool')}: {item.get('status')}"
        for item in (operations if isinstance(operations, list | tuple) else ())
        if isinstance(item, Mapping)
    ]
    lines += [
        f"{item.get('tool')}: refused, {item.get('reason')}"
        for item in map(mapping_of, list_of(data.get("refused_calls")))
    ]
    lines += [
        f"{name}: {verdict}"
        for name, verdict in (checks.items() if isinstance(checks, Mapping) else ())
    ]
    if lines and at - lane.free_from >= _MIN_SECONDS:
        names = dict.fromkeys(line.partition(":")[0] for line in lines)
        text = _read_text("\n".join(lines))
        lane.add(Block("tools", lane.free_from, at, _read_text(", ".join(names)), text))


def _on_check(lane: _OpenLane, at: float, data: Data) -> None:
    evidence = data.get("evidence")
    evidence = evidence if isinstance(evidence, Mapping) else {}
    name, verdict = _read_text(evidence.get("check")), _read_text(evidence.get("verdict"))
    duration = evidence.get("duration_ms")
    seconds = duration / 1000 if isinstance(duration, int) and duration > 0 else 0.0
    start = max(lane.free_from, at - seconds) if seconds else lane.free_from
    if name and at - start >= _MIN_SECONDS:
        lane.add(Block("check", start, at, name, f"{name}: {verdict}"))
    elif name and lane.blocks and lane.blocks[-1].kind == "check":
        last = lane.blocks.pop()
        text = _read_text(f"{last.text}\n{name}: {verdict}")
        lane.blocks.append(Block("check", last.start, last.end, last.label, text))


def _on_proposed(lane: _OpenLane, at: float, data: Data) -> None:
    del data
    lane.outcome, lane.free_from = "proposed", at


def _on_failed(lane: _OpenLane, at: float, data: Data) -> None:
    error = data.get("error")
    code = _read_text(error.get("code")) if isinstance(error, Mapping) else ""
    lane.outcome, lane.free_from = f"failed: {code}".rstrip(": "), at


_HANDLERS = {
    EventType.MODEL_CALLED: _on_model_call,
    EventType.SEAT_TURN: _on_turn,
    EventType.CHECK_FINISHED: _on_check,
    EventType.SEAT_PROPOSED: _on_proposed,
    EventType.SEAT_REVISED: _on_proposed,
    EventType.SEAT_FAILED: _on_failed,
}


def _read_text(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 1]}…"
