"""Access tokens that a provider signs for callers: a real provider, real servers, and forgeries."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
from pydantic import ValidationError

from moothall import config
from moothall.api.grpc_server import grpc_server
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.api.openid import IssuedTokens, Issuer
from moothall.domain.ids import Principal
from moothall.errors import ConfigurationError, Temporary, Unauthenticated
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.callers import Client, api_dependencies
from support.deliberation_service import MemoryDeliberations
from support.provider import (
    AUDIENCE,
    Forge,
    Provider,
    by_a_key_of_its_own,
    by_nobody,
    by_somebody,
    by_the_public_key,
    honest,
    provider,
    with_foreign_payload,
)

ROLES = {"product": ("po",), "operations": ("operator",), "guests": ("reader",)}
NOW = int(time.time())


def settings(issuer: str, **overrides: Any) -> config.OidcSettings:
    return config.OidcSettings(
        **({"issuer": issuer, "audience": AUDIENCE, "roles": ROLES} | overrides)
    )


class Clock:
    """The clock of the keys, which a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def identity_provider() -> AsyncIterator[Provider]:
    async with provider() as served:
        yield served


@pytest.fixture
def clock() -> Clock:
    return Clock()


def issued_tokens(identity_provider: Provider, clock: Clock, **overrides: Any) -> IssuedTokens:
    return IssuedTokens(Issuer(settings(identity_provider.issuer, **overrides), clock))


