"""The product owner's page in a real Chromium: a story from sign-in to the commit, with a scripted
model behind it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from served import Served, served
from steps import AC, BRIEF, look, stands, write

from command import Command, git
from moothall.api.web.user_accounts import UserAccounts
from world import BIDI, HOSTILE, Reader, commits, reader

pytest_plugins = ["given"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


async def test_a_story_from_sign_in_to_the_commit(
    chromium: Browser, command: Command, repo: Path
) -> None:
    async with (
        served(command) as app,
        reader(chromium) as who,
        reader(chromium, "narrow") as other,
    ):
        await who.sign_in(app.link)
        await other.sign_in(app.link)
        assert "used before" in await other.text()
        points = await write(who, "Greet the world")
        assert points[0] < points[1] <= points[2], points
        await who.press("Refine")
        await who.press("Submit")
        story = who.page.url
        await stands(who, "design", "Accept design")
        await who.press("Accept design")
        await stands(who, "test", "Accept test")
        await who.page.get_by_role("link", name="ranking, checks and diff").click()
        shown = await who.text()
        assert "Passed the acceptance checks" in shown
        assert "hello_world" in shown
        was = who.page.locator(".line.was").first
        await expect(was).to_be_visible()  # what was stands beside what is
        await who.page.set_viewport_size({"width": 390, "height": 844})
        await expect(was).to_be_hidden()
        await who.page.set_viewport_size({"width": 1440, "height": 900})
        await who.page.get_by_role("link", name="Comment on line 4 of src/utils.py").click()
        await who.page.get_by_label("Requested change to this line").fill("Say it in French.")
        await who.press("Comment")
        assert "Say it in French." in await who.text()
        await who.page.goto(story)
        await who.press("Reject")
        await stands(who, "test", "Accept test")
        await who.press("Accept test")
        await stands(who, "docs", "Accept")
        await who.press("Accept")
        await stands(who, "done")
        branch = await who.page.locator("tr:has(th:text-is('Branch')) td").inner_text()
        assert branch in git(repo, "branch", "--format=%(refname:short)").splitlines()
        assert "def bonjour" in commits(repo, branch)
        assert "def hello_world" in commits(repo, branch)
        await who.page.get_by_role("link", name="Origin of its lines").click()
        await who.page.get_by_role("link", name="src/utils.py").click()
        for line, said in ((4, "Add hello_world"), (9, "sent back")):
            await who.page.get_by_role("link", name=f"Origin of line {line}").click()
            origin = who.page.get_by_role("region", name=f"Line {line} of src/utils.py")
            await expect(origin).to_contain_text("Greet the world")
            await expect(origin).to_contain_text(said)
            await expect(origin).to_contain_text("local approved")
        await who.page.get_by_role("link", name="Show this commit in the graph").click()
        await who.page.get_by_role("link", name="Proposal").first.click()
        await expect(who.page.get_by_role("heading", name="Proposal")).to_be_visible()
        assert who.wrong == []
    async with served(command) as again, reader(chromium, "narrow", scripts=False) as later:
        await later.sign_in(again.link)
        assert "Greet the world" in await later.text(), (
            "the board is the same after a restart, and without scripts"
        )


async def test_text_full_of_html_scripts_and_bidi_characters_does_nothing(
    chromium: Browser, command: Command
) -> None:
    async with served(command) as app, reader(chromium) as who:
        await who.sign_in(app.link)
        await write(
            who,
            f"Greet {HOSTILE}"[:200],
            f"{BRIEF} HOSTILE {HOSTILE}",
            tuple(f"{one} {HOSTILE}" for one in AC),
        )
        await who.press("Refine")
        await who.press("Submit")
        story = who.page.url
        await stands(who, "design", "Accept design")
        await who.press("Accept design")
        await stands(who, "test", "Accept test")
        pages = [story, f"{who.web}/"]
        await who.page.get_by_role("link", name="ranking, checks and diff").click()
        pages.append(who.page.url)
        for url in pages:
            await who.page.goto(url)
            assert await who.page.title() != "owned"
            assert await who.page.locator("main b, main img, main script").count() == 0
            assert BIDI not in await who.text()
        assert "<script>" in await who.text()
        assert who.wrong == []


async def test_two_browsers_see_each_others_changes_by_themselves_and_what_one_writes_stays(
    chromium: Browser, command: Command
) -> None:
    async with reader(chromium) as who, reader(chromium, "narrow") as other:
        async with served(command, signal.SIGKILL) as app:
            await who.sign_in(app.link)
            await write(who, "Greet the world")
            story = who.page.url
            await other.take_session(who)
            await other.page.goto(who.web)
            await expect(
                other.page.locator("section", has_text="Backlog").get_by_text("Greet the world")
            ).to_be_visible()
            await who.press("Refine")
            await expect(
                other.page.locator("section", has_text="Draft").get_by_text("Greet the world")
            ).to_be_visible()
            await other.page.goto(story)
            await other.page.get_by_label("Comment", exact=True).fill("not sent yet")
            await who.press("Submit")
            await expect(other.page.locator("strong.state")).to_have_text("Design")
            assert (
                await other.page.get_by_label("Comment", exact=True).input_value() == "not sent yet"
            )
            assert await other.page.locator("#offline").is_hidden()
        await expect(other.page.locator("#offline")).to_be_visible()
        async with served(command) as again:
            await expect(other.page.get_by_role("heading", name="Sign in")).to_be_visible(
                timeout=20_000
            )
            await other.sign_in(again.link)
            await expect(
                other.page.locator("section", has_text="Design").get_by_text("Greet the world")
            ).to_be_visible()


async def test_a_council_is_watched_told_something_and_cancelled(
    chromium: Browser, command: Command
) -> None:
    async with (
        served(command) as app,
        reader(chromium) as who,
        reader(chromium, "narrow", "dark") as other,
    ):
        await who.sign_in(app.link)
        await other.take_session(who)
        await write(who, "Greet the world", criteria=(f"{AC[0]} SLOW", AC[1]))
        await who.press("Refine")
        await who.press("Submit")
        story = who.page.url
        await stands(who, "design", "Accept design")
        await who.page.get_by_role("link", name="Edit tasks").click()
        await look(who, "plan")
        await who.page.get_by_label("What is to be done").nth(1).fill("Test it twice")
        await who.page.get_by_label("Builds on tasks").nth(1).fill("1, 7")
        await who.press("Save")
        await expect(who.page.get_by_role("alert")).to_contain_text(
            "builds on '7', which does not exist"
        )
        assert "400" in who.wrong.pop()  # as the browser tells of the refusal
        await who.page.get_by_label("Builds on tasks").nth(1).fill("1")
        await who.press("Save")
        await expect(who.page.get_by_text("Changed by local")).to_be_visible()
        await expect(who.page.get_by_text("Test it twice", exact=True)).to_be_visible()
        await who.press("Accept design")
        await stands(who, "build")
        await expect(who.page.get_by_text("At work", exact=True)).to_be_visible(timeout=60_000)
        await expect(who.page.get_by_role("img", name="Dependencies of the tasks")).to_be_visible()
        await look(who, "story-building")
        await who.page.get_by_role("link", name="evidence of").first.click()
        await other.page.goto(who.page.url)
        for page in (who.page, other.page):
            await expect(page.get_by_text("waits for the model")).to_have_count(3, timeout=60_000)
            await expect(page.get_by_text("Partial reply")).to_have_count(3)
            await expect(page.get_by_text("I would write <script>").first).to_be_visible(
                timeout=20_000
            )
            assert BIDI not in await page.inner_text("main")
        await other.page.get_by_label("Message to the seats").fill("Say it in French.")
        await other.press("Send")
        await expect(who.page.get_by_text("not received yet")).to_be_visible()
        await look(who, "council-running")
        await other.page.get_by_text("Cancel this deliberation").click()
        await other.press("Cancel permanently")
        for page in (who.page, other.page):
            await expect(page.locator("strong.state")).to_have_text("Cancelled", timeout=30_000)
        await who.page.goto(story)
        await expect(who.page.get_by_text("Next: read its evidence")).to_have_count(
            2, timeout=30_000
        )
        await look(who, "story-failed")
        assert who.wrong == other.wrong == []


async def test_a_name_and_a_password_sign_in_and_a_restart_signs_nobody_out(
    chromium: Browser, command: Command
) -> None:
    UserAccounts(command.data_dir).add("alice", "correct horse battery", roles=["po"])
    async with reader(chromium) as who:
        async with served(command) as app:
            who.web = app.link.partition("/sign-in")[0]
            await who.open("/sign-in")
            await look(who, "sign-in-account")
            await who.page.get_by_label("Name").fill("alice")
            await who.page.get_by_label("Password").fill("no horse battery")
            await who.page.keyboard.press("Enter")
            await expect(who.page.get_by_role("alert")).to_have_text("Wrong name or password.")
            await look(who, "sign-in-refused")
            await who.page.get_by_label("Name").fill("alice")
            await who.page.get_by_label("Password").fill("correct horse battery")
            await who.page.keyboard.press("Enter")
            await expect(who.page.get_by_role("button", name="Sign out alice")).to_be_visible()
        async with served(command):
            await who.open("/")
            await expect(who.page.get_by_role("button", name="Sign out alice")).to_be_visible()
            await who.press("Sign out")
            await expect(who.page.get_by_role("heading", name="Sign in")).to_be_visible()


async def ask(who: Reader, question: str) -> None:
    """Ask one agent about the repository, and wait for the field for the next question."""
    await who.open("/ask")
    await who.page.get_by_label("Question or task").fill(question)
    await who.page.get_by_label("Repository").fill("project")
    await who.press("Ask")
    await who.page.get_by_role("button", name="Ask", exact=True).wait_for(timeout=120_000)


async def test_one_agent_is_asked_and_goes_on_with_the_keyboard(
    chromium: Browser, command: Command
) -> None:
    async with served(command) as app, reader(chromium) as who:
        await who.sign_in(app.link)
        await ask(who, f"Add hello_world {HOSTILE}")
        first = who.page.url
        assert "+def hello_world" in await who.text()
        await who.page.get_by_label("Next question").focus()
        await who.page.keyboard.type("Say it in French too: bonjour")
        await who.page.keyboard.press("Tab")
        await who.page.keyboard.press("Enter")
        await who.page.wait_for_url(lambda url: url != first)
        await who.page.get_by_role("button", name="Ask", exact=True).wait_for(timeout=120_000)
        shown = await who.text()
        assert "Earlier questions" in shown
        assert "Say it in French too" in shown
        assert await who.page.title() != "owned"
        assert await who.violations() == []
        assert who.wrong == []


async def _views(app: Served, who: Reader) -> dict[str, str]:
    """Make a story that stands in its check, one in backlog, and return the views by name."""
    await who.sign_in(app.link)
    await write(who, "Greet the moon")
    waiting = who.page.url
    await write(who, "Greet the world")
    await who.press("Refine")
    await who.press("Submit")
    story = who.page.url
    await stands(who, "design", "Accept design")
    await who.press("Accept design")
    await stands(who, "test", "Accept test")
    council = await who.page.get_by_role("link", name="ranking, checks and diff").get_attribute(
        "href"
    )
    lines = await who.page.get_by_role("link", name="Origin of its lines").get_attribute("href")
    origins = await who.page.get_by_role("link", name="Show in the graph").get_attribute("href")
    task = await who.page.get_by_role("link", name="evidence of").first.get_attribute("href")
    await ask(who, "Add hello_world")
    answer = who.page.url.removeprefix(who.web)
    return {
        "ask": "/ask",
        "answer": answer,
        "board": "/",
        "new-story": "/stories/new",
        "story": story.removeprefix(who.web),
        "backlog": waiting.removeprefix(who.web),
        "council": str(council),
        "remark": f"{council}?on=1.9",
        "task": str(task),
        "wrong": "/stories/nowhere",
        "health": "/house",
        "audit": "/house/audit",
        "tools": "/house/tools",
        "budgets": "/house/budgets",
        "parked": "/house/parked",
        "origin": f"{lines}&path=src/utils.py&line=4",
        "graph": str(origins),
    }


async def test_axe_finds_nothing_on_any_view_wide_and_narrow_light_and_dark(
    chromium: Browser, command: Command
) -> None:
    async with served(command) as app, reader(chromium) as who:
        await who.page.goto(f"http://{app.web}/sign-in")
        await look(who, "sign-in")
        for name, path in (await _views(app, who)).items():
            await who.open(path)
            await look(who, name)


async def test_the_keyboard_alone_is_enough(chromium: Browser, command: Command) -> None:
    async with served(command) as app, reader(chromium) as who:
        await who.sign_in(app.link)
        keyboard = who.page.keyboard

        async def focus(name: str) -> None:
            for _ in range(40):
                await keyboard.press("Tab")
                seen = await who.page.evaluate(
                    "(document.activeElement.labels?.[0] ?? document.activeElement).innerText"
                )
                if seen.startswith(name):
                    return
            raise AssertionError(f"{name} is not reached by Tab")

        await focus("New story")
        await keyboard.press("Enter")
        await who.page.wait_for_url("**/stories/new")
        for label, words in (
            ("Title", "Greet the world"),
            ("Brief", BRIEF),
            ("Criteria", "\n".join(AC)),
            ("Repository", "project"),
        ):
            await focus(label)
            await keyboard.type(words)
        await focus("Create")
        await keyboard.press("Enter")
        await who.page.wait_for_url("**/stories/story-*")
        await focus("Refine")
        await keyboard.press("Enter")
        await who.page.wait_for_load_state()
        assert "Draft" in await who.text()
