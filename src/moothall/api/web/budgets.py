"""The page of budgets: the quotas of a tenant, which operators change, and budgets of stories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import (
    Session,
    Sessions,
    read_query,
    read_session_form,
    require_session,
)
from moothall.authorization.approvals import refuse_unless_operator
from moothall.authorization.budgets import TenantQuotas
from moothall.config.limits import Quota
from moothall.errors import InvalidRequest

_MAX_STORIES = 50
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
        tenant = read_query(request, "tenant") or session.who.tenant
        if tenant != session.who.tenant:
            refuse_unless_operator(session.who)
        if request.method == "GET":
            quotas = await dependencies.quotas.read(tenant)
            return await show(session, tenant, quotas, _texts(quotas.values))
        refuse_unless_operator(session.who)
        form = await read_session_form(request, session)
        tenant = form.get("tenant", "") or session.who.tenant
        try:
            values = _read_values(form)
            await dependencies.quotas.change(tenant, values, session.who)
        except InvalidRequest as error:
            quotas = await dependencies.quotas.read(tenant)
            return await show(session, tenant, quotas, form, error.message)
        mine = tenant == session.who.tenant
        return redirect("/system/budgets" if mine else f"/system/budgets?tenant={tenant}")

    async def show(
        session: Session,
        tenant: str,
        quotas: TenantQuotas,
        texts: Mapping[str, str],
        error: str = "",
    ) -> Response:
        cards = await dependencies.stories.board.cards(session.who)
        latest = sorted(cards, key=lambda card: -card.seq)[:_MAX_STORIES]
        accounts = await asyncio.gather(
            *(
                dependencies.stories.budgets.of(
                    card.story.id, session.who.tenant, card.story.budget
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
