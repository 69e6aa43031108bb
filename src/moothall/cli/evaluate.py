"""`moothall evaluate`: measure models, protocols and council sizes on bugs of a repository."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich import box
from rich.table import Table
from rich.text import Text

from moothall.cli import complete
from moothall.cli.exit_codes import EXIT_NONE
from moothall.cli.options import SEED, SettingRange, example, json_option
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.ids import is_id
from moothall.errors import InvalidRequest, MoothallError, NotFound
from moothall.file_locks import lock_file

if TYPE_CHECKING:  # imported by the command that runs
    from moothall.evaluate.judging import Judge
    from moothall.evaluate.runner import Configuration
    from moothall.evaluate.tasks import Lines, Task
    from moothall.repositories.profile import Commands
    from moothall.repositories.service import RepositoryService

_DEFAULT_TASKS, _DEFAULT_COMMITS, _FILE_WIDTH = 10, 200, 1000
_COUNT = click.IntRange(1, 100_000)
_COUNT_TOKENS = click.IntRange(1, 2**53 - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of an evaluation."""

    origin: Origin
    ref: str
    profile: Path | None
    tasks: int
    commits: int
    paraphrase: bool
    at_once: int
    mines: bool
    to_harbor: Path | None
    from_harbor: Path | None


@click.command(
    epilog=example(
        "moothall evaluate --tasks 10",
        "moothall evaluate ../other --config small=small.toml --config large=large.toml --agents 3",
        "moothall evaluate --config one=,agents=1,protocol=single --config three=,agents=3",
    )
)
@click.argument("repo", default="", shell_complete=complete.repositories)
@click.option(
    "--ref", default="", help="The commit whose history is mined; the repository's HEAD by default."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file like .moothall.toml that replaces the repository's own in all its commits.",
)
@click.option(
    "--tasks",
    type=_COUNT,
    default=_DEFAULT_TASKS,
    show_default=True,
    help="Tasks to mine and to run.",
)
@click.option(
    "--commits",
    type=_COUNT,
    default=_DEFAULT_COMMITS,
    show_default=True,
    help="The newest commits to look at.",
)
@click.option(
    "--paraphrase",
    is_flag=True,
    help="Let the model of the current settings put each commit message in other words.",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=FILE[,KEY=VALUE]",
    help="Settings to measure: a name, a TOML file, and agents, protocol, model, limit or budget "
    "if they differ; repeatable. Without FILE, and by default, the current settings.",
)
@click.option(
    "--agents",
    type=SettingRange(1, "limits.agents"),
    help="Seats of each council; the settings' by default.",
)
@click.option(
    "--protocol",
    default="",
    shell_complete=complete.protocols,
    help="The protocol of each deliberation.",
)
@click.option("--model", default="", help="A model of the settings, as in `moothall deliberate`.")
@click.option(
    "--limit",
    type=SettingRange(1, "limits.deliberation_seconds"),
    help="Seconds for each deliberation; limits.deliberation_seconds by default.",
)
@click.option(
    "--budget", type=_COUNT_TOKENS, help="Tokens for each deliberation; limits.tokens by default."
)
@click.option("--seed", type=SEED, help="Base of the sampling seeds.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Deliberations at a time.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of tasks, results and the page; by default one in the data directory.",
)
@click.option("--mine", "only_mine", is_flag=True, help="Mine tasks and stop.")
@click.option(
    "--report", "only_report", is_flag=True, help="Report the results so far; mine and run nothing."
)
@click.option(
    "--to-harbor",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write the tasks to this folder in Harbor's format.",
)
@click.option(
    "--from-harbor",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run all tasks of a folder in Harbor's format; mine nothing.",
)
@json_option
@with_settings()
async def evaluate(
    settings: Settings,
    *,
    repo: str,
    ref: str,
    profile: Path | None,
    tasks: int,
    commits: int,
    paraphrase: bool,
    configs: tuple[str, ...],
    agents: int | None,
    protocol: str,
    model: str,
    limit: int | None,
    budget: int | None,
    seed: int | None,
    parallel: int,
    folder: Path | None,
    only_mine: bool,
    only_report: bool,
    to_harbor: Path | None,
    from_harbor: Path | None,
    as_json: bool,
) -> int:
    """Measure councils on bugs that were fixed in REPO, by the tests that came with the fixes.

    REPO is a path, a URL or the id of a registered repository; by default the one you are in.
    Commits that change source and tests become tasks if their tests fail before and pass after. A
    council sees the parent commit and the cleaned message, never the tests. The tests then judge
    the winner.

    After an interruption, run the same command again: it continues.

    Exit codes: 0 measured, 1 no commit became a task, 2 wrong use or a broken part.
    """
    from moothall.evaluate.runner import Options, read_configurations
    from moothall.settings import load_settings

    if only_report and (only_mine or to_harbor or from_harbor):
        raise InvalidRequest(
            "--report only reads results: leave --mine, --to-harbor and --from-harbor out"
        )
    out = sys.stdout
    origin = Origin() if from_harbor or (folder and only_report) else await _origin(settings, repo)
    evaluation_folder = await _evaluation_folder(settings, folder, origin, from_harbor)
    options = Options(agents or 0, protocol, limit or 0, budget or 0, seed, model)
    configurations = read_configurations(
        configs, settings, options, evaluation_folder, load_settings
    )
    if not only_report:
        plan = Plan(
            origin,
            ref,
            profile,
            tasks,
            commits,
            paraphrase,
            parallel,
            only_mine,
            to_harbor,
            from_harbor,
        )
        if not await _run_locked(settings, plan, configurations, evaluation_folder):
            return EXIT_NONE
    if only_mine:
        _report_tasks(out, evaluation_folder, as_json=as_json)
    else:
        _report_results(out, evaluation_folder, required=only_report, as_json=as_json)
    return 0


