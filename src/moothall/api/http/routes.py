"""The HTTP routes for tools, /tasks, /health and /ready. Only this module converts their JSON
documents.
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
from moothall.api.http.documents import Body, document, lines, read_body
from moothall.api.identity import caller, is_known
from moothall.api.tools import Tools, external_call
from moothall.authorization.approvals import Parked
from moothall.domain.codec import dump
from moothall.domain.event import Recorded
from moothall.domain.ids import check_task_id
from moothall.domain.status import Condition
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest
from moothall.tool_sessions.manager import ToolSessions
from moothall.tools.spec import Filters, discover, entry

A2A_PATH, AGENT_CARD_PATH = "/a2a", "/.well-known/agent-card.json"
OPEN_PATHS = frozenset({"/health", "/ready", "/openapi.json", AGENT_CARD_PATH})
_MAX_TASKS, _DEFAULT_TASKS = 500, 50
_MAX_DIGITS = 4
"""Of the index of the first task: 1,000 are kept."""
_EVENT_FIELDS = (
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


class _OpenRequest(Body):
    repository: _Repository
    role: str
    ttl_seconds: int = 0
    persona: str = ""


class _CallRequest(Body):
    request_id: str = Field(min_length=1, max_length=200)
    workspace_id: str
    capability_token: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    deadline: AwareDatetime | None = None


class _WorkflowRequest(Body):
    workspace_id: str
    capability_token: str
    workflow: dict[str, Any]
    after_seq: int = Field(0, ge=0)


class _Decision(Body):
    allow: bool
    reason: str = ""


def state_routes(dependencies: ApiDependencies) -> Sequence[Route]:
    """Return the routes for the server's health and its tasks."""

    async def health(_request: Request) -> Response:
        """200, or 503 if a required part is down. Only callers with a token see details."""
        health = await dependencies.health_check.check()
        if not is_known():
            health = replace(health, parts=tuple(replace(part, detail="") for part in health.parts))
        return document(dump(health), 503 if health.status is Condition.DOWN else 200)

    async def readiness(_request: Request) -> Response:
        """200 while this process accepts calls, also over gRPC; 503 once it is told to stop. Load
        balancers check this instead of /health: with an unreachable model server, /health would
        take every server out of rotation.
        """
        is_ready = dependencies.serving.accepting_calls.is_set()
        return document({"ready": is_ready}, 200 if is_ready else 503)

    async def tasks(request: Request) -> Response:
        """The tasks of the caller's tenant: running ones, then finished ones, the latest first."""
        state, limit = (
            request.query_params.get("state", ""),
            request.query_params.get("limit", str(_DEFAULT_TASKS)),
        )
        if state not in {"", "live", "ended", "failed"}:
            raise InvalidRequest(
                f"state is {state[:40]!r}; allowed are live, ended and failed, or omit it for all"
            )
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MAX_TASKS):
            raise InvalidRequest(f"limit is {limit[:40]!r}; allowed are 1 to {_MAX_TASKS}")
        query, first = request.query_params.get("q", ""), request.query_params.get("first", "0")
        if not (first.isascii() and first.isdecimal() and len(first) <= _MAX_DIGITS):
            raise InvalidRequest(f"first is {first[:40]!r}; it must be a number from 0")
        views = await dependencies.records.tasks.list_tasks(
            caller(), state, int(limit), query=query, first=int(first)
        )
        return document({"tasks": [dump(view) for view in views]})

    async def task(request: Request) -> Response:
        return document(
            dump(
                await dependencies.records.tasks.get_task(
                    check_task_id(request.path_params["id"]), caller()
                )
            )
        )

    return [
        Route("/health", health),
        Route("/ready", readiness),
        Route("/tasks", tasks),
        Route("/tasks/{id}", task),
    ]


def tool_routes(dependencies: ApiDependencies) -> Sequence[Route]:
    """Return the routes for tools; none if this process does not serve them."""
    if dependencies.tools.sessions is None:
        return []
    tool_sessions = dependencies.tools.sessions
    service = Tools(tool_sessions, dependencies.tools.approvals, dependencies.tools.workflows)
    return [
        *_workspace_routes(service),
        *_call_routes(service, tool_sessions),
        *_approval_routes(service),
    ]


