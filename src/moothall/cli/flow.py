"""`moothall tools run`: a workflow in a workspace of its own."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.exit_codes import EXIT_NONE
from moothall.cli.options import example, json_option
from moothall.cli.ranges import SettingRange
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings

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
