"""`moothall tools run`: a workflow in a workspace of its own."""

from __future__ import annotations

import json
import secrets
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.exits import EXIT_NONE
from moothall.cli.options import example
from moothall.cli.plain import plain
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings
from moothall.domain.task import RepositoryRef

if TYPE_CHECKING:
    from moothall.wiring.visits import Asked

_WIDTH = 300


@click.command("run", epilog=example("moothall tools run steps.yaml --repo ."))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--repo", required=True, help="A path, a URL or the id of a registered repository.")
@click.option("--ref", default="", help="A branch, tag or commit; the repository's HEAD by default.")
@click.option("--role", default="DEV", show_default=True, help="Whose grants it runs under.")
@click.option("--id", "workflow_id", default="", help="An id of your own: run again under it, it goes on where it was.")
@click.option("--ttl", "seconds", type=click.IntRange(min=1), default=None, help="Seconds for all of it; the longest by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
@errors_spoken
def run_(
    context: click.Context,
    *,
    file: Path,
    repo: str,
    ref: str,
    role: str,
    workflow_id: str,
    seconds: int | None,
    as_json: bool,
) -> None:
    """Run the workflow in a YAML FILE in a fresh workspace. Killed, it goes on when it is run again under its id.

    Exit codes: 0 every step succeeded, 1 not, 2 wrong use or a broken part.
    """
    from moothall.wiring.visits import Asked
    from moothall.workflows.plan import read_yaml

    settings = settings_of(context, narrated=True)
    document = {**read_yaml(file.read_text(encoding="utf-8"))}
    document["id"] = workflow_id or document.get("id") or f"wf-{secrets.token_hex(8)}"
    asked = Asked(document, RepositoryRef(url=repo, ref=ref), role, seconds or int(settings.guard.token_seconds))
    run(_run(settings, asked, as_json=as_json))


async def _run(settings: Settings, asked: Asked, *, as_json: bool) -> int:
    from moothall.wiring.trusted import register
    from moothall.wiring.visits import run_workflow

    named = asked.repository
    asked = replace(asked, repository=await register(settings, named.url, named.ref))
    told = await _tell(settings, asked, run_workflow, as_json=as_json)
    if as_json:
        click.echo(json.dumps(told, indent=2))
    return 0 if told["state"] == "succeeded" else EXIT_NONE


async def _tell(settings: Settings, asked: Asked, run_workflow: Any, *, as_json: bool) -> dict[str, Any]:
    """Show what happens, and return how it ended."""
    told: dict[str, Any] = {"version": 1, "workflow_id": asked.document["id"], "state": "", "steps": {}}

    def say(words: str) -> None:
        if not as_json:
            click.echo(plain(words))

    async with aclosing(run_workflow(settings, asked, lambda words: click.echo(words, err=True))) as facts:
        async for recorded in facts:
            data = recorded.event.data
            counts = f"[{data.get('done', 0)}/{data['steps']}]"
            if "step" not in data:
                told |= {"state": data.get("state", "started"), "error": data.get("error", ""), "workspace": data["workspace"]}
                say(f"{counts} workflow {data['workflow_id']}: {told['state']}{_why(told['error'])}")
                continue
            name = f"{data['step']}{' (undo)' if data['compensation'] else ''}"
            told["steps"][name] = {key: data[key] for key in ("state", "attempt", "error")} | {"result": data["result"]}
            again = f" (attempt {data['attempt']})" if data["attempt"] > 1 else ""
            say(f"{counts} {name}: {data['state']}{again}{_why(data['error'])}{_took(data['result'])}")
    return told


def _why(error: str) -> str:
    words = " ".join(error.split())
    return f": {words[:_WIDTH]}{'…' if len(words) > _WIDTH else ''}" if words else ""


def _took(result: dict[str, Any]) -> str:
    return f", {result['duration_ms']} ms" if result else ""
