"""`moothall evaluate`: measure models, protocols and council sizes on bugs of a repository."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich import box
from rich.table import Table
from rich.text import Text

from moothall.cli import options as complete
from moothall.cli.options import SEED, SettingRange, example, json_option
from moothall.cli.runtime import EXIT_NONE, plain, print_json, print_status, with_settings
from moothall.config import Settings
from moothall.errors import InvalidRequest
from moothall.evaluate import DEFAULT_COMMITS, DEFAULT_TASKS

if TYPE_CHECKING:
    from moothall.evaluate.evaluation import Plan
    from moothall.evaluate.runner import Options

_FILE_WIDTH = 1000
_COUNT = click.IntRange(1, 100_000)
_COUNT_TOKENS = click.IntRange(1, 2**53 - 1)


@click.command(
    epilog=example(
        "moothall evaluate --tasks 10",
        "moothall evaluate ../other --config small=small.toml --config large=large.toml --agents 3",
        "moothall evaluate --config one=,agents=1,protocol=single --config three=,agents=3",
        "moothall evaluate --agents 2 --config ab=,model=a+b --config auto=,model=auto",
    )
)
@click.argument("repo", default="", shell_complete=complete.repositories)
@click.option(
    "--ref", default="", help="The commit whose history is mined; the repository's HEAD by default."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File like .moothall.toml to use instead of the repository's own in all its commits.",
)
@click.option(
    "--tasks",
    type=_COUNT,
    default=DEFAULT_TASKS,
    show_default=True,
    help="Number of tasks to mine and run.",
)
@click.option(
    "--commits",
    type=_COUNT,
    default=DEFAULT_COMMITS,
    show_default=True,
    help="Number of commits to examine, newest first.",
)
@click.option(
    "--paraphrase",
    is_flag=True,
    help="Let the current model rephrase each commit message.",
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
    help="Seats of each council; by default those of the settings.",
)
@click.option(
    "--protocol",
    default="",
    shell_complete=complete.protocols,
    help="The protocol of each deliberation.",
)
@click.option("--model", default="", help="Model from the settings, as in `moothall deliberate`.")
@click.option(
    "--limit",
    type=SettingRange(1, "limits.deliberation_seconds"),
    help="Time limit of each deliberation in seconds; limits.deliberation_seconds by default.",
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
    help="Number of deliberations that run at once.",
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
    from moothall.evaluate.evaluation import Origin, Plan
    from moothall.evaluate.runner import Options

    _check_options(only_report=only_report, runs=only_mine or bool(to_harbor or from_harbor))
    out = sys.stdout
    options = Options(agents or 0, protocol, limit or 0, budget or 0, seed, model)
    plan = Plan(Origin(), ref, profile, tasks, commits, paraphrase, parallel, only_mine)
    plan = replace(plan, to_harbor=to_harbor, from_harbor=from_harbor)
    results = await _run_evaluation(
        settings, (repo, folder), plan, options, configs, only_report=only_report
    )
    if results is None:
        return EXIT_NONE
    report = _report_tasks if only_mine else _report_results
    report(out, results, as_json=as_json)
    return 0


def _check_options(*, only_report: bool, runs: bool) -> None:
    if only_report and runs:
        raise InvalidRequest(
            "--report only reads results: leave --mine, --to-harbor and --from-harbor out"
        )


async def _run_evaluation(
    settings: Settings,
    folders: tuple[str, Path | None],
    plan: Plan,
    options: Options,
    configs: tuple[str, ...],
    *,
    only_report: bool,
) -> Path | None:
    """Run an evaluation, or only find its results. `folders` are the repository and the folder for
    results, as they were given. Return the folder with the results, or None if no commit became a
    task.
    """
    from moothall.evaluate.evaluation import Evaluation, find_folder, find_origin
    from moothall.evaluate.runner import read_configurations
    from moothall.settings import load_settings

    repo, folder = folders
    if not (plan.from_harbor or (folder and only_report)):
        plan = replace(plan, origin=await find_origin(settings, repo))
    results = await find_folder(settings, folder, plan.origin, plan.from_harbor)
    configurations = read_configurations(configs, settings, options, results, load_settings)
    if only_report:
        return results
    evaluation = Evaluation(settings, plan, results, _report_progress)
    if await evaluation.run(configurations):
        return results
    _print_dropped(*evaluation.dropped())
    return None


def _report_progress(line: str) -> None:
    print_status(plain(line))


def _print_dropped(commits: int, reasons: Sequence[tuple[str, int]]) -> None:
    """Print why no commit became a task."""
    print_status(f"moothall: no commit of {commits} became a task. Why they were dropped:")
    for reason, count in reasons:
        print_status(f"  {count:>5}  {plain(reason, 200)}")
    print_status(
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
        print_status(f"{len(tasks)} tasks in {evaluation_folder}")


def _report_results(out: TextIO, evaluation_folder: Path, *, as_json: bool) -> None:
    """Write the HTML page and the JSON document, and print the tables. Raises `InvalidRequest` if
    there are no results.
    """
    from rich.console import Console

    from moothall.domain.codec import dump
    from moothall.evaluate.evaluation import write_report
    from moothall.evaluate.report import tables

    report = dump(write_report(evaluation_folder))
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
    print_status(f"page: {evaluation_folder / 'report.html'}")
