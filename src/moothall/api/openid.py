"""An OpenID issuer: its metadata, its keys, and the principals that its tokens name.

No claim of a token is used before its signature, issuer, audience and times are verified.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from moothall import config, telemetry
from moothall.api.identity import Caller, check_address
from moothall.concurrency import read_body
from moothall.domain.codec import describe_errors
from moothall.domain.ids import LOCAL, Principal, digest, is_id
from moothall.errors import (
    CallFailed,
    ConfigurationError,
    MoothallError,
    Refused,
    Temporary,
    Unauthenticated,
)

if TYPE_CHECKING:  # imported only when a token is verified
    import jwt

log = telemetry.get_logger(__name__)

_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Signature algorithms. Clients could forge `none` and HMAC signatures, so both are missing."""
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
_ACCESS_TOKEN_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
_ACCESS_TOKEN_CLAIMS = ("exp", "iss", "aud")
_REQUEST_SECONDS = 10.0
_LEEWAY_SECONDS = 60
_KEY_FETCH_SECONDS = 30.0
"""The minimum time between two fetches of the keys, however many tokens name unknown ones."""
_KEY_AGE_SECONDS = 900.0
"""The age at which keys are fetched again, so that a withdrawn key is not accepted for ever."""
_MAX_RESPONSE_BYTES, MESSAGE_CHARS = 1_000_000, 200
_NAME_CHARS = 48
_JWT_DOTS = 2


class IssuerMetadata(BaseModel):
    """The issuer's metadata document. Issuers without sign-in lack the endpoints for it."""

    model_config = ConfigDict(frozen=True)

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    jwks_uri: str
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    code_challenge_methods_supported: tuple[str, ...] = ("S256",)
    authorization_response_iss_parameter_supported: bool = False


