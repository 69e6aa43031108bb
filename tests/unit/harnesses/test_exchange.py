"""The trusted side of a harness's connection, with messages of a hostile program."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, HarnessTask, ModelQuestion
from moothall.harnesses.running import HarnessClient, HarnessExchange

TASK = HarnessTask(("agent",), "do it", "model", 8192, 1024, 60.0, may_write=False)
REQUEST = json.dumps(
    {
        "request": 1,
        "method": "POST",
        "path": "/chat/completions",
        "body": json.dumps({"messages": [{"role": "user", "content": "hi"}]}),
    }
)
OPTIONS = [{"kind": "allow_once", "optionId": "yes"}, {"kind": "reject_once", "optionId": "no"}]


def line(message: Any) -> str:
    return json.dumps({"line": message if isinstance(message, str) else json.dumps(message)})


def chunk(text: Any) -> str:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return line({"method": "session/update", "params": {"update": update}})


async def no_model(question: ModelQuestion) -> ChatReply:
    raise AssertionError


async def exchange_lines(*lines: str) -> tuple[list[dict[str, Any]], HarnessClient]:
    """Return what the program receives after these lines, and the client."""
    client = HarnessClient(TASK)
    async with asyncio.TaskGroup() as group:
        exchange = HarnessExchange("model", no_model, group, client)
        answers = await exchange(lines) or ()
        exchange.end()
        assert await exchange.receive() is None
    return [json.loads(item["line"]) for item in map(json.loads, answers) if "line" in item], client


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        "[" * 2_000,
        {"method": "unknown"},
        {"method": {"a": 1}},
        {"method": "session/update"},
        {"method": "session/update", "params": {"update": {"sessionUpdate": ["tool_call"]}}},
        {"id": 1, "result": {}},
        {"id": {"a": []}, "result": 1},
        {"id": {"a": []}, "method": "session/request_permission"},
        {"id": 0, "error": "broken"},
    ],
)
async def test_other_messages_are_dropped(message: Any) -> None:
    assert (await exchange_lines(line(message)))[0] == []
    assert (await exchange_lines(json.dumps({"line": message})))[0] == []


async def test_requests_are_answered_whatever_they_hold() -> None:
    def ask(number: Any, call: Any, options: Any) -> str:
        params = {"toolCall": call, "options": options}
        return line({"id": number, "method": "session/request_permission", "params": params})

    replies, _ = await exchange_lines(
        line({"id": "a", "method": "fs/read_text_file", "params": []}),
        ask(1, {"kind": "edit"}, OPTIONS),
        ask(2, {"kind": "read"}, OPTIONS),
        ask(3, {"kind": ["edit"]}, [7, {"kind": []}, {"kind": "allow_once", "optionId": 7}]),
        ask(4, None, None),
    )
    assert replies[0]["error"]["code"] == -32601
    outcomes = [reply["result"]["outcome"] for reply in replies[1:]]
    assert outcomes == [
        {"outcome": "selected", "optionId": "no"},
        {"outcome": "selected", "optionId": "yes"},
        {"outcome": "selected", "optionId": ""},
        {"outcome": "cancelled"},
    ]


async def test_a_flood_of_updates_leaves_a_bounded_text() -> None:
    _, client = await exchange_lines(*[chunk("word ")] * 10_000, chunk({"a": 1}))
    assert client.text == "word " * 4_000
    call = {"sessionUpdate": "tool_call"}
    _, client = await exchange_lines(
        chunk("before"), line({"method": "session/update", "params": {"update": call}}), chunk("so")
    )
    assert client.text == "so"


async def test_no_model_call_is_made_after_the_end() -> None:
    call_count = 0

    async def ask(question: ModelQuestion) -> ChatReply:
        nonlocal call_count
        call_count += 1
        return ChatReply("so", "stop", Usage())

    async with asyncio.TaskGroup() as group:
        exchange = HarnessExchange("model", ask, group, HarnessClient(TASK))
        exchange.end()
        assert await exchange([REQUEST] * 3) is None
    assert call_count == 0


async def test_further_requests_at_once_are_refused_with_a_reason() -> None:
    async def wait_forever(question: ModelQuestion) -> ChatReply:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.TaskGroup() as group:
        exchange = HarnessExchange("model", wait_forever, group, HarnessClient(TASK))
        (reply, _) = map(json.loads, await exchange([REQUEST] * 17) or ())
        exchange.end()
    assert reply["status"] == 429
    assert "at most 16 requests" in json.loads(reply["content"])["error"]["message"]
