"""The page: a real server on a free port, and a browser's cookies and forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from moothall import config
from moothall.api.http.server import http_server
from moothall.api.identity import BearerTokens, Caller
from moothall.api.web.rendering import asset_url, visible
from moothall.api.web.routes import page_routes
from moothall.api.web.sessions import Sessions
from moothall.api.web.story_page import is_working, moves
from moothall.config import WebSettings
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.plan import Story
from moothall.errors import NotFound
from moothall.stories.coach import CRITERIA as CRITERIA_MOST
from moothall.stories.coach import TITLE_CHARS, StoryDraft
from moothall.stories.lifecycle import Need, StoryPosition, lifecycle
from moothall.stories.story_state import StoryState
from moothall.telemetry.tracing import write
from support.browsing import CRITERIA, DRAFT, HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, TOKEN, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.rest import serving_http

OURS = tuple(
    f'<script src="{asset_url(name)}" defer></script>'
    for name in ("page.js", "navigation.js", "board.js")
)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    deliberations = MemoryDeliberations()
    dependencies = api_dependencies(deliberations)
    async with serving_page(dependencies) as browser:
        yield browser


def owner(browser: Browser) -> Principal:
    del browser
    return TOKENS[TOKEN]


async def test_a_token_signs_in_and_is_not_stored_in_a_cookie(browser: Browser) -> None:
    assert (await browser.get("/")).headers["Location"] == "/sign-in"
    assert (await browser.send("/sign-in", token="nobody's")).status == 403
    response = await browser.send("/sign-in", token=TOKEN)
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert (await browser.get("/")).status == 200


async def test_a_sign_in_form_from_another_origin_is_refused(browser: Browser) -> None:
    assert (
        await browser.send("/sign-in", origin="http://elsewhere.example", token=TOKEN)
    ).status == 403
    async with browser.http.post(f"{browser.url}/sign-in", data={"token": TOKEN}) as answer:
        assert answer.status == 403


def test_a_sign_in_link_works_once_and_expires() -> None:
    now = [0.0]
    sessions, principal = Sessions(2, 100, 10, lambda: now[0]), Caller(TOKENS[TOKEN])
    link, late = sessions.link(principal), sessions.link(principal)
    session = sessions.follow(link)
    assert session is not None
    assert sessions.find(session.id) == session
    assert sessions.follow(link) is None
    now[0] = 11
    assert sessions.follow(late) is None
    now[0] = 101
    assert sessions.find(session.id) is None


def test_the_number_of_sessions_is_limited() -> None:
    sessions = Sessions(2, 100, 10)
    opened = [sessions.open(Caller(TOKENS[TOKEN])) for _ in range(3)]
    assert [sessions.find(session.id) is not None for session in opened] == [False, True, True]


async def test_a_link_used_twice_is_refused() -> None:
    dependencies = api_dependencies(MemoryDeliberations())
    local = {"a-token-of-this-machine": next(iter(TOKENS.values()))}
    from moothall.domain.ids import LOCAL

    local = dict.fromkeys(local, LOCAL)
    async with http_server(
        config.WebSettings(port=0),
        dependencies,
        BearerTokens(local),
        configured=False,
    ) as served:
        for status in (303, 403):
            async with (
                aiohttp.ClientSession() as http,
                http.get(served.link, allow_redirects=False) as answer,
            ):
                assert answer.status == status


async def test_events_on_the_board_reach_signed_in_users(browser: Browser) -> None:
    response = await browser.get("/changes")
    assert (response.status, response.headers["location"]) == (303, "/sign-in")


async def test_signing_out_ends_the_session(browser: Browser) -> None:
    form = await browser.sign_in()
    assert (await browser.send("/sign-out", form=form)).status == 303
    assert (await browser.get("/")).status == 303


async def test_a_form_without_the_session_secret_is_refused(browser: Browser) -> None:
    await browser.sign_in()
    for form_fields in ({}, {"form": "guessed"}):
        response = await browser.send("/stories/new", title="A", do="save", **form_fields)
        assert response.status == 403
    assert await browser.dependencies.stories.board.cards(owner(browser)) == []


async def test_scoring_saves_nothing_and_creating_does(browser: Browser) -> None:
    form = await browser.sign_in()
    fields = {
        "title": DRAFT.title,
        "brief": DRAFT.description,
        "criteria": "\n".join(CRITERIA),
        "rigor": "L1",
        "form": form,
    }
    response = await browser.send("/stories/new", do="score", **fields)
    assert (response.status, "of 100 points" in response.text) == (200, True)
    assert await browser.dependencies.stories.board.cards(owner(browser)) == []
    assert (await browser.send("/stories/new", do="save", **fields)).status == 303
    (card,) = await browser.dependencies.stories.board.cards(owner(browser))
    assert card.draft == DRAFT
    assert (await browser.send("/stories/new", do="save", **(fields | {"title": ""}))).status == 400


async def test_a_story_on_an_unknown_repository_is_not_created(browser: Browser) -> None:
    form = await browser.sign_in()
    browser.dependencies.deliberations.unable["ghost"] = NotFound("no repository 'ghost'")  # type: ignore[attr-defined]  # it is a MemoryDesk
    response = await browser.send(
        "/stories/new", do="save", title="A", repository="ghost", form=form
    )
    assert (response.status, "no repository &#39;ghost&#39;" in response.text) == (400, True)
    typed = await browser.send("/stories/new", do="score", title="A", repository="ghost", form=form)
    assert (typed.status, "no repository &#39;ghost&#39;" in typed.text) == (200, True)
    browser.dependencies.deliberations.unable["https://x/y"] = NotFound("unreachable")  # type: ignore[attr-defined]
    url = {"title": "A", "repository": "https://x/y", "form": form}
    assert "unreachable" not in (await browser.send("/stories/new", do="score", **url)).text
    assert "unreachable" in (await browser.send("/stories/new", do="save", **url)).text
    assert await browser.dependencies.stories.board.cards(owner(browser)) == []


async def test_a_story_is_moved_and_its_history_shown(browser: Browser) -> None:
    form = await browser.sign_in()
    card = await browser.dependencies.stories.board.create(DRAFT, owner(browser), key="one")
    path = f"/stories/{card.story.id}"
    response = await browser.send(f"{path}/move", event="refine", comment=HOSTILE, form=form)
    assert (response.status, response.headers["Location"]) == (303, path)
    page = (await browser.get(path)).text
    assert "Refine → draft" in page
    assert SHOWN in page
    assert (await browser.send(f"{path}/move", event="accept", form=form)).status == 400


async def test_a_board_is_identical_across_sessions_and_has_no_session_secret(
    browser: Browser,
) -> None:
    forms = [await browser.sign_in()]
    card = await browser.dependencies.stories.board.create(DRAFT, owner(browser), key="one")

    async def draw_page() -> str:
        text = (await browser.get("/")).text
        assert text.count(forms[-1]) == 2  # the forms for signing out and for a move
        return text.partition('<div id="board">')[2].partition("<script")[0]

    first = await draw_page()
    assert f'form="mover" formaction="/stories/{card.story.id}/move"' in first
    forms.append(await browser.sign_in())
    assert forms[0] != forms[1]
    assert await draw_page() == first
    moved = await browser.send(
        f"/stories/{card.story.id}/move", event="refine", form=forms[1], back="board"
    )
    assert (moved.status, moved.headers["Location"]) == (303, "/")
    assert "Submit → design" in await draw_page()
    await browser.sign_in(OTHER)
    assert DRAFT.title not in (await browser.get("/")).text


@pytest.mark.parametrize(
    ("method", "path"),
    sorted(
        (method, route.path)
        for route in page_routes(
            api_dependencies(MemoryDeliberations()), BearerTokens(TOKENS), Sessions(1, 1, 1)
        )
        for method in (route.methods or set()) - {"HEAD"}
        if "{" in route.path
    ),
)
async def test_no_path_shows_or_changes_data_of_another_tenant(
    browser: Browser, method: str, path: str
) -> None:
    card = await browser.dependencies.stories.board.create(
        replace(DRAFT, title="A secret of theirs"), owner(browser), key="one"
    )
    form = await browser.sign_in(OTHER)
    history_before = await browser.dependencies.stories.board.history(card.story.id, owner(browser))
    url = re.sub(r"{[^}]*}", card.story.id, path)
    response = await (
        browser.get(url)
        if method == "GET"
        else browser.send(url, form=form, event="refine", do="allow", comment="x", key="k")
    )
    assert response.status in {403, 404}
    assert "A secret of theirs" not in response.text
    assert (
        await browser.dependencies.stories.board.history(card.story.id, owner(browser))
        == history_before
    )


async def test_the_longest_story_is_shown_and_a_longer_one_is_refused(
    browser: Browser,
) -> None:
    form = await browser.sign_in()
    fields = {
        "form": form,
        "do": "save",
        "title": "W" * TITLE_CHARS,
        "criteria": "\n".join(["Given a, when b, then c"] * CRITERIA_MOST),
    }
    response = await browser.send("/stories/new", **fields)
    assert response.status == 303
    assert (await browser.get(response.headers["Location"])).text.count(
        "Given a, when b, then c"
    ) >= CRITERIA_MOST
    assert "W" * TITLE_CHARS in (await browser.get("/")).text
    for excess_fields in (
        {"title": "W" * (TITLE_CHARS + 1)},
        {"criteria": fields["criteria"] + "\nx" * 5000},
    ):
        refused = await browser.send("/stories/new", **(fields | excess_fields))
        assert (refused.status, "allowed are" in refused.text) == (400, True)
    assert len(await browser.dependencies.stories.board.cards(owner(browser))) == 1


async def test_comments_and_the_check_of_the_whole_story_are_shown(browser: Browser) -> None:
    form = await browser.sign_in()
    story_id = (
        await browser.dependencies.stories.board.create(DRAFT, owner(browser), key="1")
    ).story.id
    response = await browser.send(
        f"/stories/{story_id}/comment", form=form, key="k", comment=HOSTILE
    )
    assert response.status == 303
    assert (
        await browser.send(f"/stories/{story_id}/comment", form=form, key="l", comment=" ")
    ).status == 400
    assert (
        await browser.send(f"/stories/{story_id}/comment", form="other", key="m", comment="x")
    ).status == 403
    check = {
        "story_id": story_id,
        "moved": "m",
        "task_id": "task-1",
        "status": "failed",
        "why": HOSTILE,
        "branch": "",
        "commit_sha": "",
    }
    await browser.dependencies.stories.board._bus.publish(
        write(EventType.STORY_CHECKED, story_id, check, tenant=owner(browser).tenant)
    )
    text = (await browser.get(f"/stories/{story_id}")).text
    assert text.count(SHOWN) == 2
    assert text.count("<script") == sum(map(text.count, OURS)) > 0
    assert 'href="/councils/task-1"' in text


@pytest.mark.parametrize(
    ("state", "facts", "changed", "working"),
    [
        ("draft", set(), {}, False),
        ("design", set(), {}, True),
        ("design", {"planned"}, {}, False),
        ("build", set(), {}, True),
        ("build", set(), {"ended": write(EventType.PLAN_FINISHED, "p", {"story_id": "s"})}, False),
        ("test", set(), {}, True),
        (
            "test",
            {"checked"},
            {"check": write(EventType.STORY_CHECKED, "s", {"story_id": "s", "moved": ""})},
            False,
        ),
    ],
)
def test_a_story_is_working_while_the_server_processes_it(
    state: str, facts: set[Need], changed: dict[str, Any], *, working: bool
) -> None:
    card = StoryState(Story("s"), StoryPosition(state, facts=frozenset(facts)), **changed)
    assert is_working(card) is working


async def test_user_text_is_escaped(browser: Browser) -> None:
    await browser.sign_in()
    card = await browser.dependencies.stories.board.create(
        StoryDraft(HOSTILE, HOSTILE, (HOSTILE,)), owner(browser), key="one"
    )
    for path in ("/", f"/stories/{card.story.id}"):
        page = (await browser.get(path)).text
        assert SHOWN in page
        assert page.count("<script") == sum(map(page.count, OURS)) > 0
        assert "\u202e" not in page


def test_invisible_characters_are_made_visible() -> None:
    assert visible("+" + HOSTILE) == "+" + SHOWN


async def test_another_tenants_story_is_not_found(browser: Browser) -> None:
    form = await browser.sign_in(OTHER)
    card = await browser.dependencies.stories.board.create(DRAFT, owner(browser), key="one")
    for response in (
        await browser.get(f"/stories/{card.story.id}"),
        await browser.send(f"/stories/{card.story.id}/move", event="refine", form=form),
    ):
        assert response.status == 404
        assert DRAFT.title not in response.text
    assert DRAFT.title not in (await browser.get("/")).text


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/sign-in",
        "/sign-in?link=none",
        "/page.css",
        "/stories/new",
        "/stories/none",
        "/councils/none",
    ],
)
async def test_every_response_has_the_security_policy(browser: Browser, path: str) -> None:
    for _ in range(2):
        headers = (await browser.get(path)).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        is_asset = path == "/page.css"  # its URL has its hash
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert ("immutable" in headers["Cache-Control"]) is is_asset
        is_page = "ETag" in headers  # browsers cache it and revalidate
        assert ("private, no-cache" in headers["Cache-Control"]) is is_page
        assert ("no-store" in headers["Cache-Control"]) is not (is_asset or is_page)
        await browser.sign_in()


@pytest.mark.parametrize("role", ["po", "qa", "architect"])
async def test_buttons_match_the_transition_table(browser: Browser, role: str) -> None:
    card = await browser.dependencies.stories.board.create(DRAFT, owner(browser), key="one")
    for state in lifecycle().order:
        card_in_state = replace(card, position=replace(card.position, state=state))
        allowed_events = {
            item.event
            for item in lifecycle().transitions
            if item.source == state and role in item.by
        }
        assert {
            event
            for event, _, _ in moves(card_in_state, Principal("p", "t", roles=frozenset({role})))
        } == allowed_events


async def test_a_blocked_transition_shows_the_reason(browser: Browser) -> None:
    await browser.sign_in()
    card = await browser.dependencies.stories.board.create(
        StoryDraft("A"), owner(browser), key="one"
    )
    await browser.dependencies.stories.board.move(card.story.id, "refine", owner(browser))
    page = (await browser.get(f"/stories/{card.story.id}")).text
    assert "Blocked: the story coach gives it" in page


async def test_a_token_opens_no_page_and_a_session_opens_no_api(browser: Browser) -> None:
    async with browser.http.get(
        f"{browser.url}/", headers={"Authorization": f"Bearer {TOKEN}"}, allow_redirects=False
    ) as answer:
        assert answer.status == 303
    await browser.sign_in()
    assert (await browser.get("/tasks")).status == 401


async def test_a_process_without_the_page_issues_no_sign_in_link() -> None:
    for served, link_expected in ((frozenset({"api"}), False), (frozenset({"page"}), True)):
        dependencies = with_parts(api_dependencies(MemoryDeliberations()), roles=served)
        async with (
            http_server(
                WebSettings(port=0), dependencies, BearerTokens({TOKEN: LOCAL}), configured=False
            ) as page_server,
            aiohttp.ClientSession(
                f"http://127.0.0.1:{page_server.port}", headers={"Authorization": f"Bearer {TOKEN}"}
            ) as session,
            session.post("/api/v1/sign-in-links") as answer,
        ):
            assert (answer.status, bool(page_server.link)) == (
                201 if link_expected else 404,
                link_expected,
            )


async def test_a_sign_in_link_leads_to_a_story_and_to_no_other_address() -> None:
    async with serving_http(api_dependencies(MemoryDeliberations())) as web:
        assert (await web("POST", "/api/v1/sign-in-links", token=None)).status == 401
        for story, place in (
            ("story-1", "/stories/story-1"),
            ("../sign-out", "/"),
            ("//evil.example", "/"),
            ("", "/"),
        ):
            response = await web("POST", "/api/v1/sign-in-links")
            assert response.status == 201
            url = (
                f"http://127.0.0.1:{web.port}{response.json['path']}&story={quote(story, safe='')}"
            )
            async with web.session.get(url, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, place)
                assert "HttpOnly" in answer.headers["Set-Cookie"]
