"""The contract of a chat server, as test cases that run on the scripted server and on real ones;
and a client that does not wait long.

Subclass `ChatModelContract` in a test module with a fixture `model`. No case depends on the model's
text.
"""

from __future__ import annotations

# ruff: noqa: S101, PLR2004 - these are tests
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moothall.config import LlmSettings
from moothall.domain.chat import ChatRequest, Message, ReplySchema
from moothall.errors import DeadlineExceeded
from moothall.llm.client import OpenAIModel, open_model
from moothall.ports import ChatModel
from moothall.testing.model import Answer, ScriptedModel, scripted_model


class ChatModelContract:
    """Cases for any server that supports the protocol and JSON schemas."""

    async def test_a_reply_has_text_and_usage(self, model: ChatModel) -> None:
        """A reply has text, a finish reason and usage."""
        reply = await model.chat(ask())
        assert reply.text
        assert reply.finish_reason in {"stop", "length"}
        assert reply.usage.prompt_tokens > 0
        assert reply.usage.completion_tokens > 0
        assert reply.usage.calls == 1
        assert reply.model

    async def test_a_reply_is_streamed(self, model: ChatModel) -> None:
        """The streamed pieces are the whole text."""
        pieces: list[str] = []
        reply = await model.chat(ask(), pieces.append)
        assert "".join(pieces) == reply.text

    async def test_a_reply_conforms_to_its_schema(self, model: ChatModel) -> None:
        """A constrained reply conforms to its schema."""
        assert await model.reply_mode() == "json"
        for seed in range(2):
            reply = await model.chat(ask(schema=FINISH, seed=seed, temperature=0.8))
            assert reply.finish_reason == "stop"
            assert list(json.loads(reply.text)) == ["finish"]

    async def test_the_token_limit_holds(self, model: ChatModel) -> None:
        """A cut reply has the finish reason length."""
        counting = ask(
            messages=(Message("user", "Count from one to one hundred in words."),), max_tokens=4
        )
        reply = await model.chat(counting)
        assert reply.finish_reason == "length"
        assert reply.usage.completion_tokens <= 5

    async def test_a_common_prefix_is_cached(self, model: ChatModel) -> None:
        """The second of two prompts with a common beginning is partly cached."""
        shared = Message(
            "system", "You are terse. " + "The moot hall stands on the hill above the river. " * 12
        )
        await model.chat(ask(messages=(shared, Message("user", "Say a.")), max_tokens=2))
        reply = await model.chat(ask(messages=(shared, Message("user", "Say b.")), max_tokens=2))
        assert reply.usage.prompt_tokens > reply.usage.cached_tokens > 64

    async def test_calls_run_concurrently(self, model: ChatModel) -> None:
        """More calls than the server has slots are all answered."""
        replies = await asyncio.gather(
            *(
                model.chat(ask(f"t/-/plan/0.{n}", seed=n, max_tokens=8, seconds=120))
                for n in range(5)
            )
        )
        assert all(reply.text for reply in replies)

    async def test_abandoned_calls_do_not_block_others(self, model: ChatModel) -> None:
        """The server still answers after calls that were abandoned at their deadline."""
        story = ask(
            messages=(Message("user", "Tell a very long story."),), max_tokens=4000, seconds=0.3
        )
        for _ in range(4):
            with pytest.raises(DeadlineExceeded):
                await model.chat(story)
        assert (await model.chat(ask(max_tokens=8))).text


FINISH = ReplySchema(
    "turn",
    {
        "type": "object",
        "properties": {"finish": {"type": "string", "maxLength": 40}},
        "required": ["finish"],
        "additionalProperties": False,
    },
)


def ask(
    call_id: str = "task-1/agent-dev-001/propose/0.1", *, seconds: float = 30.0, **overrides: Any
) -> ChatRequest:
    """Return a small request whose deadline is `seconds` from now; `overrides` are other fields of
    it.
    """
    fields: dict[str, Any] = {
        "messages": (Message("system", "You help."), Message("user", "Say hello.")),
        "max_tokens": 64,
        "deadline": datetime.now(UTC) + timedelta(seconds=seconds),
        **overrides,
    }
    return ChatRequest(call_id=call_id, **fields)


@asynccontextmanager
async def talking(
    answer: Answer,
    server: dict[str, Any] | None = None,
    *,
    max_reply_bytes: int = 4_000_000,
    **settings: Any,
) -> AsyncIterator[tuple[OpenAIModel, ScriptedModel]]:
    """Open a client with these `LlmSettings`, and its scripted server with these arguments."""
    all_settings = {"retries": 2, **settings}
    async with (
        scripted_model(answer, **(server or {})) as running,
        open_model(
            LlmSettings(**all_settings),
            running.base_url,
            retry_seconds=0.001,
            max_reply_bytes=max_reply_bytes,
        ) as model,
    ):
        yield model, running
