"""`moothall tools requeue`: requests that wait for an operator's decision."""

from __future__ import annotations

import json

import click

from moothall.authorization.approvals import APPROVAL_SECONDS
from moothall.cli.options import example, json_option
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.identity import LOCAL

_TENANT = click.option(
    "--tenant", default=LOCAL.tenant, show_default=True, help="Tenant of the requests."
)


@click.group()
def requeue() -> None:
    """Denied requests, each of which an operator may allow once."""


@requeue.command("list", epilog=example("moothall tools requeue list"))
@_TENANT
@json_option
@with_settings()
async def list_(settings: Settings, *, tenant: str, as_json: bool) -> None:
    """List the waiting requests, oldest first."""
    from moothall.app.rules import open_parking
    from moothall.domain.codec import dump

    async with open_parking(settings) as approvals:
        waiting = approvals.list_waiting(tenant)
    if as_json:
        print_json([dump(item) for item in waiting])
        return
    for item in waiting:
        click.echo(
            f"{item.id}  {item.time[:19]}  {item.tool} "
            f"{plain(json.dumps(dict(item.arguments)), 200)}"
        )
        click.echo(
            f"{'':<26}asked by {item.principal}, {plain(item.seat)} in {plain(item.workspace)}: "
            f"{plain(item.reason, 200)}"
        )
    if not waiting:
        say("nothing waits")


@requeue.command(
    epilog=example('moothall tools requeue allow r-0123 --reason "seen with the owner"')
)
@click.argument("request")
@click.option("--reason", default="", help="Reason, which is recorded.")
@_TENANT
@with_settings()
async def allow(settings: Settings, *, request: str, reason: str, tenant: str) -> None:
    """Let REQUEST (its id, or its request id) run once."""
    await _resolve(settings, tenant, request, reason, allowed=True)


@requeue.command(epilog=example("moothall tools requeue refuse r-0123"))
@click.argument("request")
@click.option("--reason", default="", help="Reason, which the caller receives.")
@_TENANT
@with_settings()
async def refuse(settings: Settings, *, request: str, reason: str, tenant: str) -> None:
    """Refuse REQUEST for good."""
    await _resolve(settings, tenant, request, reason, allowed=False)


async def _resolve(
    settings: Settings, tenant: str, request: str, reason: str, *, allowed: bool
) -> None:
    from moothall.app.rules import open_parking

    async with open_parking(settings) as approvals:
        item = await approvals.resolve(
            tenant, request, allow=allowed, approver=LOCAL.name, comment=reason
        )
    click.echo(
        f"{item.tool} ({item.request_id}) is {item.state}"
        + (f", once, within {APPROVAL_SECONDS:.0f} seconds" if allowed else "")
    )
