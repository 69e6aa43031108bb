"""The product owner's page in a real Chromium: a story from sign-in to the commit, with a scripted
model behind it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from served import Served, run_server
from steps import AC, BRIEF, check_appearance, wait_for_state, write_story

from command import Command, git
from moothall.api.accounts import UserAccounts
from world import BIDI, HOSTILE, Reader, commits, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_a_story_goes_from_sign_in_to_the_commit(
    chromium: Browser, command: Command, repo: Path
) -> None:
    async with (
        run_server(command) as app,
        reader(chromium) as user,
        reader(chromium, "narrow") as other_user,
    ):
        await user.sign_in(app.link)
        await other_user.sign_in(app.link)
        assert "has been used" in await other_user.text()
        points = await write_story(user, "Greet the world")
        assert points[0] < points[1] <= points[2], points
        await user.press("Refine")
        await user.press("Submit")
        story = user.page.url
        await wait_for_state(user, "design", "Accept design")
        await user.press("Accept design")
        await wait_for_state(user, "test", "Accept test")
        await user.page.get_by_role("link", name="ranking, checks and diff").click()
        text = await user.text()
        assert "Passed the acceptance checks" in text
        assert "hello_world" in text
        old_line = user.page.locator(".line.was").first
        await expect(old_line).to_be_visible()  # old and new values are side by side
        await user.page.set_viewport_size({"width": 390, "height": 844})
        await expect(old_line).to_be_hidden()
        await user.page.set_viewport_size({"width": 1440, "height": 900})
        await user.page.get_by_role("link", name="Comment on line 4 of src/utils.py").click()
        await user.page.get_by_label("Requested change to this line").fill("Say it in French.")
        await user.press("Comment")
        assert "Say it in French." in await user.text()
        await user.page.goto(story)
        await user.press("Reject")
        await wait_for_state(user, "test", "Accept test")
        await user.press("Accept test")
        await wait_for_state(user, "docs", "Accept")
        await user.press("Accept")
        await wait_for_state(user, "done")
        branch = await user.page.locator("tr:has(th:text-is('Branch')) td").inner_text()
        assert branch in git(repo, "branch", "--format=%(refname:short)").splitlines()
        assert "def bonjour" in commits(repo, branch)
        assert "def hello_world" in commits(repo, branch)
        await user.page.get_by_role("link", name="Origin of its lines").click()
        await user.page.get_by_role("link", name="src/utils.py").click()
        for line, origin_text in ((4, "Add hello_world"), (9, "sent back")):
            await user.page.get_by_role("link", name=f"Origin of line {line}").click()
            origin = user.page.get_by_role("region", name=f"Line {line} of src/utils.py")
            await expect(origin).to_contain_text("Greet the world")
            await expect(origin).to_contain_text(origin_text)
            await expect(origin).to_contain_text("local approved")
        await user.page.get_by_role("link", name="Show this commit in the graph").click()
        await user.page.get_by_role("link", name="Proposal").first.click()
        await expect(user.page.get_by_role("heading", name="Proposal")).to_be_visible()
        assert user.errors == []
    async with (
        run_server(command) as restarted,
        reader(chromium, "narrow", scripts=False) as later_user,
    ):
        await later_user.sign_in(restarted.link)
        assert "Greet the world" in await later_user.text(), (
            "the board is the same after a restart, and without scripts"
        )


async def test_text_with_html_scripts_and_bidi_characters_has_no_effect(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await write_story(
            user,
            f"Greet {HOSTILE}"[:200],
            f"{BRIEF} HOSTILE {HOSTILE}",
            tuple(f"{criterion} {HOSTILE}" for criterion in AC),
        )
        await user.press("Refine")
        await user.press("Submit")
        story = user.page.url
        await wait_for_state(user, "design", "Accept design")
        await user.press("Accept design")
        await wait_for_state(user, "test", "Accept test")
        pages = [story, f"{user.web}/"]
        await user.page.get_by_role("link", name="ranking, checks and diff").click()
        pages.append(user.page.url)
        for url in pages:
            await user.page.goto(url)
            assert await user.page.title() != "owned"
            assert await user.page.locator("main b, main img, main script").count() == 0
            assert BIDI not in await user.text()
        assert "<script>" in await user.text()
        assert user.errors == []


async def test_two_browsers_see_each_others_changes_live_and_drafts_stay(
    chromium: Browser, command: Command
) -> None:
    async with reader(chromium) as user, reader(chromium, "narrow") as other_user:
        async with run_server(command, signal.SIGKILL) as app:
            await user.sign_in(app.link)
            await write_story(user, "Greet the world")
            story = user.page.url
            await other_user.take_session(user)
            await other_user.page.goto(user.web)
            await expect(
                other_user.page.locator("section", has_text="Backlog").get_by_text(
                    "Greet the world"
                )
            ).to_be_visible()
            await user.press("Refine")
            await expect(
                other_user.page.locator("section", has_text="Draft").get_by_text("Greet the world")
            ).to_be_visible()
            await other_user.page.goto(story)
            await other_user.page.get_by_label("Comment", exact=True).fill("not sent yet")
            await user.press("Submit")
            await expect(other_user.page.locator("strong.state")).to_have_text("Design")
            assert (
                await other_user.page.get_by_label("Comment", exact=True).input_value()
                == "not sent yet"
            )
            assert await other_user.page.locator("#offline").is_hidden()
        await expect(other_user.page.locator("#offline")).to_be_visible()
        async with run_server(command) as restarted:
            await expect(other_user.page.get_by_role("heading", name="Sign in")).to_be_visible(
                timeout=20_000
            )
            await other_user.sign_in(restarted.link)
            await expect(
                other_user.page.locator("section", has_text="Design").get_by_text("Greet the world")
            ).to_be_visible()


async def test_a_council_is_watched_steered_and_cancelled(
    chromium: Browser, command: Command
) -> None:
    async with (
        run_server(command) as app,
        reader(chromium) as user,
        reader(chromium, "narrow", "dark") as other_user,
    ):
        await user.sign_in(app.link)
        await other_user.take_session(user)
        await write_story(user, "Greet the world", criteria=(f"{AC[0]} SLOW", AC[1]))
        await user.press("Refine")
        await user.press("Submit")
        story = user.page.url
        await wait_for_state(user, "design", "Accept design")
        await user.page.get_by_role("link", name="Edit tasks").click()
        await check_appearance(user, "plan")
        await user.page.get_by_label("Description").nth(1).fill("Test it twice")
        await user.page.get_by_label("Builds on tasks").nth(1).fill("1, 7")
        await user.press("Save")
        await expect(user.page.get_by_role("alert")).to_contain_text(
            "builds on '7', which does not exist"
        )
        assert "400" in user.errors.pop()  # the browser's message about the refusal
        await user.page.get_by_label("Builds on tasks").nth(1).fill("1")
        await user.press("Save")
        await expect(user.page.get_by_text("Changed by you")).to_be_visible()
        await expect(user.page.get_by_text("Test it twice", exact=True)).to_be_visible()
        await user.press("Accept design")
        await wait_for_state(user, "build")
        await expect(user.page.get_by_text("At work", exact=True)).to_be_visible(timeout=60_000)
        await expect(user.page.get_by_role("img", name="Dependencies of the tasks")).to_be_visible()
        await check_appearance(user, "story-building")
        await user.page.get_by_role("link", name="evidence of").first.click()
        await other_user.page.goto(user.page.url)
        for page in (user.page, other_user.page):
            await expect(page.get_by_text("waits for the model")).to_have_count(3, timeout=60_000)
            await expect(page.get_by_text("Partial reply")).to_have_count(3)
            await expect(page.get_by_text("I would write <script>").first).to_be_visible(
                timeout=20_000
            )
            assert BIDI not in await page.inner_text("main")
        await other_user.page.get_by_label("Message to the seats").fill("Say it in French.")
        await other_user.press("Send")
        await expect(user.page.get_by_text("not received yet")).to_be_visible()
        await check_appearance(user, "council-running")
        await other_user.page.get_by_text("Cancel this deliberation").click()
        await other_user.press("Cancel permanently")
        for page in (user.page, other_user.page):
            await expect(page.locator("strong.state")).to_have_text("Cancelled", timeout=30_000)
        await user.page.goto(story)
        await expect(user.page.get_by_text("Next: read its evidence")).to_have_count(
            2, timeout=30_000
        )
        await check_appearance(user, "story-failed")
        assert user.errors == other_user.errors == []


async def test_a_password_signs_in_and_a_restart_keeps_the_session(
    chromium: Browser, command: Command
) -> None:
    UserAccounts(command.data_dir).add("alice", "correct horse battery", roles=["po"])
    async with reader(chromium) as user:
        async with run_server(command) as app:
            user.web = app.link.partition("/sign-in")[0]
            await user.open("/sign-in")
            await check_appearance(user, "sign-in-account")
            await user.page.get_by_label("Name").fill("alice")
            await user.page.get_by_label("Password").fill("no horse battery")
            await user.page.keyboard.press("Enter")
            await expect(user.page.get_by_role("alert")).to_have_text("Wrong name or password.")
            await check_appearance(user, "sign-in-refused")
            await user.page.get_by_label("Name").fill("alice")
            await user.page.get_by_label("Password").fill("correct horse battery")
            await user.page.keyboard.press("Enter")
            await expect(user.page.get_by_label("Account alice")).to_be_visible()
        async with run_server(command):
            await user.open("/")
            await expect(user.page.get_by_label("Account alice")).to_be_visible()
            await user.sign_out()
            await expect(user.page.get_by_role("heading", name="Sign in")).to_be_visible()


async def ask(user: Reader, question: str) -> None:
    """Ask one agent about the repository, and wait for the field for the next question."""
    await user.open("/ask")
    await user.page.get_by_label("Question or task").fill(question)
    await user.page.get_by_label("Repository").fill("project")
    await user.press("Ask")
    await user.page.get_by_role("button", name="Ask", exact=True).wait_for(timeout=120_000)


async def test_one_agent_is_asked_and_a_follow_up_is_sent_by_keyboard(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await ask(user, f"Add hello_world {HOSTILE}")
        first = user.page.url
        assert "+def hello_world" in await user.text()
        await user.page.get_by_label("Next question").focus()
        await user.page.keyboard.type("Say it in French too: bonjour")
        await user.page.keyboard.press("Tab")
        await user.page.keyboard.press("Enter")
        await user.page.wait_for_url(lambda url: url != first)
        await user.page.get_by_role("button", name="Ask", exact=True).wait_for(timeout=120_000)
        text = await user.text()
        assert "Earlier questions" in text
        assert "Say it in French too" in text
        assert await user.page.title() != "owned"
        assert await user.violations() == []
        assert user.errors == []


async def _views(app: Served, user: Reader) -> dict[str, str]:
    """Create a story in its check and one in the backlog, and return the views by name."""
    await user.sign_in(app.link)
    await write_story(user, "Greet the moon")
    waiting = user.page.url
    await write_story(user, "Greet the world")
    await user.press("Refine")
    await user.press("Submit")
    story = user.page.url
    await wait_for_state(user, "design", "Accept design")
    await user.press("Accept design")
    await wait_for_state(user, "test", "Accept test")
    council = await user.page.get_by_role("link", name="ranking, checks and diff").get_attribute(
        "href"
    )
    lines = await user.page.get_by_role("link", name="Origin of its lines").get_attribute("href")
    origins = await user.page.get_by_role("link", name="Show in the graph").get_attribute("href")
    task = await user.page.get_by_role("link", name="evidence of").first.get_attribute("href")
    await ask(user, "Add hello_world")
    answer = user.page.url.removeprefix(user.web)
    return {
        "ask": "/ask",
        "answer": answer,
        "board": "/",
        "new-story": "/stories/new",
        "story": story.removeprefix(user.web),
        "backlog": waiting.removeprefix(user.web),
        "council": str(council),
        "remark": f"{council}?on=1.9",
        "task": str(task),
        "wrong": "/stories/nowhere",
        "runs": "/runs",
        "insights": "/insights",
        "health": "/system",
        "audit": "/system/audit",
        "tools": "/system/tools",
        "budgets": "/system/budgets",
        "parked": "/system/parked",
        "origin": f"{lines}&path=src/utils.py&line=4",
        "graph": str(origins),
    }


async def test_axe_finds_no_violations_on_any_view_wide_and_narrow_light_and_dark(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.page.goto(f"http://{app.web}/sign-in")
        await check_appearance(user, "sign-in")
        for name, path in (await _views(app, user)).items():
            await user.open(path)
            await check_appearance(user, name)


async def test_a_story_can_be_created_and_moved_by_keyboard_only(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        keyboard = user.page.keyboard

        async def focus(name: str) -> None:
            for _ in range(40):
                await keyboard.press("Tab")
                focused = await user.page.evaluate(
                    "(document.activeElement.labels?.[0] ?? document.activeElement).innerText"
                )
                if focused.strip().startswith(name):  # an icon may be before it
                    return
            raise AssertionError(f"{name} is not reached by Tab")

        await focus("New story")
        await keyboard.press("Enter")
        await user.page.wait_for_url("**/stories/new")
        for label, text in (
            ("Title", "Greet the world"),
            ("Brief", BRIEF),
            ("Criteria", "\n".join(AC)),
            ("Repository", "project"),
        ):
            await focus(label)
            await keyboard.type(text)
        await focus("Create")
        await keyboard.press("Enter")
        await user.page.wait_for_url("**/stories/story-*")
        await focus("Refine")
        await keyboard.press("Enter")
        await user.page.wait_for_load_state()
        await expect(user.page.locator("strong.state")).to_have_text("Draft")
