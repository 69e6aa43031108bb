"""`moothall demo`: the main job on a sample repository, made on the spot."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from moothall.cli.council import hold_council, tell_outcome
from moothall.cli.narrator import Narrator
from moothall.cli.options import example
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.cli.show import first_added
from moothall.config import Settings
from moothall.domain.ids import new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import Constraints, DeliberationRequest

TASK = "Add hello_world() function to src/utils.py"
_TURNS = 4
"""The small model is right within three turns or goes in circles."""


@click.command(epilog=example("moothall demo --seed 7"))
@click.option("--agents", type=int, default=3, show_default=True, help="Seats.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Base of the sampling seeds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.pass_context
@errors_spoken
def demo(context: click.Context, *, agents: int, seed: int | None, as_json: bool) -> None:
    """A council of three adds a function to a sample repository whose test fails until it is there.

    Exit codes: 0 a proven winner, 3 an unproven one, 1 none, 2 a broken part.
    """
    run(_demo(settings_of(context, narrated=True), agents, seed, as_json=as_json))


async def _demo(settings: Settings, agents: int, seed: int | None, *, as_json: bool) -> int:
    from moothall.repositories.sample import make_sample_repository
    from moothall.wiring.house import open_house
    from moothall.wiring.trusted import register

    started = time.monotonic()
    if settings.ray.mode == "auto":  # what a demo shows is the whole house
        settings = settings.model_copy(update={"ray": settings.ray.model_copy(update={"mode": "ray"})})
    if settings.llm.seats_in_turn == "auto":
        settings = settings.model_copy(update={"llm": settings.llm.model_copy(update={"seats_in_turn": "off"})})
    narrator, out = Narrator(quiet=as_json, verbose=True), sys.stdout
    task_id = new_task_id()
    sample = settings.data_dir / "demo" / task_id
    await make_sample_repository(sample)
    narrator.say(f"sample repository: {sample}")
    narrator.say(f"task: {TASK}")
    request = DeliberationRequest(
        description=TASK,
        role="dev",
        task_id=task_id,
        num_agents=agents,
        seed=seed,
        constraints=Constraints(max_iterations=_TURNS),
        repository=await register(settings, str(sample), ""),
    )
    async with open_house(settings, narrator.say) as house:
        outcome = await hold_council(house.desk, request, narrator)
        code = tell_outcome(outcome, out, json_wanted=as_json)
    if not as_json:
        _say_what_next(sample, outcome, time.monotonic() - started)
    return code


def _say_what_next(sample: Path, outcome: Outcome, seconds: float) -> None:
    click.echo(f"\nThe repository is {sample} ({seconds:.0f} s in all).")
    if outcome.branch:
        click.echo(f"See the winner: git -C {sample} show {outcome.branch}")
        winner = next(result for result in outcome.results if result.rank == 1)
        if place := first_added(winner.diff):
            file, line = place
            click.echo(
                "Ask where its first line comes from: moothall graph query provenance "
                f"--repo {sample} --ref {outcome.branch} --file {shlex.quote(file)} --line {line}"
            )
    elif not outcome.winner_id:
        click.echo("No seat solved the task this time; another seed may: moothall demo --seed 7")
