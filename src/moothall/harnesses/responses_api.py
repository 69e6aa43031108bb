"""OpenAI's Responses, as a harness sees them. A request contains the whole conversation: nothing
is stored between requests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
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
    write_error,
)

_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text"})
_FUNCTION, _CUSTOM = "function", "custom"
_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the whole text of the call"}},
    "required": ["input"],
    "additionalProperties": False,
}


def _read(data: Item) -> ModelRequest:
    if data.get("previous_response_id"):
        raise ValueError("no response is stored: send the whole conversation as input")
    messages = _read_input(data["input"])
    if instructions := read_text(data.get("instructions")):
        messages.insert(0, Message("system", instructions))
    listed = read_list(data.get("tools") or [], MAX_TOOLS)
    tools = tuple(_read_tool(item) for item in listed if item["type"] in {_FUNCTION, _CUSTOM})
    limit = data.get("max_output_tokens")
    return ModelRequest(
        create_question(messages, tools, limit, data.get("temperature")),
        bool(data.get("stream")),
        frozenset(str(item["name"]) for item in listed if item["type"] == _CUSTOM),
    )


def _read_tool(item: Item) -> FunctionTool:
    """Return a tool. One that takes free text becomes a function with one text."""
    description = encodable(str(item.get("description") or ""))
    if item["type"] == _FUNCTION:
        parameters = read_parameters(item.get("parameters"))
        return FunctionTool(str(item["name"]), description, parameters)
    grammar = item.get("format") or {}
    if isinstance(grammar, Mapping) and grammar.get("definition"):
        definition = encodable(str(grammar["definition"]))
        description = f"{description}\n\nThe text has to match this grammar:\n{definition}"
    return FunctionTool(str(item["name"]), description, _FREE_TEXT)


def _read_input(value: Any) -> list[Message]:
    if isinstance(value, str):
        return [Message("user", encodable(value))]
    messages: list[Message] = []
    for item in read_list(value, MAX_MESSAGES, least=1):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(Message(ROLES[item["role"]], read_text(item["content"], _TEXTS)))
        elif kind in {"function_call", "custom_tool_call"}:
            call = _read_call(item, kind)
            if not messages or messages[-1].role != "assistant":
                messages.append(Message("assistant", ""))
            messages[-1] = replace(messages[-1], calls=(*messages[-1].calls, call))
        elif kind in {"function_call_output", "custom_tool_call_output"}:
            text = read_text(item["output"], _TEXTS)
            messages.append(Message("tool", text, call_id=str(item["call_id"])))
        # Others, such as reasoning, are of another server.
    return messages


def _read_call(item: Item, kind: str) -> FunctionCall:
    arguments = (
        str(item.get("arguments") or "{}")
        if kind == "function_call"
        else json.dumps({"input": str(item.get("input") or "")}, ensure_ascii=False)
    )
    return FunctionCall(str(item["call_id"]), str(item["name"]), encodable(arguments))


def _write(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Item:
    cut = reply.finish_reason == "length" and not reply.calls
    usage = reply.usage
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": model,
        "output": _show_items(number, request, reply),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.tokens,
        },
    }


def _show_items(number: str, request: ModelRequest, reply: ChatReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        items.append({"type": "message", "role": "assistant", "content": [part]})
    for call in reply.calls:
        shown = {"call_id": call.call_id, "name": call.name}
        if call.name in request.free_tools:
            items.append({"type": "custom_tool_call", **shown, "input": _free_text(call)})
        else:
            items.append({"type": "function_call", **shown, "arguments": call.arguments})
    return [
        {"id": f"item_{number}_{index}", "status": "completed", **item}
        for index, item in enumerate(items)
    ]


def _free_text(call: FunctionCall) -> str:
    """Return the text of a call of a tool that takes free text; models may forget the object."""
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return str(value["input"]) if isinstance(value, dict) and "input" in value else call.arguments


def _stream(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Iterator[str]:
    response, numbers = _write(number, model, request, reply), count()

    def typed(kind: str, **data: Any) -> str:
        return event({"type": kind, "sequence_number": next(numbers), **data}, kind)

    begun = {**response, "status": "in_progress", "incomplete_details": None, "output": []}
    yield typed("response.created", response={**begun, "usage": None})
    for index, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": index}
        empty, deltas = _deltas(item)
        yield typed("response.output_item.added", output_index=index, item=empty)
        for kind, data in deltas:
            yield typed(kind, **place, **data)
        yield typed("response.output_item.done", output_index=index, item=item)
    yield typed(f"response.{response['status']}", response=response)


def _deltas(item: Mapping[str, Any]) -> tuple[Item, Sequence[tuple[str, Item]]]:
    """Return an item without its content, and the events that bring the content."""
    begun = {**item, "status": "in_progress"}
    if item["type"] == "message":
        (part,) = item["content"]
        place, text = {"content_index": 0}, part["text"]
        return {**begun, "content": []}, (
            ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
            ("response.output_text.delta", {**place, "delta": text, "logprobs": []}),
            ("response.output_text.done", {**place, "text": text, "logprobs": []}),
            ("response.content_part.done", {**place, "part": part}),
        )
    name, kind = (
        ("arguments", "response.function_call_arguments")
        if item["type"] == "function_call"
        else ("input", "response.custom_tool_call_input")
    )
    return {**begun, name: ""}, (
        (f"{kind}.delta", {"delta": item[name]}),
        (f"{kind}.done", {name: item[name]}),
    )


RESPONSES = ModelApi(_read, _write, _stream, write_error)
