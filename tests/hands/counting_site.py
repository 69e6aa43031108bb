"""A web server of the tests' own: it counts, and is slow, silent or broken when told to be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(slots=True)
class Site:
    """`seen` counts requests by method and path; `pause` is how long each answer takes; `broken`
    ones get none.
    """

    port: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    pause: float = 0.0
    broken: bool = False

    @property
    def url(self) -> str:
        """Its root."""
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def counting_site() -> AsyncIterator[Site]:
    """Serve on loopback until the context ends."""
    site = Site()

    async def answer(request: web.Request) -> web.StreamResponse:
        site.seen[f"{request.method} {request.path}"] += 1
        await asyncio.sleep(site.pause)
        if site.broken and request.transport is not None:
            request.transport.close()
        return web.Response(
            text=f"<title>t</title><p>request {site.seen.total()}</p>", content_type="text/html"
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
