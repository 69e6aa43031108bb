"""The same story with the real small model on this machine's CPU: only the product owner is
scripted.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import AC, BRIEF, until, wait_for_state, write_story

from command import git
from moothall.cli.demo import make_sample_repository
from moothall.llm.weights import fetch_weights
from moothall.settings import load_settings
from world import Reader, make_command, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
ROUNDS = 3


async def test_a_story_is_built_by_the_small_model_and_approved(
    chromium: Browser, tmp_path: Path
) -> None:
    """The model is small: one story may end without a winner, and the page then says so; three in a
    row may not.
    """
    settings = load_settings()
    weights = await fetch_weights(settings.llm, settings.data_dir, lambda _done, _total: None)
    await make_sample_repository(tmp_path / "project")
    command = make_command(tmp_path, "")
    command.extra["MOOTHALL_LLM__MODEL_PATH"] = os.fspath(weights)
    added = await command("repo", "add", str(tmp_path / "project"), "--id", "project")
    assert added.code == 0, added.err
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        for number in range(ROUNDS):
            await write_story(
                user, f"Add hello_world() to src/utils.py, try {number + 1}", BRIEF, AC[:1]
            )
            await user.press("Refine")
            await user.press("Submit")
            await wait_for_state(user, "design", "Accept design")
            await user.press("Accept design")
            if await _wait_until_built(user):
                break
        else:
            pytest.fail(f"no story was built:\n{await user.text()}")
        await user.page.get_by_role("link", name="evidence of").first.click()
        await expect(user.page.get_by_text("(winner)")).to_be_visible()
        assert "proven" in await user.text()
        await user.page.go_back()
        await user.press("Accept test")
        await wait_for_state(user, "docs", "Accept")
        await user.press("Accept")
        await wait_for_state(user, "done")
        branch = await user.page.locator("tr:has(th:text-is('Branch')) td").inner_text()
        assert "def hello_world" in git(tmp_path / "project", "show", f"{branch}:src/utils.py")
        assert user.errors == []


async def _wait_until_built(user: Reader) -> bool:
    """Wait until the story may be accepted, or the page offers next steps because nobody
    solved it.
    """

    async def has_ended() -> bool:
        await user.page.reload()
        text = await user.text()
        dispatched = "Next: begins" not in text  # shown until its task is dispatched
        next_steps = await user.page.locator("ol.tasks > li > p", has_text="Next:").count()
        return (next_steps > 0 and dispatched) or await _may_accept(user)

    await until(has_ended, 500)
    return await _may_accept(user)


async def _may_accept(user: Reader) -> bool:
    button = user.page.get_by_role("button", name="Accept test")
    return await button.count() > 0 and await button.first.is_enabled()
