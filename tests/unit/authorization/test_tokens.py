from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.authorization.tokens import (
    CHILD_TYPE,
    TYPE,
    Capability,
    Tokens,
    narrow,
    request_digest,
)
from moothall.domain.tool import Grant
from moothall.errors import Refused
from support.tool_gateway import tool_call
from support.tools import CATALOGUE

KEY = b"k" * 32
NAMES = tuple(CATALOGUE)


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def mint_token(tokens: Tokens, tools: tuple[str, ...] = NAMES, seconds: float = 60) -> str:
    return tokens.mint(
        principal="ann",
        tenant="local",
        workspace="ws-1",
        role="dev",
        grant=Grant(tools, ("docs/",)),
        seconds=seconds,
    )


def claims_of(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def test_a_token_carries_principal_tenant_role_workspace_and_grant() -> None:
    capability = Tokens(KEY, 100).check(mint_token(Tokens(KEY, 100)), "ws-1")
    assert (capability.principal, capability.tenant, capability.role, capability.workspace) == (
        "ann",
        "local",
        "dev",
        "ws-1",
    )
    assert capability.grant == Grant(NAMES, ("docs/",))
    assert capability.request == ""


def sign_claims(
    claims: dict[str, Any], *, key: Any = KEY, algorithm: str = "HS256", typ: str = TYPE
) -> str:
    return jwt.encode(claims, key, algorithm=algorithm, headers={"typ": typ})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aud": "ws-2"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"iss": "eve"}, "issuer"),
        ({"exp": -1}, "expired"),
        ({"exp": 10_000}, "has a lifetime of"),
        ({"iat": 600}, "is not valid yet"),
        ({"jti": None}, "jti"),
        ({"tools": None}, "tools"),
        ({"exp": None}, "exp"),
    ],
)
def test_invalid_claims_are_refused(change: dict[str, Any], message: str) -> None:
    tokens = Tokens(KEY, 100)
    claims = claims_of(mint_token(tokens))
    now = int(time.time())
    for name, value in change.items():
        claims[name] = now + value if isinstance(value, int) else value
    if "iat" in change:
        claims["exp"] = claims["iat"] + 50
    with pytest.raises(Refused, match=message):
        tokens.check(
            sign_claims({name: value for name, value in claims.items() if value is not None}),
            "ws-1",
        )


def test_a_wrong_algorithm_type_or_key_is_refused() -> None:
    tokens = Tokens(KEY, 100)
    claims = claims_of(mint_token(tokens))
    none = jwt.encode(claims, "", algorithm="none", headers={"typ": TYPE})
    with pytest.raises(Refused, match="alg value"):
        tokens.check(none, "ws-1")
    with pytest.raises(Refused, match="alg value"):
        tokens.check(sign_claims(claims, algorithm="HS512", key=b"k" * 64), "ws-1")
    with pytest.raises(Refused, match="Signature"):
        tokens.check(sign_claims(claims, key=b"e" * 32), "ws-1")
    with pytest.raises(Refused, match="wrong type: 'JWT'"):
        tokens.check(sign_claims(claims, typ="JWT"), "ws-1")
    for broken in ("", "a.b.c", "....", "é", mint_token(tokens)[:-3], "x" * 20_000):
        with pytest.raises(Refused):
            tokens.check(broken, "ws-1")


def test_an_expired_or_revoked_token_is_refused() -> None:
    clock, revoked = Clock(), set[str]()
    tokens = Tokens(KEY, 100, revoked=lambda ids: not revoked.isdisjoint(ids), clock=clock)
    token, second_token = mint_token(tokens, seconds=60), mint_token(tokens, seconds=60)
    child = narrow(token, seconds=60, clock=clock)
    assert tokens.check(child, "ws-1").chain[0] == tokens.check(token, "ws-1").chain[0]
    revoked.add(tokens.check(token, "ws-1").chain[0])
    for expired in (token, child):
        with pytest.raises(Refused, match="revoked"):
            tokens.check(expired, "ws-1")
    tokens.check(second_token, "ws-1")
    clock.now += 61
    with pytest.raises(Refused, match="expired"):
        tokens.check(second_token, "ws-1")
    revoked.clear()
    clock.now -= 61
    revoked.add("ws-1")
    with pytest.raises(Refused, match="revoked"):
        tokens.check(second_token, "ws-1")


