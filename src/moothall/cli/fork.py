"""`moothall fork`: run a task again from one of its turns."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from moothall.cli import complete
from moothall.cli.options import SEED, example, json_option, task_argument, verbose_option
from moothall.cli.runtime import with_settings
from moothall.config import Settings
from moothall.domain.ids import check_id
from moothall.domain.task import DeliberationRequest, Fork


@click.command(epilog=example('moothall fork task-0123456789ab --turn 3 "Use a set instead."'))
@task_argument(required=True)
@click.argument("words", default="")
@click.option(
    "--turn",
    type=click.IntRange(1, 2**31 - 1),
    required=True,
    help="Last turn to keep; `log tail` and -v show the numbers.",
)
@click.option(
    "--seat",
    default="",
    help="Seat whose turns are kept, by name or number; by default the winner or the first.",
)
@click.option(
    "--seed", type=SEED, help="Base of the sampling seeds of new turns; a different one by default."
)
@click.option(
    "--task-id", default="", help="Id of the fork; TASK-f1, TASK-f2 and so on by default."
)
@click.option(
    "--server",
    default="",
    help="HOST:PORT of a `moothall serve` that has TASK; give the complete id.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token for --server; by default the token of this machine.",
)
@json_option
@verbose_option
@with_settings()
async def fork(
    settings: Settings,
    *,
    task: str,
    words: str,
    turn: int,
    seat: str,
    seed: int | None,
    task_id: str,
    server: str,
    token_file: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run TASK again from turn N of a seat, with the message WORDS or, without it, another seed.

    The turns until then are taken from the log: no model call is repeated, and their actions are
    repeated in a new workspace. TASK itself stays as it is. The fork is a new task with its own
    branch.

    Exit codes: as of `deliberate`.
    """
    from moothall.app.repository import kernel_of
    from moothall.app.server import open_app
    from moothall.app.tasks import tasks_of
    from moothall.cli.council import print_outcome, run_deliberation
    from moothall.cli.progress import ProgressPrinter

    check_id(task, "TASK")
    request = DeliberationRequest(
        "", "", task_id=task_id, seed=seed, fork=Fork(task, turn, seat, words)
    )
    out, printer = sys.stdout, ProgressPrinter(quiet=as_json, verbose=verbose, thoughts=True)
    with printer.live_display():
        if server:
            async with kernel_of(settings, server, token_file) as kernel:
                outcome = await run_deliberation(kernel, request, printer.show_event)
        else:
            async with open_app(settings, printer.report) as app:
                local_fork = Fork(await tasks_of(settings, app).find(task), turn, seat, words)
                outcome = await run_deliberation(
                    app.deliberations, replace(request, fork=local_fork), printer.show_event
                )
                complete.remember(settings.data_dir, outcome.task_id)
    return print_outcome(outcome, out, json_wanted=as_json)
