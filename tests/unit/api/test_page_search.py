"""The search of the palette, and how many stories need the user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import DRAFT, HOSTILE, Browser, serving_page
from support.callers import OTHER, TOKEN, TOKENS, api_dependencies
from support.deliberation_service import MemoryDeliberations

OWNER = TOKENS[TOKEN]


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def browser(bus: MemoryBus) -> AsyncIterator[Browser]:
    dependencies = api_dependencies(MemoryDeliberations(), bus)
    async with serving_page(dependencies) as browser:
        yield browser


async def find(browser: Browser, query: str) -> list[dict[str, Any]]:
    answer = await browser.get(f"/search?q={query}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    return list(json.loads(answer.text))


async def test_stories_and_runs_are_found_by_words(browser: Browser, bus: MemoryBus) -> None:
    assert (await browser.get("/search?q=a")).headers["Location"].startswith("/sign-in")
    await browser.sign_in()
    board = browser.dependencies.stories.board
    story = (await board.create(replace(DRAFT, title=f"Hats {HOSTILE}"), OWNER, key="1")).story
    await board.create(DRAFT, OWNER, key="2")
    outcome = Outcome("task-hats", DeliberationStatus.COMPLETED, OWNER.tenant, role="dev")
    await bus.publish(
        write(EventType.DELIBERATION_DECIDED, "task-hats", dump(outcome), tenant=OWNER.tenant)
    )
    assert await find(browser, "") == []
    assert await find(browser, "HATS") == [
        {
            "title": "Hats <script>alert(1)</script>⟨U+202E⟩gnp.exe",
            "detail": "Story, backlog",
            "url": f"/stories/{story.id}",
        },
        {"title": "task-hats", "detail": "Run, completed", "url": "/councils/task-hats"},
    ]
    first, *_ = await find(browser, "export+CSV")
    assert first["title"] == DRAFT.title
    await browser.sign_in(OTHER)
    assert await find(browser, "hats") == []


async def test_the_stream_reports_how_many_stories_need_the_user(
    browser: Browser, bus: MemoryBus
) -> None:
    await browser.sign_in()
    board = browser.dependencies.stories.board
    story = (await board.create(DRAFT, OWNER, key="1")).story.id
    await board.move(story, "refine", OWNER)
    card = await board.move(story, "submit", OWNER)
    async with (
        browser.http.get(f"{browser.url}/changes?after={card.seq}") as stream,
        asyncio.timeout(10),
    ):

        async def next_count() -> str:
            while (line := await stream.content.readline()) != b"event: needed\n":
                assert line
            return (await stream.content.readline()).decode().strip()

        assert await next_count() == "data: 0"
        plan = {"story_id": story, "plan_id": "plan-1", "tasks": []}
        await bus.publish(
            write(
                EventType.PLAN_DERIVED,
                "plan-1",
                plan,
                correlationid=story,
                tenant=OWNER.tenant,
            )
        )
        assert await next_count() == "data: 1"
        await board.move(story, "stop", OWNER)
        assert await next_count() == "data: 0"
