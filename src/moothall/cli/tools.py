"""`moothall tools`: the catalogue of tools, a tenant's tools, and workflows in a workspace.
`moothall tools requeue`: requests that wait for an operator's decision.
"""

from __future__ import annotations

import json
import secrets
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moothall.authorization.approvals import APPROVAL_SECONDS
from moothall.authorization.limits import TOKEN_SECONDS
from moothall.cli.options import example, json_option
from moothall.cli.runtime import EXIT_NONE, plain, print_json, print_status, with_settings
from moothall.config import Settings
from moothall.domain.ids import LOCAL
from moothall.domain.text import one_line

if TYPE_CHECKING:
    from moothall.app.tool_sessions import WorkflowRequest


# `moothall tools requeue`: requests that wait for an operator's decision.


_TENANT = click.option(
    "--tenant", default=LOCAL.tenant, show_default=True, help="Tenant of the requests."
)


@click.group()
def requeue() -> None:
    """Denied requests, each of which an operator may allow once."""


@requeue.command("list", epilog=example("moothall tools requeue list"))
@_TENANT
@json_option
@with_settings()
async def list_parked(settings: Settings, *, tenant: str, as_json: bool) -> None:
    """List the waiting requests, oldest first."""
    from moothall.app.gateway_rules import open_parking
    from moothall.domain.codec import dump

    async with open_parking(settings) as approvals:
        waiting = approvals.list_waiting(tenant)
    if as_json:
        print_json([dump(item) for item in waiting])
        return
    for item in waiting:
        click.echo(
            f"{item.id}  {item.time[:19]}  {item.tool} "
            f"{plain(json.dumps(dict(item.arguments)), 200)}"
        )
        click.echo(
            f"{'':<26}asked by {item.principal}, {plain(item.seat)} in {plain(item.workspace)}: "
            f"{plain(item.reason, 200)}"
        )
    if not waiting:
        print_status("nothing waits")


@requeue.command(
    epilog=example('moothall tools requeue allow r-0123 --reason "seen with the owner"')
)
@click.argument("request")
@click.option("--reason", default="", help="Reason, which is recorded.")
@_TENANT
@with_settings()
async def allow(settings: Settings, *, request: str, reason: str, tenant: str) -> None:
    """Let REQUEST (its id, or its request id) run once."""
    await _resolve_parked(settings, tenant, request, reason, allow=True)


@requeue.command(epilog=example("moothall tools requeue refuse r-0123"))
@click.argument("request")
@click.option("--reason", default="", help="Reason, which the caller receives.")
@_TENANT
@with_settings()
async def refuse(settings: Settings, *, request: str, reason: str, tenant: str) -> None:
    """Refuse REQUEST for good."""
    await _resolve_parked(settings, tenant, request, reason, allow=False)


async def _resolve_parked(
    settings: Settings, tenant: str, request: str, reason: str, *, allow: bool
) -> None:
    from moothall.app.gateway_rules import open_parking

    async with open_parking(settings) as approvals:
        item = await approvals.resolve(
            tenant, request, allow=allow, approver=LOCAL.name, comment=reason
        )
    click.echo(
        f"{item.tool} ({item.request_id}) is {item.state}"
        + (f", once, within {APPROVAL_SECONDS:.0f} seconds" if allow else "")
    )


# `moothall tools`: the catalogue of tools, a tenant's tools, and workflows in a workspace.


_ERROR_CHARS = 300
_TOOLS_TENANT = click.option(
    "--tenant", default=LOCAL.tenant, show_default=True, help="Tenant whose tools are meant."
)


