"""The timeline of a council in a real Chromium: twelve seats at a glance, and the prompts, replies
and tool output of its steps.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from served import run_server
from steps import check_appearance

from command import Command
from moothall.app.bus import open_log
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import TaskKey
from moothall.domain.task import Deliberation
from moothall.settings import load_settings
from moothall.telemetry.tracing import write
from world import HOSTILE, VIEWPORTS, reader

pytest_plugins = ["page_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world to src/utils.py"
SEATS = tuple(f"agent-dev-{number:03}" for number in range(1, 13))
_RUN = "task-twelve"
_GEOMETRY = """
() => {
  const box = element => element.getBoundingClientRect();
  const labels = [...document.querySelectorAll(".timeline .lane")].map(box);
  const blocks = [...document.querySelectorAll(".timeline rect")].map(box);
  return {
    overlapping: labels.filter((one, at) => at && one.top < labels[at - 1].bottom).length,
    covered: labels.filter(label => blocks.some(block =>
      block.left < label.right && block.top < label.bottom && label.top < block.bottom)).length,
    outside: blocks.filter(one => one.left < 0 || one.right > innerWidth).length,
    invisible: blocks.filter(one => one.width < 1 || one.height < 10).length,
  };
}
"""


@pytest.mark.parametrize("viewport", VIEWPORTS)
async def test_a_block_of_the_timeline_opens_its_prompt_and_reply(
    chromium: Browser, command: Command, repo: Path, tmp_path: Path, viewport: str
) -> None:
    run = await command("deliberate", TASK, "--repo", str(repo))
    assert "Winner" in run.out, run.err
    file = tmp_path / "run.html"
    export = await command("show", "--html", str(file))
    assert export.code == 0, export.err
    async with run_server(command) as app, reader(chromium, viewport) as user:
        await user.sign_in(app.link)
        await user.open("/runs")
        await user.page.get_by_role("link", name=TASK).first.click()
        block = user.page.locator(".timeline a", has=user.page.locator("rect.model")).first
        await block.click()
        step = user.page.locator("li[id^=step-] details[open]").first
        await expect(step).to_contain_text("Prompt")
        await expect(step.locator("details.message").first).to_contain_text("System")
        await expect(step).to_contain_text(TASK)
        await expect(step).to_contain_text("Reply")
        await expect(step).to_contain_text("files.append")
        await check_appearance(user, f"step-{viewport}")

        # Without its list, a step has a page of its own.
        href = await user.page.locator("a[data-part$='?part']").first.get_attribute("href")
        assert href is not None
        await user.open(href)
        await expect(user.page.get_by_role("heading", name="Prompt")).to_be_visible()
        await check_appearance(user, f"step-page-{viewport}")
        assert user.errors == []

        await user.page.goto(file.as_uri())
        block = user.page.locator(".timeline a", has=user.page.locator("rect.model")).first
        await block.click()
        await expect(user.page.locator(".step:target")).to_be_visible()
        await expect(user.page.locator(".step:target")).to_contain_text("Prompt")
        assert file.read_text(encoding="utf-8").count("You hold one seat of a council") == 1, (
            "what prompts share is in the file once"
        )


async def _write_run_of_twelve(command: Command) -> None:
    """Write a run of twelve seats, which take turns of a model call, tools and a check."""
    start = datetime.now(UTC) - timedelta(minutes=20)
    deliberation = Deliberation(
        TaskKey(_RUN), TASK, "dev", "debate", SEATS, 1, start + timedelta(days=1), 12
    )
    request = dump(deliberation) | {"request_digest": "", "num_agents": len(SEATS)}
    events: list[tuple[float, EventType, str, dict[str, Any]]] = [
        (0, EventType.DELIBERATION_REQUESTED, "", request),
        (1, EventType.DELIBERATION_STARTED, "", {"seats": list(SEATS)}),
    ]
    usage = {"prompt_tokens": 9000, "completion_tokens": 400, "calls": 1, "cost_usd": 0.02}
    for index, seat in enumerate(SEATS):
        for turn in range(6):
            begin = 2.0 + index + turn * 90
            data = {"seat": seat, "call_id": f"{_RUN}/{seat}/propose/{turn}.1"}
            call = {"phase": "propose", "duration_ms": 40_000, "usage": usage, "answer": HOSTILE}
            tools = [{"tool": "files.edit", "status": "success"}]
            events += [
                (begin + 40, EventType.MODEL_CALLED, f"{seat}{turn}", data | call),
                (begin + 60, EventType.SEAT_TURN, f"{seat}{turn}", data | {"operations": tools}),
            ]
    async with open_log(load_settings(data_dir=command.data_dir), lambda _: None) as bus:
        for seconds, kind, ordinal, data in sorted(events, key=lambda event: event[0]):
            time = (start + timedelta(seconds=seconds)).isoformat()
            document = {"task_id": _RUN, **data}
            await bus.publish(
                write(kind, _RUN, document, ordinal=ordinal, time=time, tenant="local")
            )


@pytest.mark.parametrize("viewport", VIEWPORTS)
async def test_the_timeline_of_twelve_seats_is_readable(
    chromium: Browser, command: Command, viewport: str
) -> None:
    await _write_run_of_twelve(command)
    async with run_server(command) as app, reader(chromium, viewport) as user:
        await user.sign_in(app.link)
        await user.open(f"/councils/{_RUN}")
        await expect(user.page.locator(".timeline .lane")).to_have_count(len(SEATS))
        await expect(user.page.locator(".timeline rect.model")).to_have_count(6 * len(SEATS))
        assert await user.page.evaluate(_GEOMETRY) == {
            "overlapping": 0,
            "covered": 0,
            "outside": 0,
            "invisible": 0,
        }
        title = await user.page.locator(".timeline rect.model + title").first.text_content()
        assert str(title).endswith("9,400 tokens, 0.0200 USD")
        assert await user.page.locator("main b, main img, main script").count() == 0
        await check_appearance(user, f"council-twelve-{viewport}")
        assert user.errors == []
