"""One contract for all kinds of model servers, each simulated according to its documentation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio

from moothall.config import LlmSettings
from moothall.domain.chat import FunctionTool, Message, ReplyMode, ReplySchema
from moothall.llm.client import OpenAIModel, open_model
from moothall.testing.model import NativeReply
from moothall.testing.server_contract import Expected, ServerContract, ask, follow
from moothall.testing.servers import SERVERS, UNFITTING, ScriptedServer, ServerKind, served

BASH = FunctionTool(
    "bash",
    "Run a command.",
    {
        "type": "object",
        "properties": {"command": {"type": "string"}, "additionalProperties": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)
TURN = ReplySchema(
    "turn",
    {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "thought": {"type": "string", "maxLength": 9},
                    "args": {"type": "object", "properties": {"start": {"type": "integer"}}},
                },
                "required": ["thought", "args"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {
                    "thought": {"type": "string", "maxLength": 9},
                    "finish": {"type": "string"},
                },
                "required": ["thought", "finish"],
                "additionalProperties": False,
            },
        ]
    },
)
KINDS = [pytest.param(kind, id=name) for name, kind in SERVERS.items()]
CALLERS = [pytest.param(kind, id=name) for name, kind in SERVERS.items() if kind.expect == "tools"]


def answer(body: Mapping[str, Any], _headers: Any) -> NativeReply | str:
    """Call a tool twice, then finish; reply with JSON if there is a schema."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return "It is done."
    if body.get("tools"):
        return NativeReply(
            (("bash", {"command": "ls"}), ("bash", {"command": "pwd -P"})), text="Let me look."
        )
    if body.get("response_format"):
        return json.dumps({"thought": "done", "finish": "Done.", "args": None})
    return "Hello."


@asynccontextmanager
async def model_of(
    kind: ServerKind, **settings: Any
) -> AsyncIterator[tuple[OpenAIModel, ScriptedServer]]:
    async with (
        served(kind, answer) as server,
        open_model(
            LlmSettings(retries=1, **settings), server.base_url, retry_seconds=0.01
        ) as model,
    ):
        yield model, server


@pytest.mark.parametrize("kind", KINDS)
async def test_the_reply_mode_and_the_window_are_detected(kind: ServerKind) -> None:
    async with model_of(kind) as (model, server):
        about = await model.describe()
        assert (about.reply, about.window, about.model) == (kind.expect, kind.window, kind.model)
        assert (await model.describe()) == about
        assert server.probes <= 2


@pytest.mark.parametrize("kind", CALLERS)
async def test_tools_are_called_and_reasoning_is_sent_back(kind: ServerKind) -> None:
    async with model_of(kind) as (model, server):
        assert await model.reply_mode() == "tools"
        head = (Message("system", "You help."), Message("user", "Look round."))
        first = await model.chat(
            ask(messages=head, tools=(BASH,), max_tokens=2000, temperature=0.4, seed=7)
        )
        assert [(call.name, json.loads(call.arguments)) for call in first.calls] == [
            ("bash", {"command": "ls"}),
            ("bash", {"command": "pwd -P"}),
        ]
        assert len({call.call_id for call in first.calls}) == 2
        answers = tuple(Message("tool", "here", call_id=call.call_id) for call in first.calls)
        follow_up = (
            *head,
            Message("assistant", first.text, first.calls, reasoning=first.reasoning),
            *answers,
        )
        second = await model.chat(ask(messages=follow_up, tools=(BASH,), max_tokens=2000))
        longer = (*follow_up, Message("user", "Go on."))
        await model.chat(ask(messages=longer, tools=(BASH,), max_tokens=2000))
        refusals = len(server.refused)
        third = await model.chat(
            ask(messages=longer, tools=(BASH,), max_tokens=2000, temperature=0.9)
        )
    assert (first.text, second.text, third.text) == ("Let me look.", "It is done.", "It is done.")
    assert len(server.refused) == refusals, "what was refused once is not sent again"
    path, body = server.requests[-1]
    if kind.reasoning:
        assert first.reasoning
        assert _has_reasoning(kind, body)
    assert path == ("/v1/responses" if kind.responses else "/v1/chat/completions")
    assert "additionalProperties" in _parameters(body)["properties"], "a property is not a keyword"


def _has_reasoning(kind: ServerKind, body: Mapping[str, Any]) -> bool:
    if kind.reasoning == "items":
        return any(item.get("encrypted_content") for item in body["input"])
    message = next(message for message in body["messages"] if message["role"] == "assistant")
    if kind.reasoning == "signature":
        return all(call["extra_content"] for call in message["tool_calls"])
    if kind.reasoning == "thinking":
        return bool(message["content"][0]["type"] == "thinking")
    return bool(message[{"details": "reasoning_details"}.get(kind.reasoning, kind.reasoning)])


def _parameters(body: Mapping[str, Any]) -> Mapping[str, Any]:
    tool = body["tools"][0]
    parameters: Mapping[str, Any] = tool.get("function", tool)["parameters"]
    return parameters


@pytest.mark.parametrize("kind", KINDS)
async def test_a_schema_is_sent_in_the_form_that_the_server_accepts(kind: ServerKind) -> None:
    async with model_of(kind) as (model, server):
        for _ in range(2):
            reply = await model.chat(ask(schema=TURN, max_tokens=1500))
        assert len(server.refused) <= 6
    if "response_format" in server.requests[-1][1] or "text" in server.requests[-1][1]:
        assert json.loads(reply.text)["finish"] == "Done."
    if kind.name == "openai":
        assert "args" not in json.loads(reply.text), (
            "what is null because everything is required is left out"
        )
        assert json.loads(reply.reasoning or "{}") == {}, "without tools chat completions serve"


