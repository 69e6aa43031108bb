"""The demo project of `scripts/demo-data`: a full board, running councils of five, a review of a
change of 30 files, and two weeks of insights.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from served import run_server
from steps import check_appearance

from command import Command, answer_turns_with
from moothall.testing.model import scripted_model
from world import by_words, make_command, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

_SCRIPT = Path(__file__).parents[2] / "scripts" / "demo_data.py"


async def seed(folder: Path) -> tuple[int, str]:
    """Run the script; return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_SCRIPT),
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest_asyncio.fixture(loop_scope="session")
async def demo(tmp_path: Path) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(by_words)) as server:
        command = make_command(tmp_path, server.base_url)
        assert (await seed(command.data_dir))[0] == 0
        yield command


async def test_the_demo_project_shows_every_state(chromium: Browser, demo: Command) -> None:
    code, output = await seed(demo.data_dir)
    assert (code, "already has stories" in output) == (1, True)
    async with run_server(demo) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        text = await user.text()
        for words in ("running", "needs you", "build failed", "check failed", "stopped", "merged"):
            assert words in text, words
        await expect(user.page.locator(".cards > li")).to_have_count(38)
        await check_appearance(user, "demo-board")
        await user.page.get_by_role("link", name="Archived (2)").click()
        await expect(user.page.locator(".cards > li")).to_have_count(2)
        await user.open("/insights")
        await expect(user.page.get_by_role("img")).to_have_count(3)
        await check_appearance(user, "demo-insights")
        await user.open("/runs?state=live")
        await user.page.locator(".runs tbody a").first.click()
        await expect(user.page.get_by_text("In progress", exact=True)).to_be_visible()
        await expect(user.page.locator(".timeline .lane")).to_have_count(5)
        await check_appearance(user, "demo-council")
        await user.open("/runs?state=ended")
        await user.page.get_by_role("link", name="Time", exact=True).click()
        await expect(user.page.locator("th[aria-sort=descending]")).to_have_text("Time")
        assert "state=ended" in user.page.url
        await check_appearance(user, "runs-sorted")
        await user.open("/runs?q=demo-20-dev")
        await user.page.locator(".runs tbody a").first.click()
        await expect(user.page.get_by_text("shop/labels/rules.py").first).to_be_attached()
        await check_appearance(user, "demo-review")
        assert user.errors == []
