"""Signing in and out at the page: by a link, a name and its password, a token, or a provider. Also
what a page needs before that.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.http.documents import HttpRefusal
from moothall.api.identity import BearerTokens
from moothall.api.status import http_status_of
from moothall.api.web.forms import (
    COOKIE,
    onward,
    plainly,
    read_form,
    read_session_form,
    require_session,
    set_session,
    sign_in_form,
)
from moothall.api.web.oidc import Flow, Provider
from moothall.api.web.rendering import asset, page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.api.web.user_accounts import Attempts
from moothall.errors import MoothallError, Refused


def signing_routes(
    bearers: BearerTokens, sessions: Sessions, provider: Provider | None = None
) -> Sequence[Route]:
    """Return what asks for no session, and signing out."""
    sign = _Signing(bearers, sessions)

    async def sign_out(request: Request, session: Session) -> Response:
        await read_session_form(request, session)
        sessions.close(session)
        answer = (
            page("signed_out.html", leave=session.leave, name=sessions.elsewhere)
            if session.leave
            else redirect("/sign-in")
        )
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def stylesheet(_request: Request) -> Response:
        return asset("page.css", "text/css")

    async def script(_request: Request) -> Response:
        return asset("page.js", "text/javascript")

    return [
        Route("/sign-in", plainly(sign.ask), methods=["GET"]),
        Route("/sign-in", plainly(sign.take), methods=["POST"]),
        Route("/sign-out", require_session(sign_out, sessions), methods=["POST"]),
        *(oidc_routes(provider, sessions) if provider else ()),
        Route("/page.css", stylesheet),
        Route("/page.js", script),
    ]


class _Signing:
    """Who asks to be signed in."""

    def __init__(self, bearers: BearerTokens, sessions: Sessions) -> None:
        self._bearers = bearers
        self._sessions = sessions
        self._attempts = Attempts()

    async def ask(self, request: Request) -> Response:
        """Show the forms, or follow a link."""
        if not (secret := request.query_params.get("link", "")):
            return sign_in_form(self._sessions)
        session = self._sessions.follow(secret)
        return (
            self._begin(request, session) if session else sign_in_form(self._sessions, 403, "used")
        )

    async def take(self, request: Request) -> Response:
        """Take a form. Raises `HttpRefusal` for one of somebody else's page."""
        if "origin" not in request.headers:  # the door has compared it with its own name
            raise HttpRefusal(403, "WRONG_ORIGIN", "this form was not sent by the page")
        given = await read_form(request)
        if "name" in given:
            return await self._by_password(
                request, given["name"].strip(), given.get("password", "")
            )
        who = self._bearers.find([f"Bearer {given.get('token', '')}"])
        return (
            self._begin(request, self._sessions.open(who))
            if who
            else sign_in_form(self._sessions, 403, "unknown")
        )

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


_COOKIE, _PATH = "moothall-sign-in", "/sign-in/oidc"
BACK = f"{_PATH}/done"
_MOST = 10_000


def oidc_routes(provider: Provider, sessions: Sessions) -> Sequence[Route]:
    """Return the way there and the way back."""
    seconds = provider.settings.sign_in_seconds
    under_way: TTLCache[str, Flow] = TTLCache(_MOST, seconds)

    def ours(request: Request) -> str:
        """Return where browsers find the page; the name that one called it by was checked by the
        door.
        """
        return provider.settings.url or str(request.base_url).rstrip("/")

    async def go(request: Request) -> Response:
        flow, known_by = Flow(f"{ours(request)}{BACK}", onward(request)), secrets.token_urlsafe(32)
        try:
            answer = redirect(await provider.address(flow))
        except MoothallError as error:
            return sign_in_form(sessions, http_status_of(error), "elsewhere", error.message)
        under_way[known_by] = flow
        secure = request.url.scheme == "https"
        # Lax: the provider sends the browser back, and then the cookie has to come with it.
        answer.set_cookie(
            _COOKIE, known_by, round(seconds), _PATH, httponly=True, samesite="lax", secure=secure
        )
        return answer

    async def come(request: Request) -> Response:
        flow = under_way.pop(request.cookies.get(_COOKIE, ""), None)
        try:
            if flow is None:
                raise Refused(
                    "this sign-in was not begun in this browser, was answered before, or took "
                    f"longer than {seconds:g} seconds"
                )
            who = await provider.redeem(flow, request.query_params)
            session = sessions.open(who, await provider.leave(f"{ours(request)}/sign-in"))
        except MoothallError as error:
            answer = sign_in_form(sessions, http_status_of(error), "elsewhere", error.message)
        else:
            # No redirect: a browser that comes from elsewhere would not bring the session's cookie
            # along, which is strict.
            answer = page("signed_in.html", onward=flow.onward)
            set_session(answer, request, session, sessions.seconds)
        answer.delete_cookie(_COOKIE, _PATH, httponly=True, samesite="lax")
        return answer

    return [Route(_PATH, plainly(go)), Route(BACK, plainly(come))]
