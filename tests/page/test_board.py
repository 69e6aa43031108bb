"""The board in a browser: what it fetches when it is loaded and when something changes, and its
columns.
"""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Response, expect
from served import Served, run_server
from steps import check_appearance

from command import Command
from world import Reader, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

_CHANGE_BYTES = 5 * 1024


async def fill(app: Served, user: Reader, count: int) -> list[str]:
    """Create stories through the API, and return their ids."""
    token = app.command.data_dir.joinpath("token").read_text(encoding="utf-8").strip()
    ids = []
    for number in range(count):
        answer = await user.page.request.post(
            f"http://{app.web}/api/v1/stories",
            data={"title": f"Export the invoices of month {number}"},
            headers={"Authorization": f"Bearer {token}", "Idempotency-Key": f"key-{number}"},
        )
        assert answer.ok, await answer.text()
        ids.append((await answer.json())["story_id"])
    return ids


async def test_a_load_fetches_the_board_once_and_a_change_a_fragment(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user, reader(chromium) as other_user:
        await user.sign_in(app.link)
        [first, *_] = await fill(app, user, 40)
        await other_user.take_session(user)
        fetched: list[tuple[str, int]] = []

        async def note(response: Response) -> None:
            if "text/html" in response.headers.get("content-type", ""):
                path = response.url.removeprefix(other_user.web)
                fetched.append((path, (await response.request.sizes())["responseBodySize"]))

        other_user.page.on("response", note)
        await other_user.open("/")
        card = other_user.page.locator(f"#card-{first}")
        await expect(card).to_have_count(0)
        await other_user.page.wait_for_timeout(1500)
        assert [path for path, _ in fetched] == ["/"]
        await user.open(f"/stories/{first}")
        await user.press("Refine")
        await expect(
            other_user.page.locator("#column-draft").locator(f"#card-{first}")
        ).to_be_visible()
        await expect(other_user.page.locator("#state-draft .count")).to_have_text("1")
        await expect(other_user.page.locator("#state-backlog .count")).to_have_text("39")
        await other_user.page.wait_for_timeout(1500)
        [(path, size)] = fetched[1:]
        assert path.startswith("/cards?after=")
        assert size < _CHANGE_BYTES
        fetched.clear()
        await other_user.page.reload()
        await other_user.page.wait_for_timeout(500)
        assert len(fetched) == 1
        assert other_user.errors == user.errors == []


async def test_a_column_scrolls_by_itself_and_loads_its_older_cards(
    chromium: Browser, command: Command
) -> None:
    async with (
        run_server(command) as app,
        reader(chromium) as user,
        reader(chromium, scripts=False) as plain,
    ):
        await user.sign_in(app.link)
        ids = await fill(app, user, 95)
        await user.open("/?q=invoices")
        cards = user.page.locator("#column-backlog .cards > li")
        await expect(cards).to_have_count(30)
        await user.page.locator("#column-backlog .scroll").hover()
        await user.page.mouse.wheel(0, 20_000)
        await expect(cards).to_have_count(60)
        assert await user.page.evaluate("scrollY") == 0, "the column scrolled, not the page"
        await user.page.get_by_role("link", name="35 more").press("Enter")
        await expect(cards).to_have_count(90)
        assert user.page.url.endswith("/?q=invoices")
        focused = await user.page.evaluate("document.activeElement.getAttribute('href')")
        assert focused == f"/stories/{ids[34]}"
        await user.page.get_by_role("link", name="5 more").click()
        await expect(cards).to_have_count(95)
        await expect(user.page.locator(".more")).to_have_count(0)
        await check_appearance(user, "board-long")
        await plain.take_session(user)
        await plain.open("/?q=invoices")
        await plain.page.get_by_role("link", name="65 more").click()
        await expect(plain.page.locator("#column-backlog .cards > li")).to_have_count(30)
        assert re.search(r"q=invoices.*column=backlog", plain.page.url)
        await expect(plain.page.get_by_role("link", name="Newest first")).to_be_visible()
        assert user.errors == []
