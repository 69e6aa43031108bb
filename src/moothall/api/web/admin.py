"""The pages for operators: health, decisions of the tool gateway, parked requests and tools; usage
and results of the runs of some days; quotas of tenants and budgets of stories.
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
from moothall.api.tools import Tools
from moothall.api.web.charts import Series, draw_bars, short_number
from moothall.api.web.councils import REFRESH_SECONDS
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import (
    Session,
    Sessions,
    read_query,
    read_session_form,
    require_session,
)
from moothall.api.web.story_form import may_edit
from moothall.authorization.approvals import refuse_unless_operator
from moothall.authorization.budgets import TenantQuotas
from moothall.collector.statistics import EndedRun
from moothall.config.limits import Quota
from moothall.domain.budget import Usage
from moothall.domain.event import parse_time
from moothall.domain.evidence import EvidenceLevel
from moothall.errors import InvalidRequest, NotFound, Refused
from moothall.stories.lifecycle import lifecycle
from moothall.stories.story_state import StoryState
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.spec import Filters, discover

# The pages about the server: health, decisions of the tool gateway, parked requests, and tools.


def server_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the pages about the server."""

    async def health(_request: Request, session: Session) -> Response:
        return page("health.html", session=session, health=await dependencies.health_check.check())

    async def audit(request: Request, session: Session) -> Response:
        if not session.principal.operator:
            raise Refused("only operators can see the decisions of the tool gateway")
        only = request.query_params.get("only", "")
        if only not in {"", "refused"}:
            raise InvalidRequest(f"only is {only[:40]!r}; allowed is refused, or omit it for all")
        decisions = await dependencies.records.decisions.last(session.principal)
        return page(
            "decisions.html",
            session=session,
            only=only,
            decisions=[item for item in decisions if item.refused or not only],
        )

    async def tools(request: Request, session: Session) -> Response:
        query = read_query(request, "query")
        specs = (
            dependencies.tools.sessions.list_tools(session.principal)
            if dependencies.tools.sessions
            else CATALOGUE.values()
        )
        return page(
            "tools.html", session=session, query=query, tools=discover(specs, Filters(query))
        )

    return [
        Route("/system", require_session(health, sessions)),
        Route("/system/audit", require_session(audit, sessions)),
        Route("/system/tools", require_session(tools, sessions)),
    ]


