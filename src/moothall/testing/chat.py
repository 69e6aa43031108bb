"""A chat request, and a client that talks to a scripted server without waiting long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.config import Llm
from moothall.domain.chat import ChatRequest, Message, ReplySchema
from moothall.model.client import OpenAIModel, open_model
from moothall.testing.model import Answer, ScriptedModel, scripted_model

FINISH = ReplySchema(
    "turn",
    {
        "type": "object",
        "properties": {"finish": {"type": "string", "maxLength": 40}},
        "required": ["finish"],
        "additionalProperties": False,
    },
)


def ask(call_id: str = "task-1/agent-dev-001/propose/0.1", *, seconds: float = 30.0, **more: Any) -> ChatRequest:
    """Return a small request whose deadline is `seconds` from now; `more` are other fields of it."""
    fields: dict[str, Any] = {
        "messages": (Message("system", "You help."), Message("user", "Say hello.")),
        "max_tokens": 64,
        "deadline": datetime.now(UTC) + timedelta(seconds=seconds),
        **more,
    }
    return ChatRequest(call_id=call_id, **fields)


@asynccontextmanager
async def talking(
    answer: Answer, server: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[OpenAIModel, ScriptedModel]]:
    """A client with these `Llm` settings, and its scripted server with these arguments."""
    quick = {"retry_seconds": 0.001, "retries": 2, "connect_seconds": 2.0, **settings}
    async with scripted_model(answer, **(server or {})) as running, open_model(Llm(**quick), running.base_url) as model:
        yield model, running
