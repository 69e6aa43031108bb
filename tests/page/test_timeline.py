"""The steps of a council's timeline in a real Chromium: their prompts, replies and tool output."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from served import served
from steps import check_appearance

from command import Command
from world import VIEWPORTS, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world to src/utils.py"


@pytest.mark.parametrize("viewport", VIEWPORTS)
async def test_a_block_of_the_timeline_opens_its_prompt_and_reply(
    chromium: Browser, command: Command, repo: Path, tmp_path: Path, viewport: str
) -> None:
    done = await command("deliberate", TASK, "--repo", str(repo))
    assert "Winner" in done.out, done.err
    file = tmp_path / "run.html"
    written = await command("show", "--html", str(file))
    assert written.code == 0, written.err
    async with served(command) as app, reader(chromium, viewport) as user:
        await user.sign_in(app.link)
        await user.open("/runs")
        await user.page.get_by_role("link", name=TASK).first.click()
        block = user.page.locator(".timeline a", has=user.page.locator("rect.model")).first
        await block.click()
        step = user.page.locator("li[id^=step-] details[open]").first
        await expect(step).to_contain_text("Prompt")
        await expect(step.locator("details.message").first).to_contain_text("System")
        await expect(step).to_contain_text(TASK)
        await expect(step).to_contain_text("Reply")
        await expect(step).to_contain_text("files.append")
        await check_appearance(user, f"step-{viewport}")

        # Without its list, a step has a page of its own.
        href = await user.page.locator("a[data-part$='?part']").first.get_attribute("href")
        assert href is not None
        await user.open(href)
        await expect(user.page.get_by_role("heading", name="Prompt")).to_be_visible()
        await check_appearance(user, f"step-page-{viewport}")
        assert user.wrong == []

        await user.page.goto(file.as_uri())
        block = user.page.locator(".timeline a", has=user.page.locator("rect.model")).first
        await block.click()
        await expect(user.page.locator(".step:target")).to_be_visible()
        await expect(user.page.locator(".step:target")).to_contain_text("Prompt")
        assert file.read_text(encoding="utf-8").count("You hold one seat of a council") == 1, (
            "what prompts share is in the file once"
        )
