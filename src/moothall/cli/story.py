"""`moothall story`: stories on the board. The server works on them; people move them."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from moothall.cli.options import FiniteRange, example, json_option
from moothall.cli.runtime import plain, print_json, print_status, with_settings
from moothall.config import Settings
from moothall.domain.event import Event, EventType
from moothall.domain.ids import LOCAL, new_task_id

if TYPE_CHECKING:  # imported by the command that needs it
    from moothall.app.tasks import Stories
    from moothall.stories.story_state import StoryState
    from moothall.stories.task_history import RoundTask

_BOARD = "reading the board"
_COMMENT = click.option("--comment", default="", help="Reason, or the change that you request.")
_STORY = click.argument("story_id", metavar="STORY")
_MAX_DIGITS = 9
_IDLE_NOTE = "no process works on stories now; start `moothall serve`"


@click.group()
def story() -> None:
    """Stories: requests of product owners, from backlog to done."""


@story.command(
    epilog=example(
        "moothall story new 'Export as CSV' --repo . --ac 'Given a month, when I export, then I "
        "get CSV'",
    )
)
@click.argument("title")
@click.option("--brief", default="", help="As a …, I want …, so that ….")
@click.option("--ac", multiple=True, help="A criterion: Given …, when …, then …; repeatable.")
@click.option(
    "--repo",
    "repository",
    default="",
    help="Id, path or URL of the repository; without one the story is about text.",
)
@click.option(
    "--rigor",
    type=click.Choice(["L0", "L1", "L2", "L3"]),
    default="L1",
    show_default=True,
    help="Rigor: how much evidence is required.",
)
@click.option(
    "--tokens",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    metavar="N",
    help="Token budget of all its councils together; 0: limits.story_tokens.",
)
@click.option(
    "--calls",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    metavar="N",
    help="Budget of model calls; 0: 10,000.",
)
@click.option(
    "--cost",
    "cost_usd",
    type=FiniteRange(),
    default=0.0,
    metavar="USD",
    help="Budget in US dollars; 0: limits.story_cost_usd.",
)
@with_settings(_BOARD)
async def new(
    settings: Settings,
    /,
    *,
    title: str,
    brief: str,
    ac: tuple[str, ...],
    repository: str,
    rigor: str,
    **budget: float,
) -> None:
    """Put a story with TITLE on the board, and report its weaknesses."""
    from moothall.app.tasks import open_stories, register_named
    from moothall.domain.budget import Budget
    from moothall.stories.coach import StoryDraft, check, score

    draft = check(StoryDraft(title, brief, ac))
    story_budget = Budget(
        tokens=int(budget["tokens"]), calls=int(budget["calls"]), cost_usd=budget["cost_usd"]
    )
    repository_id = await register_named(settings, repository) if repository else ""
    async with open_stories(settings, print_status) as stories:
        card = await stories.board.create(
            draft,
            LOCAL,
            key=new_task_id(),
            repository=repository_id,
            rigor=rigor,
            budget=story_budget,
        )
    click.echo(card.story.id)
    print_status(f"in {card.position.state}, scored {card.position.points} points by the coach")
    for finding in score(draft).findings:
        print_status(f"- {finding.message}")


add = copy(new)
"""An alias of `new`."""
add.name, add.epilog = "add", example("moothall story add 'Export as CSV' --repo .")
story.add_command(add)


@story.command("list", epilog=example("moothall story list"))
@click.option("--all", "with_archived", is_flag=True, help="Include archived stories.")
@json_option
@with_settings(_BOARD)
async def list_(settings: Settings, *, with_archived: bool, as_json: bool) -> None:
    """List the board, state by state."""
    from moothall.app.tasks import open_stories
    from moothall.stories.lifecycle import lifecycle
    from moothall.stories.story_state import group_by_state

    async with open_stories(settings, print_status) as stories:
        cards = await stories.board.cards(LOCAL)
    if not with_archived:
        cards = [card for card in cards if card.position.state in lifecycle().columns]
    if as_json:
        print_json([_row(card) for card in cards])
        return
    for state, column in group_by_state(cards).items():
        for card in column:
            click.echo(
                f"{card.story.id}  {state:<8}  {card.position.points:>3}  "
                f"{plain(card.story.title, 80)}"
            )
    if not cards:
        print_status("there are no stories yet; `moothall story new TITLE` creates one")


def _row(card: StoryState) -> dict[str, object]:
    check = card.check.data if card.check else {}
    return {
        "version": 1,
        "story_id": card.story.id,
        "title": card.story.title,
        "state": card.position.state,
        "points": card.position.points,
        "branch": check.get("branch", ""),
        "commit_sha": check.get("commit_sha", ""),
    }


@story.command(epilog=example("moothall story show story-1a2b3c4d5e6f7a8b"))
@_STORY
@json_option
@with_settings(_BOARD)
async def show(settings: Settings, *, story_id: str, as_json: bool) -> None:
    """Show STORY: its criteria, state, next step and history."""
    from moothall.app.tasks import open_stories
    from moothall.stories.task_history import rounds, task_ids

    async with open_stories(settings, print_status) as stories:
        card = await stories.board.card(story_id, LOCAL)
        history = await stories.board.history(story_id, LOCAL)
        account = await stories.accounts.of(card.story.id, LOCAL.tenant, card.story.budget)
        task_rounds = rounds(
            history, await stories.tasks.views(task_ids(history)), card.position.state
        )
    if as_json:
        budget = {
            name: asdict(getattr(account, name)) for name in ("limit", "spent", "reserved", "left")
        }
        print_json(_row(card) | {"budget": budget})
        return
    click.echo(f"{plain(card.story.title, 200)}\n{plain(card.story.brief, 4000)}".rstrip())
    for criterion in card.story.ac:
        click.echo(f"- {plain(criterion, 1000)}")
    click.echo("")
    for event in history:
        if line := _line(event):
            click.echo(f"{event.time[:19]}  {line}")
    for line in account.lines():
        click.echo(line)
    for step in task_rounds[-1].steps if task_rounds else ():
        click.echo(_step(step))
    click.echo(f"\nin {card.position.state}" + ("" if stories.served else f"; {_IDLE_NOTE}"))


def _step(step: RoundTask) -> str:
    """Return a line for a task of the last round, and a line for the next step."""
    after = f", builds on {', '.join(map(str, step.after))}" if step.after else ""
    state_text = plain(f"{step.status}: {step.why}" if step.why else step.status, 1000)
    line = f"{step.number}. {step.task_id} ({plain(step.role, 40)}{after}): {state_text}"
    return f"{line}\n   next: {step.next}" if step.next else line


def _line(event: Event) -> str:
    """Return a line for an event; '' if it needs none."""
    data = event.data
    texts = {
        name: plain(str(data.get(name, "")), 1000)
        for name in ("actor", "event", "to_state", "comment", "status", "branch", "why")
    }
    comment_text = f": {texts['comment']}" if texts["comment"] else ""
    tasks = data.get("tasks")
    return {
        EventType.STORY_CREATED: f"{texts['actor']} put it on the board",
        EventType.STORY_TRANSITIONED: (
            f"{texts['actor']}: {texts['event']} → {texts['to_state']}{comment_text}"
        ),
        EventType.STORY_COMMENTED: f"{texts['actor']} says{_of_line(event)}{comment_text}",
        EventType.STORY_DELIVERED: f"{texts['status']}: {texts['branch']} {texts['why']}".rstrip(),
        EventType.STORY_MERGE_REQUESTED: f"{texts['actor']} requests the merge",
        EventType.STORY_CHECKED: (
            f"checked as a whole: {texts['status']} {texts['branch']} {texts['why']}"
        ).rstrip(),
        EventType.PLAN_DERIVED: f"tasks: {_tasks(tasks)}",
        EventType.PLAN_FINISHED: f"tasks {texts['status']}",
    }.get(event.type, "")


def _of_line(event: Event) -> str:
    from moothall.stories.story_state import remark

    line_comment = remark(event)
    return f" of {plain(line_comment.path, 200)}, line {line_comment.line}" if line_comment else ""


def _tasks(tasks: object) -> str:
    items = tasks if isinstance(tasks, list | tuple) else ()
    return ", ".join(
        f"{item.get('role')} {item.get('task_id')}" for item in items if isinstance(item, dict)
    )


@story.command(
    epilog=example(
        "moothall story edit story-1a2b3c4d5e6f7a8b --title 'Export a month as CSV' --repo ."
    )
)
@_STORY
@click.option("--title", help="The new title.")
@click.option("--brief", help="The new brief; '' removes it.")
@click.option(
    "--ac",
    multiple=True,
    help="A criterion; repeatable. The given criteria replace all existing ones.",
)
@click.option("--repo", "repository", help="Id, path or URL of the repository; '': none.")
@click.option(
    "--rigor",
    type=click.Choice(["L0", "L1", "L2", "L3"]),
    help="Rigor: how much evidence is required.",
)
@with_settings(_BOARD)
async def edit(
    settings: Settings,
    *,
    story_id: str,
    title: str | None,
    brief: str | None,
    ac: tuple[str, ...],
    repository: str | None,
    rigor: str | None,
) -> None:
    """Change the text, repository or rigor level of STORY while it is in backlog or draft. Fields
    without an option stay unchanged.
    """
    from moothall.app.tasks import open_stories, register_named
    from moothall.stories.coach import StoryDraft, score

    repository_id = await register_named(settings, repository) if repository else repository
    async with open_stories(settings, print_status) as stories:
        card = await stories.board.card(story_id, LOCAL)
        current = card.story
        card = await stories.board.update(
            story_id,
            StoryDraft(
                current.title if title is None else title,
                current.brief if brief is None else brief,
                ac or current.ac,
            ),
            LOCAL,
            repository=current.repository_name if repository_id is None else repository_id,
            rigor=rigor or card.position.rigor,
            budget=current.budget,
            seen_seq=card.seq,
        )
    print_status(f"in {card.position.state}, scored {card.position.points} points by the coach")
    for finding in score(card.draft).findings:
        print_status(f"- {finding.message}")


@story.command(epilog=example("moothall story stop story-1a2b3c4d5e6f7a8b"))
@_STORY
@_COMMENT
@with_settings(_BOARD)
async def stop(settings: Settings, *, story_id: str, comment: str) -> int:
    """Stop STORY in design or build: cancel its councils, and put it back to draft."""
    return await _move_by(settings, story_id, "stop", comment)


@story.command(epilog=example("moothall story archive story-1a2b3c4d5e6f7a8b"))
@_STORY
@_COMMENT
@with_settings(_BOARD)
async def archive(settings: Settings, *, story_id: str, comment: str) -> int:
    """Remove STORY, which is in backlog or draft, from the board. Nothing is deleted."""
    return await _move_by(settings, story_id, "archive", comment)


@story.command(epilog=example("moothall story restore story-1a2b3c4d5e6f7a8b"))
@_STORY
@_COMMENT
@with_settings(_BOARD)
async def restore(settings: Settings, *, story_id: str, comment: str) -> int:
    """Put the archived STORY back into the backlog."""
    return await _move_by(settings, story_id, "restore", comment)


@story.command(epilog=example("moothall story retry story-1a2b3c4d5e6f7a8b"))
@_STORY
@with_settings(_BOARD)
async def retry(settings: Settings, *, story_id: str) -> int:
    """Start the tasks of STORY again that ended without a winner. The others keep their results."""
    from moothall.app.tasks import open_stories

    async with open_stories(settings, print_status) as stories:
        await stories.plans.retry(story_id, LOCAL)
    if not stories.served:
        print_status(_IDLE_NOTE)
    return 0


@story.command(epilog=example("moothall story merge story-1a2b3c4d5e6f7a8b"))
@_STORY
@with_settings(_BOARD)
async def merge(settings: Settings, *, story_id: str) -> int:
    """Merge the accepted STORY into the base branch of its repository, if the repository's policy
    left its commit on a branch.
    """
    from moothall.app.tasks import open_stories

    async with open_stories(settings, print_status) as stories:
        await stories.board.request_merge(story_id, LOCAL)
    print_status(
        "the merge is requested; `moothall story show` has its result"
        if stories.served
        else _IDLE_NOTE
    )
    return 0


@story.command(epilog=example("moothall story approve story-1a2b3c4d5e6f7a8b"))
@_STORY
@_COMMENT
@with_settings(_BOARD)
async def approve(settings: Settings, *, story_id: str, comment: str) -> int:
    """Move STORY forward: refine, submit, accept its design, its test, and the story itself. If
    something is missing, report it and move nothing.
    """
    return await _move_story(settings, story_id, comment, back=False)


@story.command(
    epilog=example("moothall story reject story-1a2b3c4d5e6f7a8b --comment 'Say it in French.'")
)
@_STORY
@_COMMENT
@with_settings(_BOARD)
async def reject(settings: Settings, *, story_id: str, comment: str) -> int:
    """Send STORY back, with a comment that describes the change."""
    return await _move_story(settings, story_id, comment, back=True)


async def _move_by(settings: Settings, story_id: str, event: str, comment: str) -> int:
    from moothall.app.tasks import open_stories

    async with open_stories(settings, print_status) as stories:
        card = await stories.board.move(story_id, event, LOCAL, comment=comment)
    click.echo(card.position.state)
    return 0


async def _move_story(settings: Settings, story_id: str, comment: str, *, back: bool) -> int:
    from moothall.app.tasks import open_stories
    from moothall.stories.lifecycle import lifecycle

    async with open_stories(settings, print_status) as stories:
        card = await stories.board.card(story_id, LOCAL)
        transition = lifecycle().next_transition(card.position.state, back=back)
        if transition is None:
            print_status(
                f"{story_id} is in {card.position.state}: nobody can "
                f"{'send it back' if back else 'move it on'} there{_progress_note(card, stories)}"
            )
            return 2
        card = await stories.board.move(story_id, transition.event, LOCAL, comment=comment)
    click.echo(card.position.state)
    if not stories.served and card.position.state in {"design", "build", "test"}:
        print_status(_IDLE_NOTE)
    return 0


def _progress_note(card: StoryState, stories: Stories) -> str:
    from moothall.stories.story_state import COMPLETED

    if card.position.state != "build":
        return ""
    if card.ended is not None and card.ended.data.get("status") != COMPLETED:
        return "; its tasks have ended: `moothall story show` shows the results and the next step"
    return "; councils are at work" if stories.served else f"; {_IDLE_NOTE}"


@story.command(
    epilog=example(
        "moothall story comment story-1a2b3c4d5e6f7a8b 'Soon, please.'",
        "moothall story comment story-1a2b3c4d5e6f7a8b 'Say it in French.' --line src/greet.py:4",
    )
)
@_STORY
@click.argument("text")
@click.option(
    "--line",
    default="",
    metavar="FILE:N",
    help="Comment on a line of the diff; it is part of the next round.",
)
@click.option("--removed", is_flag=True, help="N is a removed line, numbered as in the old file.")
@click.option(
    "--task", default="", help="Task whose diff is meant; by default that of the last final check."
)
@with_settings(_BOARD)
async def comment(
    settings: Settings, *, story_id: str, text: str, line: str, removed: bool, task: str
) -> None:
    """Add the comment TEXT to STORY, or to a line of its result."""
    from moothall.app.tasks import open_stories
    from moothall.stories.council_actions import Spot, remark

    path, _, number = line.rpartition(":")
    if line and not (
        path and number.isascii() and number.isdecimal() and len(number) < _MAX_DIGITS
    ):
        raise click.BadParameter(
            f"{line[:200]!r} is not FILE:N, such as src/greet.py:4", param_hint="--line"
        )
    if (removed or task) and not line:
        raise click.UsageError("--removed and --task need --line FILE:N, which is missing")
    place = Spot(path, int(number), removed, task) if line else None
    async with open_stories(settings, print_status) as stories:
        if place is None:
            await stories.board.comment(story_id, text, LOCAL, key=new_task_id())
        else:
            await remark(
                stories.board,
                stories.tasks.deliberations,
                story_id,
                text,
                LOCAL,
                place=place,
                key=new_task_id(),
            )


@story.command(
    epilog=example(
        "moothall story plan story-1a2b3c4d5e6f7a8b > plan.json",
        "moothall story plan story-1a2b3c4d5e6f7a8b --change plan.json",
    )
)
@_STORY
@click.option(
    "--change",
    type=click.File(encoding="utf-8"),
    help="File with the changed document; - for stdin.",
)
@with_settings(_BOARD)
async def plan(settings: Settings, *, story_id: str, change: TextIO | None) -> int | None:
    """Print the tasks of STORY as JSON, or replace them by those of a document, until its design is
    accepted.

    A task has an `id` among the others, a `role`, a `description`, `criteria` (numbers from 1 of
    the story's that it fulfils) and `after` (ids of the tasks that it builds on).
    """
    from moothall.app.tasks import open_stories
    from moothall.stories.planner import plan_of
    from moothall.stories.plans import read_outlines, to_outlines

    async with open_stories(settings, print_status) as stories:
        if change:
            card = await stories.plans.change(story_id, *read_outlines(change.read()), LOCAL)
        else:
            card = await stories.board.card(story_id, LOCAL)
    if card.plan is None:
        print_status(f"no tasks are derived for {story_id} yet: it is in {card.position.state}")
        return 2
    current_plan = plan_of(card.plan)
    tasks = [outline.model_dump() for outline in to_outlines(current_plan.tasks, card.story)]
    print_json(
        {"version": 1, "story_id": story_id, "plan_id": current_plan.plan_id, "tasks": tasks}
    )
    return 0
