"""`moothall agents`: check, list, run, pause and stop the agents that files describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from moothall.agents.runner import LoadedSpecs, SpecError, check_order, load
from moothall.agents.specs import Spec
from moothall.app.preflight import NamedRepository, check_early, check_request
from moothall.cli.options import example, json_option, repository_options
from moothall.cli.runtime import (
    EXIT_NONE,
    plain,
    print_json,
    print_status,
    stderr_reporter,
    with_settings,
)
from moothall.config import Settings
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound

_LOG = "reading the log of tasks"


def _paths(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("paths", nargs=-1, type=click.Path(path_type=Path))(command)


@click.group()
def agents() -> None:
    """Agents from files (docs/agents.md). PATHS are files and folders; `agents` by default."""


@agents.command(
    epilog=example("moothall agents validate", "moothall agents validate agents/tests.yaml")
)
@_paths
@with_settings()
async def validate(settings: Settings, *, paths: Sequence[Path]) -> int:
    """Check files: report each error with its line, settings that are not allowed, cycles and
    missing agents. Exit code 1 if there are errors.
    """
    files = _load_specs(settings, paths)
    for note in files.notes:
        click.echo(plain(f"note  {note}"))
    problems = len(files.errors)
    if not problems:  # otherwise a missing agent may be in an invalid file
        try:
            check_order(tuple(files.specs.values()))
        except InvalidRequest as error:
            print_status(plain(error.message))
            problems = 1
    click.echo(f"agents: {len(files.specs)} read, errors: {problems}")
    return EXIT_NONE if problems else 0


@agents.command("list", epilog=example("moothall agents list"))
@_paths
@with_settings()
async def list_(settings: Settings, *, paths: Sequence[Path]) -> None:
    """List the agents in the order in which they would run one at a time."""
    by_name = {spec.name: spec for spec in _load_specs(settings, paths).specs.values()}
    for name in check_order(tuple(by_name.values())):
        spec = by_name[name]
        needs = ", ".join(
            dependency.name + (" (optional)" if dependency.optional else "")
            for dependency in spec.dependencies
        )
        click.echo(
            plain(
                f"{name:<32}  {spec.spec.priority:<8}  {spec.spec.role:<9}"
                + (f"  needs {needs}" if needs else "")
            )
        )


@agents.command(
    "run",
    epilog=example("moothall agents run", "moothall agents run --only docs --repo ../other agents"),
)
@_paths
@repository_options
@click.option("--only", multiple=True, help="Run this agent and those that it needs; repeatable.")
@click.option(
    "--at-once",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Number of agents that run at once.",
)
@click.option(
    "--run",
    "name",
    default="",
    help="Name of the run. A killed run continues under the same name.",
)
@json_option
@with_settings()
async def run_(
    settings: Settings,
    *,
    paths: Sequence[Path],
    repo: str,
    ref: str,
    profile: Path | None,
    only: tuple[str, ...],
    at_once: int,
    name: str,
    as_json: bool,
) -> int:
    """Run agents on a repository, each after its dependencies have completed, on their result.

    Each leaves a branch moothall/<task_id>. Its validation commands decide whether it completed.
    Exit codes: 0 all completed, 1 not all, 2 wrong use or a broken part.
    """
    files = _load_specs(settings, paths)
    if files.errors:
        raise InvalidRequest(f"{len(files.errors)} errors in the files; nothing is run")
    specs = _choose(tuple(files.specs.values()), only)
    named = NamedRepository(repo, ref, profile=profile)
    return await _run_agents(settings, specs, named, name, at_once, as_json=as_json)


_NAME = click.argument("name")


@agents.command(epilog=example("moothall agents pause handbook"))
@_NAME
@with_settings(_LOG)
async def pause(settings: Settings, *, name: str) -> None:
    """Pause the running agent NAME: its current turn ends, and no new one starts until `moothall
    agents resume`.
    """
    await _set_paused(
        settings, name, paused=True, changed_text="paused", unchanged_text="was already paused"
    )


@agents.command(epilog=example("moothall agents resume handbook"))
@_NAME
@with_settings(_LOG)
async def resume(settings: Settings, *, name: str) -> None:
    """Resume the agent NAME. Model calls are not repeated, and the pause does not count against its
    time.
    """
    await _set_paused(
        settings, name, paused=False, changed_text="goes on", unchanged_text="was not paused"
    )


@agents.command(epilog=example("moothall agents stop handbook"))
@_NAME
@with_settings(_LOG)
async def stop(settings: Settings, *, name: str) -> None:
    """Stop the agent NAME permanently. It is not restarted, whatever its file specifies."""
    from moothall.app.tasks import cancel

    for task in await _running_tasks(settings, name):
        task_id, status = await cancel(settings, task, "stopped on the command line", print_status)
        click.echo(f"{task_id}: {status.value.lower()}")


async def _set_paused(
    settings: Settings, name: str, *, paused: bool, changed_text: str, unchanged_text: str
) -> None:
    from moothall.app.tasks import open_tasks
    from moothall.domain.ids import LOCAL
    from moothall.stories import council_actions

    task_ids = await _running_tasks(settings, name)
    async with open_tasks(settings, print_status) as tasks:
        for task_id in task_ids:
            changed = await council_actions.pause(
                tasks.deliberations, task_id, LOCAL, paused=paused
            )
            click.echo(f"{task_id}: {changed_text if changed else unchanged_text}")


async def _running_tasks(settings: Settings, name: str) -> Sequence[str]:
    """Return the running tasks of an agent. Raises `NotFound`, which names the running agents."""
    from moothall.app.tasks import open_tasks

    async with open_tasks(settings, print_status) as tasks:
        live = [view for view in await tasks.latest("live", 1000) if view.agent]
    if not (task_ids := [view.task_id for view in live if view.agent == name]):
        running_agents = ", ".join(sorted({view.agent for view in live}))
        raise NotFound(
            f"no agent {name[:80]!r} is running; "
            + (f"running are {running_agents[:500]}" if running_agents else "none is")
        )
    return task_ids


def _load_specs(settings: Settings, paths: Sequence[Path]) -> LoadedSpecs:
    """Load the files and report problems, both in the files and with the settings, so that no run
    fails later because of them.
    """
    from moothall.agents.runner import request_of

    files, max_seconds = (
        load(paths or (Path("agents"),)),
        int(settings.limits.deliberation_seconds),
    )
    problems, notes = list(files.errors), list(files.notes)
    for file, spec in files.specs.items():
        try:
            check_request(settings, request_of(spec, RepositoryRef(id="any"), longest=max_seconds))
        except InvalidRequest as error:
            problems.append(SpecError(file, 0, error.message))
        if (spec.security.resource_limits.timeout or 0) > max_seconds:
            notes.append(
                SpecError(
                    file,
                    0,
                    f"its timeout is over the limit of {max_seconds} s, which applies instead "
                    "(limits.deliberation_seconds)",
                )
            )
    for problem in problems:
        print_status(plain(f"wrong {problem}"))
    return replace(files, errors=tuple(problems), notes=tuple(notes))


def _choose(specs: Sequence[Spec], only: Sequence[str]) -> Sequence[Spec]:
    """Return the chosen agents with their dependencies; all agents if none is chosen. Raises
    `InvalidRequest`.
    """
    by_name = {spec.name: spec for spec in specs}
    check_order(specs)
    if missing := [name for name in only if name not in by_name]:
        raise InvalidRequest(
            f"there is no agent {missing[0][:80]!r}; the agents are "
            f"{', '.join(sorted(by_name))[:500]}"
        )
    chosen, unvisited = set(only or by_name), list(only)
    while unvisited:
        dependencies = {
            dependency.name
            for dependency in by_name[unvisited.pop()].dependencies
            if dependency.name in by_name
        }
        unvisited += dependencies - chosen
        chosen |= dependencies
    return [spec for spec in specs if spec.name in chosen]


async def _run_agents(
    settings: Settings,
    specs: Sequence[Spec],
    named: NamedRepository,
    name: str,
    at_once: int,
    *,
    as_json: bool,
) -> int:
    if not specs:
        raise InvalidRequest("there is no agent in these files")
    report_progress = stderr_reporter(quiet=as_json)
    model_checked = await check_early(
        settings,
        DeliberationRequest(description="agents", role=specs[0].spec.role),
        named,
        report_progress,
    )
    # Imported late: this takes a second, and an invalid address is reported before.
    from moothall.agents.runner import AgentRun, State, first_line
    from moothall.app.command_repository import describe_uncommitted, find_repository
    from moothall.app.server import open_app
    from moothall.cli.documents import AgentsDocument
    from moothall.domain.codec import dump
    from moothall.domain.ids import LOCAL, check_id, new_task_id

    run_name = check_id(name, "--run") if name else new_task_id()
    repository = await find_repository(settings, named)
    if repository is None:
        raise InvalidRequest("the current folder is not in a git repository: name one with --repo")
    if text := await describe_uncommitted(settings, repository):
        report_progress(text)
    report_progress(
        f"{len(specs)} agents, {at_once} at once; if this run is killed, continue it with --run "
        f"{run_name}"
    )
    async with open_app(settings, report_progress, model_checked=model_checked) as app:
        agent_run = AgentRun(
            app.deliberations,
            LOCAL,
            repository,
            run_name,
            at_once,
            report_progress,
            longest=int(settings.limits.deliberation_seconds),
        )
        results = await agent_run.run_all(specs)
    if as_json:
        print_json(dump(AgentsDocument(run_name, tuple(results.values()))))
    else:
        for result in results.values():
            text = result.branch if result.state is State.COMPLETED else first_line(result.reason)
            click.echo(
                plain(
                    f"{result.name:<32}  {result.state:<9}  "
                    f"{result.used if result.runs else '':<36}  {text}"
                )
            )
    return 0 if all(result.state is State.COMPLETED for result in results.values()) else EXIT_NONE
