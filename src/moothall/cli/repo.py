"""`moothall repo`: which repositories councils may work on."""

from __future__ import annotations

import click

from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings
from moothall.domain.identity import LOCAL


@click.group()
def repo() -> None:
    """Registered repositories: the API names them by id."""


@repo.command()
@click.argument("where")
@click.option("--id", "repository_id", default="", help="An id of your own; made from the path or URL by default.")
@click.option("--push", type=click.Choice(["local-branch", "push", "none"]), default=None, help="What becomes of a winner.")
@click.option("--credential", default="", help="env:NAME or file:PATH of what a push or fetch needs; never the secret itself.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
@errors_spoken
def add(context: click.Context, *, where: str, repository_id: str, push: str | None, credential: str, as_json: bool) -> None:
    """Register WHERE, a path or a URL, after checking that it can be used."""
    run(_add(settings_of(context), where, repository_id, push, credential, as_json=as_json))


async def _add(settings: Settings, where: str, repository_id: str, push: str | None, credential: str, *, as_json: bool) -> int:
    from moothall.domain.task import RepositoryRef
    from moothall.wiring.trusted import trusted_repositories

    repositories = trusted_repositories(settings)
    entry = await repositories.register(where, id=repository_id, push=push, credential=credential)  # type: ignore[arg-type] # click checked it
    base = await repositories.resolve(RepositoryRef(id=entry.id))
    checks = ", ".join(base.profile.checks) or "none: nothing can prove an answer here"
    click.echo(
        entry.model_dump_json(indent=2) if as_json else f"{entry.id}  {entry.origin}  at {base.sha[:10]}; checks: {checks}"
    )
    return 0


@repo.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
@errors_spoken
def list_(context: click.Context, *, as_json: bool) -> None:
    """List them."""
    import json

    from moothall.wiring.trusted import trusted_repositories

    entries = trusted_repositories(settings_of(context)).registry.list(LOCAL.tenant)
    if as_json:
        click.echo(json.dumps([entry.model_dump(mode="json") for entry in entries], indent=2))
        return
    for entry in entries:
        click.echo(f"{entry.id}  {entry.origin}  {entry.push}")
    if not entries:
        click.echo("none yet; moothall repo add PATH_OR_URL", err=True)
