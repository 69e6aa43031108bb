"""`moothall fleet`: the hosts that are at work, where, and on what."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from moothall.cli.exit_codes import EXIT_NONE
from moothall.cli.options import example, json_option
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.fleet import HostState


@click.command(epilog=example("moothall fleet", "moothall fleet --json"))
@json_option
@with_settings("asking the hosts")
async def fleet(settings: Settings, *, as_json: bool) -> int:
    """List the hosts that answer: each with its machine, what it holds, and since when. Exit code 1
    where none does.
    """
    from moothall.app.bus import hosts
    from moothall.cli.documents import FleetDocument
    from moothall.domain.codec import dump

    found = await hosts(settings)
    if as_json:
        print_json(dump(FleetDocument(found is not None, tuple(found or ()))))
    else:
        for host in found or ():
            for line in _lines(host):
                click.echo(plain(line))
        if not found:
            say(
                "no host answers"
                if found is not None
                else "nothing is served here; start `moothall serve`"
            )
    return 0 if found else EXIT_NONE


def _lines(host: HostState) -> list[str]:
    holds = f"holds {len(host.holds)}" if host.holds else "idle"
    first = (
        f"{host.name:<10}  {host.node:<20}  process {host.pid}, since {time_of(host.since)}, "
        f"{holds}"
    )
    return [
        first,
        *(f"{'':<10}  {held.task_id}  since {time_of(held.since)}" for held in host.holds),
    ]


def time_of(seconds: float) -> str:
    """Return a time as people and programs read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
