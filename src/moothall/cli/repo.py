"""`moothall repo`: the repositories that councils may work on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moothall.cli.options import example, json_option, repository_argument
from moothall.cli.runtime import (
    print_json,
    print_status,
    report_errors,
    settings_of,
    with_settings,
)
from moothall.config import Settings
from moothall.domain.ids import LOCAL

if TYPE_CHECKING:  # imported by the command that needs it
    from moothall.repositories.registry import Approval, PushPolicy


@click.group()
def repo() -> None:
    """Registered repositories: the API names them by id."""


@repo.command(
    epilog=example(
        "moothall repo add ~/src/app --id app",
        "moothall repo add ../lib --setup 'pip install -e .[test]' --check tests=pytest",
    )
)
@click.argument("where")
@click.option(
    "--id",
    "repository_id",
    default="",
    help="Its id; by default derived from the path or URL.",
)
@click.option(
    "--push",
    type=click.Choice(["local-branch", "push", "none"]),
    default=None,
    help="Where a winner is delivered.",
)
@click.option(
    "--on-approval",
    type=click.Choice(["leave", "push", "merge"]),
    default=None,
    help="Where an approved story is delivered: left on its branch (the default), pushed, or "
    "merged into --base.",
)
@click.option(
    "--base",
    default="",
    help="Branch that approved stories are merged into; by default the one that is checked out.",
)
@click.option(
    "--credential",
    default="",
    help="env:NAME or file:PATH of the credential for pushes and fetches, never the secret itself.",
)
@click.option(
    "--setup",
    multiple=True,
    help="A set-up command, instead of the detected ones; repeatable, in order.",
)
@click.option(
    "--check",
    "checks",
    multiple=True,
    help="NAME=COMMAND of a check, instead of the detected ones; repeatable.",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file like .moothall.toml, stored with the registration.",
)
@click.option(
    "--tenant", default=LOCAL.tenant, help="Its tenant; by default that of local commands."
)
@json_option
@with_settings(narrated=False)
async def add(
    settings: Settings,
    *,
    where: str,
    repository_id: str,
    push: PushPolicy | None,
    on_approval: Approval | None,
    base: str,
    credential: str,
    setup: tuple[str, ...],
    checks: tuple[str, ...],
    profile: Path | None,
    tenant: str,
    as_json: bool,
) -> None:
    """Register WHERE, a path or a URL, after checking that it can be used.

    --setup, --check and --profile are for repositories without a .moothall.toml. Options that are
    not given stay unchanged.
    """
    from moothall.app.command_repository import commands_from_options
    from moothall.app.repositories import trusted_repositories
    from moothall.domain.task import RepositoryRef

    commands = commands_from_options(setup, checks, profile)
    repositories = trusted_repositories(settings)
    entry = await repositories.register(
        where,
        tenant=tenant,
        id=repository_id,
        push=push,
        on_approval=on_approval,
        base=base,
        credential=credential,
        commands=commands,
    )
    head = await repositories.resolve(RepositoryRef(id=entry.id), tenant=entry.tenant)
    if as_json:
        print_json({"version": 1, **entry.model_dump(mode="json")})
    else:
        proof = ", ".join(head.profile.checks) or "none: nothing can prove an answer here"
        click.echo(f"{entry.id}  {entry.origin}  at {head.sha[:10]}; checks: {proof}")


@repo.command(epilog=example("moothall repo remove app"))
@repository_argument
@with_settings()
async def remove(settings: Settings, *, repository: str) -> None:
    """Forget REPOSITORY, a registered id, and remove its clone. The repository itself and its
    branches stay.
    """
    from moothall.app.data_dir import unregister

    removed = await unregister(settings, repository)
    click.echo(f"{removed.id} is removed; {removed.origin} itself is untouched")
    if removed.clone_left:
        print_status(
            f"its clone stays for now ({removed.clone_left}); `moothall clean` removes it later"
        )


@repo.command("list", epilog=example("moothall repo list"))
@json_option
@click.pass_context
@report_errors
def list_(context: click.Context, *, as_json: bool) -> None:
    """List the repositories of all tenants: id, location, the delivery of winners, and checks given
    with `add`.
    """
    from moothall.repositories.registry import open_registry

    registered = open_registry(settings_of(context).data_dir).all()
    entries = [entry for entry in registered if entry.listed and not entry.of]
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in entries])
        return
    for entry in entries:
        checks = f"  checks: {', '.join(entry.commands.checks)}" if entry.commands.checks else ""
        tenant = "" if entry.tenant == LOCAL.tenant else f"  of {entry.tenant}"
        click.echo(f"{entry.id}  {entry.origin}  {entry.push}{tenant}{checks}")
    if not entries:
        print_status("none yet; moothall repo add PATH_OR_URL")
