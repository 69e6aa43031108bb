"""Trajectories of seats as ATIF documents (Agent Trajectory Interchange Format, version 1.6)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moothall import __version__
from moothall.domain.budget import Usage
from moothall.domain.codec import list_of, load, mapping_of, text_of
from moothall.domain.event import Event, EventType

_SCHEMA = "ATIF-v1.6"


def trajectories(events: Sequence[Event], text: str) -> dict[str, dict[str, Any]]:
    """Return a document for each seat that took a turn.

    Its steps are the task and then the turns, with tool calls and their results. Model calls of a
    turn
    count in its metrics; calls outside of turns, such as reviews, only in the final metrics.
    """
    seats = {
        seat: None
        for event in events
        if event.type is EventType.SEAT_TURN and (seat := text_of(event.data.get("seat")))
    }
    return {
        seat: _document([event for event in events if event.data.get("seat") == seat], seat, text)
        for seat in seats
    }


def _document(events: Sequence[Event], seat: str, text: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": text}]
    total, turn, model, answer = Usage(), Usage(), "", ""
    for event in events:
        if event.type is EventType.MODEL_CALLED:
            model = text_of(event.data.get("model")) or model
            usage = load(Usage, mapping_of(event.data.get("usage")))
            total, turn = total + usage, turn + usage
            answer = text_of(event.data.get("answer"))
        elif event.type is EventType.SEAT_TURN:
            message = (
                text_of(event.data.get("thought")) or answer
            )  # a reply that could not be used has no thought
            steps.append(_step(event, len(steps) + 1, model, turn) | {"message": message})
            turn, answer = Usage(), ""
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
            "total_prompt_tokens": total.prompt_tokens,
            "total_completion_tokens": total.completion_tokens,
            "total_cached_tokens": total.cached_tokens,
            "total_cost_usd": total.cost_usd,
            "total_steps": len(steps),
        },
    }


def _step(event: Event, number: int, model: str, usage: Usage) -> dict[str, Any]:
    calls = [mapping_of(call) for call in list_of(event.data.get("calls"))]
    step: dict[str, Any] = {
        "step_id": number,
        **({"timestamp": event.time} if event.time else {}),
        "source": "agent",
        **({"model_name": model} if model else {}),
        "message": "",
    }
    if calls:
        names = [
            text_of(call.get("id")) or f"{number}-{index}" for index, call in enumerate(calls, 1)
        ]
        step["tool_calls"] = [
            {
                "tool_call_id": name,
                "function_name": text_of(call.get("tool")),
                "arguments": dict(mapping_of(call.get("arguments"))),
            }
            for name, call in zip(names, calls, strict=True)
        ]
        step["observation"] = {
            "results": [
                {"source_call_id": name, "content": _content(call)}
                for name, call in zip(names, calls, strict=True)
            ]
        }
    if usage != Usage():
        step["metrics"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
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
