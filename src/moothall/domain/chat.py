"""What is asked of a model and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from moothall.domain.budget import Usage

ReplyMode = Literal["json", "blocks"]


Likely = tuple[tuple[str, float], ...]
"""Numbers that might have stood in the place of one token, and how likely each was; the one that stands there is first."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class ReplySchema:
    """A JSON schema that constrains the reply; `name` is turn, review, verdict, plan, approaches, inputs or coach."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call. `call_id` is deterministic: <task_id>/<seat>/<phase>/<round>.<turn>[.<n>]. `tenant` pays for it."""

    call_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    deadline: datetime
    schema: ReplySchema | None = None
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    tenant: str = ""
    scored: bool = False
    """Whether it ends in a number of which the server is asked how likely others were."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What a seat is writing just now: the end of it, '' where it has written it; and of its answer, where it has begun one, all so far."""

    seat: str
    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A complete answer; `finish_reason` length means that it was cut."""

    text: str
    finish_reason: str
    usage: Usage
    model: str = ""
    duration_ms: int = 0
    digits: tuple[Likely, ...] = ()
    """Of the last number in it, token by token, what might have stood there; empty where the server does not tell."""
