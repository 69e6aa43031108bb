"""The model server that a harness sees: chat completions, Responses and Messages, answered by a
seat's own model.

Requests come from inside a sandbox and are hostile. Replies are complete when they are sent; a
harness that asks for a stream gets them in a few events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from moothall.domain.chat import AnswerModel, ChatReply, FunctionCall, FunctionTool, Message
from moothall.domain.ids import digest
from moothall.errors import (
    BudgetExceeded,
    ContextOverflow,
    DeadlineExceeded,
    InvalidRequest,
    MoothallError,
    Temporary,
)
from moothall.harnesses.chat_api import (
    CHAT,
    MAX_MESSAGES,
    ROLES,
    Item,
    ModelApi,
    ModelRequest,
    create_question,
    event,
    read_list,
    read_parameters,
    read_text,
    read_tools,
    write_error,
)

# Anthropic's Messages.


_THINKING = frozenset({"thinking", "redacted_thinking"})
_ERRORS = {
    "context_length_exceeded": "invalid_request_error",
    "insufficient_quota": "billing_error",
    "not_found": "not_found_error",
}
_TOO_LONG = "prompt is too long: "  # clients look for these words, and then shorten the prompt


def _read_messages_request(data: Item) -> ModelRequest:
    messages = [
        message
        for item in read_list(data["messages"], MAX_MESSAGES, min_items=1)
        for message in _read_message(item)
    ]
    if system := read_text(data.get("system")):
        messages.insert(0, Message("system", system))
    tools = tuple(
        FunctionTool(
            str(item["name"]),
            str(item.get("description") or ""),
            read_parameters(item["input_schema"]),
        )
        for item in read_tools(data.get("tools"))
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
    text_blocks = []
    for block in blocks:
        kind = block["type"]
        if kind == "tool_result":
            text = read_text(block.get("content"))
            yield Message("tool", text, call_id=str(block["tool_use_id"]))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(FunctionCall(str(block["id"]), str(block["name"]), arguments))
        elif kind not in _THINKING:
            text_blocks.append(block)
    if text_blocks or calls:
        yield Message(role, read_text(text_blocks), calls=tuple(calls))


def _write_messages_reply(number: str, model: str, request: ModelRequest, reply: ChatReply) -> Item:
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


def _stream_messages_reply(
    number: str, model: str, request: ModelRequest, reply: ChatReply
) -> Iterator[str]:
    def typed(kind: str, **data: Any) -> str:
        return event({"type": kind, **data}, kind)

    message = {
        **_write_messages_reply(number, model, request, reply),
        "content": [],
        "stop_reason": None,
    }
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
    final_delta = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield typed("message_delta", delta=final_delta, usage=_show_usage(reply))
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
    """Return the arguments of a call. If the text is not a JSON object, the harness gets the text
    itself; it refuses the call, and the model sees its text.
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


MESSAGES = ModelApi(
    _read_messages_request, _write_messages_reply, _stream_messages_reply, _write_error
)


# OpenAI's Responses. A request contains the whole conversation: nothing is stored between requests.


_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text"})
_FUNCTION, _CUSTOM = "function", "custom"
_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "the whole text of the call"}},
    "required": ["input"],
    "additionalProperties": False,
}


def _read_responses_request(data: Item) -> ModelRequest:
    if data.get("previous_response_id"):
        raise ValueError("no response is stored: send the whole conversation as input")
    messages = _read_input(data["input"])
    if instructions := read_text(data.get("instructions")):
        messages.insert(0, Message("system", instructions))
    items = read_tools(data.get("tools"))
    tools = tuple(_read_tool(item) for item in items if item["type"] in {_FUNCTION, _CUSTOM})
    limit = data.get("max_output_tokens")
    return ModelRequest(
        create_question(messages, tools, limit, data.get("temperature")),
        bool(data.get("stream")),
        frozenset(str(item["name"]) for item in items if item["type"] == _CUSTOM),
    )


