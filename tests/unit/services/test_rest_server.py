"""The HTTP door's server: where it listens, what it refuses, what it tells of itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web as aio

from moothall import config
from moothall.errors import ConfigurationError
from moothall.services.rest.server import http_server
from moothall.telemetry import metrics
from support.callers import TOKEN, TOKENS, doors_of
from support.desk import MemoryDesk
from support.rest import Web, call, opened, problem, serving_http
from support.visits import Visiting

EVERYWHERE = "0.0.0.0"  # noqa: S104 - refused


async def test_what_we_put_between_aiohttp_and_its_connections_is_as_it_was() -> None:
    """A release of aiohttp that changes what `Connections` and `http_server` stand on fails here."""
    log = logging.getLogger("a logger of ours")
    runner = aio.AppRunner(aio.Application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0, logger=log)
    await runner.setup()
    try:
        assert runner.server is not None
        protocol = runner.server()
        assert isinstance(protocol, asyncio.Protocol)
        assert isinstance(protocol, aio.RequestHandler)
        assert protocol.logger is log, "what is no HTTP is logged to the logger that was given"
        assert not inspect.signature(protocol.force_close).parameters
        assert isinstance(aio.BaseRequest.protocol, property), "middleware tells connections apart by it"
    finally:
        await runner.cleanup()


async def test_figures_and_spans_know_routes_and_no_paths(web: Web) -> None:
    before = metrics.REGISTRY.snapshot()
    await web("GET", "/v1/tools")
    await web("GET", "/v1/secret-path")
    await web("POST", "/v1/tools/files.read", {})
    after = {tuple(labels): value for labels, value in metrics.REGISTRY.snapshot()["moothall_http_requests_total"]}
    known = {tuple(labels): value for labels, value in before.get("moothall_http_requests_total", [])}
    grown = {labels for labels, value in after.items() if value > known.get(labels, 0)}
    assert grown == {("/v1/tools", "200"), ("other", "404"), ("/v1/tools/{name}", "400")}


async def test_over_tls_with_a_certificate(behind: Visiting, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    doors = replace(doors_of(MemoryDesk()), visits=behind.visits)
    async with serving_http(doors, host=EVERYWHERE, tls_key=key, tls_cert=cert) as web:
        trusted = ssl.create_default_context(cafile=str(cert))
        url = f"https://localhost:{web.port}/v1/tools"
        async with web.session.get(url, ssl=trusted, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await web("GET", "/v1/tools")  # in plain text


async def test_more_requests_than_allowed_are_refused(behind: Visiting) -> None:
    async with serving_http(replace(doors_of(MemoryDesk()), visits=behind.visits), calls=1) as web:
        room = await opened(web)
        inside = behind.rooms.rooms[room["workspace_id"]]
        inside.open.clear()
        asking = asyncio.ensure_future(web("POST", "/v1/tools/files.read", call(room, path="a.py")))
        await inside.entered.wait()
        refused = await web("GET", "/v1/tools")
        assert problem(refused)[:2] == (429, "RATE_LIMITED")
        assert refused.headers["Retry-After"] == "1"
        inside.open.set()
        assert (await asking).status == 200


@pytest.mark.parametrize(
    ("settings", "configured", "wanted"),
    [
        ({"host": EVERYWHERE}, False, r"set grpc\.token"),
        ({"host": EVERYWHERE}, True, r"set web\.tls_cert"),
        ({"tls_cert": "x"}, True, "belong together"),
        ({"tls_cert": "/nowhere", "tls_key": "/nowhere"}, True, "no PEM certificate"),
    ],
)
async def test_no_start_beyond_loopback_without_walls(settings: dict[str, Any], *, configured: bool, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=wanted):
        async with http_server(config.Web(port=0, **settings), doors_of(MemoryDesk()), TOKENS, configured=configured):
            pass


async def test_a_chosen_port_that_is_taken_is_an_error_and_tokens_are_needed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match=r"choose another web\.port"):
            async with http_server(config.Web(port=taken.getsockname()[1]), doors_of(MemoryDesk()), TOKENS, configured=True):
                pass
    with pytest.raises(ConfigurationError, match="needs a token"):
        async with http_server(config.Web(port=0), doors_of(MemoryDesk()), {}, configured=True):
            pass


async def test_connections_that_ask_for_nothing_are_closed_and_others_are_not(behind: Visiting) -> None:
    doors = replace(doors_of(MemoryDesk()), visits=behind.visits, parking=behind.parking)
    async with serving_http(doors, head_seconds=0.3) as web:
        silent = [await asyncio.open_connection("127.0.0.1", web.port) for _ in range(20)]
        for _, writer in silent[10:]:
            writer.write(b"GET /tasks HTTP/1.1\r\nHost: ")
        kept_reader, kept = await asyncio.open_connection("127.0.0.1", web.port)
        ask = f"GET /v1/tools?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        for pause in (0.0, 0.6):
            await asyncio.sleep(pause)
            kept.write(ask)
            assert b"200 OK" in await kept_reader.readuntil(b"\r\n\r\n")
            await kept_reader.readuntil(b"]}")
        async with asyncio.timeout(10):
            assert [await reader.read() for reader, _ in silent] == [b""] * 20
        for _, writer in (*silent, (None, kept)):
            writer.close()


@pytest.mark.parametrize("header", ["Authorization: Bearer SECRET\x01WORD", "Authorization : Bearer SECRET", "A: SECRET" * 2000])
async def test_what_is_no_http_is_in_no_log(web: Web, header: str, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(f"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode())
    assert b" 400 " in await reader.read(100)
    writer.close()
    assert "SECRET" not in caplog.text
