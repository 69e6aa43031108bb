"""Access to a server, and its limits. `moothall account`: users of the web page. `moothall token`:
callers of the APIs. `moothall quota`: the quotas of a tenant. `moothall bus`: the keys of a bus.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.options import example, json_option, list_roles, role_option, tenant_option
from moothall.cli.runtime import (
    plain,
    print_json,
    print_status,
    report_errors,
    settings_of,
    with_settings,
)
from moothall.config import Settings
from moothall.domain.ids import LOCAL

if TYPE_CHECKING:
    from moothall.api.accounts import AccessToken, AccessTokens, UserAccounts
    from moothall.authorization.budgets import QuotaUse, TenantQuotas


# `moothall account`: accounts with passwords for the web page.


@click.group()
def account() -> None:
    """Accounts of the web page. Changes take effect at once, also while `serve` runs."""


@account.command(epilog=example("moothall account add alice --role po --role architect"))
@click.argument("name")
@role_option
@tenant_option
@click.pass_context
@report_errors
def add(context: click.Context, *, name: str, roles: tuple[str, ...], tenant: str) -> None:
    """Add an account NAME. The password is asked for, or read from a line of standard input if that
    is not a terminal.
    """
    _people(context).add(name, _password(), tenant=tenant, roles=roles)
    print_status(f"added {name}")


@account.command("list", epilog=example("moothall account list --json"))
@json_option
@click.pass_context
@report_errors
def list_accounts(context: click.Context, *, as_json: bool) -> None:
    """List the accounts with their roles."""
    accounts = [
        {
            "name": user.name,
            "tenant": user.tenant,
            "roles": list_roles(user),
        }
        for user in _people(context).list()
    ]
    if as_json:
        click.echo(json.dumps(accounts, indent=2))
        return
    for item in accounts:
        click.echo(f"{item['name']}  ({item['tenant']})  {', '.join(item['roles']) or 'no role'}")
    if not accounts:
        print_status("there are no accounts; moothall account add NAME creates one")


@account.command(epilog=example("moothall account remove alice"))
@click.argument("name")
@click.pass_context
@report_errors
def remove(context: click.Context, *, name: str) -> None:
    """Remove the account NAME and sign it out everywhere."""
    _people(context).remove(name)
    print_status(f"removed {name}")


@account.command(epilog=example("moothall account password alice"))
@click.argument("name")
@click.pass_context
@report_errors
def password(context: click.Context, *, name: str) -> None:
    """Change the password of account NAME, asked for as by `add`, and sign it out everywhere."""
    _people(context).change_password(name, _password())
    print_status(f"changed the password of {name}")


def _people(context: click.Context) -> UserAccounts:
    from moothall.api.accounts import UserAccounts

    return UserAccounts(settings_of(context, narrated=True).data_dir)


def _password() -> str:
    """Ask for a password. It is never an argument, because lists of processes show those."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


# `moothall token`: access tokens of callers of gRPC and HTTP.


_UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


class _Duration(click.ParamType[float]):
    """Whole minutes, hours or days, converted to seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds of a text such as 90d."""
        if isinstance(value, float):
            return value
        matched = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", str(value))
        if matched is None:
            self.fail(f"{value!r} is not a duration such as 30m, 12h or 90d", param, ctx)
        return float(int(matched[1]) * _UNIT_SECONDS[matched[2]])


@click.group()
def token() -> None:
    """Access tokens of callers of gRPC and HTTP. Changes take effect at once, also while `serve`
    runs.
    """


@token.command(epilog=example("moothall token create ci --tenant team-a --expires 30d"))
@click.argument("name")
@role_option
@tenant_option
@click.option(
    "--expires",
    type=_Duration(),
    default="90d",
    show_default=True,
    help="Lifetime, such as 30m, 12h or 90d; at most 366d.",
)
@click.pass_context
@report_errors
def create(
    context: click.Context, *, name: str, tenant: str, roles: tuple[str, ...], expires: float
) -> None:
    """Create a token for the caller NAME and print it. It cannot be shown again."""
    from moothall.api.accounts import format_time

    secret, created = _tokens(context).create(name, expires, tenant=tenant, roles=roles)
    click.echo(secret)
    expiry = format_time(created.ends)
    print_status(f"created the token {created.id} of {name} ({tenant}), valid until {expiry}")


@token.command("list", epilog=example("moothall token list --json"))
@json_option
@click.pass_context
@report_errors
def list_tokens(context: click.Context, *, as_json: bool) -> None:
    """List the tokens with their roles and states."""
    from moothall.api.accounts import format_time

    now = time()
    documents = [_token_document(item, now) for item in _tokens(context).list()]
    if as_json:
        click.echo(json.dumps(documents, indent=2))
        return
    for item in documents:
        moment = item["revoked"] if item["state"] == "revoked" else item["expires"]
        state = "valid until" if item["state"] == "valid" else f"{item['state']} at"
        click.echo(
            f"{item['id']}  {item['name']}  ({item['tenant']})  "
            f"{', '.join(item['roles']) or 'no role'}  {state} {format_time(moment)}"
        )
    if not documents:
        print_status("there are no tokens; moothall token create NAME creates one")


