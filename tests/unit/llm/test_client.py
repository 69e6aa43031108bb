"""The client with a real HTTP server: the sent requests and the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from moothall.config import LlmSettings
from moothall.domain.budget import Usage
from moothall.domain.chat import Message
from moothall.errors import ConfigurationError
from moothall.llm.client import open_model
from moothall.llm.requests import count_usage
from moothall.testing.model import Fault, call_id_of, phase_of, scripted_model, seat_of, step_of
from moothall.testing.server_contract import FINISH, ask, talking


def hello(_body: Any, _headers: Any) -> str:
    return "hello"


async def test_a_request_contains_all_options() -> None:
    async with talking(hello) as (model, server):
        await model.chat(ask(schema=FINISH, temperature=0.7, seed=42, stop=("###",)))
    call = server.requests[0]
    assert call.call_id == "task-1/agent-dev-001/propose/0.1"
    assert call.body == {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "You help."},
            {"role": "user", "content": "Say hello."},
        ],
        "max_tokens": 64,
        "temperature": 0.7,
        "seed": 42,
        "stop": ["###"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "turn", "strict": True, "schema": dict(FINISH.schema)},
        },
    }


async def test_unset_options_are_not_sent() -> None:
    async with talking(hello) as (model, server):
        await model.chat(ask())
    assert not {"stop", "response_format"} & server.requests[0].body.keys()


async def test_a_reply_is_complete_with_usage_and_cost() -> None:
    text = "A longer answer, in Unicode: größer ⚙ " * 20
    pieces: list[str] = []
    async with talking(lambda _b, _h: text, price_in=1.0, price_out=10.0) as (model, _):
        reply = await model.chat(ask(), pieces.append)
    assert reply.text == "".join(pieces) == text
    assert (reply.finish_reason, reply.model) == ("stop", "scripted")
    prompt, completion = len("You help.\nSay hello.") // 4 + 1, len(text) // 4 + 1
    assert reply.usage == Usage(
        prompt, 0, completion, 1, (prompt * 1.0 + completion * 10.0) / 1_000_000
    )


def test_cached_tokens_have_their_own_price() -> None:
    reported = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    prices = LlmSettings(price_in=10.0, price_out=100.0, price_cached=1.0)
    usage = count_usage(reported, 0, 0, prices)
    assert usage == Usage(1000, 400, 100, 1, (600 * 10 + 400 * 1 + 100 * 100) / 1_000_000, 60)
    assert (
        count_usage(reported, 0, 0, LlmSettings(price_in=10.0, price_out=100.0)).cost_usd
        == (1000 * 10 + 100 * 100) / 1_000_000
    )
    with_separate_reasoning = count_usage(reported | {"total_tokens": 1160}, 0, 0, prices)
    assert (
        with_separate_reasoning.completion_tokens,
        with_separate_reasoning.reasoning_tokens,
    ) == (160, 60)


async def test_cached_tokens_are_reported() -> None:
    long = ask(messages=(Message("system", "x" * 1000), Message("user", "go")))
    async with talking(hello) as (model, _):
        first, second = await model.chat(long), await model.chat(long)
    assert first.usage.cached_tokens == 0
    assert 0 < second.usage.cached_tokens <= second.usage.prompt_tokens


async def test_missing_usage_is_estimated() -> None:
    async with talking(lambda _b, _h: Fault("length", text="x" * 300)) as (model, server):
        server.counts = False
        usage = (await model.chat(ask())).usage
    assert usage.completion_tokens >= 100
    assert usage.prompt_tokens >= 5


async def test_the_token_limit_is_reported() -> None:
    async with talking(lambda _b, _h: Fault("length", text="half an ans")) as (model, _):
        assert (await model.chat(ask())).finish_reason == "length"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    pieces: list[str] = []
    async with talking(hello) as (model, server):
        server.streams = False
        reply = await model.chat(ask(), pieces.append)
    assert (reply.text, reply.finish_reason, pieces) == ("hello", "stop", ["hello"])


async def test_the_first_listed_model_is_used_and_the_list_is_read_once() -> None:
    async with talking(hello, {"models": ("one", "two")}) as (model, server):
        await asyncio.gather(*(model.chat(ask(f"t/-/plan/0.{n}")) for n in range(5)))
    assert {call.body["model"] for call in server.requests} == {"one"}
    assert server.model_lists == 1


async def test_the_configured_model_is_used() -> None:
    async with talking(hello, {"models": ("one", "two")}, model="two") as (model, server):
        await model.chat(ask())
    assert server.requests[0].body["model"] == "two"


async def test_no_more_calls_are_in_flight_than_allowed() -> None:
    async def slowly(_body: Any, _headers: Any) -> str:
        await asyncio.sleep(0.02)
        return "done"

    async with talking(slowly, concurrency=2) as (model, server):
        await asyncio.gather(*(model.chat(ask(f"t/-/plan/0.{n}")) for n in range(8)))
    assert server.peak == 2


async def test_connections_are_reused() -> None:
    async with talking(hello) as (model, server):
        for n in range(5):
            await model.chat(ask(f"t/-/plan/0.{n}"))
    assert server.connections == 1


async def test_the_key_is_sent_from_the_settings_or_from_the_url() -> None:
    async with scripted_model(hello, api_key="secret") as server:
        async with open_model(LlmSettings(api_key="secret"), server.base_url) as model:
            assert (await model.chat(ask())).text == "hello"
        async with open_model(LlmSettings(), server.base_url.replace("://", "://secret@")) as model:
            assert (await model.chat(ask())).text == "hello"
            assert "secret" not in model.url


@pytest.mark.parametrize("url", ["ftp://x/v1", "nonsense", "", "http://", "http://[::1/v1"])
async def test_an_invalid_url_is_refused_immediately(url: str) -> None:
    with pytest.raises(ConfigurationError, match="BASE_URL"):
        async with open_model(LlmSettings(), url):
            pass


async def test_a_cancelled_call_ends_at_the_server_too() -> None:
    ended = asyncio.Event()

    async def wait(_body: Any, _headers: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with talking(wait) as (model, server):
        async with asyncio.TaskGroup() as group:
            call = group.create_task(model.chat(ask()))
            while not server.requests:
                await asyncio.sleep(0.001)
            call.cancel()
        await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.parametrize(("schemas", "mode"), [(True, "json"), (False, "blocks")])
async def test_the_reply_mode_is_probed_once(schemas: bool, mode: str) -> None:  # noqa: FBT001
    async with talking(hello, {"schemas": schemas}) as (model, server):
        assert await asyncio.gather(*(model.reply_mode() for _ in range(4))) == [mode] * 4
    assert len(server.probes) == 1
    assert not server.requests


async def test_a_server_that_ignores_the_schema_gets_blocks() -> None:
    async with talking(hello) as (model, server):
        server.probe_answer = "Yes, water is wet."
        assert await model.reply_mode() == "blocks"


async def test_a_configured_reply_mode_takes_precedence() -> None:
    async with talking(hello, reply="blocks") as (model, server):
        assert await model.reply_mode() == "blocks"
    assert not server.probes


def test_a_script_can_distinguish_calls() -> None:
    headers: Mapping[str, str] = {"X-Request-Id": "task-9/agent-qa-002/critique/1.2.3"}
    assert (call_id_of(headers), seat_of(headers), phase_of(headers), step_of(headers)) == (
        "task-9/agent-qa-002/critique/1.2.3",
        "agent-qa-002",
        "critique",
        "1.2.3",
    )
    assert (seat_of({}), phase_of({}), step_of({})) == ("", "", "")
