"""The HTTP API on a free port, and a client that carries a token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Any

import aiohttp

from moothall import config
from moothall.api.dependencies import ApiDependencies
from moothall.api.http.asgi import ServerLimits
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from support.callers import TOKEN, TOKENS

_NO_TRACKERS = config.TrackerSettings()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; `json` is None without a body."""

    status: int
    headers: Any
    json: Any


@dataclass(frozen=True, slots=True)
class Web:
    """A client of the HTTP API."""

    session: aiohttp.ClientSession
    port: int

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request with this document as its body."""
        carried = {} if token is None else {"Authorization": f"Bearer {token}"}
        payload = {} if body is None else {"json": body}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self.session.request(
            method, url, headers={**carried, **(headers or {})}, **payload
        ) as response:
            return Answer(
                response.status,
                response.headers,
                await response.json(content_type=None) if response.content_length else None,
            )


@asynccontextmanager
async def serving_http(
    dependencies: ApiDependencies,
    trackers: config.TrackerSettings = _NO_TRACKERS,
    **settings: Any,
) -> AsyncIterator[Web]:
    """Serve until the context ends. The keywords are settings and limits of connections."""
    names = {field.name for field in fields(ServerLimits)}
    limits = {"grace_seconds": 0.2} | {name: settings.pop(name) for name in names & set(settings)}
    web_settings = config.WebSettings(**({"port": 0} | settings))
    async with (
        http_server(
            web_settings,
            dependencies,
            BearerTokens(TOKENS),
            configured=True,
            limits=ServerLimits(**limits),
            trackers=trackers,
        ) as served,
        aiohttp.ClientSession() as session,
    ):
        yield Web(session, served.port)


async def open_workspace(web: Web, **overrides: Any) -> dict[str, Any]:
    """Open a workspace on the repository `sample` and return the response."""
    answer = await web(
        "POST", "/v1/workspaces", {"repository": {"id": "sample"}, "role": "DEV", **overrides}
    )
    if answer.status != HTTPStatus.CREATED:
        raise AssertionError(answer.json)
    document: dict[str, Any] = answer.json
    return document


def call(opened: Mapping[str, Any], request_id: str = "r-1", **arguments: Any) -> dict[str, Any]:
    """Return the body of a tool call."""
    return {
        "request_id": request_id,
        "workspace_id": opened["workspace_id"],
        "capability_token": opened["capability_token"],
        "arguments": arguments,
    }


def problem(answer: Answer) -> tuple[int, str, str]:
    """Return status, code and detail of an error response. Raises `AssertionError` if it is not an
    error.
    """
    document = answer.json
    kind, expected_type = answer.headers["Content-Type"], f"urn:moothall:error:{document['code']}"
    if not kind.startswith("application/problem+json") or (
        document["status"],
        document["type"],
    ) != (
        answer.status,
        expected_type,
    ):
        raise AssertionError(f"{kind}: {document}")
    return answer.status, document["code"], document["detail"]
