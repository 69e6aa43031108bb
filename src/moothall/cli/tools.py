"""`moothall tools`: the catalogue, and which of it a tenant has.

`moothall tools run`: a workflow in a workspace of its own.
"""

from __future__ import annotations

import json
import secrets
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.exit_codes import EXIT_NONE
from moothall.cli.options import SettingRange, example, json_option
from moothall.cli.requeue import requeue
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.domain.text import one_line

if TYPE_CHECKING:
    from moothall.app.tool_sessions import WorkflowRequest

_WIDTH = 300


@click.command("run", epilog=example("moothall tools run steps.yaml --repo ."))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--repo", required=True, help="A path, a URL or the id of a registered repository.")
@click.option(
    "--ref", default="", help="A branch, tag or commit; the repository's HEAD by default."
)
@click.option("--role", default="DEV", show_default=True, help="Whose grants it runs under.")
@click.option(
    "--id",
    "workflow_id",
    default="",
    help="An id of your own: run again under it, it goes on where it was.",
)
@click.option(
    "--ttl",
    "seconds",
    type=SettingRange(1, "guard.token_seconds"),
    help="Seconds for all of it; the longest by default.",
)
@json_option
@with_settings()
async def run_(
    settings: Settings,
    *,
    file: Path,
    repo: str,
    ref: str,
    role: str,
    workflow_id: str,
    seconds: int | None,
    as_json: bool,
) -> int:
    """Run the workflow in a YAML FILE in a fresh workspace. Killed, it goes on when it is run again
    under its id.

    Exit codes: 0 every step succeeded, 1 not, 2 wrong use or a broken part.
    """
    from moothall.app.repository import register
    from moothall.app.tool_sessions import WorkflowRequest

    document = _read(file, workflow_id)
    asked = WorkflowRequest(
        document,
        await register(settings, repo, ref),
        role,
        seconds or int(settings.guard.token_seconds),
    )
    told = await _tell(settings, asked, as_json=as_json)
    if as_json:
        print_json(told)
    return 0 if told["state"] == "succeeded" else EXIT_NONE


def _read(file: Path, workflow_id: str) -> dict[str, Any]:
    """Return the plan of a file under the id that was said, its own, or a new one."""
    from moothall.workflows.plan import read_yaml

    document = read_yaml(file.read_text(encoding="utf-8"))
    return {**document, "id": workflow_id or document.get("id") or f"wf-{secrets.token_hex(8)}"}


async def _tell(settings: Settings, asked: WorkflowRequest, *, as_json: bool) -> dict[str, Any]:
    """Show what happens, and return how it ended."""
    from moothall.app.tool_sessions import run_workflow

    told: dict[str, Any] = {
        "version": 1,
        "workflow_id": asked.document["id"],
        "state": "",
        "steps": {},
    }

    def show(words: str) -> None:
        if not as_json:
            click.echo(plain(words))

    async with aclosing(run_workflow(settings, asked, say)) as facts:
        async for recorded in facts:
            data = recorded.event.data
            counts = f"[{data.get('done', 0)}/{data['steps']}]"
            if "step" not in data:
                told |= {
                    "state": data.get("state", "started"),
                    "error": data.get("error", ""),
                    "workspace": data["workspace"],
                }
                show(
                    f"{counts} workflow {data['workflow_id']}: {told['state']}{_why(told['error'])}"
                )
                continue
            name = f"{data['step']}{' (undo)' if data['compensation'] else ''}"
            told["steps"][name] = {key: data[key] for key in ("state", "attempt", "error")} | {
                "result": data["result"]
            }
            again = f" (attempt {data['attempt']})" if data["attempt"] > 1 else ""
            show(
                f"{counts} {name}: "
                f"{data['state']}{again}{_why(data['error'])}{_took(data['result'])}"
            )
    return told


def _why(error: str) -> str:
    words = " ".join(error.split())
    return f": {words[:_WIDTH]}{'…' if len(words) > _WIDTH else ''}" if words else ""


def _took(result: dict[str, Any]) -> str:
    return f", {result['duration_ms']} ms" if result else ""


_TENANT = click.option("--tenant", default=LOCAL.tenant, show_default=True, help="Whose tools.")


@click.group()
def tools() -> None:
    """The catalogue of tools, and which of them a tenant's agents are offered."""


tools.add_command(requeue)
tools.add_command(run_)


