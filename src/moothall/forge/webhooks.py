"""A forge's webhooks. Their content is not read: a webhook signed by the forge makes the watch
check the forge at once.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256

from aiohttp import web

from moothall.config import ForgeSettings as Settings
from moothall.errors import ConfigurationError

_MAX_BODY_BYTES = 26_000_000  # GitHub sends up to 25 MB


def is_signed(secret: str, body: bytes, signature: str) -> bool:
    """Return whether a signature, `sha256=HEX` or HEX, is that of the body with the secret."""
    expected = hmac.new(secret.encode(), body, sha256).hexdigest()
    return hmac.compare_digest(
        expected.encode(), signature.removeprefix("sha256=").encode("utf-8", "surrogateescape")
    )


def _is_from_forge(headers: Mapping[str, str], body: bytes, secret: str, kind: str) -> bool:
    """Return whether a webhook has the secret: GitLab sends it, the others sign with it."""
    if kind == "gitlab":
        token = headers.get("X-Gitlab-Token", "")
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), secret.encode())
    signature = headers.get("X-Hub-Signature-256") or headers.get("X-Gitea-Signature") or ""
    return is_signed(secret, body, signature)


@asynccontextmanager
async def serve_webhooks(settings: Settings, wake: Callable[[], None]) -> AsyncIterator[int]:
    """Accept the forge's webhooks until the block ends. Yield the port, 0 if webhooks are disabled.
    Raises `ConfigurationError`.
    """
    if not settings.webhook_address or settings.webhook_secret is None:
        yield 0
        return
    secret = settings.webhook_secret.get_secret_value()

    async def handle_webhook(request: web.Request) -> web.Response:
        if not _is_from_forge(request.headers, await request.read(), secret, settings.kind):
            return web.Response(status=401, text="not signed with forge.webhook_secret\n")
        wake()
        return web.Response(status=204)

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_post("/", handle_webhook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        host, _, port = settings.webhook_address.rpartition(":")
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise ConfigurationError(
                f"{settings.webhook_address} cannot be listened on: {error.strerror}; choose "
                "another forge.webhook_address"
            ) from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
