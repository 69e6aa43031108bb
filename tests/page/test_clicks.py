"""How many clicks a story takes, counted in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import AC, BRIEF, wait_for_state

from command import Command, git
from world import Reader, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

_COUNT = """
addEventListener("click", event => {
    if (event.isTrusted) sessionStorage.clicks = Number(sessionStorage.clicks ?? 0) + 1
}, true)
"""


async def count_clicks(user: Reader) -> int:
    return int(await user.page.evaluate("sessionStorage.clicks ?? 0"))


async def write(user: Reader) -> None:
    """Write a story from the board, with the mouse only for links and buttons."""
    await user.page.get_by_role("link", name="New story").first.click()
    await user.page.get_by_label("Title").fill("Greet the world")
    await user.page.get_by_label("Brief").fill(BRIEF)
    await user.page.get_by_label("Repository").fill("project")
    await user.page.get_by_label("Criteria").fill("\n".join(AC))
    await user.press("Create")


async def test_a_story_is_merged_in_seven_clicks(
    chromium: Browser, command: Command, repo: Path
) -> None:
    changed = await command("repo", "add", str(repo), "--id", "project", "--on-approval", "merge")
    assert changed.code == 0, changed.err
    git(repo, "switch", "-q", "--detach")  # a branch that is checked out is not moved
    async with run_server(command) as app, reader(chromium) as user:
        await user.page.add_init_script(_COUNT)
        await user.sign_in(app.link)
        await user.open("/")
        await write(user)
        await user.press("Refine")
        await user.press("Submit")
        for state, button in (
            ("design", "Accept design"),
            ("test", "Accept test"),
            ("docs", "Accept"),
        ):
            await wait_for_state(user, state, button)
            await user.press(button)
        await wait_for_state(user, "done")
        await expect(user.page.get_by_text("Merged into main")).to_be_visible()
        assert 0 < await count_clicks(user) <= 7
    assert "def hello_world" in git(repo, "show", "main:src/utils.py")


async def test_an_edit_a_line_comment_and_a_second_round_take_fourteen_clicks(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.page.add_init_script(_COUNT)
        await user.sign_in(app.link)
        await user.open("/")
        await write(user)
        await user.page.get_by_role("link", name="Edit", exact=True).click()
        await user.page.get_by_label("Title").fill("Greet everybody")
        await user.press("Save")
        await user.press("Refine")
        await user.press("Submit")
        await wait_for_state(user, "design", "Accept design")
        await user.press("Accept design")
        await wait_for_state(user, "test", "Accept test")
        await user.page.get_by_role("link", name="Review the changes").click()
        await user.page.get_by_role("link", name="Comment on line 4 of src/utils.py").click()
        await user.page.get_by_label("Requested change to this line").fill("Say it in French.")
        await user.press("Comment")
        await user.press("Send back")
        await wait_for_state(user, "test", "Accept test")
        await user.press("Accept test")
        await wait_for_state(user, "docs", "Accept")
        await user.press("Accept")
        await wait_for_state(user, "done")
        assert 0 < await count_clicks(user) <= 14