@tools.command(
    "list",
    epilog=example("moothall tools list --role dev", "moothall tools list --query search --json"),
)
@click.option("--query", default="", help="Words that stand in the name, the summary or a tag.")
@click.option(
    "--category",
    "categories",
    multiple=True,
    help="The first part of a name, such as files, git, http; may be repeated.",
)
@click.option("--tag", "tags", multiple=True, help="May be repeated; one of them is enough.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help="core, coding, reading, remote, code, network, data, containers, wasm, mcp; may be "
    "repeated.",
)
@click.option("--role", default="", help="Only what this role's agents are offered.")
@click.option("--safe", is_flag=True, help="Nothing that runs code or acts beyond the workspace.")
@_TENANT
@json_option
@with_settings()
async def list_(
    settings: Settings,
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
    """List the tools that fit. Disabled ones are marked; with --role they are left out, as for the
    agents.
    """
    from moothall.app.rules import catalogue_of, open_switches, read_table
    from moothall.toolkits.families import unset_tools
    from moothall.tools.catalogue import list_tools
    from moothall.tools.discovery import Filters, discover, entry

    async with open_switches(settings) as known:
        off = known.off(tenant)
    known_tools = catalogue_of(settings)
    unset = unset_tools(settings, tenant)
    without = {*off, *unset}
    specs = (
        list_tools(
            read_table(settings.guard, known_tools).of(role), without=without, catalogue=known_tools
        )
        if role
        else tuple(known_tools.values())
    )
    found = discover(specs, Filters(query, categories, tags, profiles, exclude_dangerous=safe))
    if as_json:
        told = [
            entry(spec, enabled=spec.name not in off) | {"unset": unset.get(spec.name, "")}
            for spec in found
        ]
        print_json(told)
        return
    for spec in found:
        mark = "off" if spec.name in off else "unset" if spec.name in unset else ""
        click.echo(f"{spec.name:<16} {spec.danger.value:<8} {mark:<5} {spec.summary}")
    if not found:
        there = dict.fromkeys(spec.category for spec in specs)
        sets = dict.fromkeys(profile for spec in specs for profile in spec.profiles)
        say(
            f"no tool fits; there are the categories {', '.join(there)}; profiles {', '.join(sets)}"
        )


@tools.command(epilog=example("moothall tools show files.edit"))
@click.argument("name")
@_TENANT
@json_option
@with_settings()
async def show(settings: Settings, *, name: str, tenant: str, as_json: bool) -> None:
    """Print all that the catalogue says of one tool."""
    from moothall.app.rules import catalogue_of, open_switches
    from moothall.errors import NotFound
    from moothall.toolkits.families import unset_tools
    from moothall.tools.discovery import entry

    spec = catalogue_of(settings).get(name)
    if spec is None:
        raise NotFound(f"there is no tool {name[:60]!r}; `moothall tools list` shows them")
    async with open_switches(settings) as known:
        told = entry(spec, enabled=name not in known.off(tenant)) | {
            "unset": unset_tools(settings, tenant).get(name, "")
        }
    if as_json:
        print_json(told)
        return
    click.echo(f"{spec.signature}\n{spec.summary}\n")
    for key, value in told.items():
        if key not in {"id", "summary"} and value != "":
            click.echo(f"{key:<14} {value if isinstance(value, str) else json.dumps(value)}")


@tools.command(epilog=example("moothall tools enable git.log"))
@click.argument("name")
@_TENANT
@with_settings()
async def enable(settings: Settings, *, name: str, tenant: str) -> None:
    """Give a tool back to a tenant's agents."""
    await _switch(settings, name, tenant, "", enabled=True)


@tools.command(epilog=example('moothall tools disable git.log --reason "not needed"'))
@click.argument("name")
@click.option("--reason", default="", help="Why; kept with it.")
@_TENANT
@with_settings()
async def disable(settings: Settings, *, name: str, reason: str, tenant: str) -> None:
    """Take a tool away from a tenant's agents, at once and without a restart. To them there is no
    such tool.
    """
    await _switch(settings, name, tenant, reason, enabled=False)


async def _switch(
    settings: Settings, name: str, tenant: str, reason: str, *, enabled: bool
) -> None:
    from moothall.app.rules import open_switches
    from moothall.toolkits.families import unset_tools

    async with open_switches(settings) as known:
        await known.switch(tenant, name, enabled=enabled, who=LOCAL.name, reason=reason)
    click.echo(f"{name} is {'enabled' if enabled else 'disabled'} for tenant {tenant}")
    if enabled and (missing := unset_tools(settings, tenant).get(name)):
        say(f"it is offered to nobody yet: {missing}")


@tools.command(epilog=example("moothall tools revoke ws-0123"))
@click.argument("token_or_workspace")
@click.option("--reason", default="", help="Why; kept with it.")
@with_settings()
async def revoke(settings: Settings, *, token_or_workspace: str, reason: str) -> None:
    """Call off a capability token by its id (jti), with all made from it, or all tokens of a
    workspace.
    """
    from moothall.app.bus import open_log
    from moothall.authorization.overrides import REVOKED, Revocations

    async with open_log(settings, lambda _: None) as bus:
        await Revocations(bus.bucket(REVOKED)).revoke(
            token_or_workspace, who=LOCAL.name, reason=reason
        )
    click.echo(f"{token_or_workspace} is revoked")


@tools.command(epilog=example("moothall tools take notes", "moothall tools take notes --look"))
@click.argument("server")
@click.option("--look", is_flag=True, help="Show them only.")
@with_settings()
async def take(settings: Settings, *, server: str, look: bool) -> None:
    """Ask an MCP server of the settings what it offers, and take its tools into the catalogue as
    they are now.

    What is marked was not there before, or was described otherwise, or is gone. Processes that run
    take the list when they start anew.
    """
    from moothall.toolkits.mcp.family import McpFamily
    from moothall.toolkits.mcp.spec import keep, read_offers, taken_tools

    family = McpFamily()
    own = family.own(settings)
    offers = await family.tools(settings).offers(server)
    found = read_offers(server, own, offers)
    before = {
        one.spec.name: one.offer.digest
        for one in taken_tools(settings, own)
        if one.server == server
    }
    for one in found.tools:
        was = before.pop(one.spec.name, "")
        mark = "new" if not was else "changed" if was != one.offer.digest else ""
        click.echo(
            f"{one.spec.name:<32} {one.spec.danger.value:<8} {mark:<8} "
            f"{one_line(one.offer.description)}"
        )
    for name in before:
        click.echo(f"{name:<32} {'':<8} gone")
    for why in found.refused:
        say(f"refused: {why}")
    if not look:
        say(f"{len(found.tools)} tools taken: {keep(settings, own, server, found.tools)}")
        say("a role has those that the table of roles grants it (docs/tools.md, MCP servers)")
