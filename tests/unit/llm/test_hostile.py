"""A malicious model server: each response causes a clear error, or bounded and printable data."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.config import LlmSettings
from moothall.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.llm.client import OpenAIModel, open_model
from moothall.llm.requests import count_usage
from moothall.llm.server_errors import error_message, read_models
from moothall.testing.model import Fault
from moothall.testing.server_contract import ask, talking

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n"
MODELS = b'{"data": [{"id": "m"}]}'


def final_chunk(text: str, **fields: Any) -> bytes:
    chunk = {
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}],
        **fields,
    }
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


@asynccontextmanager
async def hostile(send: Say, **settings: Any) -> AsyncIterator[OpenAIModel]:
    """A client of a server that lists a model correctly, and answers each call with `send`."""

    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            handlers.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(
                    OK + b"Connection: close\r\nContent-Type: application/json\r\n\r\n" + MODELS
                )
            else:
                await send(writer)
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    quick = {
        "retries": 1,
        "call_seconds": 20.0,
        **settings,
    }
    async with (
        server,
        open_model(
            LlmSettings(**quick),
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
            retry_seconds=0.001,
            max_reply_bytes=20_000,
        ) as model,
    ):
        yield model
    await asyncio.gather(*handlers)  # each ends when it notices that its caller is gone


def send_once(raw: bytes) -> Say:
    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return send


def forever(raw: bytes, piece: bytes, pause: float = 0.0) -> Say:
    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return send


@pytest.mark.parametrize("piece", [b"X-More: and more\r\n", b"x" * 1000], ids=["many", "long"])
async def test_endless_headers_are_refused(piece: bytes) -> None:
    async with hostile(forever(OK + b"X: ", piece)) as model:
        with pytest.raises(ModelUnavailable, match="failed 2 times"):
            await model.chat(ask())


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        (b"text/event-stream", b"data: x" + b"x" * 10_000),
        (b"text/event-stream", b"data: x\n" * 1000),
        (b"text/event-stream", b'data: {"choices": []}\n\n' * 1000),
        (b"application/json", b"[" * 10_000),
    ],
    ids=["a line", "an event", "events", "json"],
)
async def test_endless_bodies_are_refused(kind: bytes, piece: bytes) -> None:
    async with hostile(forever(OK + b"Content-Type: " + kind + b"\r\n\r\n", piece)) as model:
        with pytest.raises(ModelReplyInvalid, match="sent more than 20000 bytes"):
            await model.chat(ask())


async def test_a_compressed_response_is_not_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 10_000_000)
    async with hostile(send_once(STREAM + b"Content-Encoding: gzip\r\n\r\n" + bomb)) as model:
        with pytest.raises(ModelReplyInvalid, match="content encoding 'gzip'"):
            await model.chat(ask())


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 ", OK + b"X: ", STREAM + b"\r\n: "], ids=["status", "header", "comment"]
)
async def test_a_slow_response_reaches_the_call_limit(head: bytes) -> None:
    async with hostile(forever(head, b"H", 0.02), call_seconds=0.4) as model:
        with pytest.raises(DeadlineExceeded, match=r"0\.4 s"):
            await model.chat(ask())


async def test_redirects_are_not_followed() -> None:
    async with (
        talking(lambda _b, _h: "stolen") as (_, other_server),
        hostile(
            send_once(
                f"HTTP/1.1 307 Go\r\nLocation: {other_server.base_url}\r\nContent-Length: "
                "0\r\n\r\n".encode()
            )
        ) as model,
    ):
        with pytest.raises(ConfigurationError, match="redirects to"):
            await model.chat(ask())
    assert not other_server.requests


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (STREAM + b"\r\ndata: \xff\xfe\n\n", "not UTF-8"),
        (STREAM + b"Content-Length: 500\r\n\r\n" + final_chunk("hi")[:20], "Payload"),
        (b"HTTP/9.9 what\r\n\r\n", "failed 2 times"),
        (b"\0" * 100, "failed 2 times"),
        (STREAM + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "failed 2 times"),
    ],
)
async def test_an_invalid_response_is_retried_and_reported(raw: bytes, message: str) -> None:
    async with hostile(send_once(raw)) as model:
        with pytest.raises(ModelUnavailable, match=message):
            await model.chat(ask())


async def test_replies_can_be_stored_and_printed() -> None:
    raw = final_chunk("half \ud800 a pair", model="m\x1b[2J" + "x" * 5000)
    async with hostile(send_once(STREAM + b"\r\n" + raw)) as model:
        pieces: list[str] = []
        reply = await model.chat(ask(), pieces.append)
    assert reply.text == "".join(pieces) == "half ? a pair"
    assert reply.model.isprintable()
    assert len(reply.model) == 200


async def test_errors_contain_no_terminal_escapes() -> None:
    async with talking(
        lambda _b, _h: Fault("status", status=400, message="\x1b]0;owned\x07\x9b2J no\n\nway")
    ) as (model, _):
        with pytest.raises(ModelReplyInvalid) as raised:
            await model.chat(ask())
    assert raised.value.message.isprintable()
    assert raised.value.message.endswith("no way")


@pytest.mark.parametrize("count", [float("nan"), -5, True, "7", 10**400, 10**12, None, [], 1.5])
async def test_an_impossible_count_is_replaced_by_an_estimate(count: Any) -> None:
    reported = {
        "prompt_tokens": count,
        "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": count},
    }
    usage = count_usage(reported, 30, 60, LlmSettings(price_in=1.0, price_out=1.0))
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (11, 0, 21)


@given(st.binary(max_size=300))
def test_any_error_response_is_one_printable_line(raw: bytes) -> None:
    message = error_message(raw)
    assert message.isprintable()
    assert len(message) <= 300


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b'{"data": 5}', b'{"data": [5]}', b'{"data": [{"id": 5}]}', b"[" * 100_000],
)
def test_an_invalid_list_of_models_is_reported(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"list of models|Expecting"):
        read_models(raw)


async def test_ten_thousand_models_give_a_short_error() -> None:
    async with talking(
        lambda _b, _h: "x", {"models": tuple(f"model-{n}" for n in range(10_000))}, model="other"
    ) as (model, _):
        with pytest.raises(
            ConfigurationError, match="no model 'other'; it has: model-0, "
        ) as raised:
            await model.chat(ask())
    assert len(raised.value.message) < 800