def parked_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes to list and to decide parked requests."""
    service = (
        Tools(dependencies.tools.sessions, dependencies.tools.approvals)
        if dependencies.tools.sessions
        else None
    )

    async def list_parked(_request: Request, session: Session) -> Response:
        refuse_unless_operator(session.principal)
        waiting = service.list_parked() if service else ()
        return page("parked.html", session=session, parked=waiting, refresh=REFRESH_SECONDS)

    async def resolve(request: Request, session: Session) -> Response:
        form, request_id = await read_session_form(request, session), request.path_params["id"]
        if form.get("do") not in {"allow", "refuse"}:
            raise InvalidRequest("do must be allow or refuse")
        if service is None:
            raise NotFound(f"no parked request {request_id[:80]!r}")
        await service.resolve(
            request_id, allow=form["do"] == "allow", reason=form.get("reason", "").strip()
        )
        return redirect("/system/parked")

    return [
        Route("/system/parked", require_session(list_parked, sessions)),
        Route("/system/parked/{id}", require_session(resolve, sessions), methods=["POST"]),
    ]


# Insights: usage and results of the runs of some days, and what is left of budgets.
#
# All figures come from the log and the budgets; days are those of UTC.


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
    done: datetime
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
        done = await asyncio.to_thread(_done_stories, cards, since)
        models = await _usage_by_model(dependencies, runs)
        counted = [run for run in runs if not run.cancelled]
        won = [run for run in counted if run.won]
        seconds = [story.seconds for story in done]

        def draw() -> dict[str, Any]:
            return {
                "tokens_chart": draw_bars(days, _model_series(models)),
                "runs_chart": draw_bars(days, _run_series(counted)),
                "done_chart": draw_bars(days, [_done_series(done)]),
            }

        return page(
            "insights.html",
            session=session,
            ranges=_RANGES,
            count=count,
            runs=runs,
            usage=sum((run.usage for run in runs), start=Usage()),
            models=models,
            done=done[:_MAX_STORIES],
            done_count=len(done),
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
        for name, used in (await dependencies.records.statistics.usage_by_model(run)).items():
            by_day = usage[name or default]
            by_day[_day(run)] += used
    totals = {name: sum(used.tokens for used in by_day.values()) for name, by_day in usage.items()}
    return [
        (name, usage[name])
        for name in sorted(usage, key=lambda name: -totals[name])
        if totals[name]
    ]


def _model_series(models: Sequence[tuple[str, Mapping[date, Usage]]]) -> list[Series]:
    series = [
        Series(name, f"tone-{number}", {day: used.tokens for day, used in usage.items()})
        for number, (name, usage) in enumerate(models[:_MAX_MODELS])
    ]
    others: dict[date, float] = defaultdict(float)
    for _, usage in models[_MAX_MODELS:]:
        for day, used in usage.items():
            others[day] += used.tokens
    return [*series, Series("other models", "tone-rest", others)]


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
        created, done = parse_time(card.created_time), parse_time(card.entered.time)
        if created and done and done >= since:
            stories.append(DoneStory(card, done, (done - created).total_seconds()))
    return sorted(stories, key=lambda story: story.done, reverse=True)


def ninth_decile(seconds: Sequence[float]) -> float:
    """Return the seconds that nine of ten do not exceed."""
    if len(seconds) == 1:
        return seconds[0]
    return quantiles(seconds, n=10, method="inclusive")[-1]


def _done_series(done: Sequence[DoneStory]) -> Series:
    counts: dict[date, float] = defaultdict(float)
    for story in done:
        counts[story.done.astimezone(UTC).date()] += 1
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
        used = account.spent + account.reserved
        stories.append(
            BudgetUse(
                story.title,
                used.tokens,
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


_MAX_BUDGET_STORIES = 50
_MAX_DIGITS = 15
_FIELDS = {
    "tokens_per_day": "Tokens per day",
    "tokens_per_month": "Tokens per month",
    "cost_usd_per_day": "US dollars per day",
    "cost_usd_per_month": "US dollars per month",
    "deliberations": "Deliberations at once",
}
"""The fields of a quota, with their labels."""


def budget_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the page and its form."""

    async def budgets(request: Request, session: Session) -> Response:
        tenant = read_query(request, "tenant") or session.principal.tenant
        if tenant != session.principal.tenant:
            refuse_unless_operator(session.principal)
        if request.method == "GET":
            quotas = await dependencies.quotas.read(tenant)
            return await show(session, tenant, quotas, _texts(quotas.values))
        refuse_unless_operator(session.principal)
        form = await read_session_form(request, session)
        tenant = form.get("tenant", "") or session.principal.tenant
        try:
            values = _read_values(form)
            await dependencies.quotas.change(tenant, values, session.principal)
        except InvalidRequest as error:
            quotas = await dependencies.quotas.read(tenant)
            return await show(session, tenant, quotas, form, error.message)
        mine = tenant == session.principal.tenant
        return redirect("/system/budgets" if mine else f"/system/budgets?tenant={tenant}")

    async def show(
        session: Session,
        tenant: str,
        quotas: TenantQuotas,
        texts: Mapping[str, str],
        error: str = "",
    ) -> Response:
        cards = await dependencies.stories.board.cards(session.principal)
        latest = sorted(cards, key=lambda card: -card.seq)[:_MAX_BUDGET_STORIES]
        accounts = await asyncio.gather(
            *(
                dependencies.stories.budgets.of(
                    card.story.id, session.principal.tenant, card.story.budget
                )
                for card in latest
            )
        )
        return page(
            "budgets.html",
            400 if error else 200,
            session=session,
            tenant=tenant,
            quotas=quotas,
            uses=await dependencies.quotas.list_uses(tenant),
            fields=_FIELDS,
            texts=texts,
            error=error,
            default=dependencies.quotas.of_settings(tenant),
            budgets=[
                (card, account.lines()) for card, account in zip(latest, accounts, strict=True)
            ],
            count=len(cards),
        )

    handler = require_session(budgets, sessions)
    return [Route("/system/budgets", handler, methods=["GET", "POST"])]


def _texts(values: Mapping[str, float]) -> Mapping[str, str]:
    return {name: str(value) for name, value in values.items()}


def _read_values(form: Mapping[str, str]) -> Mapping[str, float]:
    """Return the values of the form; empty fields are left out. Raises `InvalidRequest`."""
    values: dict[str, float] = {}
    for name, label in _FIELDS.items():
        text = form.get(name, "").strip()
        if not text:
            continue
        is_whole = Quota.model_fields[name].annotation is int
        digits = text if is_whole else text.replace(".", "", 1)
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
            raise InvalidRequest(
                f"{label}: {text[:40]!r} is not a {'whole ' if is_whole else ''}number; 0 is no "
                "limit, and an empty field is the server's setting"
            )
        values[name] = int(text) if is_whole else float(text)
    return values
