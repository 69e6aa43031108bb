"""`moothall deliberate`: a council on a task in a repository."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from moothall.cli.council import Narrator, hold_council, tell_outcome
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings
from moothall.domain.task import Constraints, DeliberationRequest


@click.command()
@click.argument("task")
@click.option("--repo", default="", help="A path, a URL or the id of a registered repository. None: a deliberation about text.")
@click.option("--ref", default="", help="A branch, tag or commit; the repository's HEAD by default.")
@click.option("--role", default="DEV", show_default=True, help="Which council: dev, qa, architect, devops, data, po.")
@click.option("--agents", type=int, default=0, help="Seats; 3 by default.")
@click.option("--rounds", type=int, default=None, help="Rounds of review and revision; the protocol's by default.")
@click.option(
    "--protocol",
    default="",
    help="single, vote, debate, tests_then_verify (the default) or ask: one seat, whose answer may be no change.",
)
@click.option("--adaptive", is_flag=True, help="Start with two seats, add more while evidence disagrees.")
@click.option("--peer-review", is_flag=True, help="Ask every seat for reviews, in any protocol.")
@click.option("--rubric", default="", help="What reviewers judge by.")
@click.option("--require", "requirements", multiple=True, help="A requirement that reviewers judge as met or not; repeatable.")
@click.option("--timeout", type=int, default=0, help="Seconds for the whole deliberation.")
@click.option("--turns", type=int, default=0, help="Turns that a seat may take; limits.turns by default.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Base of the sampling seeds.")
@click.option("--task-id", default="", help="An id of your own; the same id and request are the same deliberation.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.pass_context
@errors_spoken
def deliberate(
    context: click.Context,
    *,
    task: str,
    repo: str,
    ref: str,
    role: str,
    agents: int,
    rounds: int | None,
    protocol: str,
    adaptive: bool,
    peer_review: bool,
    rubric: str,
    requirements: tuple[str, ...],
    timeout: int,
    turns: int,
    seed: int | None,
    task_id: str,
    as_json: bool,
) -> None:
    """Let a council work on TASK and leave the winner as branch moothall/<task_id>.

    Exit codes: 0 a proven winner, 3 an unproven one, 1 none, 2 wrong use or a broken part.
    """
    request = DeliberationRequest(
        description=task,
        role=role,
        task_id=task_id,
        constraints=Constraints(rubric, requirements, max_iterations=turns, timeout_seconds=timeout),
        rounds=rounds,
        num_agents=agents,
        protocol=protocol,
        adaptive=adaptive,
        peer_review=peer_review,
        seed=seed,
    )
    run(_deliberate(settings_of(context, narrated=True), request, repo, ref, as_json=as_json))


async def _deliberate(settings: Settings, request: DeliberationRequest, repo: str, ref: str, *, as_json: bool) -> int:
    from moothall.wiring.house import check_early, open_house
    from moothall.wiring.trusted import register

    narrator, out = Narrator(quiet=as_json), sys.stdout
    check_early(settings, request)
    if repo:
        request = replace(request, repository=await register(settings, repo, ref))
    async with open_house(settings, narrator.say) as house:
        return tell_outcome(await hold_council(house.desk, request, narrator), out, json_wanted=as_json)
