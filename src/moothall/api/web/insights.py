"""The view Insights: usage and results of the runs of some days, and what is left of budgets.

All figures come from the log and the budgets; days are those of UTC.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from statistics import median, quantiles
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.charts import Series, draw_bars, short_number
from moothall.api.web.rendering import page
from moothall.api.web.sessions import (
    Session,
    Sessions,
    require_session,
)
from moothall.api.web.story_form import may_edit
from moothall.collector.statistics import EndedRun
from moothall.domain.budget import Usage
from moothall.domain.event import parse_time
from moothall.domain.evidence import EvidenceLevel
from moothall.errors import InvalidRequest
from moothall.stories.lifecycle import lifecycle
from moothall.stories.story_state import StoryState

_RANGES = (7, 14, 30, 90)
_DEFAULT_DAYS = 14
_MAX_MODELS = 5
"""Models with their own colour; the others are added up."""
_MAX_STORIES = 10
_PROVEN = EvidenceLevel.PROVEN.value


@dataclass(frozen=True, slots=True)
class DoneStory:
    """A finished story, and the seconds from its creation to its end."""

    card: StoryState
    end_time: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A limit, 0 for none, and how much is used or reserved. `link` is a page about it, `change`
    one on which the user can change it.
    """

    name: str
    used: float
    limit: float
    unit: str
    link: str = ""
    change: str = ""

    @property
    def text(self) -> str:
        """The use in words."""
        of = f" of {short_number(self.limit)}" if self.limit else ""
        return f"{short_number(self.used)}{of} {self.unit}"


