"""What is sent to a chat server, and what of its answer is counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from moothall.config import LlmSettings
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatRequest

JSON = {"Content-Type": "application/json"}
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def body_of(request: ChatRequest, model: str) -> dict[str, Any]:
    """Return the body that every OpenAI-compatible server takes."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        **STREAMED,
    }
    if request.stop:
        body["stop"] = list(request.stop)
    if request.schema:
        wanted = {"name": request.schema.name, "strict": True, "schema": dict(request.schema.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return body


def encode(body: dict[str, Any]) -> bytes:
    """Return the body's bytes."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # half a surrogate pair, which a file may hold
        return json.dumps(body).encode()


_MOST = 1_000_000_000  # more tokens than any call has; what is above is no count
_CHARS_PER_TOKEN = 3  # low, so that an estimate is high and a budget still holds


def count_usage(
    told: Mapping[str, Any], messages: Sequence[Mapping[str, str]], answer_bytes: int, settings: LlmSettings
) -> Usage:
    """Return the server's count; an estimate on the high side where it gives none, or none that can be right."""
    prompt = _count(told.get("prompt_tokens"))
    completion = _count(told.get("completion_tokens"))
    details = told.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    if not prompt:
        prompt = sum(len(message["content"]) for message in messages) // _CHARS_PER_TOKEN + 1
    if not completion:
        completion = answer_bytes // _CHARS_PER_TOKEN + 1
    cost = (prompt * settings.price_in + completion * settings.price_out) / 1_000_000
    return Usage(prompt, min(cached, prompt), completion, 1, cost)


def _count(value: object) -> int:
    """Return a count of tokens; 0 for what is none, such as true, NaN, -5 or a number of a thousand digits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST else 0
