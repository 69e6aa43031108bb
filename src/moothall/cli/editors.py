"""`moothall acp` and `moothall mcp`: councils for editors and assistants, over the Agent Client
Protocol and over MCP. The servers are in `acp_server.py` and `mcp_server.py`, whose libraries are
optional.
"""

from __future__ import annotations

import os
import stat

import click

from moothall.cli.options import example
from moothall.cli.runtime import file_of, with_settings
from moothall.config import Settings
from moothall.errors import ConfigurationError, InvalidRequest

# `moothall acp`: an agent for editors that speak the Agent Client Protocol.


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


# `moothall mcp`: an MCP server for editors and assistants.


_MAX_PORT = 65_535


@click.command(epilog=example("moothall mcp", "moothall mcp --http 127.0.0.1:8090"))
@click.option(
    "--http",
    default="",
    metavar="HOST:PORT",
    help="Serve streamable HTTP at http://HOST:PORT/mcp until stopped; port 0: any free port.",
)
@with_settings()
async def mcp(settings: Settings, *, http: str) -> None:
    """Offer councils to an editor or assistant that speaks MCP, on stdin and stdout until it
    disconnects, or to several of them over HTTP (--http).

    Callers over HTTP send a token. Non-loopback addresses require TLS and a configured token.

    Works in the process that serves this data directory, if there is one, otherwise in this one.
    Tools: deliberate, ask, result, why, context.
    """
    try:
        from moothall.cli.mcp_server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "MCP's library is not installed: pip install 'moothall[mcp]'"
        ) from error
    if not http:
        await serve_stdio(settings)
        return
    host, separator, port = http.rpartition(":")
    if not (separator and host and port.isdecimal() and int(port) <= _MAX_PORT):
        raise InvalidRequest(f"--http {http[:80]!r} is not HOST:PORT; write 127.0.0.1:8090")
    await serve_http(settings, host.strip("[]"), int(port))
