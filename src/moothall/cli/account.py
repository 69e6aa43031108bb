"""`moothall account`: accounts with passwords for the web page."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from moothall.cli.options import example, json_option, list_roles, role_option, tenant_option
from moothall.cli.runtime import report_errors, say, settings_of

if TYPE_CHECKING:  # imported by the command that needs it
    from moothall.api.web.user_accounts import UserAccounts


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
    say(f"added {name}")


@account.command("list", epilog=example("moothall account list --json"))
@json_option
@click.pass_context
@report_errors
def list_(context: click.Context, *, as_json: bool) -> None:
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
        say("nobody has an account; moothall account add NAME makes one")


@account.command(epilog=example("moothall account remove alice"))
@click.argument("name")
@click.pass_context
@report_errors
def remove(context: click.Context, *, name: str) -> None:
    """Remove the account NAME and sign it out everywhere."""
    _people(context).remove(name)
    say(f"removed {name}")


@account.command(epilog=example("moothall account password alice"))
@click.argument("name")
@click.pass_context
@report_errors
def password(context: click.Context, *, name: str) -> None:
    """Change the password of account NAME, asked for as by `add`, and sign it out everywhere."""
    _people(context).change_password(name, _password())
    say(f"changed the password of {name}")


def _people(context: click.Context) -> UserAccounts:
    from moothall.api.web.user_accounts import UserAccounts

    return UserAccounts(settings_of(context, narrated=True).data_dir)


def _password() -> str:
    """Ask for a password. It is never an argument, because lists of processes show those."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")
