"""What the page is where nothing is there yet, a card moves, the server is away, something is
wrong; and who comes from a provider.
"""

from __future__ import annotations

import re
import signal

import pytest
from playwright.async_api import Browser, Locator, expect
from served import served
from steps import BRIEF, look, write

from command import Command
from moothall.stories.coach import CRITERIA, TITLE_CHARS
from support.provider import CLIENT, SECRET, provider
from world import HOSTILE, Reader, reader

pytest_plugins = ["given"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def column(who: Reader, state: str) -> Locator:
    return who.page.locator(f"[data-state={state}]")


async def test_cards_are_moved_by_hand_and_by_keyboard_and_stay_where_they_may_not_go(
    chromium: Browser, command: Command
) -> None:
    async with (
        served(command) as app,
        reader(chromium) as who,
        reader(chromium, "narrow") as other,
    ):
        await who.sign_in(app.link)
        await expect(who.page.get_by_role("heading", name="The board is empty")).to_be_visible()
        await look(who, "board-blank")
        await who.page.get_by_role("link", name="Write the first story").click()
        await write(who, "Greet the world", "Greet.", ())
        await other.take_session(who)
        await other.page.goto(who.web)
        await who.open("/")
        card = who.page.locator("[data-card]")
        await card.drag_to(column(who, "draft"))
        for page in (who, other):
            await expect(column(page, "draft").get_by_text("Greet the world")).to_be_visible()
        await card.drag_to(column(who, "done"))
        await expect(
            column(who, "draft").get_by_text("Greet the world")
        ).to_be_visible()  # no line of the table leads there
        await expect(who.page.locator("#told")).to_be_hidden()
        await card.drag_to(column(who, "design"))
        await expect(who.page.locator("#told")).to_contain_text("The story cannot be moved:")
        await look(who, "board-blocked")
        await other.page.keyboard.press("Tab")
        for _ in range(20):
            if (
                await other.page.evaluate("document.activeElement.getAttribute('aria-label')")
                == "Move Greet the world"
            ):
                break
            await other.page.keyboard.press("Tab")
        await other.page.keyboard.press("Enter")
        await look(other, "board-moving")
        for _ in range(3):
            await other.page.keyboard.press("Tab")
            if "Shelve" in await other.page.evaluate("document.activeElement.innerText"):
                break
        await other.page.keyboard.press("Enter")
        for page in (who, other):
            await expect(column(page, "backlog").get_by_text("Greet the world")).to_be_visible()
        assert who.wrong == other.wrong == []


async def test_the_longest_story_fits_and_does_nothing(chromium: Browser, command: Command) -> None:
    async with served(command) as app, reader(chromium) as who:
        await who.sign_in(app.link)
        await who.open("/stories/new")
        await who.page.get_by_label("Title").fill("W" * (TITLE_CHARS - len(HOSTILE)) + HOSTILE)
        await who.page.get_by_label("Criteria").fill(
            "\n".join(["Given a, when b, then c"] * (CRITERIA - 1) + ["W" * 4000])
        )
        await who.press("Create")
        await look(who, "story-longest")
        await who.open("/")
        await look(who, "board-longest")
        assert await who.page.title() != "owned"
        assert who.wrong == []


async def test_a_move_that_came_too_late_is_said_on_the_board(
    chromium: Browser, command: Command
) -> None:
    async with served(command) as app, reader(chromium) as who, reader(chromium) as other:
        await who.sign_in(app.link)
        await write(who, "Greet the world", "Greet.", ())
        await other.take_session(who)
        await other.open("/")
        await other.page.evaluate("source.close()")  # it hears nothing any more
        await who.press("Refine")
        await expect(who.page.locator("strong.state")).to_have_text("Draft")
        await other.page.locator("[data-card]").drag_to(column(other, "draft"))
        await expect(other.page.locator("#told")).to_contain_text("refine")
        await expect(column(other, "draft").get_by_text("Greet the world")).to_be_visible()
        assert who.wrong == []
        assert re.fullmatch(
            "console: .* 4[0-9][0-9] .*", other.wrong.pop()
        )  # as the browser tells of the refusal
        assert other.wrong == []


async def test_the_coach_reads_along_and_nothing_is_lost_to_a_server_that_is_away(
    chromium: Browser, command: Command
) -> None:
    async with reader(chromium) as who:
        async with served(command, signal.SIGKILL) as app:
            await who.sign_in(app.link)
            await who.open("/stories/new")
            await look(who, "new-story")
            await who.page.get_by_label("Title").fill("Greet the world")
            await expect(who.page.locator("#score")).to_contain_text("of 100 points")
            first = await who.page.locator("#score").inner_text()
            await who.page.get_by_label("Brief").fill(BRIEF)
            await expect(who.page.locator("#score")).not_to_have_text(first)
            assert who.wrong == []
            await look(who, "new-story-scored")
        await expect(who.page.locator("#offline")).to_contain_text(
            "The server has not answered since"
        )
        await look(who, "offline")
        await who.page.get_by_role("button", name="Create").click()
        await expect(who.page.locator("#offline")).to_be_focused()
        assert await who.page.get_by_label("Brief").input_value() == BRIEF
        assert who.page.url.endswith("/stories/new")


async def test_what_is_nowhere_is_said_on_a_page_and_programs_get_a_document(
    chromium: Browser, command: Command
) -> None:
    async with served(command) as app, reader(chromium) as who, reader(chromium) as stranger:
        await who.sign_in(app.link)
        for page in (who, stranger):
            page.web = who.web
            await page.open("/nowhere/at/all")
            await expect(page.page.get_by_role("heading", name="Not Found")).to_be_visible()
        await look(who, "nowhere")
        answer = await who.page.request.get(
            f"{who.web}/nowhere", headers={"Accept": "application/json"}
        )
        assert (answer.status, answer.headers["content-type"]) == (401, "application/problem+json")
        answer = await stranger.page.request.get(
            f"{who.web}/tasks", headers={"Accept": "text/html"}
        )
        assert answer.status == 401


async def test_a_provider_on_another_site_signs_a_browser_in(
    chromium: Browser, command: Command
) -> None:
    async with provider(claims={"sub": "ann", "groups": ["product"]}) as there:
        there.issuer = there.issuer.replace(
            "127.0.0.1", "localhost"
        )  # another site than the page's, as cookies see it
        command.extra |= {
            "MOOTHALL_OIDC__ISSUER": there.issuer,
            "MOOTHALL_OIDC__CLIENT_ID": CLIENT,
            "MOOTHALL_OIDC__CLIENT_SECRET": SECRET,
            "MOOTHALL_OIDC__ROLES": '{"product": ["po"]}',
        }
        async with served(command) as app, reader(chromium) as who:
            who.web = f"http://{app.web}"
            await who.open("/sign-in")
            await look(who, "sign-in-provider")
            await who.page.get_by_role("link", name="Sign in at localhost").click()
            await expect(who.page.get_by_role("heading", name="Board", exact=True)).to_be_visible()
            await expect(who.page.get_by_role("button", name="Sign out ann")).to_be_visible()
            await who.page.reload()
            await expect(who.page.get_by_role("button", name="Sign out ann")).to_be_visible()
            await who.press("Sign out")
            await look(who, "signed-out")
            await who.page.get_by_role("link", name="Also sign out at localhost").click()
            await expect(who.page.get_by_text("You are signed out.")).to_be_visible()
            await who.open("/")
            await expect(
                who.page.get_by_role("heading", name="Sign in", exact=True)
            ).to_be_visible()
            assert [asked for asked in who.wrong if f"asked {there.issuer}/" not in asked] == []