@dataclass(frozen=True, slots=True)
class Origin:
    """A repository and its registry record; empty for tasks that are not mined."""

    where: str = ""
    commands: Commands | None = None
    credential: str = ""


async def _origin(settings: Settings, repo: str) -> Origin:
    """Return the named repository, or the one of the current folder. Raises `InvalidRequest`."""
    from moothall.app.repositories import trusted_repositories
    from moothall.app.repository import files_here
    from moothall.domain.identity import LOCAL

    is_path = not repo or await asyncio.to_thread(Path(repo).exists)
    files = await files_here(settings, repo) if is_path else None
    if is_path and files is None:
        raise InvalidRequest(
            f"{repo or 'the current folder'} is not a git repository; name one: moothall evaluate "
            "PATH, URL or id"
        )
    registry = trusted_repositories(settings).registry
    entry = registry.of_origin(str(files or repo), LOCAL.tenant)
    if entry is None and is_id(repo):
        with suppress(NotFound):
            entry = registry.get(repo, LOCAL.tenant)
    return (
        Origin(entry.origin, entry.commands, entry.credential)
        if entry
        else Origin(str(files or repo))
    )


async def _evaluation_folder(
    settings: Settings, folder: Path | None, origin: Origin, harbor: Path | None
) -> Path:
    """Return the folder of an evaluation."""
    from moothall.evaluate.miner import repository_name

    if folder is not None:
        return await asyncio.to_thread(folder.resolve)
    name = origin.where if harbor is None else str(await asyncio.to_thread(harbor.resolve))
    return settings.data_dir / "evaluations" / repository_name(name)


@contextmanager
def _lock_folder(evaluation_folder: Path) -> Iterator[None]:
    """Lock the folder of an evaluation. Raises `InvalidRequest` if another process has the lock."""
    evaluation_folder.mkdir(parents=True, exist_ok=True)
    with lock_file(evaluation_folder / "lock") as is_free:
        if not is_free:
            raise InvalidRequest(
                f"another process works on the evaluation in {evaluation_folder}; wait until it "
                "ends, or use another --folder"
            )
        yield


async def _run_locked(
    settings: Settings,
    plan: Plan,
    configurations: Sequence[Configuration],
    evaluation_folder: Path,
) -> bool:
    """Run a plan while no other process works on its folder. Return False, and print why, if there
    is no task.
    """
    from moothall.evaluate.runner import RESULTS, check_configurations
    from moothall.evaluate.tasks import Lines

    with _lock_folder(evaluation_folder):
        results = Lines(evaluation_folder / RESULTS)
        if not plan.mines:
            check_configurations(configurations, results)
        if await _run_plan(settings, plan, configurations, results, evaluation_folder):
            return True
        _print_dropped(evaluation_folder)
        return False


async def _run_plan(
    settings: Settings,
    plan: Plan,
    configurations: Sequence[Configuration],
    results: Lines,
    evaluation_folder: Path,
) -> list[Task]:
    """Mine tasks, run those without a result, and return them."""
    from moothall.evaluate.harbor import Harbor
    from moothall.evaluate.runner import Runner, open_judge, own_settings
    from moothall.evaluate.tasks import write_task
    from moothall.repositories.gitcmd import GitRunner

    evaluation_settings = own_settings(settings, evaluation_folder)
    evaluation_settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not plan.mines:
        await _check(configurations, _report_progress)
    git = GitRunner(
        evaluation_settings.data_dir / "repos", evaluation_settings.workspace.setup_seconds
    )
    tasks: list[Task] = []
    if plan.from_harbor is not None:
        tasks = await Harbor(plan.from_harbor, git).read((evaluation_folder / "harbor").resolve())
        for task in tasks:
            await asyncio.to_thread(write_task, evaluation_folder, task)
    async with open_judge(evaluation_settings) as (repositories, judge):
        if plan.from_harbor is None:
            tasks = await _mine(settings, plan, repositories, judge, evaluation_folder)
        runner = Runner(evaluation_folder, repositories, judge, results, _report_progress)
        for task in tasks if plan.to_harbor else ():
            _report_progress(
                "written: "
                f"{await runner.export(task, Harbor(plan.to_harbor or evaluation_folder, git))}"
            )
        for configuration in () if plan.mines else configurations:
            await runner.run(configuration, tasks, plan.at_once)
    return tasks


