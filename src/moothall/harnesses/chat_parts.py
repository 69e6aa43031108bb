"""What the model APIs of harnesses share: requests and errors as the host knows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from moothall.domain.chat import ChatReply, FunctionTool, Message, ModelQuestion
from moothall.domain.text import encodable
from moothall.errors import InvalidRequest

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

    read: parses a request's JSON object; any `ValueError`, `TypeError`, `KeyError` or
    `AttributeError` means that it is invalid. write: returns the reply to a request as an object;
    `stream` as server-sent events. Both take an id and the model's name. write_error: returns an
    error by its code and message.
    """

    read: Callable[[Item], ModelRequest]
    write: Callable[[str, str, ModelRequest, ChatReply], Item]
    stream: Callable[[str, str, ModelRequest, ChatReply], Iterator[str]]
    write_error: Callable[[str, str], Item]

    def parse(self, body: str) -> ModelRequest:
        """Parse a request. Raises `InvalidRequest`."""
        if len(body) > _MAX_BODY_CHARS:
            raise InvalidRequest(f"a request has at most {_MAX_BODY_CHARS} characters")
        try:
            return self.read(_read_json(body))
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
        replace(first, content="\n\n".join(message.content for message in (first, *rest)))
        for first, *rest in turns
    ]


def read_list(value: Any, most: int, least: int = 0) -> Sequence[Item]:
    """Return `value` if it is a list of `least` to `most` items. Raises `ValueError` otherwise."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"a list of {least} to {most} objects is expected")
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
