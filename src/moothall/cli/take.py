"""`moothall tools take`: the tools of an MCP server, looked at and taken into the catalogue."""

from __future__ import annotations

import click

from moothall.cli.options import example
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings


@click.command(epilog=example("moothall tools take notes", "moothall tools take notes --look"))
@click.argument("server")
@click.option("--look", is_flag=True, help="Show them only.")
@click.pass_context
@errors_spoken
def take(context: click.Context, *, server: str, look: bool) -> None:
    """Ask an MCP server of the settings what it offers, and take its tools into the catalogue as they are now.

    What is marked was not there before, or was described otherwise, or is gone. Processes that run take the list when they start anew.
    """
    run(_take(settings_of(context, narrated=True), server, look=look))


async def _take(settings: Settings, server: str, *, look: bool) -> int:
    from moothall.toolkits.mcp.family import McpFamily
    from moothall.toolkits.mcp.spec import keep, plain, read_offers, taken

    family = McpFamily()
    own = family.own(settings)
    offers = await family.tools(settings).offers(server)
    found = read_offers(server, own, offers)
    before = {one.spec.name: one.offer.digest for one in taken(settings, own) if one.server == server}
    for one in found.tools:
        was = before.pop(one.spec.name, "")
        mark = "new" if not was else "changed" if was != one.offer.digest else ""
        click.echo(f"{one.spec.name:<32} {one.spec.danger.value:<8} {mark:<8} {plain(one.offer.description, 300)}")
    for name in before:
        click.echo(f"{name:<32} {'':<8} gone")
    for why in found.refused:
        click.echo(f"refused: {why}", err=True)
    if not look:
        click.echo(f"{len(found.tools)} tools taken: {keep(settings, own, server, found.tools)}", err=True)
        click.echo("a role has those that the table of roles grants it (docs/tools.md, MCP servers)", err=True)
    return 0
