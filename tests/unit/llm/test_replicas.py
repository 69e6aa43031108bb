"""Replicas: a deliberation stays with the server that caches its prompts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from moothall.config import LlmSettings, Models
from moothall.domain.chat import FunctionTool, ReplySchema
from moothall.errors import ModelUnavailable
from moothall.llm.client import OpenAIModel, open_model
from moothall.llm.replicas import ReplicatedModel, open_models
from moothall.testing.model import Answer, Fault, ScriptedModel, scripted_model
from moothall.testing.server_contract import ask

QUICK = LlmSettings(retries=0)


@asynccontextmanager
async def replicas(
    *answers: Answer,
) -> AsyncIterator[tuple[ReplicatedModel, list[ScriptedModel], list[float]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_model(answer)) for answer in answers]
        clients = [
            await stack.enter_async_context(open_model(QUICK, server.base_url))
            for server in servers
        ]
        now = [100.0]
        yield ReplicatedModel(clients, lambda: now[0]), servers, now


def answer_with(name: str) -> Answer:
    return lambda _body, _headers: name


async def test_a_deliberation_stays_with_one_server_and_many_use_all_servers() -> None:
    async with replicas(answer_with("a"), answer_with("b"), answer_with("c")) as (
        model,
        servers,
        _,
    ):
        for task in range(12):
            answers = {
                (await model.chat(ask(f"task-{task}/agent-dev-00{seat}/propose/0.1"))).text
                for seat in range(3)
            }
            assert len(answers) == 1
        used_urls = {
            model.order(f"task-{task}/x")[0].url for task in range(200)
        }  # ports are drawn: twelve may leave one out
    assert used_urls == {server.base_url for server in servers}


async def test_removing_a_server_moves_only_its_deliberations() -> None:
    async with replicas(answer_with("a"), answer_with("b"), answer_with("c")) as (model, _, _now):
        servers_before = {task: model.order(f"task-{task}/x")[0] for task in range(50)}
        removed = model._servers[0]
        fewer = ReplicatedModel(model._servers[1:])
        moved = [
            task
            for task, server in servers_before.items()
            if fewer.order(f"task-{task}/x")[0] is not server
        ]
    assert moved == [task for task, server in servers_before.items() if server is removed]
    assert Counter(servers_before.values())[removed] > 0


async def test_a_failed_server_is_replaced_for_a_while() -> None:
    down = Fault("status", status=503)
    async with replicas(lambda _b, _h: down, answer_with("b")) as (model, (first, second), now):
        task = next(
            name for name in map(str, range(99)) if model.order(name)[0].url == first.base_url
        )
        for _ in range(3):
            assert (await model.chat(ask(f"{task}/-/plan/0.1"))).text == "b"
        assert (len(first.requests), len(second.requests)) == (1, 3)
        now[0] += 31
        await model.chat(ask(f"{task}/-/plan/0.1"))
        assert len(first.requests) == 2


async def test_an_error_is_raised_if_all_servers_are_down() -> None:
    down = Fault("status", status=503)
    async with replicas(lambda _b, _h: down, lambda _b, _h: down) as (model, _, _now):
        with pytest.raises(ModelUnavailable, match="503"):
            await model.chat(ask())
        assert await model.reply_mode() == "json"


async def test_settings_name_the_replicas() -> None:
    async with scripted_model(answer_with("a")) as a, scripted_model(answer_with("b")) as b:
        async with open_models(Models(QUICK), a.base_url) as opened:
            assert isinstance(opened["default"], OpenAIModel)
        replicated = QUICK.model_copy(update={"replicas": (b.base_url, a.base_url)})
        async with open_models(Models(replicated), a.base_url) as opened:
            model = opened["default"]
            assert isinstance(model, ReplicatedModel)
            assert len(model._servers) == 2


async def test_a_fallback_model_is_used_and_failures_are_shared() -> None:
    down = Fault("status", status=503)
    async with scripted_model(lambda _b, _h: down) as a, scripted_model(answer_with("b")) as b:
        named_models = {
            "warm": LlmSettings(temperature=1, fallback=("other",)),
            "other": LlmSettings(base_url=b.base_url, model="scripted"),
        }
        models = Models.of(
            QUICK.model_copy(update={"fallback": ("other",), "base_url": a.base_url}), named_models
        )
        async with open_models(models, a.base_url) as opened:
            assert (await opened["default"].chat(ask())).text == "b"
            assert (await opened["default"].chat(ask())).text == "b"
            assert len(a.requests) == 1, "the breaker is open"
            assert (await opened["other"].chat(ask())).text == "b"
            assert (await opened["warm"].chat(ask())).text == "b"


async def test_after_the_pause_only_one_call_tries_the_failed_server() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    answers: list[Any] = [Fault("status", status=503)]

    async def slow() -> str:
        begun.set()
        await go.wait()
        return "a"

    async with replicas(lambda _b, _h: answers.pop() if answers else slow(), answer_with("b")) as (
        model,
        (first, _),
        now,
    ):
        task = next(
            name for name in map(str, range(99)) if model.order(name)[0].url == first.base_url
        )
        assert (await model.chat(ask(f"{task}/-/plan/0.1"))).text == "b"
        now[0] += 31
        trying = asyncio.create_task(model.chat(ask(f"{task}/-/plan/0.2")))
        await begun.wait()
        assert (await model.chat(ask(f"{task}/-/plan/0.3"))).text == "b"
        go.set()
        assert (await trying).text == "a"
        assert (await model.chat(ask(f"{task}/-/plan/0.4"))).text == "a", "it is available again"


async def test_a_fallback_without_schemas_gets_none() -> None:
    down = Fault("status", status=503)
    async with (
        scripted_model(lambda _b, _h: down) as a,
        scripted_model(answer_with("b"), schemas=False) as b,
    ):
        models = Models.of(
            QUICK.model_copy(update={"fallback": ("other",), "reply": "json"}),
            {"other": LlmSettings(base_url=b.base_url, reply="auto")},
        )
        async with open_models(models, a.base_url) as opened:
            request = replace(ask(), schema=ReplySchema("turn", {"type": "object"}))
            assert (await opened["default"].chat(request)).text == "b"
    assert "response_format" not in b.requests[-1].body


async def test_a_fallback_without_tools_gets_no_native_tool_calls() -> None:
    tool = FunctionTool("bash", "", {"type": "object", "properties": {}})
    async with (
        scripted_model(lambda _b, _h: Fault("status", status=503), tools=True) as replica_server,
        scripted_model(answer_with("b")) as other_server,
        open_model(QUICK, replica_server.base_url) as first,
        open_model(QUICK, other_server.base_url) as second,
    ):
        model = ReplicatedModel([first], fallbacks=[[second]])
        assert (await model.chat(ask())).text == "b"
        with pytest.raises(ModelUnavailable):
            await model.chat(ask(tools=(tool,)))
        assert (await model.chat(ask())).text == "b", "it still stands in for other calls"
    assert not [call for call in other_server.requests if "tools" in call.body]
