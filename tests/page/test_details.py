"""Details of the page in a real Chromium: a mistyped repository, refused tool calls, scripts that
need joiners, the icon, budgets and times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import BRIEF, write_story

from command import Command
from moothall.app.bus import open_log
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import TaskKey
from moothall.domain.task import Deliberation
from moothall.settings import load_settings
from moothall.telemetry.tracing import write_of
from world import HOSTILE, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0646\u0645"
"""Both lose their meaning without their joiners."""
_ENDS_ON_THE_LEFT = """
element => {
  const text = element.firstChild, range = document.createRange();
  const left = (start, end) => {
    range.setStart(text, start);
    range.setEnd(text, end);
    return range.getBoundingClientRect().left;
  };
  return left(text.length - 2, text.length) < left(0, 1);
}
"""
_RUN, _SEAT = "task-refused", "agent-dev-001"


async def test_a_mistyped_repository_is_reported_while_typing_and_not_stored(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await user.open("/stories/new")
        await user.page.get_by_label("Title").fill("Greet the world")
        await user.page.get_by_label("Brief").fill(BRIEF)
        await user.page.get_by_label("Repository").fill("projetc")
        await expect(user.page.locator("#coach")).to_contain_text("projetc")
        await user.press("Create")
        await expect(user.page.get_by_role("alert")).to_contain_text("projetc")
        assert "400" in user.errors.pop()  # the browser's message about the refusal
        await user.page.get_by_label("Repository").fill("project")
        await user.page.get_by_label("Budget in tokens").fill("5000")
        await user.press("Create")
        await expect(user.page.locator("main")).to_contain_text("project")
        await expect(user.page.get_by_text("5,000 of 5,000 left")).to_be_visible()
        await user.page.get_by_role("link", name="Edit", exact=True).click()
        await user.page.get_by_label("Budget in tokens").fill("9000")
        await user.press("Save")
        await expect(user.page.get_by_text("9,000 of 9,000 left")).to_be_visible()
        assert user.errors == []


async def test_joiners_directions_icon_and_times_are_shown(
    chromium: Browser, command: Command
) -> None:
    async with run_server(command) as app, reader(chromium) as user:
        context = await chromium.new_context(timezone_id="America/New_York", locale="en-GB")
        await user.sign_in(app.link)
        await write_story(user, f"{PERSIAN} {FAMILY}", BRIEF, ())
        heading = user.page.get_by_role("heading", level=1)
        await expect(heading).to_have_text(f"{PERSIAN} {FAMILY}")
        assert await heading.evaluate(_ENDS_ON_THE_LEFT), "the text runs from right to left"
        icon = await user.page.locator("link[rel=icon]").get_attribute("href")
        answer = await user.page.request.get(f"{user.web}{icon}")
        assert (answer.status, answer.headers["content-type"]) == (200, "image/svg+xml")
        assert "immutable" in answer.headers["cache-control"]
        assert "img-src 'self'" in answer.headers["content-security-policy"]
        await user.press("Refine")
        [cookie] = await user.page.context.cookies()
        session = {"name": cookie["name"], "value": cookie["value"], "url": user.web}
        await context.add_cookies([session])  # type: ignore[list-item]
        other_page = await context.new_page()
        await other_page.goto(user.page.url)
        time = other_page.get_by_role("row", name="Refine").locator("time")
        moment = datetime.fromisoformat(str(await time.get_attribute("datetime")))
        local = moment.astimezone(UTC) - timedelta(hours=5)  # New York in winter
        await expect(time).to_contain_text(f"{local:%H:%M}")
        await context.close()
        assert user.errors == []


async def test_a_refused_call_shows_its_reason_and_a_link_to_the_parked_requests(
    chromium: Browser, command: Command
) -> None:
    deliberation = Deliberation(
        TaskKey(_RUN), "Count in cents", "dev", "vote", (_SEAT,), 0,
        datetime.now(UTC) + timedelta(days=1), 12,
    )  # fmt: skip
    refused = [{"tool": "db.write", "status": "parked", "reason": f"dev may not {HOSTILE}"}]
    request = dump(deliberation) | {"request_digest": "", "num_agents": 1}
    turn = {"seat": _SEAT, "turn": 1, "operations": [], "refused_calls": refused}
    async with open_log(load_settings(data_dir=command.data_dir), lambda _: None) as bus:
        for kind, data in (
            (EventType.DELIBERATION_REQUESTED, request),
            (EventType.DELIBERATION_STARTED, {"seats": [_SEAT]}),
            (EventType.SEAT_STARTED, {"seat": _SEAT, "role": "dev", "agent_id": _SEAT}),
            (EventType.SEAT_TURN, turn),
        ):
            await bus.publish(write_of(deliberation, kind, data, ordinal="refused"))
    async with run_server(command) as app, reader(chromium) as user:
        await user.sign_in(app.link)
        await user.open(f"/councils/{_RUN}")
        panel = user.page.get_by_role("region", name="Refused tool calls")
        await expect(panel).to_contain_text("db.write")
        await expect(panel).to_contain_text("dev may not <script>")
        await panel.get_by_role("link").click()
        await expect(user.page.get_by_role("heading", name="Parked requests")).to_be_visible()
        assert await user.page.title() != "owned"
        assert user.errors == []
