"""An accepted story is merged with one click, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import check_appearance, wait_for_state, write_story

from command import Command, git
from world import VIEWPORTS, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("viewport", VIEWPORTS)
async def test_a_product_owner_merges_an_accepted_story(
    chromium: Browser, command: Command, repo: Path, viewport: str
) -> None:
    async with run_server(command) as app, reader(chromium, viewport) as user:
        await user.sign_in(app.link)
        await write_story(user, "Greet the world")
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
        panel = user.page.get_by_role("region", name="Result", exact=True)
        await expect(panel).to_contain_text("the merge policy of the repository leaves that")
        await expect(user.page.get_by_text("Next: merge the result")).to_be_visible()
        merge = panel.get_by_role("button", name="Merge", exact=True)
        await check_appearance(user, f"merge-{viewport}")
        width, height = VIEWPORTS[viewport]
        await user.page.set_viewport_size({"width": width, "height": height})
        assert "def hello_world" not in git(repo, "show", "main:src/utils.py")

        # The owner's own changes to a file of the merge prevent it, and the page says so.
        utils = repo / "src" / "utils.py"
        text_before = utils.read_text(encoding="utf-8")
        utils.write_text("mine = 1\n", encoding="utf-8")
        await merge.click()
        await expect(panel).to_contain_text("there are uncommitted changes in src/utils.py")
        utils.write_text(text_before, encoding="utf-8")

        await merge.focus()
        await user.page.keyboard.press("Enter")
        await expect(panel).to_contain_text("Merged into main")
        await expect(merge).to_have_count(0)
        await check_appearance(user, f"merged-{viewport}")
        assert user.errors == []
    assert "def hello_world" in git(repo, "show", "main:src/utils.py")
    assert "Merged-by:" in git(repo, "log", "-1", "--format=%B", "main")
