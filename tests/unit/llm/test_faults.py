"""Faults of a model server cause a clear error, never an invented reply: it is down or slow,
refuses, interrupts the response or sends invalid data.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from moothall.config import LlmSettings
from moothall.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.llm.client import open_model
from moothall.llm.server_errors import Failed, Rejected
from moothall.llm.stream import WholeResponseReader
from moothall.testing.model import Fault, scripted_model
from moothall.testing.server_contract import ask, talking


def in_turn(*answers: str | Fault) -> Callable[[Any, Any], str | Fault]:
    """Return each answer once, and the last one repeatedly."""
    remaining = list(answers)
    return lambda _body, _headers: remaining.pop(0) if len(remaining) > 1 else remaining[0]


PASSING = [
    Fault("status", status=429, retry_after="0"),
    Fault("status", status=500),
    Fault("status", status=503),
    Fault("status", status=408),
    Fault("drop"),
    Fault("cut", text="half an ans"),
    Fault("unfinished", text="half an ans"),
    Fault("broken_json", text="half an ans"),
    Fault("silent", text="half an ans"),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.kind}-{fault.status}")
async def test_a_temporary_fault_is_retried(fault: Fault) -> None:
    # A silent server is given up after a sixth of this.
    call_seconds = 3 if fault.kind == "silent" else 6
    async with talking(in_turn(fault, fault, "hello"), call_seconds=call_seconds) as (
        model,
        server,
    ):
        assert (await model.chat(ask())).text == "hello"
    assert [call.call_id for call in server.requests] == ["task-1/agent-dev-001/propose/0.1"] * 3


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.kind}-{fault.status}")
async def test_a_lasting_fault_raises_model_unavailable(fault: Fault) -> None:
    call_seconds = 0.6 if fault.kind == "silent" else 6
    async with talking(in_turn(fault), call_seconds=call_seconds) as (model, server):
        with pytest.raises(ModelUnavailable, match=f"{server.base_url} failed 3 times"):
            await model.chat(ask())
    assert len(server.requests) == 3


async def test_an_unreachable_server_is_reported() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"
        async with open_model(LlmSettings(retries=1), url, retry_seconds=0.001) as model:
            with pytest.raises(
                ModelUnavailable,
                match=f"{url} failed 2 times, last: cannot connect to .*: connection refused",
            ):
                await model.chat(ask())


async def test_a_restarted_server_is_used() -> None:
    async with scripted_model(lambda _b, _h: "back") as first:
        port = int(first.base_url.split(":")[2].split("/")[0])
    # whether the deadline comes between two attempts or in one
    server_is_away = "failed|not answered by its deadline"
    async with open_model(LlmSettings(retries=50), first.base_url, retry_seconds=0.01) as model:
        with pytest.raises(DeadlineExceeded, match=server_is_away):
            await model.chat(ask(seconds=0.1))
        async with scripted_model(lambda _b, _h: "back", port=port):
            assert (await model.chat(ask())).text == "back"


async def test_the_error_contains_the_last_message_of_the_server() -> None:
    async with talking(in_turn(Fault("status", status=503, message="engine is dead"))) as (
        model,
        _,
    ):
        with pytest.raises(ModelUnavailable, match="HTTP 503 engine is dead"):
            await model.chat(ask())


@pytest.mark.parametrize("as_date", [False, True])
async def test_retry_after_is_respected(*, as_date: bool) -> None:
    header = (
        format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True) if as_date else "60"
    )
    async with talking(in_turn(Fault("status", status=429, retry_after=header), "hello")) as (
        model,
        server,
    ):
        with pytest.raises(DeadlineExceeded, match="HTTP 429"):
            await model.chat(ask(seconds=20))
    assert len(server.requests) == 1


async def test_retry_after_is_passed_on() -> None:
    async with talking(in_turn(Fault("status", status=429, retry_after="7")), retries=0) as (
        model,
        _,
    ):
        with pytest.raises(ModelUnavailable) as raised:
            await model.chat(ask())
    assert raised.value.retry_after == 7.0


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (400, ModelReplyInvalid, "HTTP 400: prompt too long"),
        (422, ModelReplyInvalid, "HTTP 422: prompt too long"),
        (401, ConfigurationError, "MOOTHALL_LLM__API_KEY"),
        (403, ConfigurationError, "MOOTHALL_LLM__API_KEY"),
        (404, ConfigurationError, "requested model 'scripted'"),
        (301, ConfigurationError, "final address"),
    ],
)
async def test_a_refusal_is_not_retried(status: int, error: type[Exception], message: str) -> None:
    async with talking(in_turn(Fault("status", status=status, message="prompt too long"))) as (
        model,
        server,
    ):
        with pytest.raises(error, match=message):
            await model.chat(ask())
    assert len(server.requests) == 1


async def test_a_wrong_model_name_is_reported_with_the_available_ones() -> None:
    async with talking(in_turn("x"), {"models": ("qwen", "llama")}, model="gpt") as (model, server):
        with pytest.raises(ConfigurationError, match="no model 'gpt'; it has: qwen, llama"):
            await model.chat(ask())
        with pytest.raises(ConfigurationError, match="no model 'gpt'"):
            await model.reply_mode()
    assert not server.requests


async def test_a_server_without_models_is_an_error() -> None:
    async with talking(in_turn("x"), {"models": ()}) as (model, _):
        with pytest.raises(ConfigurationError, match="lists no models"):
            await model.chat(ask())


async def test_a_wrong_key_is_an_error() -> None:
    async with talking(in_turn("x"), {"api_key": "right"}, api_key="wrong") as (model, _):
        with pytest.raises(ConfigurationError, match=r"401.*MOOTHALL_LLM__API_KEY") as raised:
            await model.chat(ask())
    assert "wrong API key" in str(raised.value)


async def test_a_url_without_its_path_is_an_error() -> None:
    async with (
        scripted_model(in_turn("x")) as server,
        open_model(LlmSettings(), server.base_url.removesuffix("/v1")) as model,
    ):
        with pytest.raises(ConfigurationError, match="ends with /v1"):
            await model.chat(ask())


@pytest.mark.parametrize("text", ["", " \n "])
async def test_an_empty_reply_is_returned_and_counted(text: str) -> None:
    async with talking(in_turn(Fault("empty", text=text))) as (model, _):
        reply = await model.chat(ask())
    assert (reply.text, reply.finish_reason, reply.usage.calls) == (text, "stop", 1)
    assert reply.usage.completion_tokens > 0


async def test_an_endless_response_is_cancelled() -> None:
    async with talking(in_turn(Fault("endless")), max_reply_bytes=20_000) as (model, _):
        with pytest.raises(ModelReplyInvalid, match="more than 20000 bytes"):
            await model.chat(ask())


async def test_a_web_page_is_an_invalid_reply() -> None:
    async with talking(in_turn(Fault("content_type"))) as (model, _):
        with pytest.raises(ModelReplyInvalid, match="text/html"):
            await model.chat(ask())


async def test_a_response_over_the_time_limit_is_an_error() -> None:
    async with talking(
        in_turn(Fault("status", status=200, text="late", delay=30.0)), call_seconds=0.05
    ) as (model, _):
        with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
            await model.chat(ask())


async def test_the_deadline_of_a_request_is_enforced() -> None:
    async with talking(in_turn(Fault("silent", text="half"))) as (model, server):
        with pytest.raises(DeadlineExceeded, match=r"task-1/agent-dev-001/propose/0\.1"):
            await model.chat(ask(seconds=0.1))
        with pytest.raises(DeadlineExceeded, match="before it began"):
            await model.chat(ask(seconds=-1))
    assert len(server.requests) == 1


@pytest.mark.parametrize("agreed", [0, 1], ids=["before it began", "while it was connecting"])
async def test_a_request_is_not_sent_after_the_work_was_lost(agreed: int) -> None:
    answers: list[bool] = []

    def owns_work() -> bool:
        answers.append(len(answers) < agreed)
        return answers[-1]

    async with talking(in_turn("hello")) as (model, server):
        with pytest.raises(asyncio.CancelledError):
            await model.chat(ask(), owns_work=owns_work)
        assert server.requests == []
        assert (await model.chat(ask(), owns_work=lambda: True)).text == "hello"


async def test_an_interrupted_request_is_not_repeated_after_the_work_was_lost() -> None:
    async with talking(in_turn(Fault("cut", text="half an ans"), "hello")) as (model, server):
        with pytest.raises(asyncio.CancelledError):
            await model.chat(ask(), owns_work=lambda: not server.requests)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("code", "kind"), [("insufficient_quota", Rejected), ("rate_limit_exceeded", Failed)]
)
def test_an_exhausted_quota_is_not_retried(code: str, kind: type[Exception]) -> None:
    reader = WholeResponseReader("http://m/v1", 1000)
    reader.start(429, {})
    reader.feed(
        json.dumps({"error": {"message": "Too much.", "type": code, "code": code}}).encode()
    )
    with pytest.raises(kind, match="Too much"):
        reader.raise_refusal()
