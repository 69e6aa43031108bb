"""The form of a story, the board with its filters, and the path after sign-in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from moothall.api.web.rendering import make_visible, part
from moothall.api.web.sessions import safe_path
from moothall.api.web.story_page import needs_user, status_of
from moothall.domain.codec import dump
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import LOCAL, Principal, TaskId, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.stories.story_state import StoryState
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import Browser, serving_page
from support.callers import TOKEN, TOKENS, api_dependencies
from support.deliberation_service import MemoryDeliberations
from support.working import DRAFT

OWNER = TOKENS[TOKEN]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    dependencies = api_dependencies(MemoryDeliberations())
    async with serving_page(dependencies) as browser:
        yield browser


async def create(
    browser: Browser, title: str, *, repository: str = "", rigor: str = ""
) -> StoryState:
    draft = StoryDraft(title, DRAFT.description, DRAFT.ac)
    return await browser.dependencies.stories.board.create(
        draft, OWNER, key=title, repository=repository, rigor=rigor
    )


async def test_a_story_is_edited_on_the_page(browser: Browser) -> None:
    form = await browser.sign_in()
    card = await create(browser, "Export", repository="repo", rigor="L2")
    path = f"/stories/{card.story.id}/edit"
    assert f'href="{path}"' in (await browser.get(f"/stories/{card.story.id}")).text
    page = (await browser.get(path)).text
    assert 'value="Export"' in page
    assert '<option value="L2" selected>' in page
    assert 'value="repo"' in page
    fields = {"form": form, "seq": str(card.seq), "rigor": "L0", "tokens": "5000", "cost": "1.5"}
    saved = await browser.send(path, do="save", title="Export a month", criteria="A\nB", **fields)
    assert (saved.status, saved.headers["Location"]) == (303, f"/stories/{card.story.id}")
    story = (await browser.dependencies.stories.board.card(card.story.id, OWNER)).story
    assert (story.title, story.ac, story.repository) == ("Export a month", ("A", "B"), None)
    assert (story.budget.tokens, story.budget.cost_usd) == (5000, 1.5)


async def test_every_term_with_a_button_is_explained(browser: Browser) -> None:
    await browser.sign_in()
    card = await create(browser, "Export", rigor="L2")
    text = (await browser.get(f"/stories/{card.story.id}")).text
    terms = set(re.findall(r'popovertarget="([\w-]+)"', text))
    assert "term-rigor" in terms
    assert terms <= set(re.findall(r'popover id="([\w-]+)"', text))
    assert "from 85 points, built by dev, qa" in text


def test_labels_of_independent_levels_have_their_colour() -> None:
    labels = re.findall(r'<span class="(level[^"]*)">([^<]+)</span>', part("terms.html"))
    assert labels == [
        ("level independent", "proven"),
        ("level independent", "reproduced"),
        ("level", "self-tested"),
        ("level", "unproven"),
    ]


async def test_a_conflicting_edit_keeps_the_typed_text(browser: Browser) -> None:
    form = await browser.sign_in()
    card = await create(browser, "Export")
    board = browser.dependencies.stories.board
    await board.update(card.story.id, StoryDraft("Export a year"), OWNER)
    late = await browser.send(
        f"/stories/{card.story.id}/edit", do="save", title="Mine", seq=str(card.seq), form=form
    )
    assert (late.status, 'value="Mine"' in late.text) == (409, True)
    assert "was changed since you opened it, so your text was not stored." in late.text
    assert "seq" not in late.text.partition('role="alert"')[2].partition("</p>")[0]
    assert (await board.card(card.story.id, OWNER)).story.title == "Export a year"


@pytest.mark.parametrize(
    ("field", "value"), [("tokens", "-1"), ("tokens", "many"), ("cost", "nan"), ("cost", "1e999")]
)
async def test_an_invalid_budget_is_refused(browser: Browser, field: str, value: str) -> None:
    form = await browser.sign_in()
    fields = {"title": "Export", "do": "save", "form": form, field: value}
    answer = await browser.send("/stories/new", **fields)
    assert (answer.status, "a whole number of tokens" in answer.text) == (400, True)
    assert await browser.dependencies.stories.board.cards(OWNER) == []


async def test_the_board_is_filtered_by_its_url_parameters(browser: Browser) -> None:
    await browser.sign_in()
    await create(browser, "Export invoices", repository="shop")
    await create(browser, "Import orders", repository="store")
    archived = await create(browser, "Print labels")
    await browser.dependencies.stories.board.move(archived.story.id, "archive", OWNER)
    for query, titles in (
        ("", {"Export invoices", "Import orders"}),
        ("?q=EXPORT+inv", {"Export invoices"}),
        ("?repository=store", {"Import orders"}),
        ("?show=archived", {"Print labels"}),
        ("?show=needs-you", set()),
        ("?q=%00", set()),
    ):
        text = (await browser.get(f"/{query}")).text
        assert {
            title
            for title in ("Export invoices", "Import orders", "Print labels")
            if f">{title}<" in text
        } == titles, query
    assert "No story matches." in (await browser.get("/?show=needs-you")).text


async def test_a_card_shows_the_status_of_its_story() -> None:
    bus = MemoryBus()
    board = Board(bus)
    card = await board.create(DRAFT, LOCAL, key="1")
    story = card.story.id
    assert status_of(card, LOCAL) == ("open", "")
    await board.move(story, "refine", LOCAL)
    card = await board.move(story, "submit", LOCAL)
    assert status_of(card, LOCAL) == ("running", "running")
    plan = {"story_id": story, "plan_id": "plan-1", "tasks": []}
    derived = write(EventType.PLAN_DERIVED, "plan-1", plan, correlationid=story, tenant="local")
    await bus.publish(derived)
    card = await board.card(story, LOCAL)
    assert (status_of(card, LOCAL), needs_user(card, LOCAL)) == (("needs", "needs you"), True)
    clerk = Principal("clerk", "local")
    assert (status_of(card, clerk), needs_user(card, clerk)) == (
        ("open", "waits for others"),
        False,
    )
    card = await board.move(story, "accept_design", LOCAL)
    assert status_of(card, LOCAL) == ("running", "running")
    end = {"story_id": story, "plan_id": "plan-1", "derivation_id": derived.id, "status": "failed"}
    await bus.publish(write(EventType.PLAN_FINISHED, "plan-1", end, tenant="local"))
    card = await board.card(story, LOCAL)
    assert (status_of(card, LOCAL), needs_user(card, LOCAL)) == (("lost", "build failed"), True)
    card = await board.move(story, "stop", LOCAL)
    assert status_of(card, LOCAL) == ("open", "stopped")


async def test_sign_in_leads_back_to_the_page(browser: Browser) -> None:
    redirect = await browser.get("/stories/new?x=1")
    assert redirect.headers["Location"] == "/sign-in?next=%2Fstories%2Fnew%3Fx%3D1"
    assert (
        'name="next" value="/stories/new?x=1"'
        in (await browser.get(redirect.headers["Location"])).text
    )
    signed_in = await browser.send("/sign-in", token=TOKEN, next="/stories/new?x=1")
    assert signed_in.headers["Location"] == "/stories/new?x=1"


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/",
        "/\\evil.example",
        "https://evil.example",
        "/a b",
        "/a\nb",
        "/sign-in?link=x",
        "",
        "/" + "a" * 3000,
    ],
)
def test_sign_in_redirects_to_no_other_site(path: str) -> None:
    assert safe_path(path) == "/"


@pytest.mark.parametrize(
    ("text", "visible_text"),
    [
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467", None),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None),
        ("pay\u200dload", "pay\u27e8U+200D\u27e9load"),
        ("\u200d\u4e2d", "\u27e8U+200D\u27e9\u4e2d"),
        ("\u4e2d\u200c", "\u4e2d\u27e8U+200C\u27e9"),
    ],
)
def test_joiners_are_kept_where_words_and_emoji_need_them(
    text: str, visible_text: str | None
) -> None:
    assert make_visible(text) == (text if visible_text is None else visible_text)


async def test_runs_are_listed_searched_and_paged(browser: Browser) -> None:
    await browser.sign_in()
    assert "There are no runs yet." in (await browser.get("/runs")).text
    bus = browser.dependencies.stories.board._bus
    for number in range(52):
        key = key_of(TaskId(f"task-{number}"), OWNER.tenant)
        outcome = Outcome(
            key, DeliberationStatus.COMPLETED, OWNER.tenant, role="dev", duration_ms=number
        )
        decided = new_event(EventType.DELIBERATION_DECIDED, key, dump(outcome), tenant=OWNER.tenant)
        await bus.publish(decided)
    listed = (await browser.get("/runs")).text
    assert listed.count('href="/councils/') == 50
    second = (await browser.get("/runs?page=2")).text
    assert second.count('href="/councils/') == 2
    page = (await browser.get("/runs?q=task-51")).text
    assert page.count('href="/councils/') == 1
    assert "No run matches." in (await browser.get("/runs?state=failed")).text
    longest = (await browser.get("/runs?sort=time&page=2")).text
    assert re.findall(r'href="/councils/([^"]+)"', longest) == ["task-1", "task-0"]
    assert 'aria-sort="descending">Time' in longest
    key = key_of(TaskId("task-52"), OWNER.tenant)
    failed = Outcome(key, DeliberationStatus.FAILED, OWNER.tenant, error_message="a word " * 60)
    await bus.publish(
        new_event(EventType.DELIBERATION_DECIDED, key, dump(failed), tenant=OWNER.tenant)
    )
    assert "a word a word...</div>" in (await browser.get("/runs")).text, "words are not cut"
    for query in ("sort=luck", "page=0", "page=x", "page=999", "state=lost"):
        assert (await browser.get(f"/runs?{query}")).status == 400
