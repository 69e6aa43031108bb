"""`moothall acp`: an agent of the Agent Client Protocol for editors."""

from __future__ import annotations

import click

from moothall.cli.options import example
from moothall.cli.runtime import file_of, with_settings
from moothall.config import Settings
from moothall.errors import ConfigurationError


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
    await serve(settings, file_of(click.get_current_context()))
