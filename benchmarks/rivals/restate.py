"""Restate: a server that journals each step on the disk, and calls a service over HTTP/2."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.rivals import prompts

_START_SECONDS = 60
_STREAMS = 1000


@asynccontextmanager
async def open_restate(url: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Start the server on an empty directory and register the service with it.

    Each model call is a journaled step.
    """
    ports = iter(_free_ports(4))
    service_port, ingress, admin, node = (next(ports) for _ in range(4))
    async with AsyncExitStack() as stack:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        http = await stack.enter_async_context(session)
        await stack.enter_async_context(_serve_app(_app(http, url), service_port))
        await stack.enter_async_context(_run_server(ingress, admin, node))
        service = f"http://127.0.0.1:{service_port}"
        await _register(http, f"http://127.0.0.1:{admin}/deployments", service)
        address = f"http://127.0.0.1:{ingress}/council/deliberate"

        async def deliberate() -> str:
            async with http.post(address, json=0) as response:
                response.raise_for_status()
                return str(await response.json())

        yield deliberate


def _app(http: aiohttp.ClientSession, url: str) -> object:
    council = restate.Service("council")

    async def call_model(text: str) -> str:
        messages = [
            {"role": "system", "content": prompts.SYSTEM},
            {"role": "user", "content": text},
        ]
        body = {"model": prompts.MODEL, "messages": messages}
        async with http.post(f"{url}/chat/completions", json=body) as response:
            document = await response.json()
        return str(document["choices"][0]["message"]["content"])

    async def call_all(ctx: restate.Context, step: str, texts: Iterable[str]) -> list[str]:
        named_texts = ((f"{step} {number}", text) for number, text in enumerate(texts))
        calls = [ctx.run_typed(name, call_model, text=text) for name, text in named_texts]
        await restate.gather(*calls)
        return [await call for call in calls]

    @council.handler()
    async def deliberate(ctx: restate.Context, _: int) -> str:
        replies = await call_all(ctx, "propose", (prompts.propose(seat) for seat in prompts.SEATS))
        proposals = dict(zip(prompts.SEATS, replies, strict=True))
        reviewed_seats = [prompts.reviewed_by(seat) for seat in prompts.SEATS]
        replies = await call_all(
            ctx,
            "review",
            (prompts.review(proposals[reviewed_seat]) for reviewed_seat in reviewed_seats),
        )
        reviews = dict(zip(reviewed_seats, replies, strict=True))
        revisions = [prompts.revise(proposals[seat], reviews[seat]) for seat in prompts.SEATS]
        return max(await call_all(ctx, "revise", revisions))

    return restate.app([council])


@asynccontextmanager
async def _serve_app(app: object, port: int) -> AsyncIterator[None]:
    """Serve the service with hypercorn in this process, as recommended by the SDK."""
    config, stop = Config(), asyncio.Event()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    config.h2_max_concurrent_streams = _STREAMS
    config.keep_alive_max_requests = 10**9
    serving = asyncio.ensure_future(serve(app, config, shutdown_trigger=stop.wait, mode="asgi"))
    try:
        yield
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def _run_server(ingress: int, admin: int, node: int) -> AsyncIterator[None]:
    """Run the server on a temporary directory, with default settings except for addresses."""
    with tempfile.TemporaryDirectory(prefix="mh-rival-", ignore_cleanup_errors=True) as folder:
        settings = {
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BASE_DIR": folder,
            "RESTATE_LOG_FILTER": "error",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        with (Path(folder) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                os.environ[prompts.RESTATE_SERVER],
                "--node-name",
                "benchmark",
                env=os.environ | settings,
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


async def _register(http: aiohttp.ClientSession, admin: str, service: str) -> None:
    """Register the service with the server, once the server listens."""
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                async with http.post(admin, json={"uri": service}) as response:
                    if response.ok:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
