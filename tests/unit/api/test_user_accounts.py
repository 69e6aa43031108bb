"""Accounts of the page: the file, and a real server with a browser's cookies and forms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from argon2 import PasswordHasher

from moothall import config
from moothall.api.accounts import Attempts, UserAccounts
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens
from moothall.domain.ids import LOCAL, Principal
from moothall.errors import AlreadyExists, ConfigurationError, InvalidRequest, NotFound
from support.browsing import DRAFT, Browser, form_of
from support.callers import TOKEN, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
GOOD, OTHER = "correct horse battery", "another horse battery"
Serve = Callable[[], AbstractAsyncContextManager[Browser]]


@pytest.fixture
def people(tmp_path: Path) -> UserAccounts:
    accounts = UserAccounts(tmp_path, hasher=CHEAP)
    accounts.add("alice", GOOD, roles=["po", "operator"])
    return accounts


@pytest.fixture
def serve(people: UserAccounts) -> Serve:
    dependencies = api_dependencies(MemoryDeliberations())

    @asynccontextmanager
    async def serving(jar: aiohttp.CookieJar | None = None) -> AsyncIterator[Browser]:
        jar = jar or aiohttp.CookieJar(unsafe=True)
        settings = config.WebSettings(port=0)
        async with (
            http_server(
                settings,
                with_parts(dependencies, stopping=asyncio.Event()),
                BearerTokens(TOKENS),
                configured=True,
                accounts=people,
            ) as served,
            aiohttp.ClientSession(cookie_jar=jar) as http,
        ):
            yield Browser(http, f"http://127.0.0.1:{served.port}", dependencies)

    return serving


def test_an_account_is_what_its_events_say(people: UserAccounts, tmp_path: Path) -> None:
    people.add("bob", GOOD, tenant="team-a")
    assert people.list() == [
        Principal("alice", "local", True, frozenset({"po"})),
        Principal("bob", "team-a"),
    ]
    UserAccounts(tmp_path).add("carol", GOOD)
    [file] = tmp_path.iterdir()
    assert b"$argon2id$v=19$m=65536,t=3," in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert GOOD.encode() not in file.read_bytes()


def test_errors_in_an_account_are_reported(people: UserAccounts) -> None:
    with pytest.raises(AlreadyExists, match="alice"):
        people.add("alice", GOOD)
    with pytest.raises(InvalidRequest, match="11 characters"):
        people.add("bob", "short12345!")
    with pytest.raises(InvalidRequest, match="owner of this machine's token"):
        people.add(LOCAL.name, GOOD)
    with pytest.raises(InvalidRequest, match="NAME"):
        people.add("Bob <b>", GOOD)
    with pytest.raises(InvalidRequest, match="unknown role chief"):
        people.add("bob", GOOD, roles=["chief"])
    for change in (people.remove, lambda name: people.change_password(name, GOOD)):
        with pytest.raises(NotFound, match="bob"):
            change("bob")
    assert [principal.name for principal in people.list()] == ["alice"]


def test_a_readable_or_damaged_accounts_file_is_refused(
    people: UserAccounts, tmp_path: Path
) -> None:
    file = tmp_path / "accounts.db"
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        people.find("any")
    file.chmod(0o600)
    file.write_bytes(b"no database" * 100)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        people.find("any")


def test_a_lookup_without_accounts_finds_nobody_and_creates_no_file(tmp_path: Path) -> None:
    none = UserAccounts(tmp_path / "none")
    assert none.list() == []
    assert none.sign_in("alice", GOOD, 60, 9) is None
    assert none.find("any") is None
    none.sign_out("any")
    assert not (tmp_path / "none").exists()
    (tmp_path / "accounts.db").touch(mode=0o600)  # of an `add` that was killed
    assert UserAccounts(tmp_path).list() == []
    UserAccounts(tmp_path, hasher=CHEAP).add("alice", GOOD)
    assert [principal.name for principal in UserAccounts(tmp_path).list()] == ["alice"]


def test_a_session_ends_by_time_sign_out_and_changes_of_its_account(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    people = UserAccounts(tmp_path, lambda: now[0], CHEAP)
    people.add("alice", GOOD)

    def begin(password: str = GOOD) -> str:
        session = people.sign_in("alice", password, 60, 9)
        assert session is not None
        return session

    late, closed, revoked = begin(), begin(), begin()
    assert late.encode() not in (tmp_path / "accounts.db").read_bytes()
    people.sign_out(closed)
    assert [people.find(session) is None for session in (late, closed, revoked)] == [
        False,
        True,
        False,
    ]
    now[0] += 60
    assert people.find(late) is None
    revoked = begin()
    people.change_password("alice", OTHER)
    assert people.find(revoked) is None
    assert people.sign_in("alice", GOOD, 60, 9) is None
    removed = begin(OTHER)
    people.remove("alice")
    people.add("alice", OTHER)
    assert people.find(removed) is None


def test_the_oldest_session_ends_when_there_are_too_many(tmp_path: Path) -> None:
    now = [1000.0]
    people = UserAccounts(tmp_path, lambda: now[0], CHEAP)
    people.add("alice", GOOD)
    sessions = []
    for _ in range(3):
        sessions.append(people.sign_in("alice", GOOD, 60, 2))
        now[0] += 1
    assert [people.find(str(session)) is None for session in sessions] == [True, False, False]


def test_a_password_matches_in_any_unicode_composition(tmp_path: Path) -> None:
    people = UserAccounts(tmp_path, hasher=CHEAP)
    people.add("zoe", "schöne gr\u00fc\u00dfe 1")
    assert people.sign_in("zoe", "scho\u0308ne gru\u0308\u00dfe 1", 60, 9)
    for wrong_password in ("schone grusse 1", "\udcff" * 20, "", "x" * 10_000):
        assert people.sign_in("zoe", wrong_password, 60, 9) is None


def test_attempts_are_counted_by_name_and_address_and_expire() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    assert [attempts.begin("alice", "a") for _ in range(11)] == [True] * 10 + [False]
    assert attempts.begin("alice", "b")
    assert [attempts.begin(f"name-{at}", "a") for at in range(21)] == [True] * 20 + [False]
    assert sum(attempts.begin("bob", f"address-{at}") for at in range(120)) == 100
    now[0] = Attempts.SECONDS
    assert attempts.begin("alice", "a")
    for _ in range(50):
        attempts.succeed("alice", "a")
        assert attempts.begin("alice", "a")


async def test_a_password_session_survives_a_restart(serve: Serve) -> None:
    async with serve() as browser:
        assert 'name="password"' in (await browser.get("/sign-in")).text
        response = await browser.send("/sign-in", name="alice", password=GOOD)
        assert (response.status, response.headers["Location"]) == (303, "/")
        cookie = response.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        form = form_of((await browser.get("/")).text)
        name, _, value = cookie.partition(";")[0].partition("=")
    async with serve() as restarted:
        restarted.http.cookie_jar.update_cookies({name: value})
        page = await restarted.get("/")
        assert "Sign out alice" in page.text
        assert form_of(page.text) == form
        assert (await restarted.send("/sign-out", form="guessed")).status == 403
        assert (await restarted.send("/sign-out", form=form)).status == 303
        restarted.http.cookie_jar.update_cookies({name: value})
        assert (await restarted.get("/")).headers["Location"] == "/sign-in"


async def test_a_wrong_name_and_a_wrong_password_get_the_same_answer(serve: Serve) -> None:
    async with serve() as browser:
        responses = [
            await browser.send("/sign-in", name=name, password=OTHER)
            for name in ("alice", "nobody", "", "x" * 300, "<b>")
        ]
        assert {(response.status, response.text) for response in responses} == {
            (403, responses[0].text)
        }
        assert "Wrong name or password" in responses[0].text
        assert all("Set-Cookie" not in response.headers for response in responses)
        assert (
            await browser.send(
                "/sign-in", origin="http://evil.example", name="alice", password=GOOD
            )
        ).status == 403


@pytest.mark.parametrize("name", ["alice", "nobody"])
async def test_too_many_attempts_are_refused_whether_or_not_the_name_exists(
    serve: Serve, name: str
) -> None:
    async with serve() as browser:
        sign_ins = [browser.send("/sign-in", name=name, password=OTHER) for _ in range(12)]
        assert (
            sorted(response.status for response in await asyncio.gather(*sign_ins))
            == [403] * 10 + [429] * 2
        )
        response = await browser.send("/sign-in", name=name, password=GOOD)
        assert (response.status, response.headers["Retry-After"]) == (429, "300")
        assert "Too many attempts" in response.text
        await browser.sign_in()  # signing in with the token still works


async def test_a_removed_user_is_signed_out_and_receives_nothing_more(
    serve: Serve, people: UserAccounts
) -> None:
    async with serve() as browser:
        await browser.send("/sign-in", name="alice", password=GOOD)
        async with browser.http.get(f"{browser.url}/changes") as stream:
            assert (await stream.content.readline()).startswith(b": the board")
            people.remove("alice")
            await browser.dependencies.stories.board.create(DRAFT, TOKENS[TOKEN], key="one")
            assert b"data:" not in await stream.content.read()
        response = await browser.send("/stories/new", title="A", do="create")
        assert response.status == 403
        assert "Your session has ended" in response.text


async def test_roles_and_tenant_come_from_the_account(serve: Serve, people: UserAccounts) -> None:
    people.add("eve", GOOD, tenant="elsewhere", roles=["po"])
    people.add("qa-one", GOOD, roles=["qa"])
    async with serve() as browser:
        card = await browser.dependencies.stories.board.create(DRAFT, TOKENS[TOKEN], key="one")
        await browser.send("/sign-in", name="eve", password=GOOD)
        assert (await browser.get(f"/stories/{card.story.id}")).status == 404
        await browser.send("/sign-in", name="qa-one", password=GOOD)
        form = form_of((await browser.get("/")).text)
        assert (
            await browser.send(f"/stories/{card.story.id}/move", event="refine", form=form)
        ).status == 403


async def test_without_accounts_only_a_token_is_requested(
    serve: Serve, people: UserAccounts
) -> None:
    people.remove("alice")
    async with serve() as browser:
        page = (await browser.get("/sign-in")).text
        assert 'name="password"' not in page
        assert "moothall account add NAME" in page


def test_a_session_ended_by_another_process_ends_immediately(tmp_path: Path) -> None:
    accounts, other_accounts, ann = (
        UserAccounts(tmp_path, hasher=CHEAP),
        UserAccounts(tmp_path, hasher=CHEAP),
        Principal("ann", LOCAL.tenant, roles=frozenset({"po"})),
    )
    accounts.add("ann", GOOD, roles=["po"])
    first, second = (accounts.sign_in("ann", GOOD, 60, 10) or "" for _ in range(2))
    assert (accounts.find(first), accounts.find(second)) == (ann, ann)
    other_accounts.sign_out(first)
    assert (accounts.find(first), accounts.find(second)) == (None, ann)
    other_accounts.change_password("ann", OTHER)
    assert accounts.find(second) is None
