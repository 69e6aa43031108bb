"""The review of a story in a real Chromium: candidates are compared, and what shows the criteria is
named. The candidates of the scripted model differ by seat.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from served import run_server
from steps import AC, BRIEF, check_appearance, until, wait_for_state, write_story

from command import QUICK, Command, answer_turns_with, task_of, turn
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import phase_of, scripted_model, seat_of
from world import BIDI, HELLO, HOSTILE, Reader, make_command, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
TEST = (
    "from src.utils import hello_world\n\n\ndef test_greets():\n"
    '    assert hello_world() == "Hello, World!"\n'
)


def propose(body: dict[str, Any], headers: Mapping[str, str]) -> str:
    """Reply by seat: the first adds the function, the second a test too, the third is wrong. As a
    coach, write a better story.
    """
    if phase_of(headers) == "coach":
        story = {
            "title": f"Greet the world {HOSTILE}",
            "description": BRIEF,
            "criteria": [AC[0], f"{AC[1]} within 2 seconds"],
        }
        return json.dumps({"thought": "", "finish": json.dumps(story)})
    if "Divide this story" in task_of(body):
        task = {"id": "hello", "role": "dev", "description": "Add hello_world", "criteria": [1, 2]}
        return json.dumps({"thought": "", "finish": json.dumps({"tasks": [task]})})
    answer = {"path": "src/utils.py", "content": HELLO}
    if seat_of(headers).endswith("2"):
        answer["content"] += f"\n\n# {HOSTILE}\n"
        test = {"path": "tests/test_greeting.py", "content": TEST}
        notes = {"path": "docs/notes.md", "content": f"# Notes\n\n{HOSTILE}\n"}
        actions = [
            {"tool": "files.append", "args": answer},
            {"tool": "files.write", "args": test},
            {"tool": "files.write", "args": notes},
        ]
        return json.dumps({"thought": "", "actions": actions})
    if seat_of(headers).endswith("3"):
        answer["content"] = HELLO.replace("Hello, World!", "Goodbye")
    return turn("files.append", **answer)


@pytest_asyncio.fixture(loop_scope="session")
async def project(tmp_path: Path) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(propose)) as server:
        await make_sample_repository(tmp_path / "project")
        command = make_command(tmp_path, server.base_url)
        command.extra |= QUICK
        added = await command("repo", "add", str(tmp_path / "project"), "--id", "project")
        assert added.code == 0, added.err
        yield command


async def build_story(user: Reader) -> str:
    """Build a story until it waits for the acceptance of its test; return its URL."""
    await write_story(user, "Greet the world")
    await user.press("Refine")
    await user.press("Submit")
    story = user.page.url
    await wait_for_state(user, "design", "Accept design")
    await user.press("Accept design")
    await wait_for_state(user, "test", "Accept test")
    return story


async def focus(user: Reader, selector: str) -> None:
    """Reach an element with the Tab key alone."""
    for _ in range(80):
        await user.page.keyboard.press("Tab")
        if await user.page.evaluate(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"{selector} is not reached by Tab")


async def test_a_story_is_reviewed_and_sent_back(chromium: Browser, project: Command) -> None:
    async with run_server(project) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        story = await build_story(user)
        result = user.page.get_by_role("region", name="Result", exact=True)
        await expect(result).to_contain_text(re.compile("proven.*3 of 3.*Lines", re.DOTALL))
        criteria = user.page.get_by_role("region", name="Criteria and evidence")
        await expect(criteria).to_contain_text("test_hello_world by the repository")
        await expect(criteria).to_contain_text("The same tests as criterion 1")
        await expect(user.page.locator(".steps [aria-current=step]")).to_have_text("Test")
        await expect(user.page.locator(".candidates tbody tr")).to_have_count(3)
        await expect(user.page.get_by_role("row", name="Accept design")).to_contain_text("you")
        await check_appearance(user, "story-review")
        await user.page.get_by_role("button", name="What rigor means").focus()
        await user.page.keyboard.press("Enter")
        await expect(user.page.get_by_text("from 75 points, built by dev")).to_be_visible()
        await check_appearance(user, "story-glossary")
        await user.page.keyboard.press("Escape")
        await expect(user.page.get_by_text("from 75 points, built by dev")).to_be_hidden()
        await user.page.get_by_role("link", name="evidence of").first.click()
        rows = user.page.locator(".candidates tbody tr")
        await expect(rows).to_have_count(3)
        await expect(rows.first).to_contain_text(
            re.compile("agent-dev-002.*winner.*proven", re.DOTALL)
        )
        await expect(rows.first).to_contain_text("in 3 files")
        await expect(rows.last).to_contain_text(
            re.compile("agent-dev-003.*not passed.*unproven", re.DOTALL)
        )
        await expect(user.page.get_by_text("The 2 accepted candidates:")).to_be_visible()
        shared = await user.page.locator(".shared li").first.inner_text()
        assert (await user.text()).count(shared) == 1, "a shared reason is listed once"
        await check_appearance(user, "candidates")
        await rows.last.get_by_role("link").click()
        await expect(user.page.get_by_role("heading", name="3. agent-dev-003")).to_be_in_viewport()
        await user.page.goto(story)
        await user.page.get_by_role("link", name="Review the changes").click()
        await _check_diff(user)
        await _review_by_keyboard(user)
        await expect(user.page.locator("strong.state")).to_have_text("Build")
        assert user.page.url == story
        assert user.errors == []


async def _check_diff(user: Reader) -> None:
    """Check the diff's colours, its words in place of git's headers, and that its text is inert."""
    await expect(user.page.locator(".added .hk", has_text="def").first).to_be_visible()
    await expect(user.page.locator(".added .hc", has_text="<script>").first).to_be_visible()
    assert await user.page.locator("main b, main img, main script").count() == 0
    text = await user.text()
    assert BIDI not in text
    assert "+def hello_world" in text
    assert "@@" not in text
    assert "new file mode" not in text
    await check_appearance(user, "review")
    await user.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    for width in (390, 1440):
        await user.page.set_viewport_size({"width": width, "height": 844})
        await expect(user.page.get_by_role("button", name="Accept", exact=True)).to_be_in_viewport()


async def _review_by_keyboard(user: Reader) -> None:
    """Mark a file as viewed and send the story back, with the keyboard alone."""
    files = user.page.locator(".file > details")
    await expect(user.page.get_by_text("0 of 3 files viewed")).to_be_visible()
    await user.page.reload()
    await focus(user, ".viewed input")
    await user.page.keyboard.press("Space")
    await expect(user.page.get_by_text("1 of 3 files viewed")).to_be_visible()
    await expect(files.first).not_to_have_attribute("open", "")
    await user.page.reload()
    await expect(user.page.get_by_text("1 of 3 files viewed")).to_be_visible()
    await expect(files.first).not_to_have_attribute("open", "")
    await expect(files.last).to_have_attribute("open", "")
    await focus(user, ".review-bar .bad")
    await expect(user.page.locator(":focus")).to_have_text("Send back (0 comments)")
    await user.page.keyboard.press("Enter")
    await user.page.wait_for_url("**/stories/*")


async def test_a_rewrite_by_the_coach_can_be_accepted_or_rejected(
    chromium: Browser, project: Command
) -> None:
    async with run_server(project) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await write_story(user, "Greet the world", "Greet.", AC[:1])
        story = user.page.url
        await user.press("Suggest a rewrite")
        await expect(user.page.locator("ins", has_text="within 2 seconds")).to_be_visible()
        await expect(user.page.locator("del", has_text="Greet")).to_be_visible()
        await expect(user.page.locator("ins", has_text="<script>")).to_be_visible()
        assert await user.page.title() != "owned"
        await check_appearance(user, "rewrite")
        await user.page.get_by_role("link", name="Leave it").click()
        await expect(user.page.get_by_text("Greet.", exact=True)).to_be_visible()
        await user.press("Suggest a rewrite")
        await user.page.get_by_role("button", name="Take it").focus()
        await user.page.keyboard.press("Enter")
        await user.page.wait_for_url(story)
        await expect(user.page.get_by_text(BRIEF)).to_be_visible()
        await expect(user.page.get_by_text(f"{AC[1]} within 2 seconds")).to_be_visible()
        await user.press("Refine")
        await user.press("Submit")
        assert BIDI not in await user.text()
        assert user.errors == []
        await _open_in_the_graph(user)


async def _open_in_the_graph(user: Reader) -> None:
    """Open a neighbour in place, with the keyboard alone, and show one kind of neighbours."""
    graph = str(await user.page.get_by_role("link", name="Show in the graph").get_attribute("href"))

    async def is_drawn() -> bool:
        await user.open(graph)
        return "Task Divide this story" in await user.text()  # a title, not an id

    await until(is_drawn)
    user.errors.clear()  # the graph may have been late
    node = user.page.locator(".neighbours > li", has_text="Transition refine").first
    await node.locator("summary").focus()
    await user.page.keyboard.press("Enter")
    await expect(node.get_by_role("link", name="Story Greet the world")).to_be_visible()
    await check_appearance(user, "graph-opened")
    await user.page.get_by_role("link", name=re.compile("^Transition \\(")).click()
    await expect(user.page.get_by_role("link", name=re.compile("^All \\("))).to_be_visible()
    kinds = await user.page.locator(".neighbours > li > a").all_inner_texts()
    assert kinds
    assert all(kind.startswith("Transition") for kind in kinds)
    assert user.errors == []
