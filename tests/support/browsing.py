"""A browser without a window: cookies, forms and the inputs of a product owner."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from moothall import config
from moothall.api.dependencies import ApiDependencies
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.stories.coach import StoryDraft
from support.callers import TOKEN, TOKENS

HOSTILE = "<script>alert(1)</script>\u202egnp.exe"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;⟨U+202E⟩gnp.exe"
CRITERIA = (
    "Given two invoices, when May is exported, then the file has two lines",
    "Given none, when June is exported, then the answer is 404",
)
DRAFT = StoryDraft(
    "Export invoices as CSV",
    "As an accountant, I want the invoices of a month as a CSV file, so that I can book them.",
    CRITERIA,
)


@dataclass(frozen=True, slots=True)
class Got:
    """A response of the server."""

    status: int
    headers: Any
    text: str


@dataclass(frozen=True, slots=True)
class Browser:
    """A client that keeps cookies, follows no redirect, and sends the Origin header with a form."""

    http: aiohttp.ClientSession
    url: str
    dependencies: ApiDependencies

    async def get(self, path: str) -> Got:
        """Request a path."""
        async with self.http.get(self.url + path, allow_redirects=False) as answer:
            return Got(answer.status, answer.headers, await answer.text())

    async def send(self, path: str, origin: str = "", **fields: str) -> Got:
        """Send a form."""
        headers = {"Origin": origin or self.url}
        async with self.http.post(
            self.url + path, data=fields, headers=headers, allow_redirects=False
        ) as answer:
            return Got(answer.status, answer.headers, await answer.text())

    async def sign_in(self, token: str = TOKEN) -> str:
        """Sign in, and return the CSRF secret of the session's forms."""
        response = await self.send("/sign-in", token=token)
        if response.status != 303:
            raise AssertionError(response.text)
        return form_of((await self.get("/")).text)


@asynccontextmanager
async def serving_page(
    dependencies: ApiDependencies, *, auto_decompress: bool = True
) -> AsyncIterator[Browser]:
    """Serve the page on a free port, and yield a browser that is not signed in."""
    settings = config.WebSettings(port=0)
    jar = aiohttp.CookieJar(unsafe=True)  # of an address without a name
    async with (
        http_server(settings, dependencies, BearerTokens(TOKENS), configured=True) as served,
        aiohttp.ClientSession(cookie_jar=jar, auto_decompress=auto_decompress) as http,
    ):
        yield Browser(http, f"http://127.0.0.1:{served.port}", dependencies)


def form_of(text: str) -> str:
    """Return the CSRF secret in a page's forms."""
    match = re.search(r'name="form" value="([^"]+)"', text)
    if match is None:
        raise AssertionError(text)
    return match[1]
