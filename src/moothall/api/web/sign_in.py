"""Sign-in and sign-out at the web page: by link, password, token or provider; and static files.
A client for an OpenID provider: signing in, and the user that an ID token names.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from time import monotonic
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall import config
from moothall.api.accounts import Attempts
from moothall.api.http.documents import HttpRefusal
from moothall.api.identity import BearerTokens, Caller
from moothall.api.openid import MESSAGE_CHARS, Issuer, IssuerMetadata
from moothall.api.protobuf import http_status_of
from moothall.api.web.rendering import ASSET_TYPES, asset, page, redirect
from moothall.api.web.sessions import (
    COOKIE,
    Session,
    Sessions,
    read_form,
    read_session_form,
    require_session,
    safe_path,
    set_session,
    sign_in_form,
    target_after_sign_in,
    with_error_page,
)
from moothall.domain.ids import Principal
from moothall.errors import CallFailed, ConfigurationError, MoothallError, Refused, Unauthenticated

# A client for an OpenID provider: signing in, and the user that an ID token names.
#
# The code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core 3.1). No claim of a token is used
# before its signature, issuer, audience, times and nonce are verified.


_CLAIMS = ("exp", "iat", "iss", "aud", "sub", "nonce")
_LABEL = "the ID token"
_SIGN_IN_SECONDS = 600.0


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Flow:
    """A sign-in in progress. `next_page` is the page to show afterwards; `state`, `nonce` and
    `verifier` are secrets.
    """

    redirect_uri: str
    next_page: str
    state: str = field(default_factory=_secret, repr=False)
    nonce: str = field(default_factory=_secret, repr=False)
    verifier: str = field(default_factory=_secret, repr=False)


class Provider:
    """The configured provider. Methods raise `Temporary` if it is unreachable, `CallFailed` for an
    invalid response.

    sign_in_seconds: the maximum time that a user may spend at the provider to sign in.
    """

    def __init__(
        self,
        settings: config.OidcSettings,
        clock: Callable[[], float] = monotonic,
        *,
        sign_in_seconds: float = _SIGN_IN_SECONDS,
    ) -> None:
        self.settings, self.sign_in_seconds = settings, sign_in_seconds
        self._issuer = Issuer(settings, clock)

    @property
    def name(self) -> str:
        """The provider's display name: its host."""
        return self._issuer.name

    async def check(self) -> None:
        """Raise `ConfigurationError` if the provider is reachable but does not match the
        settings.
        """
        try:
            await self._metadata()
        except CallFailed as error:
            raise ConfigurationError(
                f"oidc.issuer {self.settings.issuer}: {error.message}"
            ) from error

    async def address(self, flow: Flow) -> str:
        """Return the URL at which a browser signs in."""
        parameters = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": flow.redirect_uri,
            "scope": " ".join(("openid", *self.settings.scopes)),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": urlsafe_b64encode(sha256(flow.verifier.encode()).digest())
            .rstrip(b"=")
            .decode(),
            "code_challenge_method": "S256",
        }
        return _add_parameters((await self._metadata()).authorization_endpoint, parameters)

    async def sign_out_url(self, return_url: str) -> str:
        """Return the URL at which a browser also signs out at the provider; empty if there is
        none.
        """
        end_session_url = (await self._metadata()).end_session_endpoint
        return (
            _add_parameters(
                end_session_url,
                {"client_id": self.settings.client_id, "post_logout_redirect_uri": return_url},
            )
            if end_session_url
            else ""
        )

    async def redeem(self, flow: Flow, parameters: Mapping[str, str]) -> Principal:
        """Return the user who came back with these parameters. Raises `Refused`."""
        metadata = await self._metadata()
        if not hmac.compare_digest(
            flow.state.encode(), parameters.get("state", "").encode("utf-8", "surrogateescape")
        ):
            raise Refused("this response belongs to another sign-in; start again")
        issuer = parameters.get(
            "iss",
            metadata.issuer if not metadata.authorization_response_iss_parameter_supported else "",
        )
        if issuer != metadata.issuer:
            raise Refused(f"this response does not come from {self.name}")
        if error := parameters.get("error", ""):
            raise Refused(
                f"{self.name} refused: {parameters.get('error_description') or error}"[
                    :MESSAGE_CHARS
                ]
            )
        if not (code := parameters.get("code", "")):
            raise Refused(f"{self.name} returned no code")
        token = await self._exchange(metadata, code, flow)
        return self._issuer.principal(await self._verify(token, flow.nonce), _LABEL)

    async def _exchange(self, metadata: IssuerMetadata, code: str, flow: Flow) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.redirect_uri,
            "code_verifier": flow.verifier,
        }
        headers = {}
        client_id, secret = self.settings.client_id, self.settings.client_secret
        if (
            secret is not None
            and "client_secret_basic" in metadata.token_endpoint_auth_methods_supported
        ):
            credentials = f"{quote_plus(client_id)}:{quote_plus(secret.get_secret_value())}"
            headers["Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
        else:
            form |= {"client_id": client_id} | (
                {"client_secret": secret.get_secret_value()} if secret else {}
            )
        status, document = await self._issuer.request(
            "POST", metadata.token_endpoint, form, headers
        )
        if status != HTTPStatus.OK:
            raise Refused(
                f"{self.name} does not accept the code: {document.get('error', status)}"[
                    :MESSAGE_CHARS
                ]
            )
        if not isinstance(token := document.get("id_token"), str):
            raise CallFailed(f"{self.name} returned no ID token")
        return token

    async def _verify(self, token: str, nonce: str) -> Mapping[str, Any]:
        client_id = self.settings.client_id
        claims = await self._issuer.verify(token, client_id, _CLAIMS, _LABEL)
        has_several_audiences = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", "" if has_several_audiences else client_id) != client_id:
            raise Refused("the ID token is refused: it was issued to another client")
        if not hmac.compare_digest(
            str(claims["nonce"]).encode("utf-8", "surrogateescape"), nonce.encode()
        ):
            raise Refused("the ID token is refused: it belongs to another sign-in")
        return claims

    async def _metadata(self) -> IssuerMetadata:
        """Return the issuer's metadata, which must have what a sign-in needs."""
        metadata = await self._issuer.metadata()
        for name in ("authorization_endpoint", "token_endpoint"):
            if not getattr(metadata, name):
                raise CallFailed(f"its metadata document has no {name}, which a sign-in needs")
        if "S256" not in metadata.code_challenge_methods_supported:
            raise CallFailed("it does not support PKCE with S256, which is required")
        return metadata


def _add_parameters(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(parameters)}"


# Sign-in and sign-out at the web page: by link, password, token or provider; and static files.


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
            principal = await self._bearers.find([f"Bearer {fields.get('token', '')}"])
        except Unauthenticated:
            return sign_in_form(self._sessions, 403, "unknown_token", next_page=next_page)
        return self._start_session(request, self._sessions.open(principal), next_page)

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
            principal = await provider.redeem(flow, request.query_params)
            session = sessions.open(
                Caller(principal), await provider.sign_out_url(f"{base_url(request)}/sign-in")
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
