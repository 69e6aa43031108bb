"""Getting about: the views, the palette, shortcuts of the keyboard, the menu, and the badge."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import check_appearance, wait_for_state, write_story

from command import Command
from world import HOSTILE, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_views_are_reached_by_shortcuts_and_the_palette(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        for title in ("Greet the moon", f"Greet the world {HOSTILE}"):
            await write_story(user, title, "Greet.", ())
        keyboard, page = user.page.keyboard, user.page
        focused = "document.activeElement.innerText"
        await user.open("/")
        await keyboard.press("j")
        assert (await page.evaluate(focused)).startswith("Greet the world")
        await keyboard.press("j")
        assert await page.evaluate(focused) == "Greet the moon"
        await keyboard.press("k")
        assert (await page.evaluate(focused)).startswith("Greet the world")
        await keyboard.press("/")
        await keyboard.type("cjk?")
        assert await page.get_by_label("Search stories", exact=True).input_value() == "cjk?"
        await keyboard.press("Control+k")
        palette = page.get_by_role("dialog", name="Search")
        await expect(palette.get_by_role("option")).to_have_count(6)  # the views
        await check_appearance(user, "palette")
        await keyboard.type("greet WORLD")
        option = palette.get_by_role("option", name="Greet the world")
        await expect(option).to_have_attribute("aria-selected", "true")
        await expect(palette.locator("b, img, script")).to_have_count(0)
        await keyboard.press("Escape")
        await expect(palette).to_be_hidden()
        await keyboard.press("Control+k")
        await keyboard.type("moon")
        await expect(palette.get_by_role("option")).to_have_count(1)
        await keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Greet the moon")).to_be_visible()
        await keyboard.press("Control+k")
        await keyboard.type("oper")
        await keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Health")).to_be_visible()
        current = page.locator(".views [aria-current=page]")
        await expect(current).to_have_text("Operations")
        assert user.errors == []


async def test_shortcuts_are_listed_and_can_be_disabled_and_the_menu_closes(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await user.open("/system")
        keyboard, page = user.page.keyboard, user.page
        await keyboard.press("?")
        shortcuts = page.get_by_role("dialog", name="Keyboard shortcuts")
        await check_appearance(user, "shortcuts")
        await shortcuts.get_by_label("Use shortcuts of a single key").uncheck()
        await keyboard.press("Escape")
        await keyboard.press("c")
        await expect(shortcuts).to_be_hidden()
        assert page.url.endswith("/system")
        await page.evaluate("localStorage.clear()")
        await keyboard.press("c")
        await page.wait_for_url("**/stories/new")
        await page.locator(".menu summary").click()
        await check_appearance(user, "menu")
        await keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
        assert user.errors == []


async def test_the_title_shows_how_many_stories_need_the_user(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user, reader(chromium) as other_user:
        await user.sign_in(app.link)
        await other_user.take_session(user)
        await other_user.open("/")
        await expect(other_user.page).to_have_title("Board · Moothall")
        await write_story(user, "Greet the world")
        await user.press("Refine")
        await user.press("Submit")
        await wait_for_state(user, "design", "Accept design")
        await expect(other_user.page).to_have_title("(1) Board · Moothall")
        await expect(other_user.page.locator("#needed")).to_have_text("1")
        await other_user.open("/runs")
        await expect(other_user.page).to_have_title(re.compile(r"^\(1\) Runs"))
        await user.press("Stop")
        await expect(other_user.page).to_have_title(re.compile("^Runs"))
        assert user.errors == other_user.errors == []
