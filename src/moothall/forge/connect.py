"""Connects to the configured forge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from moothall.config import ForgeSettings as Settings
from moothall.errors import ConfigurationError
from moothall.forge.client import ForgeClient
from moothall.forge.gitlab import GitLabClient

_CALL_SECONDS = 30.0


@asynccontextmanager
async def forge_client(
    settings: Settings, *, anonymous: bool = False
) -> AsyncIterator[ForgeClient]:
    """Connect to a forge. Raises `ConfigurationError`.

    anonymous: a token may be missing, because only public data is read.
    """
    if settings.token is None and not anonymous:
        raise ConfigurationError(
            "forge.token is missing: set forge.token_file, or MOOTHALL_FORGE__TOKEN"
        )
    limit = aiohttp.ClientTimeout(total=_CALL_SECONDS)
    async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
        token = settings.token.get_secret_value() if settings.token is not None else ""
        kind = GitLabClient if settings.kind == "gitlab" else ForgeClient
        yield kind(settings, session, token)
