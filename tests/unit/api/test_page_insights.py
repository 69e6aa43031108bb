"""Insights: figures from the log and the budgets, as charts with tables."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from moothall import config
from moothall.api.web.charts import Series, draw_bars, short_number
from moothall.api.web.insights import ninth_decile
from moothall.authorization.budgets import BUCKET, Quotas, StoryBudgets
from moothall.config.limits import Quota, QuotaSettings
from moothall.domain.budget import Amount, BudgetAccount, BudgetDraw, Usage
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.browsing import DRAFT, HOSTILE, SHOWN, Browser, serving_page
from support.callers import OTHER, TOKEN, TOKENS, api_dependencies
from support.deliberation_service import MemoryDeliberations

OWNER = TOKENS[TOKEN]
NOW = datetime.now(UTC)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def browser(bus: MemoryBus) -> AsyncIterator[Browser]:
    quotas = QuotaSettings(default=Quota(tokens_per_day=50_000))
    dependencies = replace(
        api_dependencies(MemoryDeliberations(), bus), quotas=Quotas(bus.bucket(BUCKET), quotas)
    )
    async with serving_page(dependencies) as browser:
        await browser.sign_in()
        yield browser


async def end_run(bus: MemoryBus, task_id: str, outcome: Outcome, days_ago: float = 0) -> None:
    """Record the request of a run, whose second seat has another model, and its end."""
    request = {"task_id": task_id, "model": "", "seat_models": {"seat-2": f"large {HOSTILE}"}}
    time = (NOW - timedelta(days=days_ago)).isoformat()
    for kind, data in (
        (EventType.DELIBERATION_REQUESTED, request),
        (EventType.DELIBERATION_DECIDED, dump(outcome)),
    ):
        await bus.publish(write(kind, task_id, data, tenant=OWNER.tenant, time=time))


def outcome(task_id: str, story_id: str = "", **changes: object) -> Outcome:
    seats = (
        SeatOutcome("seat-1", SeatStatus.PROPOSED, usage=Usage(1000, 0, 200, 3, 0.25)),
        SeatOutcome("seat-2", SeatStatus.PROPOSED, usage=Usage(4000, 0, 0, 1, 1.0)),
    )
    default = Outcome(
        task_id,
        DeliberationStatus.COMPLETED,
        OWNER.tenant,
        story_id,
        "dev",
        winner_id="seat-1",
        seats=seats,
        usage=Usage(5500, 0, 200, 5, 1.25),
    )
    return replace(default, **changes)  # type: ignore[arg-type] # each test names fields


def test_the_ninth_decile_is_interpolated() -> None:
    assert ninth_decile([60]) == 60
    assert ninth_decile([600, 60]) == pytest.approx(546)
    assert ninth_decile(range(11)) == 9


async def test_a_page_without_runs_explains_how_to_start_one(browser: Browser) -> None:
    page = (await browser.get("/insights")).text
    assert "Nothing has ended in the last 14 days" in page
    assert 'href="/stories/new">Write a story' in page
    assert '<svg class="bars"' not in page


async def test_insights_show_tokens_and_cost_by_model_rates_and_budgets(
    browser: Browser, bus: MemoryBus
) -> None:
    board = browser.dependencies.stories.board
    story = (await board.create(replace(DRAFT, title=HOSTILE), OWNER, key="1")).story.id
    await end_run(bus, "task-1", outcome("task-1", story, proven=True))
    await end_run(bus, "task-2", outcome("task-2", evidence_level=EvidenceLevel.REPRODUCED), 3)
    await end_run(bus, "task-3", outcome("task-3", winner_id=""), 3)
    cancelled = outcome("task-4", status=DeliberationStatus.CANCELLED, winner_id="")
    await end_run(bus, "task-4", cancelled, 3)
    await end_run(bus, "task-5", outcome("task-5"), 40)
    budgets: StoryBudgets = browser.dependencies.stories.budgets
    draw = BudgetDraw(granted=Amount(6000, 5), spent=Amount(5700, 5))
    await budgets.change(f"{OWNER.tenant}.{story}", lambda _: BudgetAccount(draws={"task-1": draw}))
    day = f"{OWNER.tenant}.quota.{NOW:%Y-%m-%d}"
    await budgets.change(day, lambda _: BudgetAccount(draws={"task-1": draw}))
    page = (await browser.get("/insights")).text
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))
    assert figures == {
        "Stories done": "0",
        "Median lead time": "\u2013",
        "Runs ended": "4",
        "Runs with a winner": "67 %",
        "Winners proven": "50 %",
        "Tokens": "22.8 k",
        "Cost": "5.00 USD",
    }
    assert re.search(rf"large {re.escape(SHOWN)}</th><td[^>]*>16,000</td>", page)
    assert re.search(r"scripted</th><td[^>]*>6,800</td>", page), (
        "including the usage of the council"
    )
    assert page.count('<svg class="bars"') == 2  # no story is done
    assert "6 k of 50 k tokens" in page  # the quota
    limit = short_number(config.LimitSettings().story_tokens)
    assert f"6 k of {limit} tokens" in page  # the story
    assert f'href="/stories/{story}/edit"' in page
    assert "<script>alert" not in page
    long_term_page = (await browser.get("/insights?days=90")).text
    assert "<dt>Runs ended</dt><dd>5</dd>" in long_term_page
    assert (await browser.get("/insights?days=365")).status == 400
    await browser.sign_in(OTHER)
    assert "Nothing has ended" in (await browser.get("/insights")).text


def test_bars_are_stacked_on_a_round_scale_with_short_numbers() -> None:
    days = [date(2026, 11, day) for day in range(1, 15)]
    first = Series("one", "tone-0", {days[0]: 30, days[1]: 700})
    chart = draw_bars(
        days, [first, Series("two", "tone-1", {days[1]: 200}), Series("none", "t", {})]
    )
    assert chart is not None
    assert [label for _, label in chart.ticks] == ["0", "500", "1 k"]
    assert [series.name for series in chart.series] == ["one", "two"]
    low, high = [bar for bar in chart.bars if bar.title.startswith("02 Nov")]
    assert high.y + high.height == pytest.approx(low.y, abs=0.2)
    assert high.height / low.height == pytest.approx(2 / 7, abs=0.01)
    assert chart.labels[-1][1] == "14 Nov"
    assert draw_bars(days, [Series("none", "t", {})]) is None
    assert [short_number(value) for value in (0, 999, 18_784, 2_500_000)] == [
        "0",
        "999",
        "18.8 k",
        "2.5 M",
    ]
