"""`moothall fork`: another run of a task, from one of its turns."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from moothall.cli import complete
from moothall.cli.options import example, json_option, task_argument, verbose_option
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings
from moothall.domain.task import DeliberationRequest, Fork


@click.command(epilog=example('moothall fork task-0123456789ab --turn 3 "Use a set instead."'))
@task_argument(required=True)
@click.argument("words", default="")
@click.option(
    "--turn", type=click.IntRange(min=1), required=True, help="The last turn that is taken over; `log tail` and -v number them."
)
@click.option("--seat", default="", help="Whose turns: a seat's name or number; the winner's, or the first, by default.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=None, help="Base of the sampling seeds from there on; another one by default."
)
@click.option("--task-id", default="", help="An id of your own; TASK-f1, TASK-f2 and so on by default.")
@click.option("--server", default="", help="HOST:PORT of a `moothall serve` that has TASK, whose id is given whole.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Where the token for --server lies; this machine's own by default."
)
@json_option
@verbose_option
@click.pass_context
@errors_spoken
def fork(
    context: click.Context,
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
) -> None:
    """Run TASK once more from turn N of a seat, with WORDS said to it or, without, another seed.

    The turns until then are taken over from the log: no model call of theirs is made again, and what they did is done again in a
    workspace of its own. TASK itself stays as it is; what comes of the fork is a task of its own, with a branch of its own.

    Exit codes: as of `deliberate`.
    """
    settings = settings_of(context, narrated=True)
    request = DeliberationRequest("", "", task_id=task_id, seed=seed)
    where = (server, token_file) if server else None
    run(_fork(settings, request, Fork(task, turn, seat, words), where, as_json=as_json, verbose=verbose))


async def _fork(
    settings: Settings,
    request: DeliberationRequest,
    fork: Fork,
    where: tuple[str, Path | None] | None,
    *,
    as_json: bool,
    verbose: bool,
) -> int:
    from moothall.cli.council import hold_council, tell_outcome
    from moothall.cli.narrator import Narrator
    from moothall.wiring.asking import kernel_of
    from moothall.wiring.house import open_house
    from moothall.wiring.tasks import tasks_of

    out, narrator = sys.stdout, Narrator(quiet=as_json, verbose=verbose, thoughts=True)
    with narrator.watching():
        if where is not None:
            async with kernel_of(settings, *where) as kernel:
                outcome = await hold_council(kernel, replace(request, fork=fork), narrator.take)
        else:
            async with open_house(settings, narrator.say) as house:
                fork = replace(fork, task_id=await tasks_of(settings, house).find(fork.task_id))
                outcome = await hold_council(house.desk, replace(request, fork=fork), narrator.take)
                complete.remember(settings.data_dir, outcome.task_id)
    return tell_outcome(outcome, out, json_wanted=as_json)
