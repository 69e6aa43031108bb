"""An OpenID provider: what it says of itself, its keys, and whom an ID token of it names.

The code flow with PKCE (RFC 6749, RFC 7636, OpenID Connect Core 3.1). Nothing of a token is
believed before its signature, issuer, audience, times and nonce are.
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

if TYPE_CHECKING:  # imported by who signs in this way
    import jwt

_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Of signatures. None that a client could make itself: no `none`, no HMAC."""
_KINDS = frozenset({"RSA", "EC", "OKP"})
_CLAIMS = ("exp", "iat", "iss", "aud", "sub", "nonce")
_LEEWAY_SECONDS, _KEYS_SECONDS = 60, 30.0
_BYTES, _SAID = 1_000_000, 200
_NAME = 48


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Flow:
    """A sign-in under way: where the provider sends the browser back to, where that goes on then,
    and what only this one can answer.
    """

    back: str
    onward: str
    state: str = field(default_factory=_secret, repr=False)
    nonce: str = field(default_factory=_secret, repr=False)
    verifier: str = field(default_factory=_secret, repr=False)


class _About(BaseModel):
    """What a provider says of itself."""

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
    """The one of the settings. Its methods raise `Temporary` where it cannot be reached,
    `CallFailed` where it answers with nonsense.
    """

    def __init__(
        self, settings: config.OidcSettings, clock: Callable[[], float] = monotonic
    ) -> None:
        self.settings = settings
        self._issuer = settings.issuer or ""
        self._clock = clock
        self._known: _About | None = None
        self._keys: list[jwt.PyJWK] = []
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        check_address("oidc.issuer", self._issuer)

    @property
    def name(self) -> str:
        """What people know it by: its host."""
        return urlsplit(self._issuer).hostname or self._issuer

    async def check(self) -> None:
        """Raise `ConfigurationError` where it can be reached and is not what the settings say."""
        try:
            await self._about()
        except CallFailed as error:
            raise ConfigurationError(f"oidc.issuer {self._issuer}: {error.message}") from error

    async def address(self, flow: Flow) -> str:
        """Return where a browser signs in."""
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": flow.back,
            "scope": " ".join(("openid", *self.settings.scopes)),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": urlsafe_b64encode(sha256(flow.verifier.encode()).digest())
            .rstrip(b"=")
            .decode(),
            "code_challenge_method": "S256",
        }
        return _with((await self._about()).authorization_endpoint, asked)

    async def leave(self, back: str) -> str:
        """Return where a browser signs out there too; empty where it says of no such place."""
        where = (await self._about()).end_session_endpoint
        return (
            _with(where, {"client_id": self.settings.client_id, "post_logout_redirect_uri": back})
            if where
            else ""
        )

    async def redeem(self, flow: Flow, given: Mapping[str, str]) -> Principal:
        """Return who came back with these parameters. Raises `Refused`."""
        about = await self._about()
        if not hmac.compare_digest(
            flow.state.encode(), given.get("state", "").encode("utf-8", "surrogateescape")
        ):
            raise Refused("this answer is to another sign-in than yours; begin again")
        issuer = given.get(
            "iss", about.issuer if not about.authorization_response_iss_parameter_supported else ""
        )
        if issuer != about.issuer:
            raise Refused(f"this answer is of another provider than {self.name}")
        if error := given.get("error", ""):
            raise Refused(f"{self.name} says no: {given.get('error_description') or error}"[:_SAID])
        if not (code := given.get("code", "")):
            raise Refused(f"{self.name} sent you back without a code")
        token = await self._exchange(about, code, flow)
        return self._principal(self._verify(token, await self._key(token), flow.nonce))

    async def _exchange(self, about: _About, code: str, flow: Flow) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.back,
            "code_verifier": flow.verifier,
        }
        headers = {}
        own, secret = self.settings.client_id, self.settings.client_secret
        if (
            secret is not None
            and "client_secret_basic" in about.token_endpoint_auth_methods_supported
        ):
            pair = f"{quote_plus(own)}:{quote_plus(secret.get_secret_value())}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": own} | (
                {"client_secret": secret.get_secret_value()} if secret else {}
            )
        status, told = await self._ask("POST", about.token_endpoint, form, headers)
        if status != HTTPStatus.OK:
            raise Refused(
                f"{self.name} does not take the code: {told.get('error', status)}"[:_SAID]
            )
        if not isinstance(token := told.get("id_token"), str):
            raise CallFailed(f"{self.name} gave no ID token")
        return token

    async def _key(self, token: str) -> jwt.PyJWK:
        """Return the key that a token says it is signed with. A new one is looked for, but not with
        every token that names one.
        """
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError as error:
            raise Refused(f"the ID token is refused: {error}"[:_SAID]) from error
        if header.get("alg") not in _ALGORITHMS:
            raise Refused(
                f"the ID token is refused: it is signed with {str(header.get('alg'))[:20]!r}, not "
                f"{', '.join(_ALGORITHMS)}"
            )
        async with self._looking:
            if (
                key := _choose_key(self._keys, header.get("kid"))
            ) is None and self._clock() - self._looked >= _KEYS_SECONDS:
                self._looked = self._clock()
                status, told = await self._ask("GET", (await self._about()).jwks_uri)
                self._keys = list(_usable(told)) if status == HTTPStatus.OK else []
                key = _choose_key(self._keys, header.get("kid"))
        if key is None:
            raise Refused(
                f"the ID token is refused: {self.name} has no key {str(header.get('kid'))[:40]!r}"
            )
        return key

    def _verify(self, token: str, key: jwt.PyJWK, nonce: str) -> Mapping[str, Any]:
        import jwt

        own = self.settings.client_id
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=own,
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
            raise Refused(f"the ID token is refused: {error}"[:_SAID]) from error
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", "" if several else own) != own:
            raise Refused("the ID token is refused: it was made for another client")
        if not hmac.compare_digest(
            str(claims["nonce"]).encode("utf-8", "surrogateescape"), nonce.encode()
        ):
            raise Refused("the ID token is refused: it belongs to another sign-in")
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        said = self.settings
        belongs = _claim(claims, said.roles_claim)
        groups = (
            [belongs] if isinstance(belongs, str) else belongs if isinstance(belongs, list) else []
        )
        roles = {
            role for group in groups if isinstance(group, str) for role in said.roles.get(group, ())
        }
        if not roles:
            raise Refused(
                f"you are signed in at {self.name}, but nothing in {said.roles_claim} lets you in "
                "here (oidc.roles)"
            )
        name, tenant = (
            _claim(claims, said.name_claim),
            _claim(claims, said.tenant_claim) if said.tenant_claim else said.tenant,
        )
        if not isinstance(name, str) or not name:
            raise Refused(f"the ID token has no {said.name_claim} (oidc.name_claim, oidc.scopes)")
        if said.name_claim == "email" and claims.get("email_verified") is not True:
            raise Refused(f"{self.name} has not verified your address")
        if not isinstance(tenant, str) or not is_id(tenant):
            raise Refused(
                f"the ID token names no tenant in {said.tenant_claim} (oidc.tenant_claim)"
            )
        return Principal(
            _id_of(name), tenant, "operator" in roles, frozenset(roles - {"operator", "reader"})
        )

    async def _about(self) -> _About:
        if self._known is None:
            status, told = await self._ask(
                "GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if status != HTTPStatus.OK:
                raise CallFailed(
                    f"it answers with {status} where a provider says what it is; is it the issuer?"
                )
            try:
                about = _About.model_validate(told)
            except ValidationError as error:
                raise CallFailed(f"what it says of itself is wrong: {wrong(error)}") from None
            if about.issuer != self._issuer:
                raise CallFailed(
                    f"it calls itself {about.issuer[:_SAID]!r}: that has to be the issuer, to the "
                    "letter"
                )
            if "S256" not in about.code_challenge_methods_supported:
                raise CallFailed("it does without PKCE by S256, which is needed")
            for name in (
                "authorization_endpoint",
                "token_endpoint",
                "jwks_uri",
                "end_session_endpoint",
            ):
                if getattr(about, name):
                    check_address(name, getattr(about, name))
            self._known = about
        return self._known

    async def _ask(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """Return status and document. A redirect is no answer."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self.settings.seconds)
        more = {"Accept": "application/json", **(headers or {})}
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.request(
                    method, url, data=form, headers=more, allow_redirects=False
                ) as answer,
            ):
                raw = await whole_body(answer.content.readexactly, _BYTES)
                if raw is None:
                    raise CallFailed(f"{url} answers with more than {_BYTES} bytes")
                told = json.loads(raw) if raw else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Temporary(
                f"{self.name} cannot be reached: {str(error) or type(error).__name__}"[:_SAID]
            ) from error
        except (ValueError, RecursionError) as error:
            raise CallFailed(f"{url} answers with {answer.status} and no JSON") from error
        if not isinstance(told, dict):
            raise CallFailed(f"{url} answers with no JSON object")
        return answer.status, told


def _usable(told: Mapping[str, Any]) -> Iterator[jwt.PyJWK]:
    """Yield a provider's keys for signatures; one of a kind that is not known is passed over."""
    import jwt

    keys = told.get("keys")
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, dict) and key.get("kty") in _KINDS and key.get("use", "sig") == "sig":
            try:
                yield jwt.PyJWK.from_dict(key)
            except (jwt.PyJWKError, jwt.InvalidKeyError, ValueError, TypeError):
                continue


def _choose_key(keys: list[jwt.PyJWK], kid: object) -> jwt.PyJWK | None:
    if kid is None:
        return keys[0] if len(keys) == 1 else None
    return next((key for key in keys if key.key_id == kid), None)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, which may be an address with dots, or by a path of names."""
    if name in claims:
        return claims[name]
    first, _, rest = name.partition(".")
    inner = claims.get(first)
    return _claim(inner, rest) if rest and isinstance(inner, dict) else None


def _id_of(name: str) -> str:
    """Return the id of somebody whom the provider calls so: the name itself, or what is left of it
    and a digest, which no other name has.
    """
    if is_id(name) and name != LOCAL.name:
        return name
    plain = "".join(
        char if char.isascii() and char.isalnum() else "-" for char in name.lower()
    ).strip("-")[:_NAME]
    return f"{plain or 'person'}-{digest(name)[:12]}"


def _with(url: str, asked: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(asked)}"
