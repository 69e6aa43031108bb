"""Sign-in and sign-out at the web page: by link, password, token or provider; and static files."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.http.documents import HttpRefusal
from moothall.api.identity import BearerTokens, Caller
from moothall.api.status import http_status_of
from moothall.api.web.forms import (
    COOKIE,
    read_form,
    read_session_form,
    require_session,
    safe_path,
    set_session,
    sign_in_form,
    target_after_sign_in,
    with_error_page,
)
from moothall.api.web.oidc import Flow, Provider
from moothall.api.web.rendering import ASSET_TYPES, asset, page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.api.web.user_accounts import Attempts
from moothall.errors import MoothallError, Refused, Unauthenticated


def sign_in_routes(
    bearers: BearerTokens, sessions: Sessions, provider: Provider | None = None
) -> Sequence[Route]:
    """Return the routes for sign-in and static files, which need no session, and for sign-out."""
    sign_in = _SignIn(bearers, sessions)

    async def sign_out(request: Request, session: Session) -> Response:
        await read_session_form(request, session)
        sessions.close(session)
        response = (
            page(
                "signed_out.html",
                sign_out_url=session.sign_out_url,
                provider=sessions.provider_name,
            )
            if session.sign_out_url
            else redirect("/sign-in")
        )
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        response.headers["Clear-Site-Data"] = '"cache"'  # Back shows no page of the ended session
        return response

    return [
        Route("/sign-in", with_error_page(sign_in.show_forms), methods=["GET"]),
        Route("/sign-in", with_error_page(sign_in.submit_form), methods=["POST"]),
        Route("/sign-out", require_session(sign_out, sessions), methods=["POST"]),
        *(oidc_routes(provider, sessions) if provider else ()),
        *(Route(f"/{name}", _asset) for name in ASSET_TYPES),
    ]


async def _asset(request: Request) -> Response:
    return asset(request.url.path.removeprefix("/"))


class _SignIn:
    """The sign-in handlers."""

    def __init__(self, bearers: BearerTokens, sessions: Sessions) -> None:
        self._bearers = bearers
        self._sessions = sessions
        self._attempts = Attempts()

    async def show_forms(self, request: Request) -> Response:
        """Show the forms, or sign in by a link."""
        if not (secret := request.query_params.get("link", "")):
            return sign_in_form(self._sessions, next_page=target_after_sign_in(request))
        session = self._sessions.follow(secret)
        return (
            self._start_session(request, session, target_after_sign_in(request))
            if session
            else sign_in_form(self._sessions, 403, "link_expired")
        )

    async def submit_form(self, request: Request) -> Response:
        """Sign in by a form. Raises `HttpRefusal` if it was sent by a foreign page."""
        if "origin" not in request.headers:  # its value was checked by the server
            raise HttpRefusal(403, "WRONG_ORIGIN", "this form was not sent by the page")
        fields = await read_form(request)
        next_page = safe_path(fields.get("next", ""))
        if "name" in fields:
            return await self._sign_in_by_password(
                request, fields["name"].strip(), fields.get("password", ""), next_page
            )
        try:
            who = await self._bearers.find([f"Bearer {fields.get('token', '')}"])
        except Unauthenticated:
            return sign_in_form(self._sessions, 403, "unknown_token", next_page=next_page)
        return self._start_session(request, self._sessions.open(who), next_page)

    async def _sign_in_by_password(
        self, request: Request, name: str, password: str, next_page: str
    ) -> Response:
        address = request.client.host if request.client else ""
        if not self._attempts.begin(name, address):
            response = sign_in_form(self._sessions, 429, "rate_limited", next_page=next_page)
            response.headers["Retry-After"] = str(self._attempts.SECONDS)
            return response
        if (session := await self._sessions.sign_in(name, password)) is None:
            return sign_in_form(self._sessions, 403, "wrong_password", next_page=next_page)
        self._attempts.succeed(name, address)
        return self._start_session(request, session, next_page)

    def _start_session(self, request: Request, session: Session, next_page: str) -> Response:
        response = redirect(next_page)
        set_session(response, request, session, self._sessions.seconds)
        return response


_OIDC_COOKIE, _OIDC_PATH = "moothall-sign-in", "/sign-in/oidc"
CALLBACK_PATH = f"{_OIDC_PATH}/done"
_MAX_FLOWS = 10_000


def oidc_routes(provider: Provider, sessions: Sessions) -> Sequence[Route]:
    """Return the routes to the provider and back."""
    seconds = provider.sign_in_seconds
    flows: TTLCache[str, Flow] = TTLCache(_MAX_FLOWS, seconds)

    def base_url(request: Request) -> str:
        """Return the URL of the page. The host name of the request was checked by the server."""
        return provider.settings.url or str(request.base_url).rstrip("/")

    async def start(request: Request) -> Response:
        flow, flow_id = (
            Flow(f"{base_url(request)}{CALLBACK_PATH}", target_after_sign_in(request)),
            secrets.token_urlsafe(32),
        )
        try:
            response = redirect(await provider.address(flow))
        except MoothallError as error:
            return sign_in_form(sessions, http_status_of(error), "provider_error", error.message)
        flows[flow_id] = flow
        secure = request.url.scheme == "https"
        # Lax, because the cookie must be sent when the provider redirects the browser back.
        response.set_cookie(
            _OIDC_COOKIE,
            flow_id,
            round(seconds),
            _OIDC_PATH,
            httponly=True,
            samesite="lax",
            secure=secure,
        )
        return response

    async def finish(request: Request) -> Response:
        flow = flows.pop(request.cookies.get(_OIDC_COOKIE, ""), None)
        try:
            if flow is None:
                raise Refused(
                    "this sign-in was not started in this browser, was already completed, or took "
                    f"longer than {seconds:g} seconds"
                )
            who = await provider.redeem(flow, request.query_params)
            session = sessions.open(
                Caller(who), await provider.sign_out_url(f"{base_url(request)}/sign-in")
            )
        except MoothallError as error:
            response = sign_in_form(
                sessions, http_status_of(error), "provider_error", error.message
            )
        else:
            # No redirect: after a redirect from another site, browsers do not send the session's
            # cookie, which is strict.
            response = page("signed_in.html", onward=flow.next_page)
            set_session(response, request, session, sessions.seconds)
        response.delete_cookie(_OIDC_COOKIE, _OIDC_PATH, httponly=True, samesite="lax")
        return response

    return [
        Route(_OIDC_PATH, with_error_page(start)),
        Route(CALLBACK_PATH, with_error_page(finish)),
    ]