@token.command(epilog=example("moothall token revoke ci"))
@click.argument("name_or_id", metavar="NAME|ID")
@click.pass_context
@report_errors
def revoke(context: click.Context, *, name_or_id: str) -> None:
    """Revoke the token with this ID, or all tokens of NAME."""
    for revoked in _tokens(context).revoke(name_or_id):
        print_status(f"revoked the token {revoked.id} of {revoked.principal.name}")


def _token_document(item: AccessToken, now: float) -> dict[str, Any]:
    principal = item.principal
    refused = "revoked" if item.revoked is not None else "expired"
    return {
        "id": item.id,
        "name": principal.name,
        "tenant": principal.tenant,
        "roles": list_roles(principal),
        "state": refused if item.refusal(now) else "valid",
        "created": item.created,
        "expires": item.ends,
        "revoked": item.revoked,
    }


def _tokens(context: click.Context) -> AccessTokens:
    from moothall.api.accounts import AccessTokens

    return AccessTokens(settings_of(context, narrated=True).data_dir)


# `moothall bus`: keys for a bus of your own.


@click.group()
def bus() -> None:
    """The bus."""


@bus.command(
    epilog=example(
        "moothall bus keys keys/", "moothall bus keys new-keys/ --renew keys/accounts.conf"
    )
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--renew",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="ACCOUNTS.CONF",
    help="accounts.conf whose keys are replaced. Stored data stays; the old keys are revoked.",
)
@report_errors
def keys(folder: Path, renew: Path | None) -> None:
    """Create an account for the server on a NATS of your own, and the files for servers, services
    and hosts, in FOLDER.
    """
    from moothall.events.adapter import accounts

    for name, path in accounts.create_account_files(folder, renew).items():
        click.echo(plain(f"{path}  {accounts.FILES[name]}"))


# `moothall quota`: the quotas of a tenant, and changing them.


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


_INTEGER, _AMOUNT = _Limit(click.IntRange(0, _MAX_VALUE)), _Limit(click.FloatRange(0, _MAX_VALUE))


@click.command(
    "quota",
    epilog=example("moothall quota", "moothall quota --tenant team-a --tokens-per-day 2000000"),
)
@click.option("--tenant", default=LOCAL.tenant, show_default=True, help="Tenant of the quotas.")
@click.option("--tokens-per-day", type=_INTEGER, help="Tokens of all model calls in a day.")
@click.option("--tokens-per-month", type=_INTEGER, help="Tokens of all model calls in a month.")
@click.option("--cost-usd-per-day", type=_AMOUNT, help="US dollars in a day.")
@click.option("--cost-usd-per-month", type=_AMOUNT, help="US dollars in a month.")
@click.option("--deliberations", type=_INTEGER, help="Deliberations that have not ended.")
@json_option
@with_settings()
async def quota(settings: Settings, /, *, tenant: str, as_json: bool, **limits: Any) -> None:
    """Print the quotas of a tenant and their use. With limits, set them first: 0 means no limit,
    and `default` is the value of the settings. Running processes follow within 5 seconds.
    """
    from moothall.app.bus import open_log
    from moothall.authorization.budgets import BUCKET, Quotas

    changes = {name: value for name, value in limits.items() if value is not None}
    async with open_log(settings, lambda _: None) as bus:
        quotas = Quotas(bus.bucket(BUCKET), settings.quotas)
        current = await quotas.read(tenant)
        if changes:
            values = {**current.values, **changes}
            own_values = {
                name: value for name, value in values.items() if not isinstance(value, str)
            }
            current = await quotas.change(tenant, own_values, LOCAL)
        uses = await quotas.list_uses(tenant)
    if as_json:
        print_json(_quota_document(tenant, current, uses))
        return
    _show_quota(current, uses)


def _quota_document(tenant: str, current: TenantQuotas, uses: Sequence[QuotaUse]) -> dict[str, Any]:
    return {
        "version": 1,
        "tenant": tenant,
        "quotas": current.quota.model_dump(),
        "own": dict(current.values),
        "uses": [asdict(use) | {"resets": use.resets.isoformat()} for use in uses],
        "changes": [asdict(change) for change in current.changes],
    }


def _show_quota(current: TenantQuotas, uses: Sequence[QuotaUse]) -> None:
    amounts = {(use.what, use.period): use.used for use in uses}
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
        usage_note = f", {amounts[key]:,.15g} used" if key in amounts else ""
        click.echo(f"{label:<22} {f'{limit:,}' if limit else 'no limit'}{usage_note}{source}")
    labels = {name: label for name, label, _ in rows}
    for change in current.changes[:_LAST_CHANGES]:
        values = ", ".join(f"{labels[name]} {value:,.15g}" for name, value in change.values.items())
        click.echo(plain(f"{change.time}  {change.actor}: {values or 'as in the settings'}"))
