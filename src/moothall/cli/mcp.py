"""`moothall mcp`: an MCP server for editors and assistants."""

from __future__ import annotations

import click

from moothall.cli.options import example
from moothall.cli.runtime import with_settings
from moothall.config import Settings
from moothall.errors import ConfigurationError


@click.command(epilog=example("moothall mcp"))
@with_settings()
async def mcp(settings: Settings) -> None:
    """Offer councils to an editor or assistant that speaks MCP, on stdin and stdout, until it
    disconnects.

    Works in the process that serves this data directory, if there is one, otherwise in this one.
    Tools: deliberate, ask, result, why, context.
    """
    try:
        from moothall.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "MCP's library is not installed: pip install 'moothall[mcp]'"
        ) from error
    await serve(settings)
