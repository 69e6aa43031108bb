"""The pages about the server: health, decisions of the tool gateway, parked requests, and tools."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.tools import Tools
from moothall.api.web.councils import REFRESH_SECONDS
from moothall.api.web.forms import read_query, read_session_form, require_session
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.authorization.approval_queue import refuse_unless_operator
from moothall.errors import InvalidRequest, NotFound, Refused
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.discovery import Filters, discover


def server_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the pages about the server."""

    async def health(_request: Request, session: Session) -> Response:
        return page("health.html", session=session, health=await dependencies.health_check.check())

    async def audit(request: Request, session: Session) -> Response:
        if not session.who.operator:
            raise Refused("only operators can see the decisions of the tool gateway")
        only = request.query_params.get("only", "")
        if only not in {"", "refused"}:
            raise InvalidRequest(f"only is {only[:40]!r}; allowed is refused, or omit it for all")
        decisions = await dependencies.decisions.last(session.who)
        return page(
            "decisions.html",
            session=session,
            only=only,
            decisions=[item for item in decisions if item.refused or not only],
        )

    async def tools(request: Request, session: Session) -> Response:
        query = read_query(request, "query")
        specs = (
            dependencies.tool_sessions.list_tools(session.who)
            if dependencies.tool_sessions
            else CATALOGUE.values()
        )
        return page(
            "tools.html", session=session, query=query, tools=discover(specs, Filters(query))
        )

    return [
        Route("/system", require_session(health, sessions)),
        Route("/system/audit", require_session(audit, sessions)),
        Route("/system/tools", require_session(tools, sessions)),
    ]


def parked_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes to list and to decide parked requests."""
    service = (
        Tools(dependencies.tool_sessions, dependencies.approvals)
        if dependencies.tool_sessions
        else None
    )

    async def list_parked(_request: Request, session: Session) -> Response:
        refuse_unless_operator(session.who)
        waiting = service.list_parked() if service else ()
        return page("parked.html", session=session, parked=waiting, refresh=REFRESH_SECONDS)

    async def resolve(request: Request, session: Session) -> Response:
        form, request_id = await read_session_form(request, session), request.path_params["id"]
        if form.get("do") not in {"allow", "refuse"}:
            raise InvalidRequest("do must be allow or refuse")
        if service is None:
            raise NotFound(f"no parked request {request_id[:80]!r}")
        await service.resolve(
            request_id, allow=form["do"] == "allow", reason=form.get("reason", "").strip()
        )
        return redirect("/system/parked")

    return [
        Route("/system/parked", require_session(list_parked, sessions)),
        Route("/system/parked/{id}", require_session(resolve, sessions), methods=["POST"]),
    ]
