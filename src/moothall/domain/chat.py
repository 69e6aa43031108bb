"""Requests to models and their replies."""

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
"""Alternatives for a token, with their probabilities; the chosen one is first."""


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
    """Whether the server is asked for the probabilities of the numbers at the end."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model at its server. `window` is 0 if the server does not tell it; `source` tells where the
    window comes from.
    """

    model: str = ""
    reply: ReplyMode = "blocks"
    api: str = "chat"
    window: int = 0
    source: str = ""
    most_tokens: int = 0
    """The maximum length of replies at the server, 0 if it is unknown."""


@dataclass(frozen=True, slots=True)
class Writing:
    """The reply that a seat is writing: its last part, '' when it is complete, and its answer so
    far, if it has started one.
    """

    seat: str
    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A complete reply, possibly empty. `finish_reason` length means that it was cut."""

    text: str
    finish_reason: str
    usage: Usage
    model: str = ""
    duration_ms: int = 0
    calls: tuple[FunctionCall, ...] = ()
    reasoning: str = ""
    """The server's reasoning items as JSON; they are stored and sent back, never read."""
    digits: tuple[Likely, ...] = ()
    """The alternatives for each token of the last number; empty if the server does not tell."""
    earlier_digits: tuple[tuple[Likely, ...], ...] = ()
    """The same for the numbers before the last one, in their order; the last few of them."""
