"""Connections to a model server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from moothall.config import Llm
from moothall.errors import ConfigurationError

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@asynccontextmanager
async def open_session(settings: Llm, base_url: str) -> AsyncIterator[tuple[URL, aiohttp.ClientSession]]:
    """Yield a server's root without a key, and what calls it: a key in the URL's user part (http://KEY@host/v1) is sent as bearer
    token unless the settings hold one. Raises `ConfigurationError` for what is no URL; calls nobody yet.
    """
    try:
        url = URL(base_url.rstrip("/"))
    except ValueError as error:
        raise ConfigurationError(f"MOOTHALL_LLM__BASE_URL {base_url!r} is not a URL") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigurationError(
            f"MOOTHALL_LLM__BASE_URL {base_url!r} is not an http or https URL such as http://127.0.0.1:8000/v1"
        )
    key = settings.api_key.get_secret_value() if settings.api_key else url.user
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=settings.concurrency + 2),
        headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds),
        trust_env=url.host not in _LOOPBACK,  # a company's proxy, but never for this machine
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield url.with_user(None), session
