"""Tools over HTTP: the JSON of tool.v1."""

from __future__ import annotations

import json
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from pydantic import AwareDatetime, Field

from moothall.domain.codec import dump
from moothall.domain.event import Recorded
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import ToolCall
from moothall.errors import InvalidRequest, MoothallError, NotFound
from moothall.guard.parking import Parked, Parking, refuse_unless_operator
from moothall.services.rest.edge import CALLER, Body, read
from moothall.tools.discovery import Filters, discover, entry
from moothall.visits.visits import Visits
from moothall.workflows.running import Workflows

_LONGEST = timedelta(hours=1)
_FACTS = ("workflow_id", "step", "state", "attempt", "compensation", "error", "done", "steps", "result")
_FILTERS = ("query", "category", "tag", "profile", "role", "persona", "safe", "limit")


class _Repository(Body):
    id: str = ""
    url: str = ""
    ref: str = ""


class _Open(Body):
    repository: _Repository
    role: str
    ttl_seconds: int = 0
    persona: str = ""


class _Call(Body):
    request_id: str = Field(min_length=1, max_length=200)
    workspace_id: str
    capability_token: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    deadline: AwareDatetime | None = None


class _Flow(Body):
    workspace_id: str
    capability_token: str
    workflow: dict[str, Any]
    after_seq: int = Field(0, ge=0)


class _Word(Body):
    allow: bool
    reason: str = ""


class ToolRoutes:
    """The handlers. Who calls comes from the request's token, never from its body."""

    def __init__(self, visits: Visits, parking: Parking | None, workflows: Workflows | None = None) -> None:
        self._visits = visits
        self._parking = parking
        self._workflows = workflows

    def routes(self) -> list[web.RouteDef]:
        """Return what is served where."""
        return [
            web.post("/v1/workspaces", self.open),
            web.delete("/v1/workspaces/{id}", self.close),
            web.get("/v1/tools", self.discover),
            web.post("/v1/tools/{name}", self.call),
            web.post("/v1/workflows", self.workflow),
            web.get("/v1/parked", self.parked),
            web.post("/v1/parked/{id}", self.resolve),
        ]

    async def open(self, request: web.Request) -> web.Response:
        """Open a workspace and hand out its token."""
        asked = await read(request, _Open)
        named = asked.repository
        if not (named.id or named.url):
            raise InvalidRequest("repository is empty: give the id of a registered one, a path or a URL")
        repository = RepositoryRef(id=named.id, url=named.url, ref=named.ref)
        opened = await self._visits.open(request[CALLER], repository, asked.role, asked.ttl_seconds, asked.persona)
        told = {
            "workspace_id": opened.workspace,
            "capability_token": opened.token,
            "expires": opened.expires.isoformat(timespec="milliseconds"),
        }
        return web.json_response(told, status=201, headers={"Location": f"/v1/workspaces/{opened.workspace}"})

    async def close(self, request: web.Request) -> web.Response:
        """Close it; what runs in it is stopped."""
        await self._visits.close(request[CALLER], request.match_info["id"])
        return web.Response(status=204)

    async def call(self, request: web.Request) -> web.Response:
        """Run one tool; it stops when its client goes away. A refused or failed call is a result with its status."""
        asked = await read(request, _Call)
        deadline = asked.deadline or datetime.now(UTC) + _LONGEST  # the gate's own limits are nearer
        call = ToolCall(asked.request_id, request.match_info["name"], asked.arguments, deadline)
        result = await self._visits.call(request[CALLER], asked.workspace_id, asked.capability_token, call)
        return web.json_response(dump(result))

    async def discover(self, request: web.Request) -> web.Response:
        """List the tools that the caller's tenant has; with `role`, those that its seats are granted."""
        asked = request.query
        if unknown := [name for name in asked if name not in _FILTERS]:
            raise InvalidRequest(f"there is no filter {unknown[0][:40]!r}; the filters are {', '.join(_FILTERS)}")
        limit = asked.get("limit", "0")
        if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9):  # noqa: PLR2004 - fits an int32
            raise InvalidRequest(f"limit is {limit[:40]!r}; it is a whole number from 0 (all) up")
        if asked.get("safe", "false") not in {"true", "false"}:
            raise InvalidRequest(f"safe is {asked['safe'][:40]!r}; it is true or false")
        filters = Filters(
            asked.get("query", ""),
            tuple(asked.getall("category", ())),
            tuple(asked.getall("tag", ())),
            tuple(asked.getall("profile", ())),
            exclude_dangerous=asked.get("safe") == "true",
            most=int(limit),
        )
        specs = self._visits.offered(request[CALLER], asked.get("role", ""), asked.get("persona", ""))
        return web.json_response({"tools": [entry(spec) for spec in discover(specs, filters)]})

    async def workflow(self, request: web.Request) -> web.StreamResponse:
        """Run a workflow, or join it, and tell of it a line of JSON at a time; a client that goes leaves it to itself."""
        asked = await read(request, _Flow)
        if self._workflows is None:
            raise NotFound("this server runs no workflows")
        who = request[CALLER]
        facts = self._workflows.run(who, asked.workspace_id, asked.capability_token, asked.workflow, asked.after_seq)
        async with aclosing(facts):
            first = await anext(facts, None)  # what is wrong with the request is an answer of its own
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            try:
                if first is not None:
                    await response.write(_line(first))
                    async for recorded in facts:
                        await response.write(_line(recorded))
            except MoothallError as error:  # the status is said already: this is the last line
                await response.write(json.dumps({"code": error.code, "detail": error.message}).encode() + b"\n")
            await response.write_eof()
        return response

    async def parked(self, request: web.Request) -> web.Response:
        """List what waits for an operator of the caller's tenant."""
        who = request[CALLER]
        refuse_unless_operator(who)
        waiting = self._parking.waiting(who.tenant) if self._parking else ()
        return web.json_response({"parked": [_parked(item) for item in waiting]})

    async def resolve(self, request: web.Request) -> web.Response:
        """Say an operator's word."""
        who = request[CALLER]
        refuse_unless_operator(who)
        word = await read(request, _Word)
        named = request.match_info["id"]
        if self._parking is None:
            raise NotFound(f"no parked request {named[:80]!r}")
        item = await self._parking.resolve(who.tenant, named, allow=word.allow, approver=who.name, comment=word.reason)
        return web.json_response({"id": item.id, "request_id": item.request_id, "state": item.state})


def _line(recorded: Recorded) -> bytes:
    event, data = recorded.event, recorded.event.data
    told = {name: data[name] for name in _FACTS if data.get(name)}
    return json.dumps({"seq": recorded.seq, "time": event.time, "state": "started", **told}).encode() + b"\n"


def _parked(item: Parked) -> dict[str, Any]:
    told = dump(item)
    del told["grant"], told["approver"], told["comment"], told["tenant"]  # of what is said of it later
    return told | {"workspace_id": told.pop("workspace")}
