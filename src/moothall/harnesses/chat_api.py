"""OpenAI's chat completions, as a harness sees them, and the shared parts of all model APIs of
harnesses: requests and errors as the host knows them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from moothall.domain.chat import ChatReply, FunctionCall, FunctionTool, Message, ModelQuestion
from moothall.domain.text import encodable
from moothall.errors import InvalidRequest

# The shared parts of all model APIs: requests and errors as the host knows them.


MAX_MESSAGES = 4_000
_MAX_TOOLS, _MAX_TOOLS_BYTES = 200, 1_000_000
_MAX_BODY_CHARS = 16_000_000
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request of a harness. `streamed`: it wants the reply as events. `free_tools`: the tools
    whose argument is text instead of a JSON object.
    """

    question: ModelQuestion
    streamed: bool = False
    free_tools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelApi:
    """An HTTP API of a model server.

    read_request: parses a request's JSON object; any `ValueError`, `TypeError`, `KeyError` or
    `AttributeError` means that it is invalid. write: returns the reply to a request as an object;
    `stream` as server-sent events. Both take an id and the model's name. write_error: returns an
    error by its code and message.
    """

    read_request: Callable[[Item], ModelRequest]
    write: Callable[[str, str, ModelRequest, ChatReply], Item]
    stream: Callable[[str, str, ModelRequest, ChatReply], Iterator[str]]
    write_error: Callable[[str, str], Item]

    def parse(self, body: str) -> ModelRequest:
        """Parse a request. Raises `InvalidRequest`."""
        if len(body) > _MAX_BODY_CHARS:
            raise InvalidRequest(f"a request has at most {_MAX_BODY_CHARS} characters")
        try:
            return self.read_request(_read_json(body))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidRequest(f"this is not a chat request: {error!r:.200}") from error


def _read_json(text: str) -> Any:
    """Return the value of a JSON text, with lone surrogates as question marks. Raises `ValueError`,
    also for NaN and numbers that are too large, which other encoders refuse.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # also for a lone surrogate, which clients send
        return orjson.loads(encodable(json.dumps(json.loads(text), ensure_ascii=False)))


def create_question(
    messages: Sequence[Message], tools: Sequence[FunctionTool], limit: Any, temperature: Any
) -> ModelQuestion:
    """Return a question. `limit` and `temperature` are those of the request, None for none."""
    return ModelQuestion(
        _join_messages(messages),
        tools,
        max(0, int(limit or 0)),
        min(max(0.0, float(temperature or 0.0)), 2.0),  # in this order, NaN becomes 0
    )


def _join_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Join neighbouring messages of the same role, and turn later system messages into messages of
    the user. The chat templates of many models accept only one system message, at the beginning,
    and turns that alternate.
    """
    turns: list[list[Message]] = []
    for message in messages:
        before = turns[-1][0].role if turns else "system"
        is_late = message.role == "system" and before != "system"
        turn = replace(message, role="user") if is_late else message
        if turns and before == turn.role and before in {"system", "user"}:
            turns[-1].append(turn)
        else:
            turns.append([turn])
    return [
        replace(first, content="\n\n".join(message.content for message in (first, *further)))
        for first, *further in turns
    ]


def read_list(value: Any, max_items: int, min_items: int = 0) -> Sequence[Item]:
    """Return a list of `min_items` to `max_items` items. Raises `ValueError` for other values."""
    if not isinstance(value, list) or not min_items <= len(value) <= max_items:
        raise ValueError(f"a list of {min_items} to {max_items} objects is expected")
    return value


def read_text(content: Any, types: frozenset[str] = frozenset({"text"})) -> str:
    """Return the text of a message's content, which is a string or a list of parts. Parts with a
    type in `types` have text; of the others, such as pictures, only the type is shown.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part["text"]) if part.get("type") in types else f"[{part.get('type')}: left out]"
        for part in content
    )


def read_tools(value: Any) -> Sequence[Item]:
    """Return the tools of a request. Raises `ValueError` if they are too many or too long, and
    `TypeError` if they are nested too deeply for other encoders.
    """
    tools = read_list(value or [], _MAX_TOOLS)
    if len(orjson.dumps(tools)) > _MAX_TOOLS_BYTES:
        raise ValueError(f"tools with at most {_MAX_TOOLS_BYTES} bytes are expected")
    return tools


def read_parameters(value: Any) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    return dict(value or {"type": "object", "properties": {}})


def event(data: Item, name: str = "") -> str:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n"


# OpenAI's chat completions.


ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def _read_request(data: Item) -> ModelRequest:
    messages = tuple(map(_read_message, read_list(data["messages"], MAX_MESSAGES, min_items=1)))
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


CHAT = ModelApi(_read_request, _write, _stream, write_error)
