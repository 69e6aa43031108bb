"""Signing in at a provider: there and back. What is under way is known by a cookie of the browser that began it, and can be answered once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.errors import MoothallError, Refused
from moothall.services.page.forms import onward, plainly, set_session, sign_in_form
from moothall.services.page.provider import Flow, Provider
from moothall.services.page.sessions import Sessions
from moothall.services.page.shown import page, redirect
from moothall.services.status import http_status_of

_COOKIE, _PATH = "moothall-sign-in", "/sign-in/oidc"
BACK = f"{_PATH}/done"
_MOST = 10_000


def oidc_routes(provider: Provider, sessions: Sessions) -> Sequence[Route]:
    """Return the way there and the way back."""
    seconds = provider.settings.sign_in_seconds
    under_way: TTLCache[str, Flow] = TTLCache(_MOST, seconds)

    def ours(request: Request) -> str:
        """Return where browsers find the page; the name that one called it by was checked by the door."""
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
        answer.set_cookie(_COOKIE, known_by, round(seconds), _PATH, httponly=True, samesite="lax", secure=secure)
        return answer

    async def come(request: Request) -> Response:
        flow = under_way.pop(request.cookies.get(_COOKIE, ""), None)
        try:
            if flow is None:
                raise Refused(
                    f"this sign-in was not begun in this browser, was answered before, or took longer than {seconds:g} seconds"
                )
            who = await provider.redeem(flow, request.query_params)
            session = sessions.open(who, await provider.leave(f"{ours(request)}/sign-in"))
        except MoothallError as error:
            answer = sign_in_form(sessions, http_status_of(error), "elsewhere", error.message)
        else:
            # No redirect: a browser that comes from elsewhere would not bring the session's cookie along, which is strict.
            answer = page("signed_in.html", onward=flow.onward)
            set_session(answer, request, session, sessions.seconds)
        answer.delete_cookie(_COOKIE, _PATH, httponly=True, samesite="lax")
        return answer

    return [Route(_PATH, plainly(go)), Route(BACK, plainly(come))]
