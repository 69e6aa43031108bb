"""What the guard let wait for an operator, and the operator's word on it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.errors import InvalidRequest, NotFound
from moothall.guard.parking import refuse_unless_operator
from moothall.services.doors import Doors
from moothall.services.page.councils import REFRESH_SECONDS
from moothall.services.page.forms import sent, signed_in
from moothall.services.page.sessions import Session, Sessions
from moothall.services.page.shown import page, redirect
from moothall.services.tools import Tools


def parked_routes(doors: Doors, sessions: Sessions) -> Sequence[Route]:
    """Return the list, and what takes a word."""
    service = Tools(doors.visits, doors.parking) if doors.visits else None

    async def parked(_request: Request, session: Session) -> Response:
        refuse_unless_operator(session.who)
        waiting = service.parked() if service else ()
        return page("parked.html", session=session, parked=waiting, refresh=REFRESH_SECONDS)

    async def resolve(request: Request, session: Session) -> Response:
        given, named = await sent(request, session), request.path_params["id"]
        if given.get("do") not in {"allow", "refuse"}:
            raise InvalidRequest("allow it or refuse it")
        if service is None:
            raise NotFound(f"no parked request {named[:80]!r}")
        await service.resolve(named, allow=given["do"] == "allow", reason=given.get("reason", "").strip())
        return redirect("/house/parked")

    return [
        Route("/house/parked", signed_in(parked, sessions)),
        Route("/house/parked/{id}", signed_in(resolve, sessions), methods=["POST"]),
    ]
