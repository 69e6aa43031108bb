"""States of the page: nothing exists yet, a card moves, the server is away, an error; and sign-in
from an identity provider.
"""

from __future__ import annotations

import re
import signal

import pytest
from playwright.async_api import Browser, Locator, expect
from served import run_server
from steps import BRIEF, check_appearance, write_story

from command import Command
from moothall.stories.coach import CRITERIA, TITLE_CHARS
from support.provider import CLIENT, SECRET, provider
from world import HOSTILE, Reader, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def column(user: Reader, state: str) -> Locator:
    return user.page.locator(f"[data-state={state}]")


async def test_cards_are_moved_by_mouse_and_keyboard_and_invalid_moves_are_undone(
    chromium: Browser, command: Command
) -> None:
    async with (
        run_server(command) as app,
        reader(chromium) as user,
        reader(chromium, "narrow") as other_user,
    ):
        await user.sign_in(app.link)
        await expect(
            user.page.get_by_role("heading", name="Three steps to your first result")
        ).to_be_visible()
        await check_appearance(user, "board-blank")
        await user.page.set_viewport_size({"width": 1440, "height": 900})
        await user.page.get_by_role("link", name="Write a story").click()
        await write_story(user, "Greet the world", "Greet.", ())
        await other_user.take_session(user)
        await other_user.page.goto(user.web)
        await user.open("/")
        card = user.page.locator("[data-card]")
        await card.drag_to(column(user, "draft"))
        for page in (user, other_user):
            await expect(column(page, "draft").get_by_text("Greet the world")).to_be_visible()
        await card.drag_to(column(user, "done"))
        # No line of the table leads there.
        await expect(column(user, "draft").get_by_text("Greet the world")).to_be_visible()
        await expect(user.page.locator("#notice")).to_have_text(
            "You cannot move a story from draft to done."
        )
        await card.drag_to(column(user, "design"))
        await expect(user.page.locator("#notice")).to_contain_text("The story cannot be moved:")
        await check_appearance(user, "board-blocked")
        await other_user.page.keyboard.press("Tab")
        for _ in range(20):
            if (
                await other_user.page.evaluate("document.activeElement.getAttribute('aria-label')")
                == "Move Greet the world"
            ):
                break
            await other_user.page.keyboard.press("Tab")
        await other_user.page.keyboard.press("Enter")
        await check_appearance(other_user, "board-moving")
        for _ in range(3):
            await other_user.page.keyboard.press("Tab")
            if "Shelve" in await other_user.page.evaluate("document.activeElement.innerText"):
                break
        await other_user.page.keyboard.press("Enter")
        for page in (user, other_user):
            await expect(column(page, "backlog").get_by_text("Greet the world")).to_be_visible()
        assert user.errors == other_user.errors == []


