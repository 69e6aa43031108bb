"""A client for an OpenID provider: signing in, and the user that an ID token names.

The code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core 3.1). No claim of a token is used
before its signature, issuer, audience, times and nonce are verified.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from time import monotonic
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from moothall import config
from moothall.api.openid import MESSAGE_CHARS, Issuer, IssuerMetadata
from moothall.domain.identity import Principal
from moothall.errors import CallFailed, ConfigurationError, Refused

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
