"""Trajectories of seats as ATIF documents (Agent Trajectory Interchange Format, version 1.6)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moothall import __version__
from moothall.domain.codec import list_of, mapping_of, text_of
from moothall.domain.event import Event, EventType

_SCHEMA = "ATIF-v1.6"


def trajectories(events: Sequence[Event], text: str) -> dict[str, dict[str, Any]]:
    """Return a document for each seat that took a turn.

    Its steps are the task and then the turns, with tool calls and their results. Model calls of a turn
    count in its metrics; calls outside of turns, such as reviews, only in the final metrics.
    """
    seats = {seat: None for event in events if event.type is EventType.SEAT_TURN and (seat := text_of(event.data.get("seat")))}
    return {seat: _document([event for event in events if event.data.get("seat") == seat], seat, text) for seat in seats}


def _document(events: Sequence[Event], seat: str, text: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": text}]
    waiting: list[Mapping[str, Any]] = []
    total, model, answer = _Sum(), "", ""
    for event in events:
        if event.type is EventType.MODEL_CALLED:
            model = text_of(event.data.get("model")) or model
            usage = mapping_of(event.data.get("usage"))
            total.add(usage)
            waiting.append(usage)
            answer = text_of(event.data.get("answer"))
        elif event.type is EventType.SEAT_TURN:
            message = text_of(event.data.get("thought")) or answer  # a reply that could not be used has no thought
            steps.append(_step(event, len(steps) + 1, model, waiting) | {"message": message})
            waiting, answer = [], ""
    return {
        "schema_version": _SCHEMA,
        "session_id": f"{text_of(events[0].data.get('task_id'))}-{seat}",
        "agent": {
            "name": "moothall",
            "version": __version__,
            **({"model_name": model} if model else {}),
            "extra": {"seat": seat},
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": total.prompt,
            "total_completion_tokens": total.completion,
            "total_cached_tokens": total.cached,
            "total_cost_usd": total.cost,
            "total_steps": len(steps),
        },
    }


def _step(event: Event, number: int, model: str, usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total = _Sum()
    for usage in usages:
        total.add(usage)
    calls = [mapping_of(call) for call in list_of(event.data.get("calls"))]
    step: dict[str, Any] = {
        "step_id": number,
        **({"timestamp": event.time} if event.time else {}),
        "source": "agent",
        **({"model_name": model} if model else {}),
        "message": "",
    }
    if calls:
        names = [text_of(call.get("id")) or f"{number}-{index}" for index, call in enumerate(calls, 1)]
        step["tool_calls"] = [
            {
                "tool_call_id": name,
                "function_name": text_of(call.get("tool")),
                "arguments": dict(mapping_of(call.get("arguments"))),
            }
            for name, call in zip(names, calls, strict=True)
        ]
        step["observation"] = {
            "results": [{"source_call_id": name, "content": _content(call)} for name, call in zip(names, calls, strict=True)]
        }
    if usages:
        step["metrics"] = {
            "prompt_tokens": total.prompt,
            "completion_tokens": total.completion,
            "cached_tokens": total.cached,
            "cost_usd": total.cost,
        }
    if verdicts := mapping_of(event.data.get("checks")):
        step["extra"] = {"checks": dict(verdicts)}
    return step


def _content(call: Mapping[str, Any]) -> str:
    """Return the result of a tool call as text."""
    if error := call.get("error"):
        return error if isinstance(error, str) else json.dumps(error)
    output = call.get("output")
    return output if isinstance(output, str) else json.dumps(output)


class _Sum:
    """A sum of usages."""

    def __init__(self) -> None:
        self.prompt = self.completion = self.cached = 0
        self.cost = 0.0

    def add(self, usage: Mapping[str, Any]) -> None:
        self.prompt += _number(usage.get("prompt_tokens"))
        self.completion += _number(usage.get("completion_tokens"))
        self.cached += _number(usage.get("cached_tokens"))
        cost = usage.get("cost_usd")
        self.cost += cost if isinstance(cost, int | float) else 0.0


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
