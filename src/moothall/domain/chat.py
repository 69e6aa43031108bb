"""What is asked of a model and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from moothall.domain.budget import Usage

ReplyMode = Literal["tools", "json", "blocks"]
"""How a model calls tools: natively, in a JSON object that a schema constrains, or in tagged blocks
of text.
"""


Likely = tuple[tuple[str, float], ...]
"""Numbers that might have stood in the place of one token, and how likely each was; the one that
stands there is first.
"""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool offered to the model. `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A native tool call. `arguments` is the text that the model wrote, usually a JSON object."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `calls`: the native calls of an assistant's message.
    `call_id`: the call that a tool's message answers.
    `reasoning`: what the server returned of an assistant's reasoning, as JSON, to be sent back
    unchanged.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[FunctionCall, ...] = ()
    call_id: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ReplySchema:
    """A JSON schema that constrains the reply; `name` is turn, review, verdict, plan, approaches,
    inputs or coach.
    """

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call. `call_id` is deterministic: <task_id>/<seat>/<phase>/<round>.<turn>[.<n>].
    `tenant` pays for it.
    """

    call_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    deadline: datetime
    schema: ReplySchema | None = None
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    tenant: str = ""
    tools: tuple[FunctionTool, ...] = ()
    scored: bool = False
    """Whether it ends in a number of which the server is asked how likely others were."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model as its server takes it. `window` is 0 if the server does not tell it; `source` says
    where it comes from.
    """

    model: str = ""
    reply: ReplyMode = "blocks"
    api: str = "chat"
    window: int = 0
    source: str = ""
    most_tokens: int = 0
    """The longest reply that the server allows, 0 if it never said."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What a seat is writing just now: the end of it, '' where it has written it; and of its
    answer, where it has begun one, all so far.
    """

    seat: str
    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A complete answer, possibly an empty one; `finish_reason` length means that it was cut."""

    text: str
    finish_reason: str
    usage: Usage
    model: str = ""
    duration_ms: int = 0
    calls: tuple[FunctionCall, ...] = ()
    reasoning: str = ""
    """The server's reasoning items as JSON; they are stored and sent back, never read."""
    digits: tuple[Likely, ...] = ()
    """Of the last number in it, token by token, what might have stood there; empty where the server
    does not tell.
    """
