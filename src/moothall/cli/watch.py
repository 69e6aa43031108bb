"""`moothall watch`: issues of a forge in, pull requests out."""

from __future__ import annotations

import click

from moothall.cli.exits import EXIT_WRONG
from moothall.cli.options import example
from moothall.cli.plain import plain
from moothall.cli.run import say, with_settings
from moothall.config import Settings


@click.command(epilog=example("moothall watch", "moothall watch --once"))
@click.option("--once", is_flag=True, help="Do what there is to do now, and end: exit code 0 where all went well.")
@with_settings()
async def watch(settings: Settings, *, once: bool) -> int:
    """Let councils work on the issues of a forge (settings [forge]), until Ctrl-C.

    An open issue with the label becomes a task, its proven winner a pull request, and a review that requests changes a further commit. Works in the
    process that serves this data directory, where one does, else in this one. Stopped, it goes on where it was.
    """
    from moothall.wiring.forge import open_watch

    async with open_watch(settings, lambda line: say(plain(line, 1000))) as watching:
        return 0 if await watching.run(once=once) else EXIT_WRONG
