"""`moothall bus`: what a bus of one's own needs."""

from __future__ import annotations

from pathlib import Path

import click

from moothall.cli.options import example
from moothall.cli.plain import plain
from moothall.cli.run import speak_errors

_WHOSE = {
    "accounts.conf": "include it in the configuration of each nats-server",
    "services.creds": "bus.credentials_file of the services and hosts",
    "links.json": "jobs.link_keys_file of the hosts: each workspace's link gets credentials of its own",
}


@click.group()
def bus() -> None:
    """The bus."""


@bus.command(epilog=example("moothall bus keys keys/"))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@speak_errors
def keys(folder: Path) -> None:
    """Make an account for the house on a NATS of your own, and what servers, services and hosts need to use it, in FOLDER."""
    from moothall.bus.nats.accounts import make

    for name, path in make(folder).items():
        click.echo(plain(f"{path}  {_WHOSE[name]}"))
