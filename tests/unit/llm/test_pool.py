"""Connections to a model server: reuse, tunnels, encryption, and separation of the responses of
different calls.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.config import LlmSettings
from moothall.errors import ConfigurationError, ModelUnavailable
from moothall.llm.client import open_model
from moothall.llm.startup_check import reach
from moothall.llm.stream import ChatResponseReader
from moothall.testing.server_contract import ask, talking

Serve = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl to make a certificate"
)
LISTED = b'{"data": [{"id": "m"}]}'
QUICK = {"retries": 0}


def complete_response(
    body: bytes, kind: bytes = b"application/json", headers: bytes = b""
) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
        kind,
        headers,
        len(body),
        body,
    )


def answer(text: str) -> bytes:
    return json.dumps(
        {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    ).encode()


async def good_server(
    head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer a request, whose head has already been read, like a model server."""
    if b"content-length: " in head.lower():
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
    writer.write(complete_response(LISTED if head.startswith(b"GET") else answer("hello")))


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that calls a handler with the head of each request."""

    handlers: set[asyncio.Task[None]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            handlers.add(task)
        try:
            while True:
                await serve(await reader.readuntil(b"\r\n\r\n"), reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle_connection, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A certificate for localhost and model.test that the environment trusts."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:model.test"]
    subprocess.run(
        [*command, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@needs_openssl
async def test_tls_needs_a_trusted_certificate(
    trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(good_server, trusted) as port:
        async with open_model(LlmSettings(**QUICK), f"https://localhost:{port}/v1") as model:
            assert (await model.chat(ask())).text == "hello"
        monkeypatch.delenv("SSL_CERT_FILE")
        async with open_model(LlmSettings(**QUICK), f"https://localhost:{port}/v1") as model:
            with pytest.raises(
                ModelUnavailable,
                match=r"cannot connect to localhost:\d+: .*CERTIFICATE_VERIFY_FAILED",
            ):
                await model.chat(ask())
        with pytest.raises(
            ConfigurationError, match=r"certificate of localhost:\d+ is not trusted.*SSL_CERT_FILE"
        ):
            await reach(LlmSettings(), f"https://localhost:{port}/v1", pytest.fail)


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def proxy(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        heads.append(head)
        await good_server(head, reader, writer)

    async with listening(proxy) as port:
        monkeypatch.setenv("http_proxy", f"http://us%20er:word@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        async with open_model(LlmSettings(**QUICK), "http://model.test:8000/v1") as model:
            assert (await model.chat(ask())).text == "hello"
        async with talking(lambda _b, _h: "mine") as (client, _):
            assert (await client.chat(ask())).text == "mine"
    assert [head.partition(b" HTTP/1.1\r\n")[0] for head in heads] == [
        b"GET http://model.test:8000/v1/models",
        b"POST http://model.test:8000/v1/chat/completions",
    ]
    assert all(b"\r\nHost: model.test:8000\r\n" in head for head in heads)
    assert all(
        b"\r\nProxy-Authorization: Basic " + base64.b64encode(b"us er:word") in head
        for head in heads
    )


@needs_openssl
async def test_a_proxy_cannot_read_tls_traffic(
    trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bytes] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65_536):
                writer.write(piece)
        finally:
            writer.close()

    async with listening(good_server, trusted) as server:

        async def proxy(
            head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            requests.append(head)
            if len(requests) > 1:
                writer.write(b"HTTP/1.1 407 \x1b[2JLog in\r\n\r\n")
                return
            further, on = await asyncio.open_connection("127.0.0.1", server)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(pipe(reader, on), pipe(further, writer))

        async with listening(proxy) as port:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            monkeypatch.setenv("no_proxy", "")
            async with open_model(LlmSettings(**QUICK), "https://model.test/v1") as model:
                assert (await model.chat(ask())).text == "hello"
            async with open_model(LlmSettings(**QUICK), "https://model.test/v1") as model:
                with pytest.raises(
                    ModelUnavailable, match=r"the proxy answered: HTTP/1.1 407 \[2JLog in"
                ):
                    await model.chat(ask())
    assert requests[0].startswith(b"CONNECT model.test:443 HTTP/1.1\r\nHost: model.test:443\r\n")


async def test_concurrent_calls_get_their_own_responses() -> None:
    async with talking(lambda _body, headers: str(headers["X-Request-Id"]), concurrency=3) as (
        model,
        server,
    ):
        names = [f"t/-/plan/0.{n}" for n in range(60)]
        replies = await asyncio.gather(*(model.chat(ask(name)) for name in names))
    assert [reply.text for reply in replies] == names
    assert server.connections <= 3


@pytest.mark.parametrize(
    "extra_bytes",
    [answer("stolen")[:30], complete_response(answer("stolen")), b"H"],
    ids=["no head", "an answer", "a letter"],
)
async def test_an_unrequested_response_is_not_used_for_the_next_call(extra_bytes: bytes) -> None:
    connections: set[asyncio.StreamWriter] = set()

    async def talkative(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connections.add(writer)
        await good_server(head, reader, writer)
        writer.write(extra_bytes)

    async with (
        listening(talkative) as port,
        open_model(LlmSettings(**QUICK), f"http://127.0.0.1:{port}/v1") as model,
    ):
        for _ in range(3):
            assert (await model.chat(ask())).text == "hello"
    assert len(connections) == 4  # none is used again


async def test_an_informational_response_is_ignored() -> None:
    async def slow(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nContent-Encoding: gzip\r\n\r\n")
        await good_server(head, reader, writer)

    async with (
        listening(slow) as port,
        open_model(LlmSettings(**QUICK), f"http://127.0.0.1:{port}/v1") as model,
    ):
        assert (await model.chat(ask())).text == "hello"


async def test_a_finished_stream_that_stays_open_is_complete() -> None:
    async def open_end(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if head.startswith(b"GET"):
            await good_server(head, reader, writer)
            return
        events = (
            b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\ndata: '
            b"[DO"
        )
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events)
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(b"NE]\n\n")
        await reader.read()

    async with (
        listening(open_end) as port,
        open_model(LlmSettings(**QUICK), f"http://127.0.0.1:{port}/v1") as model,
    ):
        assert (await model.chat(ask())).text == "hi"


async def test_an_endless_trailer_closes_the_connection() -> None:
    async def trailing(
        head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if head.startswith(b"GET"):
            await good_server(head, reader, writer)
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            b"\r\n2\r\n{}\r\n0\r\nX: "
        )
        while not writer.is_closing():
            writer.write(b"x" * 10_000)
            await writer.drain()

    async with (
        listening(trailing) as port,
        open_model(LlmSettings(**QUICK), f"http://127.0.0.1:{port}/v1") as model,
    ):
        with pytest.raises(ModelUnavailable, match="more than 65536 bytes"):
            await model.chat(ask())


async def test_a_key_with_a_line_break_sends_nothing() -> None:
    async with talking(lambda _b, _h: "x", api_key="one\r\nX-Other: two") as (model, server):
        with pytest.raises(
            ConfigurationError, match="Authorization of a model call would contain a line break"
        ):
            await model.chat(ask())
    assert server.model_lists == 0


@given(
    texts=st.lists(st.text(max_size=5), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 40), max_size=60),
    followed=st.booleans(),
)
def test_the_reply_does_not_depend_on_the_pieces_of_the_response(
    texts: list[str], cuts: list[int], *, followed: bool
) -> None:
    chunks = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in texts]
    last: dict[str, Any] = {
        "choices": [{"delta": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
    }
    raw = (
        b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in [*chunks, last])
        + b"data: [DONE]\n\n"
    )
    pieces_of_text: list[str] = []
    reader = ChatResponseReader("http://x/v1", 100_000, pieces_of_text.append if followed else None)
    reader.start(200, {b"content-type": b"text/event-stream; charset=utf-8"})
    for size in [*cuts, len(raw)]:
        piece, raw = raw[:size], raw[size:]
        if piece and reader.feed(piece):
            break
    else:
        reader.finish()
    whole_text = "".join(texts).encode(errors="replace").decode()
    assert ("".join(reader.reply.text), reader.reply.finish_reason) == (whole_text, "stop")
    assert "".join(pieces_of_text) == (whole_text if followed else "")
