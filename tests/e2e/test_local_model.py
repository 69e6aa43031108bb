"""The small local model with its real weights: the client's contract, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from moothall.config import LimitSettings, LlmSettings
from moothall.deliberation.prompts.briefing import Briefings
from moothall.domain.chat import ChatReply, Message
from moothall.domain.council import BriefingRequest
from moothall.domain.ids import LOCAL, digest
from moothall.domain.text import most_tokens
from moothall.errors import ConfigurationError
from moothall.llm.client import OpenAIModel, open_model
from moothall.llm.local import local_model_server
from moothall.llm.windows import counting
from moothall.settings import load_settings
from moothall.testing.server_contract import (
    FINISH,
    ChatModelContract,
    Expected,
    ServerContract,
    ask,
)
from support.graph import MemoryGraph
from support.processes import command_line

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


WINDOW = 4096


@pytest.fixture(scope="module")
def progress() -> list[str]:
    return []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(progress: list[str]) -> AsyncIterator[str]:
    settings = load_settings()
    llm = settings.llm.model_copy(update={"context_tokens": WINDOW})
    async with local_model_server(llm, settings.data_dir, progress.append) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(url: str) -> AsyncIterator[OpenAIModel]:
    async with open_model(load_settings().llm, url) as client:
        yield client


class TestLocal(ChatModelContract):
    """The contract on the small local model."""


class TestServer(ServerContract):
    """The contract on the embedded server. Its window is a setting, and it is not asked for native
    tool calls.
    """

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected("json", WINDOW)


DENSE = (
    " ".join(digest(str(number))[:16] for number in range(40)),
    " ".join(f"2026-01-{day:02}T03:04:{day:02}.123456+00:00" for day in range(10, 30)),
    "这是一个关于导出发票的故事" * 20,
    "Экспортировать счета за месяц в файл. " * 20,
    "😀🎉🚀" * 20,
    "!@#$%^&*()" * 20,
    Path(__file__).read_text(encoding="utf-8"),
)


async def test_contexts_are_counted_with_the_models_tokenizer(url: str, model: OpenAIModel) -> None:
    """The count is exact and never exceeds the budget. Without a counter, the estimate is not below
    it.
    """

    async def prompt_tokens(text: str) -> int:
        return (
            await model.chat(ask(messages=(Message("user", text),), max_tokens=1, seconds=300))
        ).usage.prompt_tokens

    graph = MemoryGraph()
    lines = [{"actor": "ann", "comment": text[:120]} for text in DENSE for _ in range(3)]
    graph.announce(
        "context", {"story": {"headline": "Exports", "state": "build"}, "comments": lines}
    )
    request = BriefingRequest(story_id="story-1", role="dev", phase="build", budget=300)
    async with counting(LlmSettings(), url) as count:
        briefing = await Briefings(graph.ask, LimitSettings(), count=count).brief(request, LOCAL)
        longer = await prompt_tokens(f"{briefing.text}\n{briefing.text}") - await prompt_tokens(
            briefing.text
        )
        assert longer == await count(f"{briefing.text}\n{briefing.text}") - briefing.tokens
        assert 0.5 * request.budget < briefing.tokens <= request.budget
        blind = await Briefings(graph.ask, LimitSettings()).brief(request, LOCAL)
        assert await count(blind.text) <= blind.tokens <= request.budget
        for text in DENSE:
            assert await count(text) <= most_tokens(text)


async def test_the_same_seed_gives_the_same_answer(model: OpenAIModel) -> None:
    async def sample(seed: int) -> ChatReply:
        return await model.chat(ask(temperature=0.9, seed=seed, max_tokens=12))

    await sample(5)  # so that both begin with the same cache
    assert (await sample(5)).text == (await sample(5)).text


async def test_seats_share_the_cached_prefix_of_their_prompts(model: OpenAIModel) -> None:
    system = Message(
        "system",
        "You hold a seat of a council. " + "Each seat works alone and says what it found. " * 25,
    )
    task = "The task is to write a function. " * 20

    async def seat(number: int) -> ChatReply:
        messages = (system, Message("user", f"{task}\nYou are seat {number}."))
        return await model.chat(
            ask(f"t/agent-dev-00{number}/propose/0.1", messages=messages, max_tokens=8, seconds=300)
        )

    replies = await asyncio.gather(*(seat(number) for number in (1, 2, 3)))
    assert all(reply.usage.cached_tokens > 0.9 * reply.usage.prompt_tokens for reply in replies)


async def test_an_unknown_model_name_is_reported_with_the_right_one(url: str) -> None:
    llm = load_settings().llm.model_copy(update={"model": "gpt-9"})
    async with open_model(llm, url) as client:
        with pytest.raises(ConfigurationError, match=r"no model 'gpt-9'; it has: \S+"):
            await client.chat(ask())


async def test_requests_without_the_key_are_refused(url: str) -> None:
    bare = f"http://{url.partition('@')[2]}"
    async with open_model(load_settings().llm, bare) as client:
        with pytest.raises(ConfigurationError, match="401"):
            await client.chat(ask())
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{bare}/chat/completions", json={}) as response,
    ):
        assert response.status == 401


def listening_addresses(process: psutil.Process) -> set[Any]:
    """Return the addresses on which a process listens; none if it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return {c.laddr for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    return set()


async def test_the_server_listens_on_loopback_only(url: str) -> None:
    port = int(url.rpartition(":")[2].removesuffix("/v1"))
    # Other tests' servers may run below this process too: the model's server is the one with this
    # port.
    listening = [listening_addresses(child) for child in psutil.Process().children(recursive=True)]
    model_addresses = [places for places in listening if port in {place.port for place in places}]
    assert [{place.ip for place in places} for places in model_addresses] == [{"127.0.0.1"}]


# A shell that starts the suite in the background ignores SIGINT, and children inherit this.
PARENT = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from moothall.settings import load_settings
from moothall.llm.local import local_model_server

async def main():
    settings = load_settings()
    llm = settings.llm.model_copy(update={"context_tokens": 1024})
    async with local_model_server(llm, settings.data_dir, lambda _: None):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
async def test_the_server_ends_with_its_parent(sign: signal.Signals) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert parent.stdout is not None
        assert await parent.stdout.readline() == b"ready\n"
        (child,) = psutil.Process(parent.pid).children()
        os.kill(parent.pid, sign)
        await parent.wait()
        until = datetime.now(UTC) + timedelta(seconds=10)
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            assert datetime.now(UTC) < until, "the model's server outlived its parent"
            await asyncio.sleep(0.05)
    finally:
        if parent.returncode is None:
            parent.kill()


async def test_an_answer_follows_the_schema_within_its_token_limit(model: OpenAIModel) -> None:
    reply = await model.chat(ask(schema=FINISH, max_tokens=64, seconds=120))
    assert len(reply.text) < 400
    assert (Path(load_settings().data_dir) / "logs" / "local-model.log").exists()


async def test_a_killed_server_is_restarted_and_its_pending_call_is_answered(
    model: OpenAIModel,
) -> None:
    request = ask(
        messages=(Message("user", "Count from one to forty."),), max_tokens=60, seconds=240
    )
    await model.chat(request)
    (server,) = [
        child
        for child in psutil.Process().children()
        if "moothall.llm.serve_local" in command_line(child)
    ]
    started = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(model.chat(request, lambda _: started.set()))
        await started.wait()
        server.kill()
    # Not the same text: the next token may depend on what the server has computed before.
    reply = answering.result()
    assert reply.text.strip()
    assert reply.finish_reason in {"stop", "length"}
    (restarted,) = [
        child
        for child in psutil.Process().children()
        if "moothall.llm.serve_local" in command_line(child)
    ]
    assert restarted.pid != server.pid
