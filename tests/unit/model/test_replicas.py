"""Several servers as one: a deliberation stays where its prompts are cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from moothall.config import Llm
from moothall.errors import ModelUnavailable
from moothall.model.client import OpenAIModel, open_model
from moothall.model.replicas import ReplicatedModel, open_models
from moothall.testing.chat import ask
from moothall.testing.model import Answer, Fault, ScriptedModel, scripted_model

QUICK = Llm(retries=0, retry_seconds=0.001)


@asynccontextmanager
async def replicas(*answers: Answer) -> AsyncIterator[tuple[ReplicatedModel, list[ScriptedModel], list[float]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_model(answer)) for answer in answers]
        clients = [await stack.enter_async_context(open_model(QUICK, server.base_url)) for server in servers]
        now = [100.0]
        yield ReplicatedModel(clients, lambda: now[0]), servers, now


def named(name: str) -> Answer:
    return lambda _body, _headers: name


async def test_a_deliberation_stays_with_one_server_and_many_use_all() -> None:
    async with replicas(named("a"), named("b"), named("c")) as (model, servers, _):
        for task in range(12):
            said = {(await model.chat(ask(f"task-{task}/agent-dev-00{seat}/propose/0.1"))).text for seat in range(3)}
            assert len(said) == 1
        used = {model.order(f"task-{task}/x")[0].url for task in range(200)}  # ports are drawn: twelve may leave one out
    assert used == {server.base_url for server in servers}


async def test_a_server_less_moves_its_own_deliberations_only() -> None:
    async with replicas(named("a"), named("b"), named("c")) as (model, _, _now):
        before = {task: model.order(f"task-{task}/x")[0] for task in range(50)}
        gone = model._servers[0]
        fewer = ReplicatedModel(model._servers[1:])
        moved = [task for task, server in before.items() if fewer.order(f"task-{task}/x")[0] is not server]
    assert moved == [task for task, server in before.items() if server is gone]
    assert Counter(before.values())[gone] > 0


async def test_where_one_is_down_the_next_stands_in_for_a_while() -> None:
    down = Fault("status", status=503)
    async with replicas(lambda _b, _h: down, named("b")) as (model, (first, second), now):
        task = next(name for name in map(str, range(99)) if model.order(name)[0].url == first.base_url)
        for _ in range(3):
            assert (await model.chat(ask(f"{task}/-/plan/0.1"))).text == "b"
        assert (len(first.requests), len(second.requests)) == (1, 3)
        now[0] += 31
        await model.chat(ask(f"{task}/-/plan/0.1"))
        assert len(first.requests) == 2


async def test_where_all_are_down_it_is_told() -> None:
    down = Fault("status", status=503)
    async with replicas(lambda _b, _h: down, lambda _b, _h: down) as (model, _, _now):
        with pytest.raises(ModelUnavailable, match="503"):
            await model.chat(ask())
        assert await model.reply_mode() == "json"


async def test_settings_name_the_replicas() -> None:
    async with scripted_model(named("a")) as a, scripted_model(named("b")) as b:
        async with open_models(QUICK, a.base_url) as model:
            assert isinstance(model, OpenAIModel)
        async with open_models(QUICK.model_copy(update={"replicas": (b.base_url, a.base_url)}), a.base_url) as model:
            assert isinstance(model, ReplicatedModel)
            assert len(model._servers) == 2
