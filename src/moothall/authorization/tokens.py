"""Capability tokens: JWTs that say what their holder may do in one workspace, for a short time.

A holder can hand on less than it has, without asking anybody: `narrow` makes a child that is signed
with a key made from the parent's signature, and that carries the parent without it. Whoever keeps
the root key makes the parent's signature again, and so checks the whole line; what a child may do
is what every ancestor may, however it words its claims.
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

from moothall.authorization.grants import intersection
from moothall.domain.ids import digest, key_of
from moothall.domain.tool import Grant, ToolCall
from moothall.errors import Refused
from moothall.tools.arguments import arguments_digest

TYPE, CHILD_TYPE = "moothall-capability+jwt", "moothall-delegation+jwt"
_ALGORITHM = "HS256"
_ISSUER = "moothall"
_DEEPEST = 4
_DOTS = 2
_LONGEST_TOKEN = 16_000
_LEEWAY = 5.0
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Capability:
    """What a token allows. `chain` are the ids of its ancestors and its own: revoking one of them,
    or the workspace, ends it. `request`, where there is one, is the only request that it is good
    for. `expires` in seconds since 1970; `ends` is when the first of its line does.
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
    """Return what a token can be bound to: request id, tool and arguments."""
    return digest(call.request_id, call.tool, arguments_digest(call.arguments))


class Tokens:
    """Makes and checks tokens with the root key. `longest` in seconds bounds what is accepted,
    whoever made it.
    `revoked` says whether any of some ids was revoked.
    """

    def __init__(
        self,
        key: bytes,
        longest: float,
        *,
        revoked: Callable[[Iterable[str]], bool] = lambda _: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._longest = longest
        self._revoked = revoked
        self._clock = clock
        self._known: LRUCache[tuple[str, str], Capability] = LRUCache(_KEPT)

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
        """Return a token for `seconds`, at most the longest."""
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
            "exp": int(now + min(seconds, self._longest)),
            "jti": secrets.token_hex(8),
        }
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM, headers={"typ": TYPE})

    def check(self, token: str, workspace: str) -> Capability:
        """Return what a token allows in a workspace, which may be named as its tenant knows it.
        Raises `Refused` with what is wrong with it.
        """
        found = self._known.get((token, workspace))
        if found is None:
            if len(token) > _LONGEST_TOKEN:
                raise Refused("the capability token is too long to be one")
            found = self._read(token, workspace, _DEEPEST)[0]
            self._known[token, workspace] = found
        if found.expires <= self._clock():
            raise Refused("the capability token is expired")
        if self._revoked((*found.chain, found.workspace)):
            raise Refused("the capability token was revoked")
        return found

    def _read(self, token: str, workspace: str, depth: int) -> tuple[Capability, bytes]:
        """Return the capability and the token's signature, which is what its children are signed
        with.
        """
        import jwt

        if token.count(".") != _DOTS:
            raise Refused(
                "capability_token is no capability token: it is what opening the workspace "
                "answered, three parts with dots"
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
            parent, key = self._read(
                self._whole(carried.get("parent"), depth - 1), workspace, depth - 1
            )
            # How long they live we check ourselves, by our own clock and with our bounds.
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
            return _less(parent, claims), _signature(token)
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
        life = float(claims["exp"]) - float(claims["iat"])
        if life > self._longest + 1:
            raise Refused(
                f"the capability token lives too long: {life:.0f} seconds, and {self._longest:.0f} "
                "are allowed"
            )
        if float(claims["iat"]) > self._clock() + _LEEWAY:
            raise Refused("the capability token begins in the future")
        if float(claims["exp"]) <= self._clock():
            raise Refused("the capability token is expired")

    def _whole(self, signed: object, depth: int) -> str:
        """Return a parent with its signature, made again from the root."""
        if not isinstance(signed, str) or signed.count(".") != 1 or depth < 1:
            raise Refused("the capability token does not carry its parent")
        claims = json.loads(_decode(signed.partition(".")[2]))
        above = claims.get("parent") if isinstance(claims, dict) else None
        key = self._key if above is None else _child_key(_signature(self._whole(above, depth - 1)))
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


def _less(parent: Capability, claims: Mapping[str, Any]) -> Capability:
    """Return what parent and child both allow."""
    tools = claims.get("tools", ("*",))
    protected = claims.get("protected", ())
    if not all(
        isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
        for words in (tools, protected)
    ):
        raise Refused("the capability token's tools and protected paths are lists of words")
    request = claims.get("request", parent.request)
    if parent.request and request != parent.request:
        raise Refused("the capability token is bound to another request than its parent")
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
