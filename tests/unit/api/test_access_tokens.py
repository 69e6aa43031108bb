"""Access tokens: their storage, principals, expiry and revocation, in files and at real servers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import aiohttp
import grpc
import pytest

from moothall import config
from moothall.api.accounts import PREFIX, AccessTokens
from moothall.api.grpc_server import grpc_server
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.text import scrub
from moothall.errors import ConfigurationError, InvalidRequest, NotFound, Unauthenticated
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.stories.board import Board
from moothall.testing.bus import MemoryBus
from support.browsing import Browser
from support.callers import Client, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations

DAY = 86_400.0


class Clock:
    """A clock that a test sets."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> AccessTokens:
    return AccessTokens(tmp_path / "data", clock)


async def test_a_token_belongs_to_its_name_tenant_and_roles(tokens: AccessTokens) -> None:
    secret, record = tokens.create("ci", DAY, tenant="team-a", roles=("po", "operator"))
    expected = Principal("ci", "team-a", operator=True, roles=frozenset({"po"}))
    caller = await tokens.find(secret)
    assert caller is not None
    assert (caller.principal, record.principal) == (expected, expected)
    assert await tokens.find(secret + "x") is None
    assert await tokens.find("a-token-of-the-settings") is None


async def test_only_a_digest_is_stored_in_a_private_file(
    tokens: AccessTokens, tmp_path: Path
) -> None:
    secret, _ = tokens.create("ci", DAY)
    [file] = (tmp_path / "data").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret.removeprefix(PREFIX).encode() not in file.read_bytes()
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        await tokens.find(secret)


def test_a_token_in_a_text_is_redacted(tokens: AccessTokens) -> None:
    secret, _ = tokens.create("ci", DAY)
    assert scrub(f"curl -H 'X: {secret}'") == "curl -H 'X: [redacted]'"
    assert scrub("from moothall_client import x") == "from moothall_client import x"


async def test_a_token_is_refused_from_the_moment_it_expires(
    tokens: AccessTokens, clock: Clock
) -> None:
    secret, record = tokens.create("ci", DAY)
    caller = await tokens.find(secret)
    assert caller is not None
    clock.now += DAY - 1
    assert caller.is_valid()
    clock.now += 1
    assert not caller.is_valid()
    with pytest.raises(
        Unauthenticated, match=rf"the token {record.id} of ci expired at 2027-01-16 08:00 UTC"
    ):
        await tokens.find(secret)


async def test_tokens_are_revoked_by_id_or_name_even_by_another_process(
    tokens: AccessTokens, tmp_path: Path
) -> None:
    first, record = tokens.create("ci", DAY)
    second, _ = tokens.create("ci", DAY)
    third, _ = tokens.create("other", DAY)
    callers = [await tokens.find(secret) for secret in (first, second, third)]
    of_command = AccessTokens(tmp_path / "data", Clock())
    assert [item.id for item in of_command.revoke(record.id)] == [record.id]
    assert [caller and caller.is_valid() for caller in callers] == [False, True, True]
    with pytest.raises(Unauthenticated, match=rf"the token {record.id} of ci was revoked at 20"):
        await tokens.find(first)
    assert len(of_command.revoke("ci")) == 1
    assert [caller and caller.is_valid() for caller in callers] == [False, False, True]
    with pytest.raises(NotFound, match="'ci'"):
        of_command.revoke("ci")


def test_records_of_ended_tokens_are_deleted_after_90_days(
    tokens: AccessTokens, clock: Clock
) -> None:
    tokens.create("short", DAY)
    tokens.create("long", 300 * DAY)
    clock.now += 90 * DAY
    tokens.create("ci", DAY)
    assert [item.principal.name for item in tokens.list()] == ["ci", "long", "short"]
    clock.now += 2 * DAY
    tokens.create("ci", DAY)
    assert [item.principal.name for item in tokens.list()] == ["ci", "ci", "long"]


@pytest.mark.parametrize(
    ("name", "seconds", "tenant", "roles", "message"),
    [
        ("Ci!", DAY, "local", (), "NAME 'Ci!' is not an id"),
        ("local", DAY, "local", (), "choose another name"),
        ("ci", 0, "local", (), "at most 366 days"),
        ("ci", 400 * DAY, "local", (), "at most 366 days"),
        ("ci", DAY, "Team A", (), "tenant 'Team A' is not an id"),
        ("ci", DAY, "local", ("boss",), "unknown role boss"),
    ],
)
def test_invalid_values_are_named_and_create_no_token(
    tokens: AccessTokens,
    *,
    name: str,
    seconds: float,
    tenant: str,
    roles: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tokens.create(name, seconds, tenant=tenant, roles=roles)
    assert tokens.list() == []


async def test_a_damaged_file_is_named(tokens: AccessTokens, tmp_path: Path) -> None:
    secret, _ = tokens.create("ci", DAY)
    with closing(sqlite3.connect(tmp_path / "data" / "tokens.db")) as file, file:
        file.execute("DROP TABLE token")
    with pytest.raises(ConfigurationError, match=r"tokens\.db cannot be used"):
        await tokens.find(secret)


async def test_grpc_refuses_a_revoked_token_without_a_restart_and_gives_the_reason(
    tmp_path: Path,
) -> None:
    tokens = AccessTokens(tmp_path)
    bearers = BearerTokens({"a-token-of-the-settings": LOCAL}, [tokens])
    dependencies = api_dependencies(MemoryDeliberations())
    async with (
        grpc_server(
            config.GrpcSettings(port=0, grace_seconds=0.2),
            dependencies,
            bearers,
        ) as server,
        grpc.aio.insecure_channel(server.target) as channel,
    ):
        secret, record = tokens.create("ci", DAY, tenant="team-a")
        await Client(channel, secret).GetStatus(pb.GetStatusRequest())
        await Client(channel, "a-token-of-the-settings").GetStatus(pb.GetStatusRequest())
        tokens.revoke(record.id)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Client(channel, secret).GetStatus(pb.GetStatusRequest())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert f"the token {record.id} of ci was revoked at" in str(refused.value.details())
        assert secret not in str(refused.value)
        await Client(channel, "a-token-of-the-settings").GetStatus(pb.GetStatusRequest())


async def test_http_and_page_access_end_when_the_token_is_revoked(tmp_path: Path) -> None:
    tokens = AccessTokens(tmp_path)
    dependencies = with_parts(api_dependencies(MemoryDeliberations()), board=Board(MemoryBus()))
    async with (
        http_server(
            config.WebSettings(port=0),
            dependencies,
            BearerTokens({"a-token-of-the-settings": LOCAL}, [tokens]),
            configured=True,
        ) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http,
    ):
        browser = Browser(http, f"http://127.0.0.1:{served.port}", dependencies)
        secret, record = tokens.create("ci", DAY)
        headers = {"Authorization": f"Bearer {secret}"}
        async with http.get(f"{browser.url}/api/v1/stories", headers=headers) as answer:
            assert answer.status == 200
        async with http.post(f"{browser.url}/api/v1/sign-in-links", headers=headers) as answer:
            link = (await answer.json())["path"]
        await browser.sign_in(secret)
        assert (await browser.get("/")).status == 200
        tokens.revoke("ci")
        assert (await browser.get("/")).headers["Location"] == "/sign-in"
        assert (await browser.get(link)).status == 403
        async with http.get(f"{browser.url}/api/v1/stories", headers=headers) as answer:
            problem = await answer.json()
        assert (answer.status, problem["code"]) == (401, "UNAUTHENTICATED")
        assert f"the token {record.id} of ci was revoked at" in problem["detail"]
