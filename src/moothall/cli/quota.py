"""`moothall quota`: the quotas of a tenant, and changing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.options import example, json_option
from moothall.cli.runtime import plain, print_json, with_settings
from moothall.config import Settings
from moothall.domain.identity import LOCAL

if TYPE_CHECKING:
    from moothall.authorization.budgets import QuotaUse, TenantQuotas

_DEFAULT = "default"
_MAX_VALUE = 2**53
_LAST_CHANGES = 5


class _Limit(click.ParamType[Any]):
    """A number from 0, or the word default."""

    def __init__(self, number: click.ParamType[Any]) -> None:
        self._number = number
        self.name = number.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or the word."""
        return value if value == _DEFAULT else self._number.convert(value, param, ctx)


_WHOLE, _AMOUNT = _Limit(click.IntRange(0, _MAX_VALUE)), _Limit(click.FloatRange(0, _MAX_VALUE))


@click.command(
    "quota",
    epilog=example("moothall quota", "moothall quota --tenant team-a --tokens-per-day 2000000"),
)
@click.option("--tenant", default=LOCAL.tenant, show_default=True, help="Tenant that is meant.")
@click.option("--tokens-per-day", type=_WHOLE, help="Tokens of all model calls in a day.")
@click.option("--tokens-per-month", type=_WHOLE, help="Tokens of all model calls in a month.")
@click.option("--cost-usd-per-day", type=_AMOUNT, help="US dollars in a day.")
@click.option("--cost-usd-per-month", type=_AMOUNT, help="US dollars in a month.")
@click.option("--deliberations", type=_WHOLE, help="Deliberations that have not ended.")
@json_option
@with_settings()
async def quota(settings: Settings, /, *, tenant: str, as_json: bool, **limits: Any) -> None:
    """Print the quotas of a tenant and their use. With limits, set them first: 0 is no limit, and
    `default` is the value of the settings. Running processes follow within 5 seconds.
    """
    from moothall.app.bus import open_log
    from moothall.authorization.budgets import BUCKET, Quotas

    given = {name: value for name, value in limits.items() if value is not None}
    async with open_log(settings, lambda _: None) as bus:
        quotas = Quotas(bus.bucket(BUCKET), settings.quotas)
        current = await quotas.read(tenant)
        if given:
            values = {**current.values, **given}
            own = {name: value for name, value in values.items() if not isinstance(value, str)}
            current = await quotas.change(tenant, own, LOCAL)
        uses = await quotas.list_uses(tenant)
    if as_json:
        print_json(_document(tenant, current, uses))
        return
    _show(current, uses)


def _document(tenant: str, current: TenantQuotas, uses: Sequence[QuotaUse]) -> dict[str, Any]:
    return {
        "version": 1,
        "tenant": tenant,
        "quotas": current.quota.model_dump(),
        "own": dict(current.values),
        "uses": [asdict(use) | {"resets": use.resets.isoformat()} for use in uses],
        "changes": [asdict(change) for change in current.changes],
    }


def _show(current: TenantQuotas, uses: Sequence[QuotaUse]) -> None:
    used = {(use.what, use.period): use.used for use in uses}
    rows = (
        ("tokens_per_day", "tokens per day", ("tokens", "day")),
        ("tokens_per_month", "tokens per month", ("tokens", "month")),
        ("cost_usd_per_day", "US dollars per day", ("US dollars", "day")),
        ("cost_usd_per_month", "US dollars per month", ("US dollars", "month")),
        ("deliberations", "deliberations at once", None),
    )
    for name, label, key in rows:
        limit = getattr(current.quota, name)
        source = "" if name in current.values else "  (settings)"
        spent = f", {used[key]:,.15g} used" if key in used else ""
        click.echo(f"{label:<22} {f'{limit:,}' if limit else 'no limit'}{spent}{source}")
    labels = {name: label for name, label, _ in rows}
    for change in current.changes[:_LAST_CHANGES]:
        values = ", ".join(f"{labels[name]} {value:,.15g}" for name, value in change.values.items())
        click.echo(plain(f"{change.time}  {change.actor}: {values or 'as in the settings'}"))
