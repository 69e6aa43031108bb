"""Signing in and out at the page: by a link, a name and its password, a token, or a provider. Also what a page needs before that."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.services.identity import Bearers
from moothall.services.page.forms import COOKIE, onward, plainly, read_form, sent, set_session, sign_in_form, signed_in
from moothall.services.page.oidc import oidc_routes
from moothall.services.page.people import Attempts
from moothall.services.page.provider import Provider
from moothall.services.page.sessions import Session, Sessions
from moothall.services.page.shown import asset, page, redirect
from moothall.services.rest.documents import Turned


def signing_routes(bearers: Bearers, sessions: Sessions, provider: Provider | None = None) -> Sequence[Route]:
    """Return what asks for no session, and signing out."""
    sign = _Signing(bearers, sessions)

    async def sign_out(request: Request, session: Session) -> Response:
        await sent(request, session)
        sessions.close(session)
        answer = page("signed_out.html", leave=session.leave, name=sessions.elsewhere) if session.leave else redirect("/sign-in")
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def stylesheet(_request: Request) -> Response:
        return asset("page.css", "text/css")

    async def script(_request: Request) -> Response:
        return asset("page.js", "text/javascript")

    return [
        Route("/sign-in", plainly(sign.ask), methods=["GET"]),
        Route("/sign-in", plainly(sign.take), methods=["POST"]),
        Route("/sign-out", signed_in(sign_out, sessions), methods=["POST"]),
        *(oidc_routes(provider, sessions) if provider else ()),
        Route("/page.css", stylesheet),
        Route("/page.js", script),
    ]


class _Signing:
    """Who asks to be signed in."""

    def __init__(self, bearers: Bearers, sessions: Sessions) -> None:
        self._bearers = bearers
        self._sessions = sessions
        self._attempts = Attempts()

    async def ask(self, request: Request) -> Response:
        """Show the forms, or follow a link."""
        if not (secret := request.query_params.get("link", "")):
            return sign_in_form(self._sessions)
        session = self._sessions.follow(secret)
        return self._begin(request, session) if session else sign_in_form(self._sessions, 403, "used")

    async def take(self, request: Request) -> Response:
        """Take a form. Raises `Turned` for one of somebody else's page."""
        if "origin" not in request.headers:  # the door has compared it with its own name
            raise Turned(403, "WRONG_ORIGIN", "this form was not sent by the page")
        given = await read_form(request)
        if "name" in given:
            return await self._by_password(request, given["name"].strip(), given.get("password", ""))
        who = self._bearers.find([f"Bearer {given.get('token', '')}"])
        return self._begin(request, self._sessions.open(who)) if who else sign_in_form(self._sessions, 403, "unknown")

    async def _by_password(self, request: Request, name: str, password: str) -> Response:
        address = request.client.host if request.client else ""
        if not self._attempts.begin(name, address):
            answer = sign_in_form(self._sessions, 429, "often")
            answer.headers["Retry-After"] = str(self._attempts.SECONDS)
            return answer
        if (session := await self._sessions.sign_in(name, password)) is None:
            return sign_in_form(self._sessions, 403, "nobody")
        self._attempts.succeed(name, address)
        return self._begin(request, session)

    def _begin(self, request: Request, session: Session) -> Response:
        answer = redirect(onward(request))
        set_session(answer, request, session, self._sessions.seconds)
        return answer
