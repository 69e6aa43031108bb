"""The body of a chat request, and the usage of its reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from moothall.config import LlmSettings
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatRequest, FunctionCall, Message
from moothall.llm.server_errors import read_count

JSON = {"Content-Type": "application/json"}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_EMPTY = "(nothing)"
"""Sent for an empty reply in later requests, since some servers refuse messages without content."""


def chat_body(request: ChatRequest, model: str) -> dict[str, Any]:
    """Return the body of `/v1/chat/completions` as OpenAI documents it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [render_message(message) for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        **STREAMED,
    }
    if request.stop:
        body["stop"] = list(request.stop)
    if request.schema:
        json_schema = {
            "name": request.schema.name,
            "strict": True,
            "schema": dict(request.schema.schema),
        }
        body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for tool in request.tools
        ]
        body["parallel_tool_calls"] = True
    return body


def render_message(message: Message) -> dict[str, Any]:
    """Return a message in the form of chat completions."""
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        rendered["tool_call_id"] = message.call_id
    if message.role != "assistant":
        return rendered
    reasoning = read_reasoning(message.reasoning)
    extras = reasoning.pop("extras", {})
    if message.calls:
        rendered["content"] = message.content or None
        rendered["tool_calls"] = [_render_call(call, extras) for call in message.calls]
    elif not message.content.strip():
        rendered["content"] = _EMPTY
    if isinstance(thinking := reasoning.pop("thinking", None), str):
        parts = [{"type": "thinking", "thinking": [{"type": "text", "text": thinking}]}]
        rendered["content"] = [*parts, {"type": "text", "text": message.content}]
    if isinstance(tagged := reasoning.pop("think", None), str):
        rendered["content"] = f"<think>{tagged}</think>\n\n{message.content}"
    return rendered | {name: value for name, value in reasoning.items() if name in REASONING_FIELDS}


REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "items")


def read_reasoning(text: str) -> dict[str, Any]:
    """Return the fields of stored reasoning; an empty object if there are none."""
    try:
        fields = json.loads(text) if text else {}
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _render_call(call: FunctionCall, extras: object) -> dict[str, Any]:
    """Return a call of an earlier reply. Arguments that are not a JSON object are replaced by an
    empty one, because servers fail to parse them.
    """
    function = {
        "name": call.name,
        "arguments": call.arguments if is_object(call.arguments) else "{}",
    }
    extra = extras.get(call.call_id) if isinstance(extras, dict) else None
    return {"id": call.call_id, "type": "function", "function": function} | (
        extra if isinstance(extra, dict) else {}
    )


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def encode(body: dict[str, Any]) -> bytes:
    """Return the body's bytes."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # a lone surrogate, which a file may contain
        return json.dumps(body, default=dict).encode()


_CHARS_PER_TOKEN = 3  # low, so that estimates are high and stay within a budget


def count_usage(
    reported: Mapping[str, Any], prompt_chars: int, reply_bytes: int, settings: LlmSettings
) -> Usage:
    """Return the usage that the server reported; a high estimate if it reported none or an
    impossible one.
    """
    prompt, completion = (
        read_count(reported.get("prompt_tokens")),
        read_count(reported.get("completion_tokens")),
    )
    cached = _detail(reported, "prompt_tokens_details", "cached_tokens") or read_count(
        reported.get("prompt_cache_hit_tokens")
    )
    reasoning = _detail(reported, "completion_tokens_details", "reasoning_tokens")
    if completion and read_count(reported.get("total_tokens")) == prompt + completion + reasoning:
        completion += reasoning  # some servers count reasoning beside the completion
    prompt = prompt or prompt_chars // _CHARS_PER_TOKEN + 1
    completion = completion or reply_bytes // _CHARS_PER_TOKEN + 1
    cached, reasoning = min(cached, prompt), min(reasoning, completion)
    cost = (
        (prompt - cached) * settings.price_in
        + cached * _price(settings.price_cached, settings.price_in)
        + (completion - reasoning) * settings.price_out
        + reasoning * _price(settings.price_reasoning, settings.price_out)
    )
    return Usage(prompt, cached, completion, 1, cost / 1_000_000, reasoning)


def _detail(reported: Mapping[str, Any], group: str, name: str) -> int:
    details = reported.get(group)
    return read_count(details.get(name)) if isinstance(details, dict) else 0


def _price(price: float | None, default: float) -> float:
    return default if price is None else price
