"""Capability tokens: JWTs that state what their holder may do in one workspace, for a short time.

A holder can delegate less than it has, without a request to the server: `narrow` creates a child
token that carries the parent without its signature and is signed with a key derived from that
signature. The owner of the root key can recompute the parent's signature and so verify the whole
chain. A child is limited by each of its ancestors, whatever it claims.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cachetools import LRUCache

from moothall.domain.ids import digest, key_of
from moothall.domain.tool import Grant, ToolCall
from moothall.errors import Refused
from moothall.tools.catalogue import intersection
from moothall.tools.schemas import arguments_digest

TYPE, CHILD_TYPE = "moothall-capability+jwt", "moothall-delegation+jwt"
_ALGORITHM = "HS256"
_ISSUER = "moothall"
_MAX_CHAIN = 4
_JWT_DOTS = 2
_MAX_TOKEN_CHARS = 16_000
_LEEWAY_SECONDS = 5.0
_MAX_CACHED = 4096


@dataclass(frozen=True, slots=True)
class Capability:
    """The permissions of a token. `chain` holds the ids of its ancestors and its own; revoking one
    of them, or the workspace, ends it. `request` limits it to one request if it is not empty.
    `expires` is in seconds since 1970; `ends` is the expiry of the root token.
    """

    principal: str
    tenant: str
    workspace: str
    role: str
    persona: str
    grant: Grant
    expires: float
    chain: tuple[str, ...]
    request: str = ""
    ends: float = 0.0


def request_digest(call: ToolCall) -> str:
    """Return the digest that binds a token to a request: of request id, tool and arguments."""
    return digest(call.request_id, call.tool, arguments_digest(call.arguments))


class Tokens:
    """Creates and checks tokens with the root key. `max_seconds` limits the lifetime of accepted
    tokens. `revoked` returns whether any of some ids was revoked.
    """

    def __init__(
        self,
        key: bytes,
        max_seconds: float,
        *,
        revoked: Callable[[Iterable[str]], bool] = lambda _: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._max_seconds = max_seconds
        self._revoked = revoked
        self._clock = clock
        self._checked: LRUCache[tuple[str, str], Capability] = LRUCache(_MAX_CACHED)

    def mint(
        self,
        *,
        principal: str,
        tenant: str,
        workspace: str,
        role: str,
        grant: Grant,
        seconds: float,
        persona: str = "",
    ) -> str:
        """Return a token that is valid for `seconds`, up to the maximum."""
        import jwt

        now = self._clock()
        claims = {
            "iss": _ISSUER,
            "aud": workspace,
            "sub": principal,
            "tenant": tenant,
            "role": role,
            "persona": persona,
            "tools": list(grant.tools),
            "protected": list(grant.protected),
            "judged": list(grant.judged),
            "iat": int(now),
            "exp": int(now + min(seconds, self._max_seconds)),
            "jti": secrets.token_hex(8),
        }
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM, headers={"typ": TYPE})

    def check(self, token: str, workspace: str) -> Capability:
        """Return what a token allows in a workspace, which may be named by its id within the
        tenant. Raises `Refused` with what is wrong with the token.
        """
        capability = self._checked.get((token, workspace))
        if capability is None:
            if len(token) > _MAX_TOKEN_CHARS:
                raise Refused("the capability token is too long")
            capability = self._read_token(token, workspace, _MAX_CHAIN)[0]
            self._checked[token, workspace] = capability
        if capability.expires <= self._clock():
            raise Refused("the capability token is expired")
        if self._revoked((*capability.chain, capability.workspace)):
            raise Refused("the capability token was revoked")
        return capability

    def _read_token(self, token: str, workspace: str, depth: int) -> tuple[Capability, bytes]:
        """Return the capability and the token's signature, from which the key of its children is
        derived.
        """
        import jwt

        if token.count(".") != _JWT_DOTS:
            raise Refused(
                "capability_token is not a capability token: pass the one that was returned when "
                "the workspace was opened, three parts with dots"
            )
        try:
            header = jwt.get_unverified_header(token)
            if header.get("typ") == TYPE:
                return self._read_root(token, workspace), _signature(token)
            if header.get("typ") != CHILD_TYPE or depth <= 1:
                raise Refused(
                    f"the capability token has the wrong type: {str(header.get('typ'))[:40]!r}, "
                    f"not {TYPE!r}"
                )
            carried = jwt.decode(
                token, options={"verify_signature": False, "verify_exp": False, "verify_aud": False}
            )
            parent, key = self._read_token(
                self._sign_parent(carried.get("parent"), depth - 1), workspace, depth - 1
            )
            # Lifetimes are checked below, with the injected clock and own limits.
            claims = jwt.decode(
                token,
                _child_key(key),
                algorithms=[_ALGORITHM],
                options={
                    "require": ["iat", "exp", "jti", "parent"],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
            self._check_bounds(claims)
            return _intersect_claims(parent, claims), _signature(token)
        except (
            jwt.InvalidTokenError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise Refused(f"the capability token is refused: {str(error)[:200]}") from error

    def _read_root(self, token: str, workspace: str) -> Capability:
        import jwt

        claims = jwt.decode(
            token,
            self._key,
            algorithms=[_ALGORITHM],
            issuer=_ISSUER,
            options={
                "require": ["iss", "aud", "sub", "iat", "exp", "jti", "tenant", "role", "tools"],
                "verify_exp": False,
                "verify_iat": False,
                "verify_aud": False,
            },
        )
        if claims["aud"] not in (workspace, key_of(workspace, claims["tenant"])):
            raise jwt.InvalidAudienceError("Audience doesn't match")
        self._check_bounds(claims)
        return Capability(
            principal=claims["sub"],
            tenant=claims["tenant"],
            workspace=claims["aud"],
            role=claims["role"],
            persona=claims.get("persona", ""),
            grant=Grant(
                tuple(claims["tools"]),
                tuple(claims.get("protected", ())),
                tuple(claims.get("judged", ())),
            ),
            expires=float(claims["exp"]),
            chain=(claims["jti"],),
            ends=float(claims["exp"]),
        )

    def _check_bounds(self, claims: Mapping[str, Any]) -> None:
        lifetime = float(claims["exp"]) - float(claims["iat"])
        if lifetime > self._max_seconds + 1:
            raise Refused(
                f"the capability token has a lifetime of {lifetime:.0f} seconds; at most "
                f"{self._max_seconds:.0f} are allowed"
            )
        if float(claims["iat"]) > self._clock() + _LEEWAY_SECONDS:
            raise Refused("the capability token is not valid yet")
        if float(claims["exp"]) <= self._clock():
            raise Refused("the capability token is expired")

    def _sign_parent(self, signed: object, depth: int) -> str:
        """Return the parent with its signature, recomputed from the root key."""
        if not isinstance(signed, str) or signed.count(".") != 1 or depth < 1:
            raise Refused("the capability token does not carry its parent")
        claims = json.loads(_decode(signed.partition(".")[2]))
        grandparent = claims.get("parent") if isinstance(claims, dict) else None
        key = (
            self._key
            if grandparent is None
            else _child_key(_signature(self._sign_parent(grandparent, depth - 1)))
        )
        return f"{signed}.{_padless(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def narrow(
    token: str,
    *,
    seconds: float,
    tools: Iterable[str] | None = None,
    protected: Iterable[str] = (),
    request: str = "",
    clock: Callable[[], float] = time.time,
) -> str:
    """Return a token that allows less: only these tools, fewer paths, a shorter time, one request.
    Needs no key.
    """
    import jwt

    now = clock()
    signed, _, _ = token.rpartition(".")
    claims: dict[str, Any] = {
        "iat": int(now),
        "exp": int(now + seconds),
        "jti": secrets.token_hex(8),
        "parent": signed,
        "protected": list(protected),
    }
    if tools is not None:
        claims["tools"] = list(tools)
    if request:
        claims["request"] = request
    return jwt.encode(
        claims, _child_key(_signature(token)), algorithm=_ALGORITHM, headers={"typ": CHILD_TYPE}
    )


def _intersect_claims(parent: Capability, claims: Mapping[str, Any]) -> Capability:
    """Return what both parent and child allow."""
    tools = claims.get("tools", ("*",))
    protected = claims.get("protected", ())
    if not all(
        isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
        for values in (tools, protected)
    ):
        raise Refused("the capability token's tools and protected paths must be lists of strings")
    request = claims.get("request", parent.request)
    if parent.request and request != parent.request:
        raise Refused("the capability token is bound to a different request than its parent")
    return replace(
        parent,
        grant=intersection(parent.grant, Grant(tuple(tools), tuple(protected))),
        expires=min(parent.expires, float(claims["exp"])),
        chain=(*parent.chain, str(claims["jti"])),
        request=str(request),
    )


def _child_key(signature: bytes) -> bytes:
    return hmac.new(signature, b"moothall delegation", hashlib.sha256).digest()


def _signature(token: str) -> bytes:
    return _decode(token.rpartition(".")[2])


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _padless(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
