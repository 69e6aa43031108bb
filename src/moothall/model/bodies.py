"""What is sent to a chat server."""

from __future__ import annotations

import json
from typing import Any

import orjson

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


def encoded(body: dict[str, Any]) -> bytes:
    """Return the body's bytes."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # half a surrogate pair, which a file may hold
        return json.dumps(body).encode()
