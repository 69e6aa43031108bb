"""What the HTTP door serves: tools, /tasks, /health and /ready. Here, and nowhere else, JSON
documents become calls and answers them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import AwareDatetime, Field
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import Body, document, lines, read
from moothall.api.identity import caller, is_known
from moothall.api.tools import Tools, call_of
from moothall.authorization.approval_queue import Parked
from moothall.domain.codec import dump
from moothall.domain.event import Recorded
from moothall.domain.ids import check_id
from moothall.domain.status import Condition
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest
from moothall.tools.discovery import Filters, discover, entry

OPEN_PATHS = frozenset({"/health", "/ready", "/openapi.json"})
_MOST, _USUAL = 500, 50
_FACTS = (
    "workflow_id",
    "step",
    "state",
    "attempt",
    "compensation",
    "error",
    "done",
    "steps",
    "result",
)
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


def state_routes(dependencies: ApiDependencies) -> Sequence[Route]:
    """Return how the server stands, and what is under way in it."""

    async def health(_request: Request) -> Response:
        """200, or 503 where a part is down that nothing works without. Details only to callers with
        a token.
        """
        found = await dependencies.checkup.look()
        if not is_known():
            found = replace(found, parts=tuple(replace(part, detail="") for part in found.parts))
        return document(dump(found), 503 if found.status is Condition.DOWN else 200)

    async def ready(_request: Request) -> Response:
        """200 while this process takes calls, gRPC's too, 503 once it is told to stop. What a load
        balancer asks: with /health, a model server that is away would take every door away.
        """
        taking = dependencies.taking.is_set()
        return document({"ready": taking}, 200 if taking else 503)

    async def tasks(request: Request) -> Response:
        """The caller's tenant's tasks: those under way, then those that ended, the latest first."""
        state, limit = (
            request.query_params.get("state", ""),
            request.query_params.get("limit", str(_USUAL)),
        )
        if state not in {"", "live", "ended", "failed"}:
            raise InvalidRequest(
                f"state is {state[:40]!r}; it is live, ended or failed, or left out for all"
            )
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MOST):
            raise InvalidRequest(f"limit is {limit[:40]!r}; allowed are 1 to {_MOST}")
        return document(
            {
                "tasks": [
                    dump(task)
                    for task in await dependencies.tasks.list_tasks(caller(), state, int(limit))
                ]
            }
        )

    async def task(request: Request) -> Response:
        return document(
            dump(
                await dependencies.tasks.get_task(
                    check_id(request.path_params["id"], "task_id"), caller()
                )
            )
        )

    return [
        Route("/health", health),
        Route("/ready", ready),
        Route("/tasks", tasks),
        Route("/tasks/{id}", task),
    ]


def tool_routes(dependencies: ApiDependencies) -> Sequence[Route]:
    """Return the tool service, where callers may use tools."""
    if dependencies.visits is None:
        return []
    visits = dependencies.visits
    service = Tools(visits, dependencies.parking, dependencies.workflows)

    async def open_workspace(request: Request) -> Response:
        asked = await read(request, _Open)
        repository = RepositoryRef(**asked.repository.model_dump())
        opened = await service.open(repository, asked.role, asked.ttl_seconds, asked.persona)
        told = {
            "workspace_id": opened.workspace,
            "capability_token": opened.token,
            "expires": opened.expires.isoformat(timespec="milliseconds"),
        }
        return document(told, 201, {"Location": f"/v1/workspaces/{opened.workspace}"})

    async def close(request: Request) -> Response:
        await service.close(request.path_params["id"])
        return Response(status_code=204)

    async def call(request: Request) -> Response:
        """Stops when its client goes away. A refused or failed call is a result with its status."""
        asked = await read(request, _Call)
        named = call_of(
            asked.request_id, request.path_params["name"], asked.arguments, asked.deadline
        )
        return document(dump(await service.call(asked.workspace_id, asked.capability_token, named)))

    async def list_tools(request: Request) -> Response:
        """The tools that the caller's tenant has; with `role`, those that its seats are granted."""
        asked = request.query_params
        filters = _filters(asked)
        specs = visits.list_tools(caller(), asked.get("role", ""), asked.get("persona", ""))
        return document({"tools": [entry(spec) for spec in discover(specs, filters)]})

    async def workflow(request: Request) -> Response:
        """A line each for what happens, to its end; a client that goes leaves it to itself."""
        asked = await read(request, _Flow)
        facts = service.run(
            asked.workspace_id, asked.capability_token, asked.workflow, asked.after_seq
        )
        return await lines(facts, _line)

    async def list_parked(_request: Request) -> Response:
        return document({"parked": [_parked_document(item) for item in service.list_parked()]})

    async def resolve(request: Request) -> Response:
        service.check_operator()
        word = await read(request, _Word)
        item = await service.resolve(
            request.path_params["id"], allow=word.allow, reason=word.reason
        )
        return document({"id": item.id, "request_id": item.request_id, "state": item.state})

    return [
        Route("/v1/workspaces", open_workspace, methods=["POST"]),
        Route("/v1/workspaces/{id}", close, methods=["DELETE"]),
        Route("/v1/tools", list_tools),
        Route("/v1/tools/{name}", call, methods=["POST"]),
        Route("/v1/workflows", workflow, methods=["POST"]),
        Route("/v1/parked", list_parked),
        Route("/v1/parked/{id}", resolve, methods=["POST"]),
    ]


def _filters(asked: QueryParams) -> Filters:
    if unknown := [name for name in asked if name not in _FILTERS]:
        raise InvalidRequest(
            f"there is no filter {unknown[0][:40]!r}; the filters are {', '.join(_FILTERS)}"
        )
    limit = asked.get("limit", "0")
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9):  # noqa: PLR2004 - fits an int32
        raise InvalidRequest(f"limit is {limit[:40]!r}; it is a whole number from 0 (all) up")
    if asked.get("safe", "false") not in {"true", "false"}:
        raise InvalidRequest(f"safe is {asked['safe'][:40]!r}; it is true or false")
    return Filters(
        asked.get("query", ""),
        tuple(asked.getlist("category")),
        tuple(asked.getlist("tag")),
        tuple(asked.getlist("profile")),
        exclude_dangerous=asked.get("safe") == "true",
        most=int(limit),
    )


def _line(recorded: Recorded) -> str:
    event, data = recorded.event, recorded.event.data
    told = {name: data[name] for name in _FACTS if data.get(name)}
    return json.dumps({"seq": recorded.seq, "time": event.time, "state": "started", **told})


def _parked_document(item: Parked) -> dict[str, Any]:
    told = dump(item)
    del (
        told["grant"],
        told["approver"],
        told["comment"],
        told["tenant"],
    )  # of what is said of it later
    return told | {"workspace_id": told.pop("workspace")}
