"""Anthropic's Messages, as a harness sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from moothall.domain.chat import ChatReply, FunctionCall, FunctionTool, Message
from moothall.domain.text import encodable
from moothall.harnesses.chat_api import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ROLES,
    Item,
    ModelApi,
    ModelRequest,
    create_question,
    event,
    read_list,
    read_parameters,
    read_text,
)

_THINKING = frozenset({"thinking", "redacted_thinking"})
_ERRORS = {
    "context_length_exceeded": "invalid_request_error",
    "insufficient_quota": "billing_error",
    "not_found": "not_found_error",
}
_TOO_LONG = "prompt is too long: "  # clients look for these words, and then shorten the prompt


def _read(data: Item) -> ModelRequest:
    messages = [
        message
        for item in read_list(data["messages"], MAX_MESSAGES, least=1)
        for message in _read_message(item)
    ]
    if system := read_text(data.get("system")):
        messages.insert(0, Message("system", system))
    tools = tuple(
        FunctionTool(
            str(item["name"]),
            encodable(str(item.get("description") or "")),
            read_parameters(item["input_schema"]),
        )
        for item in read_list(data.get("tools") or [], MAX_TOOLS)
        if "input_schema" in item  # the others run on Anthropic's servers
    )
    question = create_question(messages, tools, data.get("max_tokens"), data.get("temperature"))
    return ModelRequest(question, bool(data.get("stream")))


def _read_message(item: Item) -> Iterator[Message]:
    """Yield the messages of one turn: the results of tools come first, each as its own message."""
    role, content = ROLES[item["role"]], item["content"]
    blocks: Sequence[Item] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    calls = []
    rest = []
    for block in blocks:
        kind = block["type"]
        if kind == "tool_result":
            text = read_text(block.get("content"))
            yield Message("tool", text, call_id=str(block["tool_use_id"]))
        elif kind == "tool_use":
            arguments = encodable(json.dumps(block.get("input") or {}, ensure_ascii=False))
            calls.append(FunctionCall(str(block["id"]), str(block["name"]), arguments))
        elif kind not in _THINKING:
            rest.append(block)
    if rest or calls:
        yield Message(role, read_text(rest), calls=tuple(calls))


def _write(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Item:
    del request
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _show_blocks(reply),
        "stop_reason": _stop_reason(reply),
        "stop_sequence": None,
        "usage": _show_usage(reply),
    }


def _stream(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Iterator[str]:
    def typed(kind: str, **data: Any) -> str:
        return event({"type": kind, **data}, kind)

    message = {**_write(number, model, request, reply), "content": [], "stop_reason": None}
    yield typed("message_start", message=message)
    for index, block in enumerate(_show_blocks(reply)):
        start: Item
        if block["type"] == "text":
            start, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield typed("content_block_start", index=index, content_block={**block, **start})
        yield typed("content_block_delta", index=index, delta=delta)
        yield typed("content_block_stop", index=index)
    end = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield typed("message_delta", delta=end, usage=_show_usage(reply))
    yield typed("message_stop")


def _show_blocks(reply: ChatReply) -> list[dict[str, Any]]:
    texts: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    calls = [
        {
            "type": "tool_use",
            "id": call.call_id,
            "name": call.name,
            "input": _read_arguments(call.arguments),
        }
        for call in reply.calls
    ]
    return texts + calls


def _read_arguments(text: str) -> Item:
    """Return the arguments of a call. Of a text that is no JSON object, the harness gets the text;
    it refuses the call, and the model sees what it wrote.
    """
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _stop_reason(reply: ChatReply) -> str:
    if reply.calls:
        return "tool_use"
    return "max_tokens" if reply.finish_reason == "length" else "end_turn"


def _show_usage(reply: ChatReply) -> Item:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _write_error(code: str, message: str) -> Item:
    text = f"{_TOO_LONG}{message}" if code == "context_length_exceeded" else message
    return {"type": "error", "error": {"type": _ERRORS.get(code, code), "message": text}}


MESSAGES = ModelApi(_read, _write, _stream, _write_error)
