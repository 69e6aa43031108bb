"""What reaches an open page by itself: moves of others while something is typed, notifications, the
lines of a large diff, and what the coach wrote.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import AC, BRIEF, check_appearance, until, wait_for_state, write_story

from command import Command, answer_turns_with
from moothall.app.bus import open_log
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import Deliberation
from moothall.settings import load_settings
from moothall.telemetry.tracing import write_of
from moothall.testing.model import phase_of, scripted_model
from world import BIDI, HOSTILE, by_words, make_command, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

_TASK, _SEAT = "task-large", "agent-dev-001"
_FILES, _LINES = 40, 700
_RECORD_NOTIFICATIONS = """
window.shownNotifications = [];
window.Notification = class {
  static permission = "granted";
  static async requestPermission() { return "granted"; }
  constructor(title, { body }) { window.shownNotifications.push(`${title}: ${body}`); }
};
"""
_HIDE = """
Object.defineProperty(document, "hidden", { get: () => true });
document.dispatchEvent(new Event("visibilitychange"));
"""


async def test_buttons_follow_the_state_while_a_comment_is_typed(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user, reader(chromium) as other_user:
        await user.sign_in(app.link)
        await other_user.take_session(user)
        await write_story(user, "Greet the world")
        await other_user.page.goto(user.page.url)
        await other_user.page.get_by_text("Add a comment").click()
        comment = other_user.page.get_by_label("Comment (optional)")
        await comment.type("Half a sen")
        await user.press("Refine")
        await expect(other_user.page.get_by_role("button", name="Submit")).to_be_visible()
        await expect(other_user.page.get_by_role("button", name="Refine")).to_have_count(0)
        await expect(comment).to_be_focused()
        await other_user.page.keyboard.type("tence")
        await expect(comment).to_have_value("Half a sentence")
        await other_user.press("Submit")
        await wait_for_state(user, "design", "Accept design")
        await expect(user.page.get_by_text("Half a sentence")).to_be_visible()
        assert user.errors == other_user.errors == []


async def test_a_hidden_tab_notifies_when_a_story_needs_the_user(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user, reader(chromium) as other_user:
        await user.sign_in(app.link)
        await other_user.take_session(user)
        await other_user.page.add_init_script(_RECORD_NOTIFICATIONS)
        await other_user.open("/")
        await other_user.page.locator(".menu summary").click()
        await other_user.page.get_by_label("Notify me when a story needs me").check()
        await check_appearance(other_user, "menu-notifications")
        await other_user.page.wait_for_function("isNotifying")
        await other_user.page.evaluate(_HIDE)
        await write_story(user, "Greet the world")
        await user.press("Refine")
        await user.press("Submit")
        await wait_for_state(user, "design", "Accept design")
        await other_user.page.wait_for_function("shownNotifications.length")
        assert await other_user.page.evaluate("shownNotifications") == [
            "Moothall: 1 story needs you"
        ]
        await user.page.keyboard.press("a")
        await expect(user.page.get_by_role("button", name="Accept design")).to_be_focused()
        await user.page.keyboard.press("r")
        await expect(user.page.locator(":focus")).to_contain_text("Reject design")
        assert user.errors == other_user.errors == []


async def _write_large_run(command: Command) -> None:
    """Write a run with a diff of 2 MB to the data directory: paths and lines are hostile text."""
    diff = "".join(
        f"diff --git a/src/<b>{number}.py b/src/<b>{number}.py\nnew file mode 100644\n"
        f"--- /dev/null\n+++ b/src/<b>{number}.py\n@@ -0,0 +1,{_LINES} @@\n"
        + "".join(f"+line_{line} = {number}  # {HOSTILE[:40]}\n" for line in range(_LINES))
        for number in range(_FILES)
    )
    deliberation = Deliberation(
        TaskKey(_TASK), "Count in cents", "dev", "tests_then_verify", (_SEAT,), 1,
        datetime.now(UTC) + timedelta(days=1), 12,
    )  # fmt: skip
    result = Result(
        1, _SEAT, "dev", 0.9, ("the tests passed",), passed_gates=True, proven=True, diff=diff,
        evidence_level=EvidenceLevel.PROVEN,
    )  # fmt: skip
    outcome = Outcome(
        deliberation.task_id, DeliberationStatus.COMPLETED, role="dev", winner_id=_SEAT,
        results=(result,),
    )  # fmt: skip
    request = dump(deliberation) | {"request_digest": "", "num_agents": 1}
    settings = load_settings(data_dir=command.data_dir)
    async with open_log(settings, lambda _: None) as bus:
        for kind, data in (
            (EventType.DELIBERATION_REQUESTED, request),
            (EventType.DELIBERATION_DECIDED, dump(outcome)),
        ):
            await bus.publish(write_of(deliberation, kind, data, ordinal="large"))


async def test_lines_of_a_large_diff_are_loaded_when_visible(
    chromium: Browser, command: Command
) -> None:
    await _write_large_run(command)
    async with (
        run_server(command) as app,
        reader(chromium) as user,
        reader(chromium, "narrow", scripts=False) as plain,
    ):
        await user.sign_in(app.link)
        await user.open(f"/councils/{_TASK}")
        first = user.page.locator("#file-1-1 .line.added")
        await expect(first.first).to_be_visible()
        assert await user.page.locator(".line.added").count() < 2 * _LINES

        async def is_loaded() -> bool:  # each part ends with a link to the next one
            await user.page.locator("#file-1-1").evaluate("part => part.scrollIntoView(false)")
            return await first.count() == _LINES

        await until(is_loaded, 30)
        last = user.page.locator(f"#file-1-{_FILES}")
        await expect(last.locator(".line.added")).to_have_count(0)
        await user.page.locator(f".files a[href='#file-1-{_FILES}']").focus()
        await user.page.keyboard.press("Enter")
        await expect(last.get_by_text(f"line_0 = {_FILES - 1}")).to_be_visible(timeout=20_000)
        assert await user.page.title() != "owned"
        assert await user.page.locator("main b, main img, main script").count() == 0
        assert BIDI not in await user.text()
        await user.page.evaluate("scrollTo(0, 0)")
        assert user.errors == []
        await plain.take_session(user)
        await plain.open(f"/councils/{_TASK}")
        await plain.page.locator("#file-1-2 .more-lines a").click()
        await expect(plain.page.locator("#file-1-2").get_by_text("line_0 = 1")).to_be_visible()
        await plain.page.locator("#file-1-2 .more-lines a").click()
        await expect(plain.page.get_by_text("line_300 = 1")).to_be_visible()
        await plain.page.get_by_role("link", name="Show the file from its first line").click()
        await expect(plain.page.locator("#file-1-2").get_by_text("line_0 = 1")).to_be_visible()


def coach(body: dict[str, Any], headers: Mapping[str, str]) -> Any:
    """Write a complete story as a coach."""
    if phase_of(headers) != "coach":
        return by_words(body, headers)
    story = {"title": f"Greet the world {HOSTILE}", "description": BRIEF, "criteria": list(AC)}
    return json.dumps({"thought": "", "finish": json.dumps(story)})


async def test_the_coachs_drafts_survive_a_restart(chromium: Browser, tmp_path: Path) -> None:
    async with scripted_model(answer_turns_with(coach)) as model, reader(chromium) as user:
        command = make_command(tmp_path, model.base_url)
        async with run_server(command, signal.SIGKILL) as app:
            await user.sign_in(app.link)
            await user.open("/stories/new")
            await user.page.get_by_label("Start from a sentence").fill("Greet the world")
            await user.press("Suggest a story")
            await expect(user.page.get_by_label("Brief")).to_have_value(BRIEF)
            assert await user.page.title() != "owned"
            await check_appearance(user, "new-story-suggested")
            await user.page.get_by_label("Title").fill("Greet all the world")
            second = await user.page.context.new_page()
            await second.goto(f"{user.web}/stories/new")
            await second.get_by_label("Title").fill("Weak")
            await second.get_by_role("button", name="Create").click()
            await second.get_by_role("button", name="Suggest a rewrite").click()
            await expect(second.locator("ins", has_text="greets the world")).to_be_visible()
            rewrite = second.url
        token = (command.data_dir / "token").read_text(encoding="utf-8").strip()
        async with run_server(command):
            await user.page.reload()
            await user.page.get_by_label("Token").fill(token)
            await user.page.get_by_role("button", name="Sign in").click()
            await expect(user.page.get_by_label("Title")).to_have_value("Greet all the world")
            await expect(user.page.get_by_label("Brief")).to_have_value(BRIEF)
            await second.goto(rewrite)
            await expect(second.locator("ins", has_text="greets the world")).to_be_visible()
            await second.get_by_role("link", name="Edit it first").click()
            await expect(second.get_by_label("Brief")).to_have_value(BRIEF)
            await second.get_by_role("button", name="Save").click()
            await expect(second.get_by_text(BRIEF)).to_be_visible()
