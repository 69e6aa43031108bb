"""OpenAI's chat completions, as a harness sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from moothall.domain.chat import ChatReply, FunctionCall, FunctionTool, Message
from moothall.harnesses.chat_parts import (
    MAX_MESSAGES,
    Item,
    ModelApi,
    ModelRequest,
    create_question,
    event,
    read_list,
    read_parameters,
    read_text,
    read_tools,
)

ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def _read(data: Item) -> ModelRequest:
    messages = tuple(map(_read_message, read_list(data["messages"], MAX_MESSAGES, least=1)))
    tools = tuple(map(_read_tool, read_tools(data.get("tools"))))
    limit = data.get("max_completion_tokens") or data.get("max_tokens")
    question = create_question(messages, tools, limit, data.get("temperature"))
    return ModelRequest(question, bool(data.get("stream")))


def _read_message(item: Item) -> Message:
    return Message(
        ROLES[item["role"]],
        read_text(item.get("content")),
        calls=tuple(map(_read_call, item.get("tool_calls") or ())),
        call_id=str(item.get("tool_call_id") or ""),
    )


def _read_call(item: Item) -> FunctionCall:
    function = item["function"]
    arguments = str(function.get("arguments") or "{}")
    return FunctionCall(str(item["id"]), str(function["name"]), arguments)


def _read_tool(item: Item) -> FunctionTool:
    function = item["function"]
    return FunctionTool(
        str(function["name"]),
        str(function.get("description") or ""),
        read_parameters(function.get("parameters")),
    )


def _write(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Item:
    del request
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [_show_call(call) for call in reply.calls]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(reply)}],
        "usage": _show_usage(reply),
    }


def _stream(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Iterator[str]:
    del request
    head = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: Item, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": reply.text})
    for index, call in enumerate(reply.calls):
        yield chunk({"tool_calls": [{"index": index, **_show_call(call)}]})
    yield chunk({}, _finish_reason(reply))
    yield event({**head, "choices": [], "usage": _show_usage(reply)})
    yield "data: [DONE]\n\n"


def _finish_reason(reply: ChatReply) -> str:
    return "tool_calls" if reply.calls else reply.finish_reason


def _show_call(call: FunctionCall) -> Item:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _show_usage(reply: ChatReply) -> Item:
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def write_error(code: str, message: str) -> Item:
    """Return an error in OpenAI's form."""
    return {"error": {"message": message, "type": code, "code": code}}


CHAT = ModelApi(_read, _write, _stream, write_error)
