"""The contract between the model client and a model server: what the client learns about a server,
and how it communicates with it; and the contract of any chat server, with a client that does not
wait long.

Subclass `ChatModelContract` with a fixture `model`; no case depends on the model's text. Subclass
`ServerContract` in a test module with the fixtures `model`, an open client, and
`expected`. The same cases run against stubs, the embedded server, and a real vLLM.
"""

from __future__ import annotations

# ruff: noqa: S101, PLR2004 - these are tests
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moothall.config import LlmSettings
from moothall.deliberation.prompts.reply import read_turn
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    FunctionTool,
    Message,
    ReplyMode,
    ReplySchema,
)
from moothall.errors import ContextOverflow, DeadlineExceeded
from moothall.llm.client import OpenAIModel, open_model
from moothall.ports import ChatModel
from moothall.testing.model import Answer, Body, NativeReply, ScriptedModel, scripted_model


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


_CALL_SECONDS = 300.0
_TOKENS = 600  # stubs think for 400
_COMMANDS = ("pwd", "whoami")
_TAGS = (
    "You are an engineer with the tool bash. To call a tool, write <tool_call> on a line, then the "
    "JSON object, then </tool_call>. Several calls stand one after the other."
)
_TWICE = (
    "Call the tool bash twice in one reply: with the command `pwd`, then with the command `whoami`."
)
_SUM = "What is 2 + 3?"
_BLOCK = f"{_SUM} Write the answer between <finish> and </finish>."
_THINK = (
    f"{_SUM} Write exactly two lines. The first line: Here is my thought process: 2 + 3 is 5. The "
    "second line: Here is my response: 5."
)
_X_PER_TOKEN = 2  # a text of so many times "x " has at least one token
_BASH = FunctionTool(
    "bash",
    "Run a command.",
    {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)
_ANSWER = ReplySchema(
    "answer",
    {
        "type": "object",
        "properties": {"finish": {"type": "string", "maxLength": 40}},
        "required": ["finish"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected properties of a server and its model. `window` is 0 if the server does not
    report it. `obeys`: it supports JSON schemas. `reasoning` is the field of reasoning, '' for
    none.
    `follows`: the model follows instructions; one with random weights does not. `overflows`: a
    conversation that is too long is refused.
    """

    reply: ReplyMode
    window: int
    obeys: bool = True
    reasoning: str = ""
    follows: bool = True
    overflows: bool = True


class ServerContract:
    """Cases for any server."""

    async def test_capabilities_are_detected_and_shown(
        self, model: OpenAIModel, expected: Expected
    ) -> None:
        """Reply mode, window, schemas and usage are detected, and `moothall doctor` shows them."""
        lines = await model.examine()
        description = await model.describe()
        window = (
            0 if model.capabilities.is_local else expected.window
        )  # the embedded server's window is a setting
        assert (description.reply, description.window) == (expected.reply, window), lines
        assert bool(description.source) == bool(description.window or model.capabilities.is_local)
        calls = "yes" if expected.reply == "tools" else "no"
        if not model.capabilities.is_local:
            assert any(line.startswith(f"native tool calls: {calls}") for line in lines), lines
        schema_lines = {
            "JSON schema: ours",
            "JSON schema: the strict subset only",
            "JSON schema: not tried",
        }
        assert bool(schema_lines & set(lines)) == expected.obeys, lines
        assert "usage: reported" in lines

    async def test_two_tools_are_called_in_one_reply(
        self, model: OpenAIModel, expected: Expected
    ) -> None:
        """Calls have unique ids, and their results refer to these."""
        if await model.reply_mode() != "tools":
            pytest.skip(f"replies are in {expected.reply}")
        prompt = (Message("system", _TAGS), Message("user", _TWICE))
        first_reply = await model.chat(
            ask(messages=prompt, tools=(_BASH,), max_tokens=_TOKENS, seconds=_CALL_SECONDS)
        )
        assert [(call.name, json.loads(call.arguments)) for call in first_reply.calls] == [
            ("bash", {"command": command}) for command in _COMMANDS
        ], first_reply
        assert first_reply.finish_reason == "tool_calls"
        assert len({call.call_id for call in first_reply.calls}) == len(_COMMANDS)
        answers = tuple(
            Message("tool", "/home", call_id=call.call_id) for call in first_reply.calls
        )
        follow_up = (
            *prompt,
            Message(
                "assistant", first_reply.text, first_reply.calls, reasoning=first_reply.reasoning
            ),
            *answers,
        )
        second_reply = await model.chat(
            ask(messages=follow_up, tools=(_BASH,), max_tokens=_TOKENS, seconds=_CALL_SECONDS)
        )
        assert second_reply.text or second_reply.calls
        assert second_reply.usage.prompt_tokens > first_reply.usage.prompt_tokens

    async def test_a_reply_conforms_to_its_schema(
        self, model: OpenAIModel, expected: Expected
    ) -> None:
        """If schemas are supported, the reply conforms to its schema; otherwise there still is a
        reply.
        """
        reply = await self._send_prompt(model, _SUM, schema=_ANSWER)
        assert reply.finish_reason == "stop"
        assert reply.text
        if expected.obeys:
            assert list(json.loads(reply.text)) == ["finish"]

    async def test_a_reply_in_blocks_is_parsed(
        self, model: OpenAIModel, expected: Expected
    ) -> None:
        """Every server supports tagged blocks."""
        reply = await self._send_prompt(model, _BLOCK)
        assert reply.text
        if expected.follows:
            assert "5" in str(read_turn(reply, "blocks").finish)

    async def test_reasoning_is_separated_and_counted(
        self, model: OpenAIModel, expected: Expected
    ) -> None:
        """Reasoning is not part of the text, and is recognized by its field."""
        reply = await self._send_prompt(model, _THINK)
        assert expected.reasoning in {"", *json.loads(reply.reasoning or "{}")}, reply
        assert bool(reply.reasoning) <= bool(expected.reasoning), reply
        if expected.follows:
            assert "5" in reply.text
            assert "thought process" not in reply.text or not expected.reasoning

    async def test_usage_is_counted(self, model: OpenAIModel) -> None:
        """The usage has the server's own numbers."""
        usage = (await self._send_prompt(model, _SUM)).usage
        assert usage.calls == 1
        assert usage.prompt_tokens > 0
        assert usage.completion_tokens > 0
        assert usage.cached_tokens <= usage.prompt_tokens

    async def test_a_conversation_beyond_the_window_is_recognized(
        self, model: OpenAIModel, expected: Expected
    ) -> None:
        """The refusal names the window, and the server keeps working."""
        await model.describe()
        window = expected.window
        if not expected.overflows:
            pytest.skip("the server does not refuse it")
        with pytest.raises(ContextOverflow, match="CONTEXT_TOKENS") as raised:
            await self._send_prompt(model, "x " * _X_PER_TOKEN * window)
        assert raised.value.window in {0, window}
        assert (await self._send_prompt(model, _SUM)).text

    async def _send_prompt(self, model: OpenAIModel, text: str, **options: Any) -> ChatReply:
        return await model.chat(
            ask(
                messages=(Message("user", text),),
                max_tokens=_TOKENS,
                seconds=_CALL_SECONDS,
                **options,
            )
        )


def follow(body: Body, _headers: Any) -> NativeReply | str:
    """Reply to the contract's cases like a model that follows instructions; for stubs."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return "It is done."
    if body.get("tools"):
        return NativeReply(tuple(("bash", {"command": command}) for command in _COMMANDS))
    if body.get("response_format"):
        return json.dumps({"finish": "5"})
    return "<finish>5</finish>" if "<finish>" in str(body["messages"]) else "5"