_FIELDS = {"details": "reasoning_details", "signature": "", "items": ""}
"""Reasoning fields with another name, or only with tool calls."""
_REFUSE_LONG = {
    "vllm",
    "vllm without a tool parser",
    "vllm with a parser for reasoning alone",
    "older vllm",
    "llama.cpp",
    "llama.cpp without --jinja",
    "openrouter",
    "bare",
}


class TestStubs(ServerContract):
    """The contract on each stub."""

    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> ServerKind:
        kind: ServerKind = request.param
        return kind

    @pytest_asyncio.fixture
    async def model(self, kind: ServerKind) -> AsyncIterator[OpenAIModel]:
        settings = LlmSettings(retries=1)
        async with (
            served(kind, follow) as server,
            open_model(settings, server.base_url, retry_seconds=0.01) as model,
        ):
            yield model

    @pytest.fixture
    def expected(self, kind: ServerKind) -> Expected:
        return Expected(
            reply=cast("ReplyMode", kind.expect),
            window=kind.window,
            obeys=kind.obeys,
            reasoning=_FIELDS.get(kind.reasoning, kind.reasoning),
            overflows=kind.name in _REFUSE_LONG,
        )


async def test_a_reply_is_limited_to_the_tokens_that_vllm_has_left() -> None:
    kind = SERVERS["older vllm"]
    async with model_of(kind) as (model, server):
        nearly = (Message("user", "x" * 4 * (kind.window - 4000)),)
        assert (await model.chat(ask(messages=nearly, max_tokens=8000))).text == "Hello."
        await model.chat(ask(max_tokens=8000))
    assert len(server.refused) == 1
    assert [body["max_tokens"] < 8000 for _, body in server.requests] == [True, False]


async def test_parsers_that_do_not_fit_the_model_are_reported() -> None:
    async with model_of(UNFITTING) as (model, _):
        lines = await model.examine()
    assert (
        "reasoning: in reasoning, which held a complete reply: the server's reasoning parser does "
        "not fit the model" in lines
    )

    def write(_body: Any, _headers: Any) -> str:
        return '```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```'

    async with (
        served(SERVERS["vllm"], write) as server,
        open_model(LlmSettings(), server.base_url) as model,
    ):
        report_before = await model.examine()
        reply = await model.chat(ask(tools=(BASH,), max_tokens=2000))
        lines = model.capabilities.describe()
    assert "native tool calls: yes" in report_before
    assert [call.name for call in reply.calls] == ["bash"]
    assert (
        "native tool calls: yes, read from the text: the server has no parser that fits the model"
        in lines
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_cached_tokens_are_counted(kind: ServerKind) -> None:
    async with model_of(kind) as (model, _):
        usage = (await model.chat(ask(max_tokens=1500))).usage
    assert 0 < usage.cached_tokens <= usage.prompt_tokens


@pytest.mark.parametrize(("name", "maximum"), [("anthropic", 64_000), ("vllm", 32_768)])
async def test_the_maximum_reply_limit_is_learned(name: str, maximum: int) -> None:
    async with model_of(SERVERS[name]) as (model, server):
        await model.chat(ask(max_tokens=100_000))
        await model.chat(ask(max_tokens=100_000))
        assert (await model.describe()).most_tokens == maximum
    assert [body["max_tokens"] for _, body in server.requests] == [maximum, maximum]


async def test_reasoning_that_fills_a_reply_raises_the_limit() -> None:
    async with model_of(SERVERS["vllm"]) as (model, server):
        first, second = await model.chat(ask(max_tokens=100)), await model.chat(ask(max_tokens=100))
    assert (first.text, second.text) == ("Hello.", "Hello.")
    assert (first.usage.calls, second.usage.calls) == (2, 1)
    assert [body["max_tokens"] for _, body in server.requests] == [100, 8292, 8292]


async def test_reasoning_that_fills_the_raised_limit_leaves_an_empty_reply() -> None:
    def think(_body: Any, _headers: Any) -> NativeReply:
        return NativeReply(text="Hello.", reasoning="hm " * 20_000)

    async with (
        served(SERVERS["vllm"], think) as server,
        open_model(LlmSettings(), server.base_url) as model,
    ):
        reply = await model.chat(ask(max_tokens=100))
    assert (reply.text, reply.finish_reason, reply.usage.calls) == ("", "length", 2)
    assert json.loads(reply.reasoning)["reasoning"]


async def test_the_operator_may_choose_how_long_the_model_reasons() -> None:
    async with model_of(SERVERS["vllm"], reasoning_effort="low") as (model, server):
        assert (await model.chat(ask(max_tokens=100))).text == "Hello."
    assert server.requests[0][1]["reasoning_effort"] == "low"


async def test_the_operator_may_choose_the_api() -> None:
    async with model_of(SERVERS["openai"], api="responses", reasoning_effort="high") as (
        model,
        server,
    ):
        reply = await model.chat(ask(max_tokens=500))
    path, body = server.requests[0]
    assert (path, reply.text) == ("/v1/responses", "Hello.")
    assert body["reasoning"] == {"effort": "high"}
    assert body["store"] is False
    assert "seed" not in body
