"""Responses of the board: a part of each column, changed cards, and nothing that a browser has
cached.
"""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import pytest

from moothall.api.web.rendering import page, prepare
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.overview import Overview
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import TaskId, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Deliberation
from moothall.stories.plans import design_task, plan_id_after
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import DRAFT, Browser, serving_page
from support.callers import TOKEN, TOKENS, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations

OWNER = TOKENS[TOKEN]
MANY = 1000
PAGE_KILOBYTES, CHANGE_KILOBYTES = 60, 5


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def active() -> list[DeliberationState]:
    """The deliberations that the server works on."""
    return []


@pytest.fixture
async def browser(bus: MemoryBus, active: list[DeliberationState]) -> AsyncIterator[Browser]:
    dependencies = api_dependencies(MemoryDeliberations(), bus)
    dependencies = with_parts(dependencies, tasks=Overview(bus, lambda: active))
    async with serving_page(dependencies, auto_decompress=False) as browser:
        yield browser


async def fetch(
    browser: Browser, path: str, **headers: str
) -> tuple[aiohttp.ClientResponse, bytes]:
    """Return a response and its body as it was sent."""
    headers = {"Accept-Encoding": "identity"} | headers
    async with browser.http.get(browser.url + path, headers=headers) as response:
        return response, await response.read()


async def sign_in(browser: Browser) -> None:
    await browser.send("/sign-in", token=TOKEN)


def cards_of(body: bytes) -> list[str]:
    return re.findall(r'<li id="card-(story-[0-9a-f]+)"', body.decode())


async def test_an_unchanged_page_is_not_sent_again(browser: Browser) -> None:
    await sign_in(browser)
    await browser.dependencies.stories.board.create(DRAFT, OWNER, key="1")
    for path in ("/", "/stories/new", "/runs"):
        response, body = await fetch(browser, path)
        assert (response.status, response.headers["Cache-Control"]) == (200, "private, no-cache")
        assert body
        etag = response.headers["ETag"]
        compressed, _ = await fetch(browser, path, **{"Accept-Encoding": "gzip"})
        assert compressed.headers["ETag"] == etag
        response, body = await fetch(browser, path, **{"If-None-Match": f'W/"other", {etag}'})
        assert (response.status, response.headers["ETag"], body) == (304, etag, b"")
    etag = (await fetch(browser, "/"))[0].headers["ETag"]
    await browser.dependencies.stories.board.create(DRAFT, OWNER, key="2")
    response, body = await fetch(browser, "/", **{"If-None-Match": etag})
    assert (response.status, len(cards_of(body))) == (200, 2)
    error, _ = await fetch(browser, "/stories/none")
    assert (error.status, error.headers["Cache-Control"]) == (404, "no-store")


async def test_pages_and_assets_are_compressed_and_streams_are_not(browser: Browser) -> None:
    await sign_in(browser)
    for path in ("/stories/new", "/page.css", "/page.js", "/board.js"):
        response, body = await fetch(browser, path, **{"Accept-Encoding": "gzip"})
        plain, text = await fetch(browser, path)
        assert response.headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain.headers
        if path != "/stories/new":  # its form has a new key each time
            assert gzip.decompress(body) == text
        assert len(body) < len(text) / 2
    headers = {"Accept-Encoding": "gzip"}
    async with browser.http.get(f"{browser.url}/changes", headers=headers) as stream:
        assert "Content-Encoding" not in stream.headers
        assert await stream.content.readline() == b": the board\n"


@pytest.mark.e2e  # a thousand stories
async def test_a_large_board_is_small_when_compressed_and_a_change_is_tiny(
    browser: Browser,
) -> None:
    await sign_in(browser)
    board = browser.dependencies.stories.board
    for number in range(MANY):
        card = await board.create(
            replace(DRAFT, title=f"Export the invoices of month {number}"), OWNER, key=str(number)
        )
        if number % 2:
            await board.move(card.story.id, "refine", OWNER)
    _, page = await fetch(browser, "/", **{"Accept-Encoding": "gzip"})
    assert len(page) < PAGE_KILOBYTES * 1024
    seq = re.findall(rb'id="board-head" data-seq="(\d+)"', gzip.decompress(page))[0].decode()
    await board.comment(card.story.id, "Mind the umlauts.", OWNER, key="c")
    response, change = await fetch(browser, f"/cards?after={seq}")
    assert response.status == 200
    assert cards_of(change) == [card.story.id]
    assert len(change) < CHANGE_KILOBYTES * 1024, "even uncompressed"


async def test_a_column_shows_the_latest_cards_and_a_link_to_older_ones(browser: Browser) -> None:
    await sign_in(browser)
    board = browser.dependencies.stories.board
    ids = [(await board.create(DRAFT, OWNER, key=str(number))).story.id for number in range(33)]
    await board.comment(ids[0], "Mind the old files.", OWNER, key="k")
    _, page = await fetch(browser, "/?q=invoices")
    assert cards_of(page) == [ids[0], *ids[:3:-1]]
    [link, words] = re.findall(rb'class="more"><a href="/\?([^"]+)">([^<]+)<', page)[0]
    assert words == b"3 more"
    query = link.decode().replace("&amp;", "&").partition("#")[0]
    _, rest = await fetch(browser, f"/cards?{query}")
    assert cards_of(rest) == ids[3:0:-1]
    assert rest.count(b"<section") == 1, "only the requested column"
    _, older_page = await fetch(browser, f"/?{query}")
    assert cards_of(older_page) == ids[3:0:-1]
    assert b"Newest first" in older_page
    for invalid_query in ("column=nowhere", "column=backlog&before=x", "after=1e3"):
        assert (await fetch(browser, f"/cards?{invalid_query}"))[0].status == 400


