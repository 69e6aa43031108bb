"""`moothall acp`: an agent for editors that speak the Agent Client Protocol."""

from __future__ import annotations

import os
import stat

import click

from moothall.cli.options import example
from moothall.cli.runtime import file_of, with_settings
from moothall.config import Settings
from moothall.errors import ConfigurationError, InvalidRequest


@click.command(epilog=example("moothall acp"))
@with_settings()
async def acp(settings: Settings) -> None:
    """Offer councils to an editor that speaks the Agent Client Protocol, such as Zed, on stdin and
    stdout, until it disconnects.

    Works in the process that serves this data directory, if there is one, otherwise in this one.
    """
    try:
        from moothall.cli.acp_server import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the library of the Agent Client Protocol is not installed: pip install 'moothall[acp]'"
        ) from error
    if not all(map(_is_pipe, (0, 1))):
        raise InvalidRequest(
            "an editor starts `moothall acp` and talks to it through pipes on stdin and stdout; "
            "name the command in its settings (docs/api.md)"
        )
    await serve(settings, file_of(click.get_current_context()))


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
