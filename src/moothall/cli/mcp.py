"""`moothall mcp`: what there is for editors and assistants that speak the Model Context Protocol."""

from __future__ import annotations

import click

from moothall.cli.options import example
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.errors import ConfigurationError


@click.command(epilog=example("moothall mcp"))
@click.pass_context
@errors_spoken
def mcp(context: click.Context) -> None:
    """Offer councils to an editor or assistant that speaks MCP, on stdin and stdout, until it goes.

    Works in the process that serves this data directory, where one does, else in this one. Tools: deliberate, ask, result, why, context.
    """
    settings = settings_of(context, narrated=True)
    try:
        from moothall.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        raise ConfigurationError("MCP's library is not installed: pip install 'moothall[mcp]'") from error
    run(serve(settings))
