"""`moothall demo`: a council on a generated sample repository."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from moothall.cli.council import ProgressPrinter, print_outcome, run_deliberation
from moothall.cli.options import SEED, SettingRange, example, json_option
from moothall.cli.runtime import print_status, with_settings
from moothall.cli.show import first_added
from moothall.config import Settings
from moothall.domain.ids import LOCAL, new_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import Constraints, DeliberationRequest

TASK = "Add hello_world() function to src/utils.py"
STORY = (
    "Greet the world from src/utils.py",
    "As a visitor, I want the helpers to greet me, so that I know that they work.",
    (
        "Given src/utils.py, when hello_world() is called, then it returns 'Hello, World!'",
        "Given tests/test_utils.py, when the tests are run, then test_hello_world passes",
    ),
)
_SAMPLE_FILES = {
    "src/utils.py": '''"""Small helpers."""


def add(a, b):
    """Return the sum of two numbers."""
    return a + b
''',
    "tests/test_utils.py": """from src import utils


def test_add():
    assert utils.add(2, 3) == 5


def test_hello_world():
    assert utils.hello_world() == "Hello, World!"
""",
    "pyproject.toml": """[project]
name = "sample"
version = "0.1.0"

[tool.pytest.ini_options]
pythonpath = ["."]
""",
    "README.md": "# Sample\n\nA few helpers, and a test that waits for one more.\n",
    ".gitignore": "__pycache__/\n",
}
_MAX_TURNS = 4
"""The small model succeeds within three turns or not at all."""


@click.command(epilog=example("moothall demo --seed 7"))
@click.option(
    "--agents",
    type=SettingRange(1, "limits.agents"),
    default=3,
    show_default=True,
    help="Number of seats.",
)
@click.option("--seed", type=SEED, help="Base of the sampling seeds.")
@click.option(
    "--page",
    "on_page",
    is_flag=True,
    help="Put it on the board as a story, open its page, and serve until Ctrl-C.",
)
@json_option
@with_settings()
async def demo(
    settings: Settings, *, agents: int, seed: int | None, on_page: bool, as_json: bool
) -> int:
    """A council of three adds a function to a sample repository whose test fails until it is there.

    Exit codes: 0 a proven or reproduced winner, 3 another one, 1 none, 2 a broken part.
    """
    if on_page:
        await _show_on_page(settings)
        return 0
    return await _demo(settings, agents, seed, as_json=as_json)


async def make_sample_repository(path: Path) -> str:
    """Create the sample at `path` and return its only commit. A test fails until the task is
    done.
    """
    from moothall.repositories.sources import create_repository

    return await create_repository(path, _SAMPLE_FILES, "A sample to work on")


async def _show_on_page(settings: Settings) -> None:
    """Put the task on the board as a story whose design waits for acceptance, and open its page."""
    from moothall.app.server import page_link
    from moothall.app.tasks import register_named
    from moothall.cli.serve import serve_until_stopped, show_page

    sample = settings.data_dir / "demo" / new_task_id()
    await make_sample_repository(sample)
    print_status(f"sample repository: {sample}")
    repository = await register_named(settings, str(sample))

    async def open_page(link: str) -> None:
        await show_page(link, await _begin_story(settings, repository))

    if (link := await page_link(settings, print_status)) is None:
        await serve_until_stopped(settings, open_page)
    else:
        await open_page(link)


async def _begin_story(settings: Settings, repository: str) -> str:
    """Create the demo's story, submit its design, and return its id."""
    from moothall.app.tasks import open_stories
    from moothall.stories.coach import StoryDraft

    async with open_stories(settings, print_status) as stories:
        card = await stories.board.create(
            StoryDraft(*STORY), LOCAL, key=new_task_id(), repository=repository
        )
        for event in ("refine", "submit"):
            await stories.board.move(card.story.id, event, LOCAL)
    return card.story.id


async def _demo(settings: Settings, agents: int, seed: int | None, *, as_json: bool) -> int:
    from moothall.app.command_repository import register
    from moothall.app.server import open_app

    start_time = time.monotonic()
    if settings.ray.mode == "auto":  # what a demo shows is the whole server
        settings = settings.model_copy(
            update={"ray": settings.ray.model_copy(update={"mode": "ray"})}
        )
    if settings.llm.seats_in_turn == "auto":
        settings = settings.model_copy(
            update={"llm": settings.llm.model_copy(update={"seats_in_turn": "off"})}
        )
    printer, out = ProgressPrinter(quiet=as_json, verbose=True), sys.stdout
    task_id = new_task_id()
    sample = settings.data_dir / "demo" / task_id
    await make_sample_repository(sample)
    printer.report(f"sample repository: {sample}")
    printer.report(f"task: {TASK}")
    request = DeliberationRequest(
        description=TASK,
        role="dev",
        task_id=task_id,
        num_agents=agents,
        seed=seed,
        constraints=Constraints(max_iterations=_MAX_TURNS),
        repository=await register(settings, str(sample), ""),
    )
    async with open_app(settings, printer.report) as app:
        outcome = await run_deliberation(app.deliberations, request, printer.show_event)
        code = print_outcome(outcome, out, json_wanted=as_json)
    if not as_json:
        _print_next_steps(sample, outcome, time.monotonic() - start_time)
    return code


def _print_next_steps(sample: Path, outcome: Outcome, seconds: float) -> None:
    click.echo(f"\nThe repository is {sample} ({seconds:.0f} s in all).")
    if outcome.branch:
        click.echo(f"See the winner: git -C {sample} show {outcome.branch}")
        winner = next(result for result in outcome.results if result.rank == 1)
        if position := first_added(winner.diff):
            file, line = position
            click.echo(
                "Ask where its first line comes from: moothall graph query provenance --repo "
                f"{sample} --ref {outcome.branch} --file {shlex.quote(file)} --line {line}"
            )
    elif not outcome.winner_id:
        click.echo("No seat solved the task this time; another seed may: moothall demo --seed 7")
