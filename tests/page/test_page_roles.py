"""People with different roles at the page at once, and what an operator changes there."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect
from served import Served, run_server
from steps import check_appearance, wait_for_state, write_story

from command import Command
from moothall.api.accounts import UserAccounts
from world import Reader, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

PASSWORD = "correct horse battery"


async def sign_in(user: Reader, app: Served, name: str) -> None:
    """Sign in with a name and a password."""
    user.web = f"http://{app.web}"
    await user.open("/sign-in")
    await user.page.get_by_label("Name").fill(name)
    await user.page.get_by_label("Password").fill(PASSWORD)
    await user.page.keyboard.press("Enter")
    await expect(user.page.get_by_label(f"Account {name}")).to_be_visible()


async def test_a_product_owner_and_a_tester_work_on_a_story_concurrently(
    chromium: Browser, command: Command
) -> None:
    accounts = UserAccounts(command.data_dir)
    accounts.add("pat", PASSWORD, roles=["po", "architect"])
    accounts.add("quinn", PASSWORD, roles=["qa"])
    async with (
        run_server(command) as app,
        reader(chromium) as owner,
        reader(chromium, "narrow") as tester,
    ):
        await sign_in(owner, app, "pat")
        await sign_in(tester, app, "quinn")
        await write_story(owner, "Greet the world")
        story = owner.page.url
        await tester.page.goto(story)
        for name in ("Refine", "Archive"):
            await expect(owner.page.get_by_role("button", name=name)).to_be_visible()
            await expect(tester.page.get_by_role("button", name=name)).to_have_count(0)
        await tester.page.get_by_label("Comment", exact=True).fill("Half a sentence")
        await owner.press("Refine")
        await owner.press("Submit")
        await wait_for_state(owner, "design", "Accept design")
        await expect(tester.page.locator("strong.state")).to_have_text("Design")
        await expect(tester.page.get_by_label("Comment", exact=True)).to_have_value(
            "Half a sentence"
        )
        await expect(tester.page.get_by_role("button", name="Accept design")).to_have_count(0)
        await tester.page.get_by_role("button", name="Comment", exact=True).click()
        await expect(owner.page.get_by_text("quinn: Half a sentence")).to_be_visible()
        await owner.press("Accept design")
        await wait_for_state(tester, "test", "Accept test")
        await expect(owner.page.get_by_text("Next: accept test (qa)")).to_be_visible()
        await expect(owner.page.get_by_role("button", name="Accept test")).to_have_count(0)
        await owner.open("/")
        await expect(owner.page.locator(".status")).to_have_text("waits for others")
        await tester.open("/?show=needs-you")
        await expect(tester.page.locator(".status")).to_have_text("needs you")
        await tester.page.goto(story)
        await tester.press("Accept test")
        await expect(owner.page.locator(".status")).to_have_text("needs you")
        await owner.page.goto(story)
        await check_appearance(owner, "story-roles")
        await owner.press("Accept")
        await expect(tester.page.locator("strong.state")).to_have_text("Done")
        row = tester.page.get_by_role("row", name="Accept test")
        await expect(row).to_contain_text("you")
        await expect(tester.page.get_by_role("row", name="Accept design")).to_contain_text("pat")
        assert owner.errors == tester.errors == []


async def test_an_operator_changes_a_quota_and_others_only_see_it(
    chromium: Browser, command: Command
) -> None:
    UserAccounts(command.data_dir).add("pat", PASSWORD, roles=["po"])
    async with run_server(command) as app, reader(chromium) as operator, reader(chromium) as owner:
        await operator.sign_in(app.link)
        await sign_in(owner, app, "pat")
        await operator.open("/system/budgets")
        await operator.page.get_by_label("Tokens per day", exact=True).fill("5000")
        await operator.page.keyboard.press("Enter")
        await expect(operator.page.get_by_text("0 of 5000")).to_be_visible()
        await operator.page.get_by_text("Changes (1)").click()
        await expect(operator.page.get_by_text("local: tokens per day 5,000")).to_be_visible()
        await check_appearance(operator, "quotas")
        await owner.open("/system/budgets")
        await expect(owner.page.get_by_text("0 of 5000")).to_be_visible()
        await expect(owner.page.get_by_role("button", name="Save quotas")).to_have_count(0)
        await operator.page.get_by_label("Tokens per day", exact=True).fill("many")
        await operator.press("Save quotas")
        await expect(operator.page.get_by_role("alert")).to_contain_text("is not a whole number")
        await expect(operator.page.get_by_label("Tokens per day", exact=True)).to_have_value("many")
        assert "400" in operator.errors.pop()  # the browser's message about the refusal
        assert operator.errors == owner.errors == []
