"""A client for an OpenID provider: its configuration, its keys, and the user that an ID token
names.

The code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core 3.1). No claim of a token is used
before its signature, issuer, audience, times and nonce are verified.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from moothall import config
from moothall.api.identity import check_address
from moothall.concurrency import whole_body
from moothall.domain.codec import wrong
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import digest, is_id
from moothall.errors import CallFailed, ConfigurationError, Refused, Temporary

if TYPE_CHECKING:  # imported only when somebody signs in this way
    import jwt

_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Signature algorithms. Clients could forge `none` and HMAC signatures, so both are missing."""
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
_CLAIMS = ("exp", "iat", "iss", "aud", "sub", "nonce")
_LEEWAY_SECONDS, _KEY_REFRESH_SECONDS = 60, 30.0
_MAX_RESPONSE_BYTES, _MESSAGE_CHARS = 1_000_000, 200
_NAME_CHARS = 48


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


class _ProviderMetadata(BaseModel):
    """The provider's metadata document."""

    model_config = ConfigDict(frozen=True)

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    code_challenge_methods_supported: tuple[str, ...] = ("S256",)
    authorization_response_iss_parameter_supported: bool = False


class Provider:
    """The configured provider. Methods raise `Temporary` if it is unreachable, `CallFailed` for an
    invalid response.
    """

    def __init__(
        self, settings: config.OidcSettings, clock: Callable[[], float] = monotonic
    ) -> None:
        self.settings = settings
        self._issuer = settings.issuer or ""
        self._clock = clock
        self._cached_metadata: _ProviderMetadata | None = None
        self._keys: list[jwt.PyJWK] = []
        self._keys_fetched_at = float("-inf")
        self._keys_lock = asyncio.Lock()
        check_address("oidc.issuer", self._issuer)

    @property
    def name(self) -> str:
        """The provider's display name: its host."""
        return urlsplit(self._issuer).hostname or self._issuer

    async def check(self) -> None:
        """Raise `ConfigurationError` if the provider is reachable but does not match the
        settings.
        """
        try:
            await self._metadata()
        except CallFailed as error:
            raise ConfigurationError(f"oidc.issuer {self._issuer}: {error.message}") from error

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
                    :_MESSAGE_CHARS
                ]
            )
        if not (code := parameters.get("code", "")):
            raise Refused(f"{self.name} returned no code")
        token = await self._exchange(metadata, code, flow)
        return self._principal(self._verify(token, await self._key(token), flow.nonce))

    async def _exchange(self, metadata: _ProviderMetadata, code: str, flow: Flow) -> str:
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
        status, document = await self._request("POST", metadata.token_endpoint, form, headers)
        if status != HTTPStatus.OK:
            raise Refused(
                f"{self.name} does not accept the code: {document.get('error', status)}"[
                    :_MESSAGE_CHARS
                ]
            )
        if not isinstance(token := document.get("id_token"), str):
            raise CallFailed(f"{self.name} returned no ID token")
        return token

    async def _key(self, token: str) -> jwt.PyJWK:
        """Return the key that signed a token. Unknown keys are fetched, but not for every token
        that names one.
        """
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as error:
            raise Refused(f"the ID token is refused: {error}"[:_MESSAGE_CHARS]) from error
        if header.get("alg") not in _ALGORITHMS:
            raise Refused(
                f"the ID token is refused: it is signed with {str(header.get('alg'))[:20]!r}, not "
                f"{', '.join(_ALGORITHMS)}"
            )
        async with self._keys_lock:
            if (
                key := _choose_key(self._keys, header.get("kid"))
            ) is None and self._clock() - self._keys_fetched_at >= _KEY_REFRESH_SECONDS:
                self._keys_fetched_at = self._clock()
                status, document = await self._request("GET", (await self._metadata()).jwks_uri)
                self._keys = list(_usable_keys(document)) if status == HTTPStatus.OK else []
                key = _choose_key(self._keys, header.get("kid"))
        if key is None:
            raise Refused(
                f"the ID token is refused: {self.name} has no key {str(header.get('kid'))[:40]!r}"
            )
        return key

    def _verify(self, token: str, key: jwt.PyJWK, nonce: str) -> Mapping[str, Any]:
        import jwt

        client_id = self.settings.client_id
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=client_id,
                issuer=self._issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": list(_CLAIMS)},
            )
        except (
            jwt.InvalidTokenError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise Refused(f"the ID token is refused: {error}"[:_MESSAGE_CHARS]) from error
        has_several_audiences = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", "" if has_several_audiences else client_id) != client_id:
            raise Refused("the ID token is refused: it was issued to another client")
        if not hmac.compare_digest(
            str(claims["nonce"]).encode("utf-8", "surrogateescape"), nonce.encode()
        ):
            raise Refused("the ID token is refused: it belongs to another sign-in")
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        settings = self.settings
        group_claim = _claim(claims, settings.roles_claim)
        groups = (
            [group_claim]
            if isinstance(group_claim, str)
            else group_claim
            if isinstance(group_claim, list)
            else []
        )
        roles = {
            role
            for group in groups
            if isinstance(group, str)
            for role in settings.roles.get(group, ())
        }
        if not roles:
            raise Refused(
                f"you are signed in at {self.name}, but nothing in {settings.roles_claim} grants "
                "access here (oidc.roles)"
            )
        name, tenant = (
            _claim(claims, settings.name_claim),
            _claim(claims, settings.tenant_claim) if settings.tenant_claim else settings.tenant,
        )
        if not isinstance(name, str) or not name:
            raise Refused(
                f"the ID token has no {settings.name_claim} (oidc.name_claim, oidc.scopes)"
            )
        if settings.name_claim == "email" and claims.get("email_verified") is not True:
            raise Refused(f"{self.name} has not verified your address")
        if not isinstance(tenant, str) or not is_id(tenant):
            raise Refused(
                f"the ID token has no tenant in {settings.tenant_claim} (oidc.tenant_claim)"
            )
        return Principal(
            _user_id(name), tenant, "operator" in roles, frozenset(roles - {"operator", "reader"})
        )

    async def _metadata(self) -> _ProviderMetadata:
        if self._cached_metadata is None:
            status, document = await self._request(
                "GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if status != HTTPStatus.OK:
                raise CallFailed(
                    f"its metadata document has the status {status}; is it the issuer?"
                )
            try:
                metadata = _ProviderMetadata.model_validate(document)
            except ValidationError as error:
                raise CallFailed(f"its metadata document is invalid: {wrong(error)}") from None
            if metadata.issuer != self._issuer:
                raise CallFailed(
                    f"its issuer is {metadata.issuer[:_MESSAGE_CHARS]!r}, which must be exactly "
                    "the configured issuer"
                )
            if "S256" not in metadata.code_challenge_methods_supported:
                raise CallFailed("it does not support PKCE with S256, which is required")
            for name in (
                "authorization_endpoint",
                "token_endpoint",
                "jwks_uri",
                "end_session_endpoint",
            ):
                if getattr(metadata, name):
                    check_address(name, getattr(metadata, name))
            self._cached_metadata = metadata
        return self._cached_metadata

    async def _request(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and JSON document. Redirects are not followed."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self.settings.seconds)
        request_headers = {"Accept": "application/json", **(headers or {})}
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.request(
                    method, url, data=form, headers=request_headers, allow_redirects=False
                ) as response,
            ):
                content = await whole_body(response.content.readexactly, _MAX_RESPONSE_BYTES)
                if content is None:
                    raise CallFailed(f"{url} answers with more than {_MAX_RESPONSE_BYTES} bytes")
                document = json.loads(content) if content else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Temporary(
                f"{self.name} cannot be reached: {str(error) or type(error).__name__}"[
                    :_MESSAGE_CHARS
                ]
            ) from error
        except (ValueError, RecursionError) as error:
            raise CallFailed(f"{url} answers with {response.status} and without JSON") from error
        if not isinstance(document, dict):
            raise CallFailed(f"{url} does not answer with a JSON object")
        return response.status, document


def _usable_keys(document: Mapping[str, Any]) -> Iterator[jwt.PyJWK]:
    """Yield a provider's signature keys; unknown kinds are skipped."""
    import jwt

    keys = document.get("keys")
    for key in keys if isinstance(keys, list) else ():
        if (
            isinstance(key, dict)
            and key.get("kty") in _KEY_TYPES
            and key.get("use", "sig") == "sig"
        ):
            try:
                yield jwt.PyJWK.from_dict(key)
            except (jwt.PyJWKError, jwt.InvalidKeyError, ValueError, TypeError):
                continue


def _choose_key(keys: list[jwt.PyJWK], kid: object) -> jwt.PyJWK | None:
    if kid is None:
        return keys[0] if len(keys) == 1 else None
    return next((key for key in keys if key.key_id == kid), None)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, which may contain dots, or by a dotted path of names."""
    if name in claims:
        return claims[name]
    outer_name, _, inner_path = name.partition(".")
    nested = claims.get(outer_name)
    return _claim(nested, inner_path) if inner_path and isinstance(nested, dict) else None


def _user_id(name: str) -> str:
    """Return the id of a user: the provider's name for the user, or a cleaned form of it with a
    digest, so that ids are unique.
    """
    if is_id(name) and name != LOCAL.name:
        return name
    cleaned = "".join(
        char if char.isascii() and char.isalnum() else "-" for char in name.lower()
    ).strip("-")[:_NAME_CHARS]
    return f"{cleaned or 'person'}-{digest(name)[:12]}"


def _add_parameters(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(parameters)}"
