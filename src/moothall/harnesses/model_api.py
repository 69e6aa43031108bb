"""The model server that a harness sees: OpenAI's chat completions, answered by a seat's own model.

Requests come from inside a sandbox and are hostile. Replies are complete when they are sent; a
harness that asks for a stream gets them in a few chunks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moothall.domain.chat import (
    AnswerModel,
    ChatReply,
    FunctionCall,
    FunctionTool,
    Message,
    ModelQuestion,
)
from moothall.domain.ids import digest
from moothall.domain.text import encodable
from moothall.errors import (
    BudgetExceeded,
    ContextOverflow,
    DeadlineExceeded,
    InvalidRequest,
    MoothallError,
    Temporary,
)

JSON, _EVENTS = "application/json", "text/event-stream"
_MAX_MESSAGES, _MAX_TOOLS = 4_000, 200
_ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_STATUSES: Mapping[type[MoothallError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    ContextOverflow: (400, "context_length_exceeded"),
    BudgetExceeded: (402, "insufficient_quota"),
    DeadlineExceeded: (402, "insufficient_quota"),
}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply over HTTP: status, content type and content."""

    status: int
    content: str
    type: str = JSON


async def answer(method: str, path: str, body: str, model: str, ask: AnswerModel) -> HttpReply:
    """Answer a request to the model server. Errors become HTTP errors in OpenAI's format, except
    `Temporary` ones, which are raised: they end the work of the whole deliberation.
    """
    route = path.partition("?")[0].rstrip("/").removeprefix("/v1")
    if method == "GET" and route == "/models":
        listed = {"object": "list", "data": [{"id": model, "object": "model"}]}
        return HttpReply(200, json.dumps(listed))
    if method != "POST" or route != "/chat/completions":
        return _error(404, "not_found", f"{method} {path[:100]} is not served; use the Chat API")
    try:
        streamed, question = read_question(body)
        reply = await ask(question)
    except Temporary:
        raise
    except MoothallError as error:
        status, code = next(
            (known for kind, known in _STATUSES.items() if isinstance(error, kind)),
            (422, error.code.lower()),
        )
        return _error(status, code, error.message)
    number = f"chatcmpl-{digest(body)[:24]}"
    if streamed:
        return HttpReply(200, "".join(_chunks(number, model, reply)), _EVENTS)
    return HttpReply(200, json.dumps(_completion(number, model, reply)))


def _error(status: int, code: str, message: str) -> HttpReply:
    return HttpReply(
        status, json.dumps({"error": {"message": message, "type": code, "code": code}})
    )


def read_question(body: str) -> tuple[bool, ModelQuestion]:
    """Parse a request: whether it wants a stream, and its question. Raises `InvalidRequest`."""
    try:
        data = json.loads(body)
        messages = tuple(map(_read_message, _list(data["messages"], _MAX_MESSAGES, least=1)))
        tools = tuple(map(_read_tool, _list(data.get("tools") or [], _MAX_TOOLS)))
        limit = data.get("max_completion_tokens") or data.get("max_tokens") or 0
        temperature = float(data.get("temperature") or 0.0)
        return bool(data.get("stream")), ModelQuestion(
            messages, tools, max(0, int(limit)), min(max(temperature, 0.0), 2.0)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"this is not a chat request: {error!r:.200}") from error


def _list(value: Any, most: int, least: int = 0) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"a list of {least} to {most} objects is expected")
    return value


def _read_message(item: Mapping[str, Any]) -> Message:
    return Message(
        _ROLES[item["role"]],
        _read_content(item.get("content")),
        calls=tuple(map(_read_call, item.get("tool_calls") or ())),
        call_id=str(item.get("tool_call_id") or ""),
    )


def _read_content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return encodable(content)
    return encodable(
        "\n".join(
            str(part["text"]) if part.get("type") == "text" else f"[{part.get('type')}: left out]"
            for part in content
        )
    )


def _read_call(item: Mapping[str, Any]) -> FunctionCall:
    function = item["function"]
    return FunctionCall(
        str(item["id"]), str(function["name"]), encodable(str(function.get("arguments") or "{}"))
    )


def _read_tool(item: Mapping[str, Any]) -> FunctionTool:
    function = item["function"]
    return FunctionTool(
        str(function["name"]),
        encodable(str(function.get("description") or "")),
        dict(function.get("parameters") or {"type": "object", "properties": {}}),
    )


def _completion(number: str, model: str, reply: ChatReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [_show_call(call) for call in reply.calls]
    return {
        "id": number,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(reply)}],
        "usage": _show_usage(reply),
    }


def _chunks(number: str, model: str, reply: ChatReply) -> Iterator[str]:
    head = {
        "id": number,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    yield chunk({"role": "assistant", "content": reply.text})
    for index, call in enumerate(reply.calls):
        yield chunk({"tool_calls": [{"index": index, **_show_call(call)}]})
    yield chunk({}, _finish_reason(reply))
    yield f"data: {json.dumps({**head, 'choices': [], 'usage': _show_usage(reply)})}\n\n"
    yield "data: [DONE]\n\n"


def _finish_reason(reply: ChatReply) -> str:
    return "tool_calls" if reply.calls else reply.finish_reason


def _show_call(call: FunctionCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _show_usage(reply: ChatReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
