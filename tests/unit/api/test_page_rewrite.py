"""The coach's rewrite of a story: its diff, and its acceptance or rejection."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator

import pytest

from moothall.api.web.story_form import compare_drafts, compare_words
from moothall.stories.coach import StoryDraft
from support.browsing import HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, TOKEN, TOKENS, api_dependencies
from support.deliberation_service import MemoryDeliberations

OWNER = TOKENS[TOKEN]
WEAK = StoryDraft(f"Export {HOSTILE}", "", ("404 when there is none", "Given a, when b, then c"))
BETTER = "Given nothing else is changed, when there is none, then 404"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    dependencies = api_dependencies(MemoryDeliberations())
    async with serving_page(dependencies) as browser:
        yield browser


def test_words_are_compared_without_losing_any() -> None:
    before, after = "It returns a list.", "It always returns a short list"
    pieces = compare_words(before, after)
    assert "".join(text for kind, text in pieces if kind != "added") == before
    assert "".join(text for kind, text in pieces if kind != "removed") == after
    assert ("same", " returns a ") in pieces
    assert compare_words("", "") == ()
    long = "word " * 2_000
    assert compare_words(long, f"{long}x") == (("removed", long), ("added", f"{long}x"))


def test_criteria_are_compared_individually() -> None:
    before, after = StoryDraft("T", "B", ("one", "two")), StoryDraft("T", "B", ("one", "2", "3"))
    changed = {part.label: part.pieces for part in compare_drafts(before, after)}
    assert changed["Title"] == (("same", "T"),)
    assert changed["Criterion 1"] == (("same", "one"),)
    assert changed["Criterion 2"] == (("removed", "two"), ("added", "2"))
    assert changed["Criterion 3"] == (("added", "3"),)


async def test_a_rewrite_is_shown_and_accepted(browser: Browser) -> None:
    form = await browser.sign_in()
    board = browser.dependencies.stories.board
    card = await board.create(WEAK, OWNER, key="1", repository="repo", rigor="L2")
    story = f"/stories/{card.story.id}"
    assert f'action="{story}/rewrite"' in (await browser.get(story)).text
    nothing_yet = await browser.get(f"{story}/rewrite")
    assert (nothing_yet.status, nothing_yet.headers["Location"]) == (303, story)
    response = await browser.send(f"{story}/rewrite", form=form)
    assert response.status == 303
    rewrite = response.headers["Location"]
    assert rewrite.startswith(f"{story}/rewrite?task=")
    page = await browser.get(rewrite)
    assert page.status == 200
    assert "<ins>" in page.text
    assert SHOWN in page.text
    assert page.text.count("<script") == page.text.count("<script src=")
    assert (await board.card(card.story.id, OWNER)).story == card.story, "nothing is stored yet"
    fields = {
        name: html.unescape(value)
        for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text)
    }
    assert BETTER in fields["criteria"].splitlines()
    place = rewrite.partition("?")[2]
    assert f'href="{story}/edit?{place.replace("&", "&amp;")}"' in page.text
    edited = (await browser.get(f"{story}/edit?{place}")).text
    assert BETTER in html.unescape(edited)
    assert BETTER not in html.unescape((await browser.get(f"{story}/edit")).text)
    saved = await browser.send(f"{story}/edit", **fields, do="save")
    assert (saved.status, saved.headers["Location"]) == (303, story)
    changed = await board.card(card.story.id, OWNER)
    assert changed.story.ac[0] == BETTER
    assert (changed.story.repository_name, changed.position.rigor) == ("repo", "L2")
    late = await browser.send(f"{story}/edit", **fields, do="save")
    assert late.status == 409, "the story was changed since the rewrite"
    assert (await browser.get(rewrite)).headers["Location"] == story


async def test_a_good_story_is_not_rewritten(browser: Browser) -> None:
    form = await browser.sign_in()
    draft = StoryDraft(
        "Export", "As a clerk, I want it, so that I sleep.", (BETTER, BETTER[:-3] + "405")
    )
    card = await browser.dependencies.stories.board.create(draft, OWNER, key="1")
    response = await browser.send(f"/stories/{card.story.id}/rewrite", form=form)
    page = await browser.get(response.headers["Location"])
    assert "has nothing to change" in page.text


async def test_a_story_is_rewritten_only_for_its_owner_and_before_the_design(
    browser: Browser,
) -> None:
    form = await browser.sign_in()
    card = await browser.dependencies.stories.board.create(WEAK, OWNER, key="1")
    path = f"/stories/{card.story.id}/rewrite"
    assert (await browser.send(path, form="other")).status == 403
    await browser.dependencies.stories.board.move(card.story.id, "archive", OWNER)
    assert (await browser.send(path, form=form)).status == 403
    other_form = await browser.sign_in(OTHER)
    assert (await browser.send(path, form=other_form)).status == 404


async def test_a_first_draft_is_suggested_for_a_goal(browser: Browser) -> None:
    form = await browser.sign_in()
    goal = f"Export {HOSTILE} so that I can book"
    response = await browser.send("/stories/suggest", form=form, key="task-mine", goal=goal)
    assert response.status == 303
    assert "task=task-mine" in response.headers["Location"]
    page = (await browser.get(response.headers["Location"])).text
    assert "so that I can book." in page
    assert "Given &lt;a state&gt;" in page
    assert HOSTILE not in page
    assert await browser.dependencies.stories.board.cards(OWNER) == [], "nothing is stored"
    empty = await browser.send("/stories/suggest", form=form, key="task-2", goal=" ")
    assert (empty.status, "the goal is empty" in empty.text) == (400, True)
    assert (await browser.send("/stories/suggest", form="other", goal=goal)).status == 403