def _read_tool(item: Item) -> FunctionTool:
    """Return a tool. One that takes free text becomes a function with one text."""
    description = str(item.get("description") or "")
    if item["type"] == _FUNCTION:
        parameters = read_parameters(item.get("parameters"))
        return FunctionTool(str(item["name"]), description, parameters)
    grammar = item.get("format") or {}
    if isinstance(grammar, Mapping) and grammar.get("definition"):
        definition = str(grammar["definition"])
        description = f"{description}\n\nThe text has to match this grammar:\n{definition}"
    return FunctionTool(str(item["name"]), description, _FREE_TEXT)


def _read_input(value: Any) -> list[Message]:
    if isinstance(value, str):
        return [Message("user", value)]
    messages: list[Message] = []
    for item in read_list(value, MAX_MESSAGES, min_items=1):
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
    return FunctionCall(str(item["call_id"]), str(item["name"]), arguments)


def _write_responses_reply(
    number: str, model: str, request: ModelRequest, reply: ChatReply
) -> Item:
    is_cut = reply.finish_reason == "length" and not reply.calls
    usage = reply.usage
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
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
        call_fields = {"call_id": call.call_id, "name": call.name}
        if call.name in request.free_tools:
            items.append({"type": "custom_tool_call", **call_fields, "input": _free_text(call)})
        else:
            items.append({"type": "function_call", **call_fields, "arguments": call.arguments})
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


def _stream_responses_reply(
    number: str, model: str, request: ModelRequest, reply: ChatReply
) -> Iterator[str]:
    response, numbers = _write_responses_reply(number, model, request, reply), count()

    def typed(kind: str, **data: Any) -> str:
        return event({"type": kind, "sequence_number": next(numbers), **data}, kind)

    initial_response = {
        **response,
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
    }
    yield typed("response.created", response={**initial_response, "usage": None})
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
    initial_item = {**item, "status": "in_progress"}
    if item["type"] == "message":
        (part,) = item["content"]
        place, text = {"content_index": 0}, part["text"]
        return {**initial_item, "content": []}, (
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
    return {**initial_item, name: ""}, (
        (f"{kind}.delta", {"delta": item[name]}),
        (f"{kind}.done", {name: item[name]}),
    )


RESPONSES = ModelApi(
    _read_responses_request, _write_responses_reply, _stream_responses_reply, write_error
)


# The server.


JSON, _EVENTS = "application/json", "text/event-stream"
_APIS: Mapping[str, ModelApi] = {
    "/chat/completions": CHAT,
    "/responses": RESPONSES,
    "/messages": MESSAGES,
}
_COUNT_TOKENS = "/messages/count_tokens"
_CHARS_PER_TOKEN = 4
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


async def answer(
    method: str, path: str, body: str, model: str, ask_model: AnswerModel
) -> HttpReply:
    """Answer a request to the model server. Errors become HTTP errors in the form of the API,
    except `Temporary` ones, which are raised: they end the work of the whole deliberation.
    """
    route = path.partition("?")[0].rstrip("/").removeprefix("/v1")
    if method == "GET" and route == "/models":
        model_list = {"object": "list", "data": [{"id": model, "object": "model"}]}
        return HttpReply(200, json.dumps(model_list))
    if method == "POST" and route == _COUNT_TOKENS:
        return HttpReply(200, json.dumps({"input_tokens": len(body) // _CHARS_PER_TOKEN}))
    api = _APIS.get(route)
    if method != "POST" or api is None:
        return _error(
            CHAT,
            404,
            "not_found",
            f"{method} {path[:100]} is not served; POST to one of {', '.join(_APIS)}",
        )
    try:
        request = api.parse(body)
        reply = await ask_model(request.question)
    except Temporary:
        raise
    except MoothallError as error:
        status, code = next(
            (known_status for kind, known_status in _STATUSES.items() if isinstance(error, kind)),
            (422, error.code.lower()),
        )
        return _error(api, status, code, error.message)
    number = digest(body)[:24]
    if request.streamed:
        return HttpReply(200, "".join(api.stream(number, model, request, reply)), _EVENTS)
    return HttpReply(200, json.dumps(api.write(number, model, request, reply)))


def _error(api: ModelApi, status: int, code: str, message: str) -> HttpReply:
    return HttpReply(status, json.dumps(api.write_error(code, message)))
