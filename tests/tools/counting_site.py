"""A web server for tests: it counts requests, and is slow, silent or broken on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(slots=True)
class Site:
    """A web server.

    Attributes:
        request_counts: the number of requests by method and path.
        pause: the duration of each answer.
        broken: paths that get no answer.
    """

    port: int = 0
    request_counts: Counter[str] = field(default_factory=Counter)
    pause: float = 0.0
    broken: bool = False

    @property
    def url(self) -> str:
        """The root URL."""
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def counting_site() -> AsyncIterator[Site]:
    """Serve on loopback until the context ends."""
    site = Site()

    async def answer(request: web.Request) -> web.StreamResponse:
        site.request_counts[f"{request.method} {request.path}"] += 1
        await asyncio.sleep(site.pause)
        if site.broken and request.transport is not None:
            request.transport.close()
        return web.Response(
            text=f"<title>t</title><p>request {site.request_counts.total()}</p>",
            content_type="text/html",
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()
