"""`moothall tools`: the catalogue, and which of it a tenant has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from moothall.cli.flow import run_
from moothall.cli.options import example
from moothall.cli.requeue import requeue
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings
from moothall.domain.identity import LOCAL

if TYPE_CHECKING:  # imported by the command that needs it
    from moothall.tools.discovery import Filters

_TENANT = click.option("--tenant", default=LOCAL.tenant, show_default=True, help="Whose tools.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.group()
def tools() -> None:
    """The catalogue of tools, and which of them a tenant's agents are offered."""


tools.add_command(requeue)
tools.add_command(run_)


@tools.command("list", epilog=example("moothall tools list --role dev", "moothall tools list --query search --json"))
@click.option("--query", default="", help="Words that stand in the name, the summary or a tag.")
@click.option(
    "--category", "categories", multiple=True, help="The first part of a name, such as files, git, http; may be repeated."
)
@click.option("--tag", "tags", multiple=True, help="May be repeated; one of them is enough.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help="core, coding, reading, remote, code, network, data, containers, wasm, mcp; may be repeated.",
)
@click.option("--role", default="", help="Only what this role's agents are offered.")
@click.option("--safe", is_flag=True, help="Nothing that runs code or acts beyond the workspace.")
@_TENANT
@_JSON
@click.pass_context
@errors_spoken
def list_(
    context: click.Context,
    *,
    query: str,
    categories: tuple[str, ...],
    tags: tuple[str, ...],
    profiles: tuple[str, ...],
    role: str,
    safe: bool,
    tenant: str,
    as_json: bool,
) -> None:
    """List the tools that fit. Disabled ones are marked; with --role they are left out, as for the agents."""
    from moothall.tools.discovery import Filters

    wanted = Filters(query, categories, tags, profiles, exclude_dangerous=safe)
    run(_list(settings_of(context, narrated=True), tenant, role, wanted, as_json=as_json))


async def _list(settings: Settings, tenant: str, role: str, wanted: Filters, *, as_json: bool) -> int:
    from moothall.toolkits.families import unset_tools
    from moothall.tools.catalogue import offered
    from moothall.tools.discovery import discover, entry
    from moothall.wiring.rules import catalogue_of, read_table, switches

    async with switches(settings) as known:
        off = known.off(tenant)
    known_tools = catalogue_of(settings)
    unset = unset_tools(settings, tenant)
    without = {*off, *unset}
    specs = (
        offered(read_table(settings, known_tools).of(role), without=without, catalogue=known_tools)
        if role
        else tuple(known_tools.values())
    )
    found = discover(specs, wanted)
    if as_json:
        told = [entry(spec, enabled=spec.name not in off) | {"unset": unset.get(spec.name, "")} for spec in found]
        click.echo(json.dumps(told, indent=2))
        return 0
    for spec in found:
        mark = "off" if spec.name in off else "unset" if spec.name in unset else ""
        click.echo(f"{spec.name:<16} {spec.danger.value:<8} {mark:<5} {spec.summary}")
    if not found:
        categories = dict.fromkeys(spec.category for spec in specs)
        profiles = dict.fromkeys(profile for spec in specs for profile in spec.profiles)
        click.echo(f"no tool fits; there are the categories {', '.join(categories)}; profiles {', '.join(profiles)}", err=True)
    return 0


@tools.command(epilog=example("moothall tools show files.edit"))
@click.argument("name")
@_TENANT
@_JSON
@click.pass_context
@errors_spoken
def show(context: click.Context, *, name: str, tenant: str, as_json: bool) -> None:
    """Print all that the catalogue says of one tool."""
    run(_show(settings_of(context, narrated=True), name, tenant, as_json=as_json))


async def _show(settings: Settings, name: str, tenant: str, *, as_json: bool) -> int:
    from moothall.errors import NotFound
    from moothall.toolkits.families import unset_tools
    from moothall.tools.discovery import entry
    from moothall.wiring.rules import catalogue_of, switches

    spec = catalogue_of(settings).get(name)
    if spec is None:
        raise NotFound(f"there is no tool {name[:60]!r}; `moothall tools list` shows them")
    async with switches(settings) as known:
        told = entry(spec, enabled=name not in known.off(tenant)) | {"unset": unset_tools(settings, tenant).get(name, "")}
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return 0
    click.echo(f"{spec.signature}\n{spec.summary}\n")
    for key, value in told.items():
        if key not in {"id", "summary"} and value != "":
            click.echo(f"{key:<14} {value if isinstance(value, str) else json.dumps(value)}")
    return 0


@tools.command(epilog=example("moothall tools enable git.log"))
@click.argument("name")
@_TENANT
@click.pass_context
@errors_spoken
def enable(context: click.Context, *, name: str, tenant: str) -> None:
    """Give a tool back to a tenant's agents."""
    run(_switch(settings_of(context, narrated=True), name, tenant, "", enabled=True))


@tools.command(epilog=example('moothall tools disable git.log --reason "not needed"'))
@click.argument("name")
@click.option("--reason", default="", help="Why; kept with it.")
@_TENANT
@click.pass_context
@errors_spoken
def disable(context: click.Context, *, name: str, reason: str, tenant: str) -> None:
    """Take a tool away from a tenant's agents, at once and without a restart. To them there is no such tool."""
    run(_switch(settings_of(context, narrated=True), name, tenant, reason, enabled=False))


async def _switch(settings: Settings, name: str, tenant: str, reason: str, *, enabled: bool) -> int:
    from moothall.toolkits.families import unset_tools
    from moothall.wiring.rules import switches

    async with switches(settings) as known:
        await known.switch(tenant, name, enabled=enabled, who=LOCAL.name, reason=reason)
    click.echo(f"{name} is {'enabled' if enabled else 'disabled'} for tenant {tenant}")
    if enabled and (missing := unset_tools(settings, tenant).get(name)):
        click.echo(f"it is offered to nobody yet: {missing}", err=True)
    return 0


@tools.command(epilog=example("moothall tools revoke ws-0123"))
@click.argument("token_or_workspace")
@click.option("--reason", default="", help="Why; kept with it.")
@click.pass_context
@errors_spoken
def revoke(context: click.Context, *, token_or_workspace: str, reason: str) -> None:
    """Call off a capability token by its id (jti), with all made from it, or all tokens of a workspace."""
    run(_revoke(settings_of(context, narrated=True), token_or_workspace, reason))


async def _revoke(settings: Settings, named: str, reason: str) -> int:
    from moothall.guard.revocations import BUCKET, Revocations
    from moothall.wiring.bus import open_log

    async with open_log(settings, lambda _: None) as bus:
        await Revocations(bus.bucket(BUCKET)).revoke(named, who=LOCAL.name, reason=reason)
    click.echo(f"{named} is revoked")
    return 0


@tools.command(epilog=example("moothall tools take notes", "moothall tools take notes --look"))
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
