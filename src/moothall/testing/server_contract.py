"""The contract between the model client and a model server: what the client learns about a server,
and how it communicates with it.

Subclass `ServerContract` in a test module with the fixtures `model`, an open client, and
`expected`. The same cases run against stubs, the embedded server, and a real vLLM.
"""

from __future__ import annotations

# ruff: noqa: S101 - these are tests
import json
from dataclasses import dataclass
from typing import Any

import pytest

from moothall.deliberation.prompts.reply import read_turn
from moothall.domain.chat import ChatReply, FunctionTool, Message, ReplyMode, ReplySchema
from moothall.errors import ContextOverflow
from moothall.llm.client import OpenAIModel
from moothall.testing.chat_contract import ask
from moothall.testing.model import Body, NativeReply

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
    """The expected properties of a server and its model. `window` is 0 if the server does not tell
    it. `obeys`: it supports JSON schemas. `reasoning` is the field of reasoning, '' for none.
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