class Issuer:
    """The configured issuer. Methods raise `Temporary` if it is unreachable, `CallFailed` for an
    invalid response.
    """

    def __init__(
        self, settings: config.OidcSettings, clock: Callable[[], float] = monotonic
    ) -> None:
        self.settings = settings
        self._issuer = settings.issuer or ""
        self._clock = clock
        self._cached_metadata: IssuerMetadata | None = None
        self._keys: list[jwt.PyJWK] = []
        self._keys_tried_at = self._keys_fetched_at = float("-inf")
        self._keys_failure = ""
        self._keys_lock = asyncio.Lock()
        check_address("oidc.issuer", self._issuer)

    @property
    def name(self) -> str:
        """The issuer's display name: its host."""
        return urlsplit(self._issuer).hostname or self._issuer

    async def check(self) -> None:
        """Raise `ConfigurationError` if the issuer is reachable but does not match the settings."""
        try:
            await self.metadata()
        except CallFailed as error:
            raise ConfigurationError(f"oidc.issuer {self._issuer}: {error.message}") from error

    async def verify(
        self, token: str, audience: str, claims: Sequence[str], label: str
    ) -> Mapping[str, Any]:
        """Return the claims of a valid token; `claims` are required. Raises `Refused`, whose
        sentence calls the token `label`.
        """
        import jwt

        key = await self._find_key(_read_header(token, label).get("kid"), label)
        try:
            verified: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=audience,
                issuer=self._issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": list(claims)},
            )
        except (
            jwt.InvalidTokenError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise Refused(f"{label} is refused: {error}"[:MESSAGE_CHARS]) from error
        return verified

    def principal(self, claims: Mapping[str, Any], label: str) -> Principal:
        """Return the principal that verified claims name. Raises `Refused`."""
        settings = self.settings
        group_claim = _claim(claims, settings.roles_claim)
        groups = group_claim if isinstance(group_claim, list) else [group_claim]
        roles = {
            role
            for group in groups
            if isinstance(group, str)
            for role in settings.roles.get(group, ())
        }
        if not roles:
            raise Refused(
                f"{label} of {self.name} is valid, but nothing in {settings.roles_claim} grants "
                "access here (oidc.roles)"
            )
        name, tenant = (
            _claim(claims, settings.name_claim),
            _claim(claims, settings.tenant_claim) if settings.tenant_claim else LOCAL.tenant,
        )
        if not isinstance(name, str) or not name:
            raise Refused(f"{label} has no {settings.name_claim} (oidc.name_claim, oidc.scopes)")
        if settings.name_claim == "email" and claims.get("email_verified") is not True:
            raise Refused(f"{self.name} has not verified your address")
        if not isinstance(tenant, str) or not is_id(tenant):
            raise Refused(f"{label} has no tenant in {settings.tenant_claim} (oidc.tenant_claim)")
        return Principal(
            _user_id(name), tenant, "operator" in roles, frozenset(roles - {"operator", "reader"})
        )

    async def _find_key(self, kid: object, label: str) -> jwt.PyJWK:
        """Return a key by its id. An unknown id causes a new fetch, but not with every token."""
        key = _choose_key(self._keys, kid)
        is_old = self._clock() - self._keys_fetched_at >= _KEY_AGE_SECONDS
        if key is not None and (not is_old or self._keys_lock.locked()):
            return key
        async with self._keys_lock:
            if self._clock() - self._keys_tried_at >= _KEY_FETCH_SECONDS:
                await self._fetch_keys()
            key = _choose_key(self._keys, kid)
        if key is not None:
            return key
        if self._keys_failure:
            raise Temporary(f"{label} cannot be verified: {self._keys_failure}", _KEY_FETCH_SECONDS)
        raise Refused(f"{label} is refused: {self.name} has no key {str(kid)[:40]!r}")

    async def _fetch_keys(self) -> None:
        """Fetch the keys. If that fails, the earlier ones stay."""
        self._keys_tried_at = self._clock()
        try:
            url = (await self.metadata()).jwks_uri
            status, document = await self.request("GET", url)
            if status != HTTPStatus.OK:
                raise CallFailed(f"the keys of {self.name} have the status {status}")
        except MoothallError as error:
            self._keys_failure = error.message
            self._cached_metadata = None
            log.warning("the keys of the issuer cannot be fetched", reason=error.message)
        else:
            self._keys, self._keys_failure = list(_usable_keys(document)), ""
            self._keys_fetched_at = self._clock()

    async def metadata(self) -> IssuerMetadata:
        """Return the metadata document, fetched once."""
        if self._cached_metadata is None:
            status, document = await self.request(
                "GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if status != HTTPStatus.OK:
                raise CallFailed(
                    f"the request for its metadata document failed with status {status}; is it "
                    "the issuer?"
                )
            try:
                metadata = IssuerMetadata.model_validate(document)
            except ValidationError as error:
                raise CallFailed(
                    f"its metadata document is invalid: {describe_errors(error)}"
                ) from None
            if metadata.issuer != self._issuer:
                raise CallFailed(
                    f"its issuer is {metadata.issuer[:MESSAGE_CHARS]!r}, which must be exactly "
                    "the configured issuer"
                )
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

    async def request(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and JSON document. Redirects are not followed."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        request_headers = {"Accept": "application/json", **(headers or {})}
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.request(
                    method, url, data=form, headers=request_headers, allow_redirects=False
                ) as response,
            ):
                content = await read_body(response.content.readexactly, _MAX_RESPONSE_BYTES)
                if content is None:
                    raise CallFailed(f"{url} answers with more than {_MAX_RESPONSE_BYTES} bytes")
                document = json.loads(content) if content else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Temporary(
                f"{self.name} cannot be reached: {str(error) or type(error).__name__}"[
                    :MESSAGE_CHARS
                ]
            ) from error
        except (ValueError, RecursionError) as error:
            raise CallFailed(f"{url} answers with {response.status} and without JSON") from error
        if not isinstance(document, dict):
            raise CallFailed(f"{url} does not answer with a JSON object")
        return response.status, document


class IssuedTokens:
    """The access tokens that an issuer signs for callers of gRPC and HTTP; a `TokenSource`."""

    def __init__(self, issuer: Issuer, clock: Callable[[], float] = time) -> None:
        self._issuer = issuer
        self._audience = issuer.settings.audience
        self._clock = clock

    async def find(self, token: str) -> Caller | None:
        """Return the caller of a token; None if it is not a JWT. Raises `Unauthenticated`,
        `Temporary`.
        """
        if token.count(".") != _JWT_DOTS:
            return None
        label = "the access token"
        try:
            _check_type(token, label)
            claims = await self._issuer.verify(token, self._audience, _ACCESS_TOKEN_CLAIMS, label)
            principal = self._issuer.principal(claims, label)
        except Refused as error:
            raise Unauthenticated(error.message) from error
        expiry = int(claims["exp"]) + _LEEWAY_SECONDS
        return Caller(principal, lambda: self._clock() < expiry)


def _check_type(token: str, label: str) -> None:
    """Raise `Refused` for a token of another purpose, such as a logout token."""
    kind = str(_read_header(token, label).get("typ", ""))
    if kind.lower() not in _ACCESS_TOKEN_TYPES:
        raise Refused(f"{label} is refused: it is of another type, {kind[:40]!r}")


def _read_header(token: str, label: str) -> Mapping[str, Any]:
    """Return the unverified header of a token. Raises `Refused` for another kind of signature."""
    import jwt

    try:
        header: Mapping[str, Any] = jwt.get_unverified_header(token)
    except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
        raise Refused(f"{label} is refused: {error}"[:MESSAGE_CHARS]) from error
    if header.get("alg") not in _ALGORITHMS:
        raise Refused(
            f"{label} is refused: it is signed with {str(header.get('alg'))[:20]!r}, not "
            f"{', '.join(_ALGORITHMS)}"
        )
    return header


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
    slug = "".join(
        char if char.isascii() and char.isalnum() else "-" for char in name.lower()
    ).strip("-")[:_NAME_CHARS]
    return f"{slug or 'person'}-{digest(name)[:12]}"