@click.command("run", epilog=example("moothall tools run steps.yaml --repo ."))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--repo", required=True, help="A path, a URL or the id of a registered repository.")
@click.option(
    "--ref", default="", help="A branch, tag or commit; the repository's HEAD by default."
)
@click.option("--role", default="DEV", show_default=True, help="Role whose grants apply.")
@click.option(
    "--id",
    "workflow_id",
    default="",
    help="Id of the run. Running it again under the same id continues it.",
)
@click.option(
    "--ttl",
    "seconds",
    type=click.IntRange(1, int(TOKEN_SECONDS)),
    help="Time limit in seconds; the maximum by default.",
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
    """Run the workflow in a YAML FILE in a new workspace. If it is killed, run it again under its
    id to continue.

    Exit codes: 0 every step succeeded, 1 not, 2 wrong use or a broken part.
    """
    from moothall.app.command_repository import register
    from moothall.app.tool_sessions import WorkflowRequest

    document = _read_document(file, workflow_id)
    workflow_request = WorkflowRequest(
        document,
        await register(settings, repo, ref),
        role,
        seconds or int(TOKEN_SECONDS),
    )
    result = await _show_workflow(settings, workflow_request, as_json=as_json)
    if as_json:
        print_json(result)
    return 0 if result["state"] == "succeeded" else EXIT_NONE


def _read_document(file: Path, workflow_id: str) -> dict[str, Any]:
    """Return the workflow of a file, with the given id, its own or a new one."""
    from moothall.workflows.plan import read_yaml

    document = read_yaml(file.read_text(encoding="utf-8"))
    return {**document, "id": workflow_id or document.get("id") or f"wf-{secrets.token_hex(8)}"}


async def _show_workflow(
    settings: Settings, workflow_request: WorkflowRequest, *, as_json: bool
) -> dict[str, Any]:
    """Run a workflow, print its events, and return its result."""
    from moothall.app.tool_sessions import run_workflow

    result: dict[str, Any] = {
        "version": 1,
        "workflow_id": workflow_request.document["id"],
        "state": "",
        "steps": {},
    }

    def show(line: str) -> None:
        if not as_json:
            click.echo(plain(line))

    async with aclosing(run_workflow(settings, workflow_request, print_status)) as events:
        async for recorded in events:
            data = recorded.event.data
            counts = f"[{data.get('done', 0)}/{data['steps']}]"
            if "step" not in data:
                result |= {
                    "state": data.get("state", "started"),
                    "error": data.get("error", ""),
                    "workspace": data["workspace"],
                }
                show(
                    f"{counts} workflow {data['workflow_id']}: "
                    f"{result['state']}{_error_text(result['error'])}"
                )
                continue
            name = f"{data['step']}{' (undo)' if data['compensation'] else ''}"
            result["steps"][name] = {key: data[key] for key in ("state", "attempt", "error")} | {
                "result": data["result"]
            }
            attempt = f" (attempt {data['attempt']})" if data["attempt"] > 1 else ""
            show(
                f"{counts} {name}: "
                f"{data['state']}{attempt}{_error_text(data['error'])}{_duration_text(data['result'])}"
            )
    return result


def _error_text(error: str) -> str:
    text = " ".join(error.split())
    return f": {text[:_ERROR_CHARS]}{'…' if len(text) > _ERROR_CHARS else ''}" if text else ""


def _duration_text(result: dict[str, Any]) -> str:
    return f", {result['duration_ms']} ms" if result else ""


@click.group()
def tools() -> None:
    """The catalogue of tools, and which of them a tenant's agents are offered."""


tools.add_command(requeue)
tools.add_command(run_)


@tools.command(
    "list",
    epilog=example("moothall tools list --role dev", "moothall tools list --query search --json"),
)
@click.option("--query", default="", help="Words to find in the name, summary or tags.")
@click.option(
    "--category",
    "categories",
    multiple=True,
    help="First part of a tool's name, such as files, git, http; repeatable.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="Tag of a tool; repeatable, any one is enough.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help="Profile: core, coding, reading, remote, code, network, data, containers, wasm, "
    "mcp; repeatable.",
)
@click.option("--role", default="", help="Show only tools that agents of this role are offered.")
@click.option(
    "--safe", is_flag=True, help="Leave out tools that run code or act outside the workspace."
)
@_TOOLS_TENANT
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
    """List the matching tools. Disabled ones are marked; with --role they are left out, as for the
    agents.
    """
    from moothall.app.gateway_rules import catalogue_of, open_switches, read_table
    from moothall.settings import unset_tools
    from moothall.tools.catalogue import list_tools
    from moothall.tools.spec import Filters, discover, entry

    async with open_switches(settings) as switches:
        off = switches.off(tenant)
    known_tools = catalogue_of(settings)
    unset = unset_tools(settings, tenant)
    excluded = {*off, *unset}
    specs = (
        list_tools(
            read_table(settings.guard, known_tools).of(role),
            excluded=excluded,
            catalogue=known_tools,
        )
        if role
        else tuple(known_tools.values())
    )
    matching = discover(specs, Filters(query, categories, tags, profiles, exclude_dangerous=safe))
    if as_json:
        entries = [
            entry(spec, enabled=spec.name not in off) | {"unset": unset.get(spec.name, "")}
            for spec in matching
        ]
        print_json(entries)
        return
    for spec in matching:
        mark = "off" if spec.name in off else "unset" if spec.name in unset else ""
        click.echo(f"{spec.name:<16} {spec.danger.value:<8} {mark:<5} {spec.summary}")
    if not matching:
        categories_found = dict.fromkeys(spec.category for spec in specs)
        profiles_found = dict.fromkeys(profile for spec in specs for profile in spec.profiles)
        print_status(
            f"no tool matches; the categories are {', '.join(categories_found)}, the profiles "
            f"{', '.join(profiles_found)}"
        )


@tools.command(epilog=example("moothall tools show files.edit"))
@click.argument("name")
@_TOOLS_TENANT
@json_option
@with_settings()
async def show(settings: Settings, *, name: str, tenant: str, as_json: bool) -> None:
    """Print the catalogue's data about a tool."""
    from moothall.app.gateway_rules import catalogue_of, open_switches
    from moothall.errors import NotFound
    from moothall.settings import unset_tools
    from moothall.tools.spec import entry

    spec = catalogue_of(settings).get(name)
    if spec is None:
        raise NotFound(f"there is no tool {name[:60]!r}; `moothall tools list` shows them")
    async with open_switches(settings) as switches:
        details = entry(spec, enabled=name not in switches.off(tenant)) | {
            "unset": unset_tools(settings, tenant).get(name, "")
        }
    if as_json:
        print_json(details)
        return
    click.echo(f"{spec.signature}\n{spec.summary}\n")
    for key, value in details.items():
        if key not in {"id", "summary"} and value != "":
            click.echo(f"{key:<14} {value if isinstance(value, str) else json.dumps(value)}")


@tools.command(epilog=example("moothall tools enable git.log"))
@click.argument("name")
@_TOOLS_TENANT
@with_settings()
async def enable(settings: Settings, *, name: str, tenant: str) -> None:
    """Enable a tool for a tenant's agents again."""
    await _switch(settings, name, tenant, "", enabled=True)


@tools.command(epilog=example('moothall tools disable git.log --reason "not needed"'))
@click.argument("name")
@click.option("--reason", default="", help="Reason, which is recorded.")
@_TOOLS_TENANT
@with_settings()
async def disable(settings: Settings, *, name: str, reason: str, tenant: str) -> None:
    """Disable a tool for a tenant's agents, at once and without a restart. Agents do not see it
    then.
    """
    await _switch(settings, name, tenant, reason, enabled=False)


async def _switch(
    settings: Settings, name: str, tenant: str, reason: str, *, enabled: bool
) -> None:
    from moothall.app.gateway_rules import open_switches
    from moothall.settings import unset_tools

    async with open_switches(settings) as switches:
        await switches.switch(tenant, name, enabled=enabled, actor=LOCAL.name, reason=reason)
    click.echo(f"{name} is {'enabled' if enabled else 'disabled'} for tenant {tenant}")
    if enabled and (missing := unset_tools(settings, tenant).get(name)):
        print_status(f"it is offered to nobody yet: {missing}")


@tools.command(epilog=example("moothall tools revoke ws-0123"))
@click.argument("token_or_workspace")
@click.option("--reason", default="", help="Reason, which is recorded.")
@with_settings()
async def revoke(settings: Settings, *, token_or_workspace: str, reason: str) -> None:
    """Revoke a capability token by its id (jti), with all tokens derived from it, or all tokens of
    a workspace.
    """
    from moothall.app.bus import open_log
    from moothall.authorization.rules import REVOKED, Revocations

    async with open_log(settings, lambda _: None) as bus:
        await Revocations(bus.bucket(REVOKED)).revoke(
            token_or_workspace, actor=LOCAL.name, reason=reason
        )
    click.echo(f"{token_or_workspace} is revoked")


@tools.command(epilog=example("moothall tools take notes", "moothall tools take notes --look"))
@click.argument("server")
@click.option("--look", is_flag=True, help="Only show them.")
@with_settings()
async def take(settings: Settings, *, server: str, look: bool) -> None:
    """Read the tools of an MCP server of the settings, and accept them into the catalogue as they
    are now.

    Tools that are new, changed or gone are marked. Running processes read the list when they are
    restarted.
    """
    from moothall.toolkits.mcp import McpFamily
    from moothall.toolkits.mcp.spec import accepted_tools, read_offers, write_accepted_tools

    family = McpFamily()
    mcp_settings = family.own_settings(settings)
    offers = await family.tools(settings).offers(server)
    offered = read_offers(server, mcp_settings, offers)
    earlier_digests = {
        tool.spec.name: tool.offer.digest
        for tool in accepted_tools(settings, mcp_settings)
        if tool.server == server
    }
    for tool in offered.tools:
        earlier_digest = earlier_digests.pop(tool.spec.name, "")
        mark = (
            "new"
            if not earlier_digest
            else "changed"
            if earlier_digest != tool.offer.digest
            else ""
        )
        click.echo(
            f"{tool.spec.name:<32} {tool.spec.danger.value:<8} {mark:<8} "
            f"{one_line(tool.offer.description)}"
        )
    for name in earlier_digests:
        click.echo(f"{name:<32} {'':<8} gone")
    for reason in offered.refused:
        print_status(f"refused: {reason}")
    if not look:
        print_status(
            f"{len(offered.tools)} tools accepted: "
            f"{write_accepted_tools(settings, server, offered.tools)}"
        )
        print_status(
            "each role has the tools that the table of roles grants it (docs/tools.md, MCP servers)"
        )
