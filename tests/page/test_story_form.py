"""A story is edited, archived, stopped and retried in a browser, and nothing typed is lost."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import AC, BRIEF, check_appearance, wait_for_state, write_story

from command import Command, answer_turns_with, task_of
from moothall.testing.model import Fault, scripted_model
from world import by_words, make_command, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_a_story_is_edited_archived_found_and_restored(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await user.open("/stories/new")
        assert await user.page.get_by_label("Repository").input_value() == "project"
        await write_story(user, "Greet the wrold", "Greet.", ())
        await user.page.get_by_role("link", name="Edit", exact=True).click()
        await user.page.get_by_label("Title").fill("Greet the world")
        await user.page.get_by_label("Brief").fill(BRIEF)
        await user.page.get_by_label("Criteria").fill("\n".join(AC))
        await expect(user.page.locator("#score")).to_contain_text("of 100 points")
        await check_appearance(user, "edit-story")
        await user.press("Save")
        await expect(user.page.get_by_role("heading", name="Greet the world")).to_be_visible()
        await user.press("Archive")
        await user.open("/")
        await expect(user.page.get_by_text("No story matches.")).to_be_visible()
        await user.page.get_by_role("link", name="Archived (1)").click()
        await check_appearance(user, "board-archived")
        await user.page.get_by_role("link", name="Greet the world").click()
        await user.press("Restore")
        await user.open("/")
        await user.page.get_by_label("Search stories").fill("greet WORLD")
        await user.page.keyboard.press("Enter")
        await expect(user.page.get_by_role("link", name="Greet the world")).to_be_visible()
        await user.page.get_by_label("Search stories").fill("invoices")
        await user.page.keyboard.press("Enter")
        await expect(user.page.get_by_text("No story matches.")).to_be_visible()
        assert user.errors == []


async def test_typed_text_survives_a_restart_and_an_ended_session(
    chromium: Browser, command: Command
) -> None:
    async with reader(chromium) as user:
        async with run_server(command, signal.SIGKILL) as app:
            await user.sign_in(app.link)
            await write_story(user, "Greet the world", "Greet.", ())
            story = user.page.url
            await user.page.get_by_label("Comment", exact=True).fill("Not sent yet")
            second = await user.page.context.new_page()
            await second.goto(f"{user.web}/stories/new")
            await second.get_by_label("Title").fill("A second story")
            await second.get_by_label("Criteria").fill(AC[0])
        token = (command.data_dir / "token").read_text(encoding="utf-8").strip()
        async with run_server(command):
            await user.page.bring_to_front()
            await expect(
                user.page.get_by_role("heading", name="Sign in", exact=True)
            ).to_be_visible(timeout=20_000)
            await user.page.get_by_label("Token").fill(token)
            await user.page.get_by_role("button", name="Sign in").click()
            await second.goto(f"{user.web}/stories/new")
            await expect(second.get_by_label("Title")).to_have_value("A second story")
            await expect(second.get_by_label("Criteria")).to_have_value(AC[0])
            assert user.page.url == story
            comment = user.page.get_by_label("Comment", exact=True)
            await expect(comment).to_have_value("Not sent yet")
            await user.page.bring_to_front()
            await user.page.context.clear_cookies()
            await user.page.get_by_role("button", name="Comment", exact=True).click()
            await expect(user.page.get_by_role("alert")).to_contain_text("Your session has ended")
            await user.page.get_by_label("Token").fill(token)
            await user.page.get_by_role("button", name="Sign in").click()
            await expect(comment).to_have_value("Not sent yet")
            await user.page.get_by_role("button", name="Comment", exact=True).click()
            await expect(user.page.get_by_text("you: Not sent yet")).to_be_visible()
            await expect(comment).to_have_value("")
            await user.page.reload()
            await expect(comment).to_have_value("")


async def test_a_stopped_story_stops_its_councils(chromium: Browser, command: Command) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await write_story(user, "Greet the world", criteria=(f"{AC[0]} SLOW", AC[1]))
        await user.press("Refine")
        await user.press("Submit")
        story = user.page.url
        await wait_for_state(user, "design", "Accept design")
        await user.press("Accept design")
        await expect(user.page.get_by_text("At work", exact=True)).to_be_visible(timeout=60_000)
        council = await user.page.get_by_role("link", name="evidence of").first.get_attribute(
            "href"
        )
        await user.open("/")
        await expect(user.page.locator(".status")).to_contain_text("running")
        await user.page.goto(story)
        await user.press("Stop")
        await expect(user.page.locator("strong.state")).to_have_text("Draft")
        await user.open(str(council))
        await expect(user.page.locator("strong.state")).to_have_text("Cancelled", timeout=30_000)
        await user.open("/")
        await expect(user.page.locator(".status")).to_have_text("stopped")
        assert user.errors == []


async def test_a_build_that_failed_without_a_model_can_be_retried(
    chromium: Browser, tmp_path: Path, repo: Path
) -> None:
    is_unavailable = True

    def reply(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        if is_unavailable and "Divide this story" not in task_of(body):
            return Fault("status", message="model away", status=400)
        return by_words(body, headers)

    async with scripted_model(answer_turns_with(reply)) as model:
        command = make_command(tmp_path, model.base_url)
        added = await command("repo", "add", str(repo), "--id", "project")
        assert added.code == 0, added.err
        async with run_server(command) as app, reader(chromium) as user:
            await user.sign_in(app.link)
            await write_story(user, "Greet the world")
            await user.press("Refine")
            await user.press("Submit")
            story = user.page.url
            await wait_for_state(user, "design", "Accept design")
            await user.press("Accept design")
            retry = user.page.get_by_role("button", name="Retry")
            await expect(retry).to_be_visible(timeout=120_000)
            await check_appearance(user, "story-retry")
            await user.open("/?show=needs-you")
            await expect(user.page.locator(".status")).to_have_text("build failed")
            is_unavailable = False
            await user.page.goto(story)
            await user.press("Retry")
            await wait_for_state(user, "test", "Accept test")
            await user.press("Accept test")
            await wait_for_state(user, "docs", "Accept")
            await user.press("Accept")
            await wait_for_state(user, "done")
            result = user.page.get_by_role("region", name="Result", exact=True)
            await expect(result).to_contain_text("git merge moothall/")
            await check_appearance(user, "story-done")
            assert user.errors == []


async def test_a_comment_field_is_focused_and_lists_stay_open(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await write_story(user, "Greet the world")
        await user.press("Refine")
        await user.press("Submit")
        await wait_for_state(user, "design", "Accept design")
        task = user.page.locator("details", has_text="Full description").first
        await task.locator("summary").click()
        await user.press("Accept design")
        await wait_for_state(user, "test", "Accept test")
        await expect(task).to_have_attribute("open", "")
        await user.page.get_by_role("link", name="ranking, checks and diff").click()
        await user.page.get_by_role("link", name="Comment on line 4 of src/utils.py").click()
        await expect(user.page.get_by_label("Requested change to this line")).to_be_focused()
        await user.page.go_back()
        await user.page.go_back()
        await expect(task).to_have_attribute("open", "")
        assert user.errors == []