async def test_claims_name_the_caller_its_tenant_and_its_roles(
    identity_provider: Provider, clock: Clock
) -> None:
    identity_provider.claims = {
        "sub": "ci",
        "groups": ["product", "operations", "others"],
        "org": "team-a",
    }
    tokens = issued_tokens(identity_provider, clock, tenant_claim="org")
    caller = await tokens.find(identity_provider.access_token())
    assert caller is not None
    assert caller.principal == Principal("ci", "team-a", operator=True, roles=frozenset({"po"}))
    assert await tokens.find("a-token-of-the-settings") is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": NOW - 3600}, "Signature has expired"),
    "not yet valid": ({"nbf": NOW + 3600}, "not yet valid"),
    "without an end": ({"exp": None}, '"exp" claim'),
    "for another audience": ({"aud": "moothall"}, "Audience doesn't match"),
    "without an audience": ({"aud": None}, '"aud" claim'),
    "of another issuer": ({"iss": "http://127.0.0.1:1"}, "Invalid issuer"),
    "of another type": ({"typ": "logout+jwt"}, "of another type, 'logout+jwt'"),
    "of nobody": ({"sub": None}, "has no sub"),
    "without a role": ({"groups": ["others"]}, "nothing in groups grants access here"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_token_not_issued_for_this_server_is_refused_with_the_reason(
    identity_provider: Provider, clock: Clock, case: str
) -> None:
    claims, reason = REFUSED[case]
    tokens = issued_tokens(identity_provider, clock)
    token = identity_provider.access_token(**claims)
    with pytest.raises(Unauthenticated) as refused:
        await tokens.find(token)
    assert reason in refused.value.message
    assert all(part not in refused.value.message for part in token.split("."))
    assert await tokens.find(identity_provider.access_token()) is not None


FORGED: dict[str, Forge] = {
    "without a signature": by_nobody,
    "signed with the public key": by_the_public_key,
    "signed by somebody else": by_somebody,
    "with a key of its own": by_a_key_of_its_own,
    "changed after it was signed": with_foreign_payload,
    "no token": lambda *_: "a.b.c",
    "deep": lambda *_: "e" * 90_000 + ".a.b",
}


@pytest.mark.parametrize("forgery", FORGED)
async def test_a_forged_token_is_refused(
    identity_provider: Provider, clock: Clock, forgery: str
) -> None:
    identity_provider.forge = FORGED[forgery]
    tokens = issued_tokens(identity_provider, clock)
    with pytest.raises(Unauthenticated, match="the access token is refused"):
        await tokens.find(identity_provider.access_token())
    identity_provider.forge = honest
    assert await tokens.find(identity_provider.access_token()) is not None


async def test_a_new_key_is_fetched_without_a_restart_but_not_for_every_token(
    identity_provider: Provider, clock: Clock
) -> None:
    identity_provider.published = ("one",)
    tokens = issued_tokens(identity_provider, clock)
    old = identity_provider.access_token()
    assert await tokens.find(old) is not None
    identity_provider.published, identity_provider.kid = ("two",), "two"
    for _ in range(20):
        with pytest.raises(Unauthenticated, match="has no key 'two'"):
            await tokens.find(identity_provider.access_token())
    assert identity_provider.keys_fetched == 1
    clock.now = 31
    assert await tokens.find(identity_provider.access_token()) is not None
    with pytest.raises(Unauthenticated, match="has no key 'one'"):
        await tokens.find(old)
    assert identity_provider.keys_fetched == 2


async def test_a_withdrawn_key_is_dropped_after_fifteen_minutes(
    identity_provider: Provider, clock: Clock
) -> None:
    tokens = issued_tokens(identity_provider, clock)
    identity_provider.published = ("one",)
    assert await tokens.find(identity_provider.access_token()) is not None
    identity_provider.published = ("two",)
    clock.now = 899
    assert await tokens.find(identity_provider.access_token()) is not None
    clock.now = 900
    with pytest.raises(Unauthenticated, match="has no key 'one'"):
        await tokens.find(identity_provider.access_token())


async def test_known_keys_survive_a_failed_fetch_and_unknown_ones_are_retried(
    identity_provider: Provider, clock: Clock
) -> None:
    identity_provider.published = ("one",)
    tokens = issued_tokens(identity_provider, clock)
    assert await tokens.find(identity_provider.access_token()) is not None
    identity_provider.keys_status, clock.now = 500, 1000.0
    assert await tokens.find(identity_provider.access_token()) is not None
    identity_provider.kid = "two"
    with pytest.raises(Temporary, match="the access token cannot be verified: the keys of 127"):
        await tokens.find(identity_provider.access_token())
    identity_provider.keys_status, identity_provider.published, clock.now = (
        200,
        ("one", "two"),
        1031.0,
    )
    assert await tokens.find(identity_provider.access_token()) is not None


async def test_a_session_ends_when_its_token_expires(
    identity_provider: Provider, clock: Clock
) -> None:
    wall_time = [float(NOW)]
    tokens = IssuedTokens(Issuer(settings(identity_provider.issuer), clock), lambda: wall_time[0])
    caller = await tokens.find(identity_provider.access_token(exp=NOW + 3600))
    assert caller is not None
    assert caller.is_valid()
    wall_time[0] += 3661  # a minute of tolerance, as in the check of the token
    assert not caller.is_valid()


async def test_an_issuer_needs_no_sign_in_endpoints(
    identity_provider: Provider, clock: Clock
) -> None:
    identity_provider.about = {
        "authorization_endpoint": "",
        "token_endpoint": "",
        "end_session_endpoint": "",
    }
    assert (
        await issued_tokens(identity_provider, clock).find(identity_provider.access_token())
        is not None
    )


async def test_an_unreachable_issuer_is_a_temporary_error() -> None:
    tokens = IssuedTokens(Issuer(settings("http://127.0.0.1:1")))
    token = Provider(issuer="http://127.0.0.1:1", claims={"sub": "ci"}).access_token()
    with pytest.raises(Temporary, match="cannot be reached"):
        await tokens.find(token)


async def test_a_different_issuer_at_the_address_is_an_error(identity_provider: Provider) -> None:
    identity_provider.about = {"issuer": "https://id.example.org"}
    with pytest.raises(ConfigurationError, match="must be exactly the configured issuer"):
        await Issuer(settings(identity_provider.issuer)).check()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"audience": "x"}, r"oidc\.issuer is missing"),
        ({"issuer": "https://id.example.org", "roles": ROLES}, r"or set oidc\.audience"),
        ({"issuer": "https://id.example.org", "audience": "x"}, r"oidc\.roles is empty"),
    ],
)
def test_incomplete_settings_are_errors(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config.OidcSettings(**values)


@asynccontextmanager
async def servers(identity_provider: Provider) -> AsyncIterator[tuple[grpc.aio.Channel, str]]:
    bearers = BearerTokens({}, [IssuedTokens(Issuer(settings(identity_provider.issuer)))])
    dependencies = api_dependencies(MemoryDeliberations())
    async with (
        grpc_server(
            config.GrpcSettings(port=0, grace_seconds=0.2),
            dependencies,
            bearers,
        ) as server,
        http_server(config.WebSettings(port=0), dependencies, bearers, configured=True) as web,
        grpc.aio.insecure_channel(server.target) as channel,
    ):
        yield channel, f"http://127.0.0.1:{web.port}"


async def test_grpc_and_http_accept_a_valid_token_and_give_the_reason_for_a_refusal(
    identity_provider: Provider,
) -> None:
    async with servers(identity_provider) as (channel, url), aiohttp.ClientSession() as http:
        await Client(channel, identity_provider.access_token()).GetStatus(pb.GetStatusRequest())
        late = identity_provider.access_token(exp=NOW - 3600)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Client(channel, late).GetStatus(pb.GetStatusRequest())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert refused.value.details() == "the access token is refused: Signature has expired"
        for token, status in ((identity_provider.access_token(), 200), (late, 401)):
            headers = {"Authorization": f"Bearer {token}"}
            async with http.get(f"{url}/api/v1/stories", headers=headers) as answer:
                assert answer.status == status
                text = await answer.text()
        assert f'"detail": "{refused.value.details()}"' in text