def test_a_bound_token_stays_bound() -> None:
    tokens = Tokens(KEY, 100)
    bound = narrow(mint_token(tokens), seconds=30, request=request_digest(tool_call(path="a")))
    assert tokens.check(bound, "ws-1").request == request_digest(tool_call(path="a"))
    assert tokens.check(narrow(bound, seconds=30), "ws-1").request == request_digest(
        tool_call(path="a")
    )
    with pytest.raises(Refused, match="different request"):
        tokens.check(narrow(bound, seconds=30, request=request_digest(tool_call(path="b"))), "ws-1")
    assert request_digest(tool_call(path="a", number=2)) != request_digest(tool_call(path="a"))


def test_a_child_token_does_not_reveal_its_parent() -> None:
    tokens = Tokens(KEY, 100)
    parent = mint_token(tokens)
    child = narrow(parent, seconds=30, tools=["files.read"])
    assert parent.rpartition(".")[2] not in child
    carried = claims_of(child)["parent"]
    widened = f"{carried}.{child.rpartition('.')[2]}"
    with pytest.raises(Refused, match="Signature"):
        tokens.check(widened, "ws-1")


def test_a_child_of_a_forged_parent_is_refused() -> None:
    tokens = Tokens(KEY, 100)
    forged = mint_token(Tokens(b"e" * 32, 100))
    with pytest.raises(Refused, match="Signature"):
        tokens.check(narrow(forged, seconds=30), "ws-1")


def test_token_chains_are_short_and_children_expire_soon() -> None:
    tokens = Tokens(KEY, 100)
    token = mint_token(tokens)
    with pytest.raises(Refused, match="has a lifetime of"):
        tokens.check(narrow(token, seconds=1000), "ws-1")
    for _ in range(3):
        token = narrow(token, seconds=30)
    tokens.check(token, "ws-1")
    with pytest.raises(Refused):
        tokens.check(narrow(token, seconds=30), "ws-1")


def test_deeply_nested_claims_are_refused_without_a_crash() -> None:
    tokens = Tokens(KEY, 100)
    head = base64.urlsafe_b64encode(
        json.dumps({"alg": "HS256", "typ": CHILD_TYPE}).encode()
    ).rstrip(b"=")
    body = base64.urlsafe_b64encode(b'{"parent":' + b"[" * 5000 + b"]" * 5000 + b"}").rstrip(b"=")
    mac = base64.urlsafe_b64encode(
        hmac.new(KEY, head + b"." + body, hashlib.sha256).digest()
    ).rstrip(b"=")
    with pytest.raises(Refused):
        tokens.check(b".".join((head, body, mac)).decode(), "ws-1")


_SOME = st.lists(st.sampled_from([*NAMES, "files.*", "*", "git.*", "nothing"]), max_size=6)
_STEP = st.fixed_dictionaries(
    {"seconds": st.integers(1, 90)},
    optional={
        "tools": _SOME,
        "protected": st.lists(st.sampled_from(["docs/", "src/", "**"]), max_size=2),
        "request": st.just("r"),
    },
)


def allows(capability: Capability) -> set[str]:
    return set(capability.grant.tools)


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=10), st.lists(_STEP, max_size=3))
def test_delegation_never_widens_a_token(tools: list[str], steps: list[dict[str, Any]]) -> None:
    tokens = Tokens(KEY, 100)
    token = mint_token(tokens, tuple(tools))
    claims_before = tokens.check(token, "ws-1")
    for step in steps:
        token = narrow(token, **step)
        claims_after = tokens.check(token, "ws-1")
        assert allows(claims_after) <= allows(claims_before)
        assert set(claims_after.grant.protected) >= set(claims_before.grant.protected)
        assert claims_after.expires <= claims_before.expires
        assert claims_after.chain[:-1] == claims_before.chain
        assert not claims_before.request or claims_after.request == claims_before.request
        assert (
            claims_after.tenant,
            claims_after.principal,
            claims_after.role,
            claims_after.workspace,
        ) == (
            "local",
            "ann",
            "dev",
            "ws-1",
        )
        claims_before = claims_after


@pytest.mark.parametrize(
    "times", [{"exp": 10**400}, {"iat": 10**400}, {"iat": -(10**400)}, {"exp": float("inf")}]
)
def test_impossible_times_are_refused(times: dict[str, Any]) -> None:
    tokens = Tokens(KEY, 100)
    parent = mint_token(tokens)
    now = int(time.time())
    claims = {"iat": now, "exp": now + 5, "jti": "a", "parent": parent.rpartition(".")[0], **times}
    key = hmac.new(
        base64.urlsafe_b64decode(parent.rpartition(".")[2] + "=="),
        b"moothall delegation",
        hashlib.sha256,
    ).digest()
    with pytest.raises(Refused):
        tokens.check(sign_claims(claims, key=key, typ=CHILD_TYPE), "ws-1")