async def test_the_longest_story_fits_and_its_text_has_no_effect(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await user.open("/stories/new")
        await user.page.get_by_label("Title").fill("W" * (TITLE_CHARS - len(HOSTILE)) + HOSTILE)
        await user.page.get_by_label("Criteria").fill(
            "\n".join(["Given a, when b, then c"] * (CRITERIA - 1) + ["W" * 4000])
        )
        await user.press("Create")
        await check_appearance(user, "story-longest")
        await user.open(f"{user.page.url.removeprefix(user.web)}/edit")
        await check_appearance(user, "edit-longest")
        await user.open("/")
        await check_appearance(user, "board-longest")
        assert await user.page.title() != "owned"
        assert user.errors == []


async def test_a_late_transition_is_reported_on_the_board(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user, reader(chromium) as other_user:
        await user.sign_in(app.link)
        await write_story(user, "Greet the world", "Greet.", ())
        await other_user.take_session(user)
        # It receives nothing: a stream that is closed is opened again when the tab is shown.
        await other_user.page.add_init_script(
            "window.EventSource = class { addEventListener() {} close() {} }"
        )
        await other_user.open("/")
        await user.press("Refine")
        await expect(user.page.locator("strong.state")).to_have_text("Draft")
        await other_user.page.locator("[data-card]").drag_to(column(other_user, "draft"))
        await expect(other_user.page.locator("#notice")).to_contain_text("refine")
        await expect(column(other_user, "draft").get_by_text("Greet the world")).to_be_visible()
        assert user.errors == []
        # The browser's message about the refusal.
        assert re.fullmatch("console: .* 4[0-9][0-9] .*", other_user.errors.pop())
        assert other_user.errors == []


async def test_the_coach_comments_and_an_unreachable_server_loses_nothing(
    chromium: Browser, command: Command
) -> None:
    async with reader(chromium) as user:
        async with run_server(command, signal.SIGKILL) as app:
            await user.sign_in(app.link)
            await user.open("/stories/new")
            await check_appearance(user, "new-story")
            await user.page.get_by_label("Title").fill("Greet the world")
            await expect(user.page.locator("#score")).to_contain_text("of 100 points")
            first = await user.page.locator("#score").inner_text()
            await user.page.get_by_label("Brief").fill(BRIEF)
            await expect(user.page.locator("#score")).not_to_have_text(first)
            assert user.errors == []
            await check_appearance(user, "new-story-scored")
        await expect(user.page.locator("#offline")).to_contain_text(
            "The server has not answered since"
        )
        await check_appearance(user, "offline")
        await user.page.get_by_role("button", name="Create").click()
        await expect(user.page.locator("#offline")).to_be_focused()
        assert await user.page.get_by_label("Brief").input_value() == BRIEF
        assert user.page.url.endswith("/stories/new")


async def test_an_unknown_path_gives_people_a_page_and_programs_a_document(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user, reader(chromium) as outsider:
        await user.sign_in(app.link)
        for page in (user, outsider):
            page.web = user.web
            await page.open("/nowhere/at/all")
            await expect(page.page.get_by_role("heading", name="Not Found")).to_be_visible()
        await check_appearance(user, "nowhere")
        answer = await user.page.request.get(
            f"{user.web}/nowhere", headers={"Accept": "application/json"}
        )
        assert (answer.status, answer.headers["content-type"]) == (401, "application/problem+json")
        answer = await outsider.page.request.get(
            f"{user.web}/tasks", headers={"Accept": "text/html"}
        )
        assert answer.status == 401


async def test_a_provider_on_another_site_signs_a_browser_in(
    chromium: Browser, command: Command
) -> None:
    async with provider(claims={"sub": "ann", "groups": ["product"]}) as identity_provider:
        # A different site than the page's, for cookies.
        identity_provider.issuer = identity_provider.issuer.replace("127.0.0.1", "localhost")
        command.extra |= {
            "MOOTHALL_OIDC__ISSUER": identity_provider.issuer,
            "MOOTHALL_OIDC__CLIENT_ID": CLIENT,
            "MOOTHALL_OIDC__CLIENT_SECRET": SECRET,
            "MOOTHALL_OIDC__ROLES": '{"product": ["po"]}',
        }
        async with run_server(command) as app, reader(chromium) as user:
            user.web = f"http://{app.web}"
            await user.open("/sign-in")
            await check_appearance(user, "sign-in-provider")
            await user.page.get_by_role("link", name="Sign in at localhost").click()
            await expect(user.page.get_by_role("heading", name="Board", exact=True)).to_be_visible()
            await expect(user.page.get_by_label("Account ann")).to_be_visible()
            await user.page.reload()
            await expect(user.page.get_by_label("Account ann")).to_be_visible()
            await user.sign_out()
            await check_appearance(user, "signed-out")
            await user.page.get_by_role("link", name="Also sign out at localhost").click()
            await expect(user.page.get_by_text("You are signed out.")).to_be_visible()
            await user.open("/")
            await expect(
                user.page.get_by_role("heading", name="Sign in", exact=True)
            ).to_be_visible()
            assert [
                problem
                for problem in user.errors
                if f"asked {identity_provider.issuer}/" not in problem
            ] == []