async def test_a_change_names_cards_that_no_longer_match(browser: Browser) -> None:
    await sign_in(browser)
    board = browser.dependencies.stories.board
    card = await board.create(DRAFT, OWNER, key="1")
    await board.move(card.story.id, "archive", OWNER)
    _, change = await fetch(browser, f"/cards?after={card.seq}")
    assert f'data-changed="{card.story.id}"'.encode() in change
    assert cards_of(change) == []
    assert b"Archived (1)" in change


async def test_a_running_card_shows_the_progress_of_its_tasks(
    browser: Browser, bus: MemoryBus, active: list[DeliberationState]
) -> None:
    await sign_in(browser)
    board = browser.dependencies.stories.board
    story = (await board.create(DRAFT, OWNER, key="1")).story.id
    await board.move(story, "refine", OWNER)
    await board.move(story, "submit", OWNER)
    _, page = await fetch(browser, "/")
    assert b">running</p>" in page
    plan = {
        "story_id": story,
        "plan_id": "plan-1",
        "tasks": [{"task_id": "task-1", "role": "dev"}, {"task_id": "task-2", "role": "qa"}],
    }
    tenant = {"tenant": OWNER.tenant}
    await bus.publish(write(EventType.PLAN_DERIVED, "plan-1", plan, correlationid=story, **tenant))
    card = await board.move(story, "accept_design", OWNER)
    _, page = await fetch(browser, "/")
    assert b">running 0 %</p>" in page
    assert b'data-every="10"' in page
    outcome = Outcome(TaskId("task-1"), DeliberationStatus.COMPLETED, role="dev")
    await bus.publish(write(EventType.DELIBERATION_DECIDED, "task-1", dump(outcome), **tenant))
    _, change = await fetch(browser, f"/cards?after={card.seq}")
    assert b">running 50 %</p>" in change, "also without an event of the story"
    active.append(_requested("task-2"))
    _, change = await fetch(browser, f"/cards?after={card.seq}")
    assert b">running 50 %, 2 seats</p>" in change
    pause = {"task_id": "task-2", "number": 0, "by": OWNER.name}
    paused_event = write(EventType.DELIBERATION_PAUSED, "task-2", pause, ordinal=0, **tenant)
    active[0] = fold(active[0], paused_event)
    _, change = await fetch(browser, f"/cards?after={card.seq}")
    assert b">paused 50 %, 2 seats</p>" in change


async def test_a_story_in_design_links_to_its_council_of_architects(
    browser: Browser, active: list[DeliberationState]
) -> None:
    await sign_in(browser)
    board = browser.dependencies.stories.board
    story = (await board.create(DRAFT, OWNER, key="1")).story.id
    await board.move(story, "refine", OWNER)
    card = await board.move(story, "submit", OWNER)
    _, page = await fetch(browser, f"/stories/{story}")
    assert b"A council of architects" not in page, "it has not started"
    task_id = design_task(plan_id_after(card.moved))
    active.append(_requested(task_id))
    _, page = await fetch(browser, f"/stories/{story}")
    link = f'<a href="/councils/{task_id}">A council of architects</a> divides the story: 0 %'
    assert link.encode() in page


def _requested(task_id: str) -> DeliberationState:
    """Return the state of a deliberation of two seats that was requested."""
    d = Deliberation(
        key_of(TaskId(task_id), OWNER.tenant),
        "Test it",
        "qa",
        "vote",
        ("agent-qa-001", "agent-qa-002"),
        0,
        datetime(2026, 1, 2, tzinfo=UTC),
        2,
        tenant=OWNER.tenant,
    )
    tenant = {"tenant": OWNER.tenant}
    return fold(None, write(EventType.DELIBERATION_REQUESTED, task_id, dump(d), **tenant))


async def test_a_page_is_rendered_outside_the_event_loop() -> None:
    class Noted:
        name = "po"
        tenant = "local"
        thread = 0

        def __str__(self) -> str:
            Noted.thread = threading.get_ident()
            return "noted"

    response = page("error.html", title=Noted(), message="", next_step="", can_retry=False)
    assert Noted.thread == 0, "nothing is rendered yet"
    assert b"noted" in (await prepare(response)).body
    assert Noted.thread not in {0, threading.get_ident()}
    assert int(response.headers["Content-Length"]) == len(response.body)


async def test_a_card_reflects_its_reader_and_its_last_event(browser: Browser) -> None:
    await sign_in(browser)
    board = browser.dependencies.stories.board
    card = await board.create(DRAFT, OWNER, key="1")
    _, page_before = await fetch(browser, "/")
    assert b'value="refine"' in page_before
    await board.move(card.story.id, "refine", OWNER)
    _, page_after = await fetch(browser, "/")
    assert b'value="refine"' not in page_after
    assert b'value="submit"' in page_after
