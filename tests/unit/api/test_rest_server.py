"""The HTTP server: its addresses, limits and metrics."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from moothall import config
from moothall.api.dependencies import ApiDependencies, HealthCheck, Probe
from moothall.api.http.asgi import ClientConnection, ListenAddress, ServerLimits, serve_asgi
from moothall.api.http.documents import lines
from moothall.api.http.server import application, http_server
from moothall.api.identity import BearerTokens
from moothall.api.web.sessions import Sessions
from moothall.domain.status import Condition
from moothall.errors import ConfigurationError
from moothall.telemetry import metrics
from support.callers import EVERYWHERE, TOKEN, TOKENS, api_dependencies, certificate, with_parts
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, call, open_workspace, problem, serving_http
from support.session_manager import SessionsFixture


def test_the_uvicorn_internals_in_use_are_unchanged() -> None:
    """A release of uvicorn that changes the internals used by `ClientConnection` and `serve_asgi`
    fails here.
    """
    used_names = set(dir(HttpToolsProtocol)) | {
        "cycle",
        "connections",
        "headers",
        "loop",
        "server_state",
        "transport",
        "url",
    }
    assert {
        name for name, member in vars(ClientConnection).items() if inspect.isfunction(member)
    } - used_names == {"_set_timer"}
    assert {"send_400_response", "shutdown"} <= used_names
    source = inspect.getsource(HttpToolsProtocol)
    for statement in (
        "self.cycle.response_complete",
        "self.server_state.default_headers",
        "self.connections.add(self)",
        "self.tasks.add",
    ):
        assert statement in source, statement
    assert [*inspect.signature(HttpToolsProtocol).parameters] == [
        "config",
        "server_state",
        "app_state",
        "_loop",
    ]
    assert {"connections", "tasks", "default_headers"} <= set(vars(ServerState()))
    for name in (
        "reset_contextvars",
        "server_header",
        "proxy_headers",
        "timeout_keep_alive",
        "ws",
        "lifespan",
        "interface",
    ):
        assert name in inspect.signature(uvicorn.Config).parameters, name


async def test_metrics_have_routes_and_no_paths(web: Web) -> None:
    snapshot_before = metrics.REGISTRY.snapshot()
    await web("GET", "/v1/tools")
    await web("GET", "/v1/secret-path")
    await web("POST", "/v1/tools/files.read", {})
    counts_after = {
        tuple(labels): value
        for labels, value in metrics.REGISTRY.snapshot()["moothall_http_requests_total"]
    }
    counts_before = {
        tuple(labels): value
        for labels, value in snapshot_before.get("moothall_http_requests_total", [])
    }
    grown = {
        labels for labels, value in counts_after.items() if value > counts_before.get(labels, 0)
    }
    assert grown == {("/v1/tools", "200"), ("other", "404"), ("/v1/tools/{name}", "400")}


async def test_the_server_uses_tls_with_a_certificate(
    backend: SessionsFixture, tmp_path: Path
) -> None:
    files = certificate(tmp_path)
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()), sessions=backend.session_manager
    )
    async with serving_http(dependencies, host=EVERYWHERE, **files) as web:
        trusted = ssl.create_default_context(cafile=str(files["tls_cert"]))
        url = f"https://localhost:{web.port}/v1/tools"
        async with web.session.get(
            url, ssl=trusted, headers={"Authorization": f"Bearer {TOKEN}"}
        ) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await web("GET", "/v1/tools")  # in plain text


async def test_more_requests_than_allowed_are_refused(backend: SessionsFixture) -> None:
    async with serving_http(
        with_parts(api_dependencies(MemoryDeliberations()), sessions=backend.session_manager),
        calls=1,
    ) as web:
        workspace = await open_workspace(web)
        fake_workspace = backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]]
        fake_workspace.open.clear()
        requesting = asyncio.ensure_future(
            web("POST", "/v1/tools/files.read", call(workspace, path="a.py"))
        )
        await fake_workspace.entered.wait()
        refused = await web("GET", "/v1/tools")
        assert problem(refused)[:2] == (429, "RATE_LIMITED")
        assert refused.headers["Retry-After"] == "1"
        fake_workspace.open.set()
        assert (await requesting).status == 200


@pytest.mark.parametrize(
    ("settings", "configured", "message"),
    [
        ({"host": EVERYWHERE}, False, r"set grpc\.token"),
        ({"host": EVERYWHERE}, True, r"set web\.tls_cert"),
        ({"tls_cert": "x"}, True, "belong together"),
        ({"tls_cert": "/nowhere", "tls_key": "/nowhere"}, True, "not a PEM certificate"),
    ],
)
async def test_a_non_loopback_start_requires_token_and_tls(
    settings: dict[str, Any], *, configured: bool, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        async with http_server(
            config.WebSettings(port=0, **settings),
            api_dependencies(MemoryDeliberations()),
            BearerTokens(TOKENS),
            configured=configured,
        ):
            pass


async def test_a_port_in_use_and_a_missing_token_are_errors() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        with pytest.raises(ConfigurationError, match=r"choose another web\.port"):
            async with http_server(
                config.WebSettings(port=occupied.getsockname()[1]),
                api_dependencies(MemoryDeliberations()),
                BearerTokens(TOKENS),
                configured=True,
            ):
                pass
    with pytest.raises(ConfigurationError, match="needs a non-empty token"):
        async with http_server(
            config.WebSettings(port=0),
            api_dependencies(MemoryDeliberations()),
            BearerTokens({}),
            configured=True,
        ):
            pass


async def test_idle_connections_are_closed_and_active_ones_are_not(
    backend: SessionsFixture,
) -> None:
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()),
        sessions=backend.session_manager,
        approvals=backend.parking,
    )
    async with serving_http(dependencies, head_seconds=0.3) as web:
        silent = [await asyncio.open_connection("127.0.0.1", web.port) for _ in range(20)]
        for _, writer in silent[10:]:
            writer.write(b"GET /tasks HTTP/1.1\r\nHost: ")
        kept_reader, active = await asyncio.open_connection("127.0.0.1", web.port)
        ask = (
            "GET /v1/tools?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            f"{TOKEN}\r\n\r\n"
        ).encode()
        for pause in (0.0, 0.6):
            await asyncio.sleep(pause)
            active.write(ask)
            assert b"200 OK" in await kept_reader.readuntil(b"\r\n\r\n")
            await kept_reader.readuntil(b"]}")
        async with asyncio.timeout(10):
            assert [await reader.read() for reader, _ in silent] == [b""] * 20
        for _, writer in (*silent, (None, active)):
            writer.close()


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer SECRET\x01WORD", "Authorization : Bearer SECRET", "A: SECRET" * 2000],
)
async def test_invalid_http_is_not_logged(
    web: Web, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(f"GET /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode())
    assert b" 400 " in await reader.read(100)
    writer.close()
    assert "SECRET" not in caplog.text


ASK = (
    f"GET /v1/tools?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
).encode()


async def answer_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the head and the body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return head, await reader.readexactly(int(length[1]) if length else 0)


def dependencies(backend: SessionsFixture) -> ApiDependencies:
    return with_parts(
        api_dependencies(MemoryDeliberations()),
        sessions=backend.session_manager,
        approvals=backend.parking,
    )


@pytest.mark.parametrize("rest_of_request", [b"GET /tasks HT", b"\r\n", b"X" * 900])
async def test_a_partial_request_after_a_response_times_out(
    backend: SessionsFixture, rest_of_request: bytes
) -> None:
    async with serving_http(dependencies(backend), head_seconds=0.3) as web, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(ASK)
        assert b"200 OK" in (await answer_of(reader))[0]
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(rest_of_request[:1])
                rest_of_request = rest_of_request[1:] or b"\r\n"
                await asyncio.sleep(0.05)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(200), 0.01)
        writer.close()


async def test_an_unread_body_does_not_hold_a_connection(backend: SessionsFixture) -> None:
    async with serving_http(dependencies(backend), head_seconds=0.3) as web, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(
            b"POST /v1/workspaces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n{"
        )
        assert b" 401 " in (await answer_of(reader))[0]
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b" ")
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(200), 0.05)
        writer.close()


async def test_an_idle_keep_alive_connection_is_closed(backend: SessionsFixture) -> None:
    async with serving_http(dependencies(backend), keep_seconds=0.6) as web, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(ASK)
        await answer_of(reader)
        assert await reader.read() == b""
        writer.close()


async def test_slow_and_encoded_bodies_are_refused(backend: SessionsFixture) -> None:
    async with serving_http(dependencies(backend), body_seconds=0.2) as web, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        head = (
            f"POST /v1/workspaces HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\n"
        )
        writer.write(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        response_head, body = await answer_of(reader)
        assert (b" 408 " in response_head, json.loads(body)["code"]) == (True, "BODY_TOO_SLOW")
        writer.close()
        assert problem(
            await web("POST", "/v1/workspaces", {}, headers={"Content-Encoding": "gzip"})
        )[:2] == (415, "NOT_JSON")


async def test_connections_above_the_limit_are_closed(backend: SessionsFixture) -> None:
    async with serving_http(dependencies(backend), connections=3) as web, asyncio.timeout(10):
        open_now = [await asyncio.open_connection("127.0.0.1", web.port) for _ in range(3)]
        for reader, writer in open_now:
            writer.write(ASK)
            assert b"200 OK" in (await answer_of(reader))[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        open_now.pop()[1].close()
        writer.close()
        while True:  # until the server has noticed the closed connection
            reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
            writer.write(ASK)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                assert b"200 OK" in (await answer_of(reader))[0]
                break
            writer.close()
        for _, open_writer in (*open_now, (reader, writer)):
            open_writer.close()


async def test_a_client_that_reads_nothing_is_disconnected(backend: SessionsFixture) -> None:
    async with serving_http(dependencies(backend), stall_seconds=0.3) as web, asyncio.timeout(20):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", web.port))
        ask_for_all = ASK.replace(b"?limit=1", b"")

        async def ask() -> None:
            while True:  # pipelined requests for whole lists, none of which is read
                await loop.sock_sendall(sock, ask_for_all)
                await asyncio.sleep(0.001)

        with pytest.raises(ConnectionError):
            await ask()
        sock.close()


async def test_pipelined_requests_are_authenticated_separately(backend: SessionsFixture) -> None:
    async def check() -> tuple[Condition, str]:
        return Condition.HEALTHY, "where it is"

    checkup = HealthCheck({"bus": Probe(check)})
    async with (
        serving_http(replace(dependencies(backend), health_check=checkup)) as web,
        asyncio.timeout(10),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        with_token, unknown = (
            ASK.replace(b"/v1/tools?limit=1", b"/health"),
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        )
        writer.write(with_token + unknown + with_token)
        details = [json.loads((await answer_of(reader))[1])["parts"][0]["detail"] for _ in range(3)]
        assert details == ["where it is", "", "where it is"]
        writer.close()


async def test_a_stopping_server_waits_for_running_requests_and_stops_late_ones(
    backend: SessionsFixture,
) -> None:
    async with serving_http(dependencies(backend)) as web:
        workspace = await open_workspace(web)
        fake_workspace = backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]]
        for grace, status in ((5.0, "success"), (0.1, "")):
            async with AsyncExitStack() as stack:
                served = await stack.enter_async_context(
                    serving_http(dependencies(backend), grace_seconds=grace)
                )
                fake_workspace.open.clear()
                fake_workspace.entered.clear()
                async with aiohttp.ClientSession() as session:
                    requesting = asyncio.ensure_future(
                        Web(session, served.port)(
                            "POST",
                            "/v1/tools/files.read",
                            call(workspace, f"r-{grace}", path="a.py"),
                        )
                    )
                    await fake_workspace.entered.wait()
                    asyncio.get_running_loop().call_later(0.3, fake_workspace.open.set)
                    await stack.aclose()
                    if status:
                        assert (await requesting).json["status"] == status
                    else:
                        with pytest.raises(aiohttp.ClientError):
                            await requesting
                        async with asyncio.timeout(20):
                            while not any(
                                record.get("status") == "cancelled"
                                for record in backend.app.records()
                            ):
                                await asyncio.sleep(0.01)
                with pytest.raises(OSError, match="Connect"):
                    await asyncio.open_connection("127.0.0.1", served.port)


async def test_a_bug_behind_the_api_is_logged_and_not_disclosed(
    backend: SessionsFixture, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> tuple[Condition, str]:
        raise RuntimeError("a detail of ours")

    async with serving_http(
        replace(dependencies(backend), health_check=HealthCheck({"bus": Probe(check)}))
    ) as web:
        answer = await web("GET", "/health")
        assert problem(answer) == (500, "INTERNAL", "internal error; see the server's log")
        assert {
            name: answer.headers[name]
            for name in ("Server", "Cache-Control", "X-Content-Type-Options")
        } == {
            "Server": "moothall",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        assert answer.headers["Date"].endswith("GMT")


@pytest.mark.parametrize(
    ("headers", "status_and_code"),
    [
        ("Host: 127.0.0.1\r\nHost: evil.example\r\n", (403, "WRONG_HOST")),
        ("Host: evil.example\r\nHost: 127.0.0.1\r\n", (403, "WRONG_HOST")),
        ("", (403, "WRONG_HOST")),
        (
            "Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nOrigin: http://evil.example\r\n",
            (403, "WRONG_ORIGIN"),
        ),
        (f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n", (401, "UNAUTHENTICATED")),
    ],
)
async def test_a_repeated_or_missing_header_authorizes_nothing(
    web: Web, headers: str, status_and_code: tuple[int, str]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.write(
        f"GET /v1/tools HTTP/1.1\r\n{headers}Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    head, body = await answer_of(reader)
    assert (int(head.split()[1]), json.loads(body)["code"]) == status_and_code
    writer.close()


async def test_a_response_that_fails_midway_is_cut_off(backend: SessionsFixture) -> None:
    async def facts() -> AsyncGenerator[int, None]:
        yield 1
        raise RuntimeError("a detail of ours")

    async def stream(_request: Request) -> Response:
        return await lines(facts(), str)

    site = application(
        config.WebSettings(), dependencies(backend), BearerTokens(TOKENS), Sessions(1, 1, 1)
    )
    site.router.routes.append(Route("/stream", stream))
    async with (
        serve_asgi(site, ListenAddress("HTTP", "web", "127.0.0.1", 0, 0), ServerLimits()) as port,
        aiohttp.ClientSession() as session,
    ):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with session.get(f"http://127.0.0.1:{port}/stream", headers=headers) as response:
            assert await response.content.readline() == b"1\n"
            with pytest.raises(
                aiohttp.ClientPayloadError
            ):  # the end of the connection is not mistaken for the end of the response
                await response.content.readline()