def insights_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the page."""

    async def insights(request: Request, session: Session) -> Response:
        count, principal = _read_range(request), session.principal
        today = datetime.now(UTC).date()
        days = [today - timedelta(days=back) for back in reversed(range(count))]
        since = datetime.combine(days[0], time(), UTC)
        runs = await dependencies.records.statistics.list_runs(principal, since)
        cards = await dependencies.stories.board.cards(principal)
        done_stories = await asyncio.to_thread(_done_stories, cards, since)
        models = await _usage_by_model(dependencies, runs)
        counted = [run for run in runs if not run.cancelled]
        won = [run for run in counted if run.won]
        seconds = [story.seconds for story in done_stories]

        def draw() -> dict[str, Any]:
            return {
                "tokens_chart": draw_bars(days, _model_series(models)),
                "runs_chart": draw_bars(days, _run_series(counted)),
                "done_chart": draw_bars(days, [_done_series(done_stories)]),
            }

        return page(
            "insights.html",
            session=session,
            ranges=_RANGES,
            count=count,
            runs=runs,
            usage=sum((run.usage for run in runs), start=Usage()),
            models=models,
            done=done_stories[:_MAX_STORIES],
            done_count=len(done_stories),
            lead=(median(seconds), ninth_decile(seconds)) if seconds else None,
            win_rate=len(won) / len(counted) if counted else None,
            proven_rate=sum(run.level == _PROVEN for run in won) / len(won) if won else None,
            budgets=await _budget_uses(dependencies, runs, cards, session),
            short=short_number,
            zero=Usage(),
            **await asyncio.to_thread(draw),
        )

    return [Route("/insights", require_session(insights, sessions))]


def _read_range(request: Request) -> int:
    text = request.query_params.get("days", str(_DEFAULT_DAYS))
    if text not in map(str, _RANGES):
        raise InvalidRequest(f"days is {text[:40]!r}; allowed are {', '.join(map(str, _RANGES))}")
    return int(text)


def _day(run: EndedRun) -> date:
    return datetime.fromtimestamp(run.ended_at_ms / 1000, UTC).date()


async def _usage_by_model(
    dependencies: ApiDependencies, runs: Sequence[EndedRun]
) -> list[tuple[str, Mapping[date, Usage]]]:
    """Return the usage by day of each model, the most used model first."""
    usage: dict[str, dict[date, Usage]] = defaultdict(lambda: defaultdict(Usage))
    default = dependencies.models.default.model or "default"
    for run in runs:
        for name, model_usage in (
            await dependencies.records.statistics.usage_by_model(run)
        ).items():
            by_day = usage[name or default]
            by_day[_day(run)] += model_usage
    totals = {
        name: sum(model_usage.tokens for model_usage in by_day.values())
        for name, by_day in usage.items()
    }
    return [
        (name, usage[name])
        for name in sorted(usage, key=lambda name: -totals[name])
        if totals[name]
    ]


def _model_series(models: Sequence[tuple[str, Mapping[date, Usage]]]) -> list[Series]:
    series = [
        Series(name, f"tone-{number}", {day: day_usage.tokens for day, day_usage in usage.items()})
        for number, (name, usage) in enumerate(models[:_MAX_MODELS])
    ]
    other_tokens: dict[date, float] = defaultdict(float)
    for _, usage in models[_MAX_MODELS:]:
        for day, day_usage in usage.items():
            other_tokens[day] += day_usage.tokens
    return [*series, Series("other models", "tone-rest", other_tokens)]


def _run_series(runs: Sequence[EndedRun]) -> list[Series]:
    counts: dict[str, dict[date, float]] = defaultdict(lambda: defaultdict(float))
    for run in runs:
        kind = "no winner" if not run.won else "proven" if run.level == _PROVEN else "won"
        counts[kind][_day(run)] += 1
    return [
        Series("winner, proven", "tone-good", counts["proven"]),
        Series("winner, not proven", "tone-fair", counts["won"]),
        Series("no winner", "tone-bad", counts["no winner"]),
    ]


def _done_stories(cards: Sequence[StoryState], since: datetime) -> list[DoneStory]:
    """Return the stories that were done since a point in time, the latest first."""
    stories = []
    for card in cards:
        if card.position.state not in lifecycle().end or card.entered is None:
            continue
        created, end_time = parse_time(card.created_time), parse_time(card.entered.time)
        if created and end_time and end_time >= since:
            stories.append(DoneStory(card, end_time, (end_time - created).total_seconds()))
    return sorted(stories, key=lambda story: story.end_time, reverse=True)


def ninth_decile(seconds: Sequence[float]) -> float:
    """Return the seconds that nine of ten do not exceed."""
    if len(seconds) == 1:
        return seconds[0]
    return quantiles(seconds, n=10, method="inclusive")[-1]


def _done_series(stories: Sequence[DoneStory]) -> Series:
    counts: dict[date, float] = defaultdict(float)
    for story in stories:
        counts[story.end_time.astimezone(UTC).date()] += 1
    return Series("stories done", "tone-good", counts)


async def _budget_uses(
    dependencies: ApiDependencies,
    runs: Sequence[EndedRun],
    cards: Sequence[StoryState],
    session: Session,
) -> dict[str, list[BudgetUse]]:
    """Return the quotas of the tenant, and the budgets of the stories that used the most."""
    tokens: dict[str, int] = defaultdict(int)
    for run in runs:
        tokens[run.story_id] += run.usage.tokens
    used_by = [card for card in cards if card.story.id in tokens]
    stories, principal = [], session.principal
    for card in sorted(used_by, key=lambda card: -tokens[card.story.id])[:_MAX_STORIES]:
        story, link = card.story, f"/stories/{card.story.id}"
        account = await dependencies.stories.budgets.of(story.id, principal.tenant, story.budget)
        amount = account.spent + account.reserved
        stories.append(
            BudgetUse(
                story.title,
                amount.tokens,
                account.limit.tokens,
                "tokens",
                link,
                f"{link}/edit" if may_edit(card, session) else "",
            )
        )
    return {
        "quotas": [
            BudgetUse(
                f"{use.what} per {use.period}",
                use.used,
                use.limit,
                use.what,
                change="/system/budgets" if principal.operator else "",
            )
            for use in await dependencies.quotas.list_uses(principal.tenant)
        ],
        "stories": stories,
    }