def _report_progress(line: str) -> None:
    say(plain(line))


async def _mine(
    settings: Settings,
    plan: Plan,
    repositories: RepositoryService,
    judge: Judge,
    evaluation_folder: Path,
) -> list[Task]:
    """Register the repository of a plan, and mine its commits for tasks."""
    from moothall.app.repository import register
    from moothall.evaluate.miner import COMMITS, Miner
    from moothall.evaluate.paraphrase import open_rewriter
    from moothall.evaluate.runner import own_settings
    from moothall.evaluate.tasks import Lines

    origin = plan.origin
    await repositories.register(
        origin.where, commands=origin.commands, credential=origin.credential
    )
    ref = await register(
        own_settings(settings, evaluation_folder), origin.where, plan.ref, plan.profile
    )
    async with AsyncExitStack() as stack:
        rewrite = (
            await stack.enter_async_context(open_rewriter(settings, _report_progress))
            if plan.paraphrase
            else None
        )
        miner = Miner(
            repositories,
            judge,
            evaluation_folder,
            Lines(evaluation_folder / COMMITS),
            _report_progress,
            rewrite,
        )
        return await miner.mine(ref, plan.tasks, plan.commits)


async def _check(
    configurations: Sequence[Configuration], report_progress: Callable[[str], None]
) -> None:
    """Refuse configurations that cannot start a deliberation, before anything is mined."""
    from moothall.app.preflight import check_request
    from moothall.domain.protocol import PROTOCOLS
    from moothall.domain.task import DeliberationRequest
    from moothall.llm.startup_check import reach_all

    protocols = [name for name, kind in PROTOCOLS.items() if not kind.answers]
    for configuration in configurations:
        options = configuration.options
        if options.protocol and options.protocol not in protocols:
            raise InvalidRequest(
                f"configuration {configuration.name}: no protocol {options.protocol[:40]!r} "
                f"changes files; use one of {', '.join(protocols)}"
            )
        check_request(
            configuration.settings,
            DeliberationRequest(
                "Fix it",
                "dev",
                num_agents=options.agents,
                protocol=options.protocol,
                model=options.model,
                about_text=True,
            ),
        )
        if any(model.base_url is not None for _, model in configuration.settings.choice.items()):
            try:
                await reach_all(configuration.settings.choice, report_progress)
            except MoothallError as error:
                error.message = f"configuration {configuration.name}: {error.message}"
                raise


def _print_dropped(evaluation_folder: Path) -> None:
    """Print why no commit became a task."""
    from moothall.evaluate.miner import COMMITS
    from moothall.evaluate.mining import count_reasons
    from moothall.evaluate.tasks import Lines

    rows = Lines(evaluation_folder / COMMITS).rows
    say(f"moothall: no commit of {len(rows)} became a task. Why they were dropped:")
    for reason, count in count_reasons(rows):
        say(f"  {count:>5}  {plain(reason, 200)}")
    say(
        "Look at more with --commits, or at another branch with --ref; `moothall check` shows "
        "whether the tests run at all."
    )


def _report_tasks(out: TextIO, evaluation_folder: Path, *, as_json: bool) -> None:
    """Print the tasks as JSON, or their number."""
    from moothall.domain.codec import dump
    from moothall.evaluate.tasks import read_tasks

    tasks = read_tasks(evaluation_folder)
    if as_json:
        print_json(
            {
                "version": 1,
                "folder": str(evaluation_folder),
                "tasks": [dump(task) for task in tasks],
            },
            out,
        )
    else:
        say(f"{len(tasks)} tasks in {evaluation_folder}")


def _report_results(out: TextIO, evaluation_folder: Path, *, required: bool, as_json: bool) -> None:
    """Write the HTML page and the JSON document, and print the tables. Raises `InvalidRequest` if
    results are required and there are none.
    """
    from rich.console import Console

    from moothall.domain.codec import dump
    from moothall.evaluate.page import render
    from moothall.evaluate.report import make_report, tables
    from moothall.evaluate.runner import RESULTS
    from moothall.evaluate.tasks import Lines, read_tasks

    results, tasks = Lines(evaluation_folder / RESULTS), read_tasks(evaluation_folder)
    if required and not results.rows:
        raise InvalidRequest(
            f"{evaluation_folder} has no results; run the command without --report first"
        )
    report = dump(make_report(evaluation_folder, tasks, results.rows))
    (evaluation_folder / "report.json").write_text(
        json.dumps(report, indent=2) + "\n", encoding="utf-8"
    )
    (evaluation_folder / "report.html").write_text(render(report), encoding="utf-8")
    if as_json:
        print_json(report, out)
        return
    console = Console(file=out, highlight=False, width=None if out.isatty() else _FILE_WIDTH)
    for title, heads, rows in tables(report):
        table = Table(
            *heads, title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD
        )
        for row in rows:
            table.add_row(*(Text(plain(cell, 60)) for cell in row))
        console.print(table)
    say(f"page: {evaluation_folder / 'report.html'}")
