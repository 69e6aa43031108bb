"""`moothall bus`: keys for a bus of your own."""

from __future__ import annotations

from pathlib import Path

import click

from moothall.cli.options import example
from moothall.cli.runtime import report_errors
from moothall.cli.text import plain


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
    from moothall.events.nats.accounts import FILES, create_account_files

    for name, path in create_account_files(folder, renew).items():
        click.echo(plain(f"{path}  {FILES[name]}"))