def _workspace_routes(service: Tools) -> Sequence[Route]:
    async def open_workspace(request: Request) -> Response:
        open_request = await read_body(request, _OpenRequest)
        repository = RepositoryRef(**open_request.repository.model_dump())
        session = await service.open(
            repository, open_request.role, open_request.ttl_seconds, open_request.persona
        )
        content = {
            "workspace_id": session.workspace,
            "capability_token": session.token,
            "expires": session.expires.isoformat(timespec="milliseconds"),
        }
        return document(content, 201, {"Location": f"/v1/workspaces/{session.workspace}"})

    async def close(request: Request) -> Response:
        await service.close(request.path_params["id"])
        return Response(status_code=204)

    return [
        Route("/v1/workspaces", open_workspace, methods=["POST"]),
        Route("/v1/workspaces/{id}", close, methods=["DELETE"]),
    ]


def _call_routes(service: Tools, tool_sessions: ToolSessions) -> Sequence[Route]:
    async def call(request: Request) -> Response:
        """Run a tool. Stops if the client disconnects. A refused or failed call is a result with
        its status.
        """
        call_request = await read_body(request, _CallRequest)
        tool_call = external_call(
            call_request.request_id,
            request.path_params["name"],
            call_request.arguments,
            call_request.deadline,
        )
        return document(
            dump(
                await service.call(
                    call_request.workspace_id, call_request.capability_token, tool_call
                )
            )
        )

    async def list_tools(request: Request) -> Response:
        """The tools of the caller's tenant; with `role`, those granted to its seats."""
        query = request.query_params
        filters = _filters(query)
        specs = tool_sessions.list_tools(caller(), query.get("role", ""), query.get("persona", ""))
        return document({"tools": [entry(spec) for spec in discover(specs, filters)]})

    async def workflow(request: Request) -> Response:
        """Run a workflow and stream its events. It continues if the client disconnects."""
        workflow_request = await read_body(request, _WorkflowRequest)
        events = service.run_workflow(
            workflow_request.workspace_id,
            workflow_request.capability_token,
            workflow_request.workflow,
            workflow_request.after_seq,
        )
        return await lines(events, _line)

    return [
        Route("/v1/tools", list_tools),
        Route("/v1/tools/{name}", call, methods=["POST"]),
        Route("/v1/workflows", workflow, methods=["POST"]),
    ]


def _approval_routes(service: Tools) -> Sequence[Route]:
    async def list_parked(_request: Request) -> Response:
        return document({"parked": [_parked_document(item) for item in service.list_parked()]})

    async def resolve(request: Request) -> Response:
        service.check_operator()
        decision = await read_body(request, _Decision)
        item = await service.resolve(
            request.path_params["id"], allow=decision.allow, reason=decision.reason
        )
        return document({"id": item.id, "request_id": item.request_id, "state": item.state})

    return [
        Route("/v1/parked", list_parked),
        Route("/v1/parked/{id}", resolve, methods=["POST"]),
    ]


def _filters(query: QueryParams) -> Filters:
    if unknown := [name for name in query if name not in _FILTERS]:
        raise InvalidRequest(
            f"there is no filter {unknown[0][:40]!r}; the filters are {', '.join(_FILTERS)}"
        )
    limit = query.get("limit", "0")
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 9):  # noqa: PLR2004 - fits an int32
        raise InvalidRequest(f"limit is {limit[:40]!r}; allowed are whole numbers, 0 for all")
    if query.get("safe", "false") not in {"true", "false"}:
        raise InvalidRequest(f"safe is {query['safe'][:40]!r}; allowed are true and false")
    return Filters(
        query.get("query", ""),
        tuple(query.getlist("category")),
        tuple(query.getlist("tag")),
        tuple(query.getlist("profile")),
        exclude_dangerous=query.get("safe") == "true",
        limit=int(limit),
    )


def _line(recorded: Recorded) -> str:
    event, data = recorded.event, recorded.event.data
    fields = {name: data[name] for name in _EVENT_FIELDS if data.get(name)}
    return json.dumps({"seq": recorded.seq, "time": event.time, "state": "started", **fields})


def _parked_document(item: Parked) -> dict[str, Any]:
    document = dump(item)
    del (
        document["grant"],
        document["approver"],
        document["comment"],
        document["tenant"],
    )  # fields that are set only after the decision
    return document | {"workspace_id": document.pop("workspace")}
