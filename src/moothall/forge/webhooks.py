"""A forge's webhooks. What they say is not believed, nor even read: one that the forge signed lets
us look at the forge at once.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256

from aiohttp import web

from moothall.config import ForgeSettings as Settings
from moothall.errors import ConfigurationError

_BYTES = 26_000_000  # GitHub sends up to 25 MB


def is_signed(secret: str, body: bytes, signature: str) -> bool:
    """Whether the signature, `sha256=HEX` or HEX, is that of the body by the secret."""
    made = hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(
        made.encode(), signature.removeprefix("sha256=").encode("utf-8", "surrogateescape")
    )


@asynccontextmanager
async def hearing(settings: Settings, wake: Callable[[], None]) -> AsyncIterator[int]:
    """Hear webhooks of the forge until the block ends; yield the port, 0 where none are heard.
    Raises `ConfigurationError`.
    """
    if settings.webhook_port is None or settings.webhook_secret is None:
        yield 0
        return
    secret = settings.webhook_secret.get_secret_value()

    async def hear(request: web.Request) -> web.Response:
        said = request.headers
        signature = said.get("X-Hub-Signature-256") or said.get("X-Gitea-Signature") or ""
        if not is_signed(secret, await request.read(), signature):
            return web.Response(status=401, text="not signed with forge.webhook_secret\n")
        wake()
        return web.Response(status=204)

    app = web.Application(client_max_size=_BYTES)
    app.router.add_post("/", hear)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.webhook_host, settings.webhook_port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"{settings.webhook_host}:{settings.webhook_port} cannot be listened on: "
                f"{error.strerror}; choose another forge.webhook_port"
            ) from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
