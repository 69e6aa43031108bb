"""A small OpenID provider on loopback: it signs everybody in, and its tokens can be altered to test
their verification.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from moothall.api.http.asgi import ListenAddress, ServerLimits, serve_asgi

CLIENT, SECRET = "moothall", "the secret of this client"
AUDIENCE = "https://moothall.example.org/api"
Forge = Callable[[dict[str, Any], dict[str, Any], Any], str]
"""A function that signs the ID token from claims, header and the provider's key."""


@cache
def keys(owner: str) -> Mapping[str, Any]:
    """Return a person's keys, created once."""
    del owner
    return {
        "one": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "two": ec.generate_private_key(ec.SECP256R1()),
    }


def honest(claims: dict[str, Any], header: dict[str, Any], key: Any) -> str:
    """Sign without alteration."""
    return jwt.encode(claims, key, algorithm=header["alg"], headers=header)


def with_claims(**claims: Any) -> Forge:
    """Sign with these claims changed; None removes a claim."""
    return lambda token_claims, header, key: honest(
        {name: value for name, value in (token_claims | claims).items() if value is not None},
        header,
        key,
    )


def by_nobody(token_claims: dict[str, Any], header: dict[str, Any], _key: Any) -> str:
    return jwt.encode(token_claims, "", algorithm="none", headers=header | {"alg": "none"})


def by_the_public_key(token_claims: dict[str, Any], header: dict[str, Any], key: Any) -> str:
    """Sign with the provider's public key, which everybody has, as the secret of an HMAC."""
    shape = serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key().public_bytes(serialization.Encoding.DER, shape)
    signed = b".".join(
        urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (header | {"alg": "HS256"}, token_claims)
    )
    return b".".join(
        (signed, urlsafe_b64encode(hmac.digest(public, signed, "sha256")).rstrip(b"="))
    ).decode()


def by_somebody(token_claims: dict[str, Any], header: dict[str, Any], _key: Any) -> str:
    return honest(token_claims, header, keys("somebody")["one"])


def by_a_key_of_its_own(token_claims: dict[str, Any], header: dict[str, Any], _key: Any) -> str:
    """Sign with a key that the token itself contains."""
    own_key = keys("somebody")["one"]
    brought = jwt.algorithms.RSAAlgorithm.to_jwk(own_key.public_key(), as_dict=True)
    return honest(
        token_claims,
        header | {"kid": "own", "jwk": brought, "jku": "http://127.0.0.1:1/keys"},
        own_key,
    )


def with_foreign_payload(token_claims: dict[str, Any], header: dict[str, Any], key: Any) -> str:
    """Combine the header and signature of a token with the claims of another."""
    first, other_parts = (
        honest(token_claims, header, key).split("."),
        honest(token_claims | {"groups": ["operations"]}, header, key).split("."),
    )
    return ".".join((first[0], other_parts[1], first[2]))


@dataclass(slots=True)
class Provider:
    """An OpenID provider. `codes` are those not yet redeemed."""

    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "ann", "groups": ["product"]})
    about: dict[str, Any] = field(default_factory=dict)
    forge: Forge = honest
    kid: str = "one"
    issuer: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    requested: list[dict[str, str]] = field(default_factory=list)
    keys: Mapping[str, Any] = field(default_factory=lambda: keys("the provider"))
    published: tuple[str, ...] = ("one", "two")
    keys_fetched: int = 0
    keys_status: int = 200

    async def describe(self, _request: Request) -> Response:
        metadata = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "end_session_endpoint": f"{self.issuer}/leave",
            "code_challenge_methods_supported": ["S256"],
        }
        return JSONResponse(metadata | self.about)

    async def authorize(self, request: Request) -> Response:
        """Sign the browser's user in without a prompt."""
        parameters = dict(request.query_params)
        self.requested.append(parameters)
        code = secrets.token_urlsafe(16)
        self.codes[code] = parameters
        query = urlencode({"code": code, "state": parameters["state"]})
        return RedirectResponse(f"{parameters['redirect_uri']}?{query}", 302)

    async def token(self, request: Request) -> Response:
        """Redeem a code once, for the client that requested it, with the verifier of its
        challenge.
        """
        form = {
            name: values[-1] for name, values in parse_qs((await request.body()).decode()).items()
        }
        basic = base64.b64decode(
            request.headers.get("authorization", "").removeprefix("Basic ")
        ).decode()
        if tuple(unquote_plus(part) for part in basic.split(":")) != (CLIENT, SECRET):
            return JSONResponse({"error": "invalid_client"}, 401)
        authorization = self.codes.pop(form["code"], None)
        challenge = (
            base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
            .rstrip(b"=")
            .decode()
        )
        if authorization is None or (
            authorization["code_challenge"],
            authorization["redirect_uri"],
        ) != (
            challenge,
            form["redirect_uri"],
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 60,
            "nonce": authorization["nonce"],
            **self.claims,
        }
        key = self.keys[self.kid]
        header = {
            "alg": "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256",
            "kid": self.kid,
        }
        return JSONResponse(
            {
                "access_token": "none",
                "token_type": "Bearer",
                "id_token": self.forge(claims, header, key),
            }
        )

    async def show_keys(self, _request: Request) -> Response:
        self.keys_fetched += 1
        published = []
        for kid in self.published:
            public = self.keys[kid].public_key()
            algorithm = RSAAlgorithm if isinstance(public, rsa.RSAPublicKey) else ECAlgorithm
            published.append(algorithm.to_jwk(public, as_dict=True) | {"kid": kid, "use": "sig"})
        return JSONResponse({"keys": published}, self.keys_status)

    def access_token(self, **overrides: Any) -> str:
        """Sign an access token with these claims; None removes one. `typ` goes into the header."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "iat": now, "exp": now + 300, **self.claims}
        typ = overrides.pop("typ", "at+jwt")
        key = self.keys[self.kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        signed = {name: value for name, value in (claims | overrides).items() if value is not None}
        return self.forge(signed, {"alg": algorithm, "kid": self.kid, "typ": typ}, key)

    async def leave(self, _request: Request) -> Response:
        return Response("You are signed out.", media_type="text/html")


@asynccontextmanager
async def provider(**options: Any) -> AsyncIterator[Provider]:
    """Serve a provider until the context ends."""
    served = Provider(**options)
    routes = [
        Route("/.well-known/openid-configuration", served.describe),
        Route("/authorize", served.authorize),
        Route("/token", served.token, methods=["POST"]),
        Route("/keys", served.show_keys),
        Route("/leave", served.leave),
        Route("/favicon.ico", served.leave),
    ]
    async with serve_asgi(
        Starlette(routes=routes),
        ListenAddress("a provider", "test", "127.0.0.1", 0, 0),
        ServerLimits(grace_seconds=0.2),
    ) as port:
        served.issuer = f"http://127.0.0.1:{port}"
        yield served
