"""A hostile web site on loopback, which the test's operator allows by name."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from aiohttp import web

_BOMB = 200_000_000


@cache
def _pack_page(kind: str) -> bytes:
    zeros = bytes(_BOMB)
    if kind == "gzip":
        return gzip.compress(zeros)
    if kind == "twice":
        return gzip.compress(gzip.compress(zeros))
    return zlib.compress(zeros)


async def _answer(request: web.Request) -> web.StreamResponse:
    name, _, rest = request.path.strip("/").partition("/")
    match name:
        case "to":
            return web.Response(
                status=int(rest or 302), headers={"Location": request.query["where"]}
            )
        case "bomb":
            coding = "deflate" if rest == "deflate" else "gzip"
            return web.Response(
                body=_pack_page(rest),
                headers={"Content-Encoding": coding, "Content-Type": "text/html"},
            )
        case "deep":
            text = "<div>" * 300_000 if rest == "html" else "[" * 300_000
            return web.Response(
                text=text, content_type="text/html" if rest == "html" else "application/json"
            )
        case "endless":
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x" * 65_536)
            except ConnectionError:
                return response
        case "drip":
            response = web.StreamResponse(headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x")
                    await asyncio.sleep(0.2)
            except ConnectionError:
                return response
    return web.Response(text="a page")


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """Serve the site; yield 127.0.0.1:port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
