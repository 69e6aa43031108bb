"""`moothall list`, `show`, `diff`, `apply`, `cancel`, `steer`, `rm`: tasks from the log, without
Ray or a model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moothall.cli import options
from moothall.cli.options import example, json_option, task_argument
from moothall.cli.runtime import EXIT_NONE, plain, print_json, print_status, with_settings
from moothall.config import Settings
from moothall.domain.text import is_masked, one_line
from moothall.errors import InvalidRequest

if TYPE_CHECKING:  # imported by the commands that show a result
    from moothall.collector.timeline import ModelCall, Timeline
    from moothall.domain.outcome import Outcome
    from moothall.domain.status import TaskView

_WIDE_COLUMNS = 100
_LOG = "reading the log of tasks"
_SEAT = click.argument("seat", default="")


@click.command("list", epilog=example("moothall list", "moothall list --state failed --json"))
@click.option(
    "--state",
    type=click.Choice(["live", "ended", "failed"]),
    default=None,
    help="Show only deliberations in this state.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Maximum number, latest first.",
)
@click.option("--query", default="", help="Show only those that contain these words.")
@click.option(
    "--skip",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    help="How many to leave out.",
)
@json_option
@with_settings(_LOG)
async def list_(
    settings: Settings, *, state: str | None, limit: int, query: str, skip: int, as_json: bool
) -> None:
    """List the tasks of this machine: running ones, then the latest."""
    from moothall.app.task_list import ListRequest, list_tasks

    found = await list_tasks(settings, ListRequest(state or "", limit, query, skip), print_status)
    views, served = found.tasks, found.served
    options.remember(settings.data_dir, *(view.task_id for view in reversed(views)))
    if as_json:
        from moothall.cli.documents import TasksDocument
        from moothall.domain.codec import dump

        print_json(dump(TasksDocument(served, views)))
        return
    width = max((len(view.task_id) for view in views), default=0)
    for view in views:
        click.echo(_row(view, min(width, 40)))
    if not views:
        print_status(
            "no task matches"
            if query or skip
            else "there are no tasks yet; `moothall deliberate` starts one"
        )
    if not served and (waiting := sum(not view.status.ended for view in views)):
        print_status(
            f"no process works on {waiting} of them now; the next `moothall deliberate` or "
            "`moothall serve` continues them"
        )


def _row(view: TaskView, width: int) -> str:
    """Return a task in one terminal line, cut to its width."""
    columns = _columns()
    task_id = view.task_id if len(view.task_id) <= width else view.task_id[: width - 1] + "…"
    winner = f"{view.winner_id.removeprefix('agent-')} {view.level}" if view.winner_id else ""
    status = (
        view.status.value.lower()
        if view.status.ended
        else "paused"
        if view.paused
        else f"at {view.progress} %"
    )
    role = f"{view.role:<9}  " if columns >= _WIDE_COLUMNS else ""
    age = _age(view.ended or view.requested)
    row = f"{task_id:<{width}}  {status:<9}  {age:>6}  {role}{winner:<18}"
    description = " ".join(plain(view.description, 200).split())
    remaining = max(0, columns - len(row) - 2)
    if len(description) > remaining:
        description = f"{description[: remaining - 1]}…" if remaining else ""
    return f"{row}  {description}".rstrip()


def _columns() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else 200


def _age(time: str) -> str:
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return "?"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


@click.command(epilog=example("moothall show", "moothall show task-0123456789ab --json"))
@task_argument(required=False)
@json_option
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the council's timeline and the ranking to a file, as one HTML document.",
)
@with_settings(_LOG)
async def show(
    settings: Settings, *, task: str | None, as_json: bool, html_file: Path | None
) -> None:
    """Show the result of TASK: the ranking, its reasons, the winner. The latest one by default."""
    from rich.console import Console

    from moothall.app.tasks import open_tasks
    from moothall.cli.show import as_json as document
    from moothall.cli.show import show_outcome

    async with open_tasks(settings, print_status) as tasks:
        task_id = await tasks.find_or_latest(task)
        outcome = await tasks.outcome(task_id)
        live = next(
            (view for view in await tasks.latest("live", 1000) if view.task_id == task_id), None
        )
        thread = await tasks.thread(task_id)
        timeline = await tasks.timeline(task_id)
        calls = await tasks.model_calls(task_id) if html_file is not None else {}
    if html_file is not None:
        _write_report(html_file, thread[-1].description if thread else "", outcome, timeline, calls)
    if as_json:
        click.echo(document(outcome))
        return
    for view in thread[:-1]:
        click.echo(f"after {view.task_id}: {' '.join(plain(view.description).split())}")
    if thread and thread[-1].forked:
        click.echo(f"another run of {thread[-1].forked}")
    if outcome.status.ended or live is None:
        show_outcome(Console(highlight=False), outcome)
    else:
        click.echo(_row(live, 40))
        for seat in live.seats:
            click.echo(
                f"  {seat.seat:<16} {seat.status}"
                + (f": {plain(seat.error_message)}" if seat.error_message else "")
            )
        print_status(f"follow it: moothall log tail --task {task_id} --follow")


def _write_report(
    path: Path, task: str, outcome: Outcome, timeline: Timeline, calls: Mapping[str, ModelCall]
) -> None:
    """Write a deliberation as one HTML document. Raises `InvalidRequest` if that fails."""
    from moothall.api.web.charts import draw_timeline
    from moothall.api.web.rendering import report

    page = report(one_line(task, 120) or outcome.task_id, outcome, draw_timeline(timeline), calls)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
    print_status(f"wrote {path}")


@click.command(
    epilog=example(
        "moothall diff", "moothall diff 2", "moothall diff task-0123456789ab 2 | git apply"
    )
)
@task_argument(required=False)
@_SEAT
@with_settings(_LOG)
async def diff(settings: Settings, *, task: str | None, seat: str) -> int:
    """Print the winner's diff of TASK, or the one of SEAT, which is a seat's name or its number.

    SEAT without TASK is a seat of the latest task.
    """
    from moothall.app.tasks import open_tasks

    async with open_tasks(settings, print_status) as tasks:
        _, result = await tasks.choose(task, seat)
    text = result.diff
    if not text:
        print_status(
            f"{result.seat} changed nothing: its answer is text; `moothall show` prints it"
        )
        return EXIT_NONE
    if is_masked(text):
        print_status(
            "the event log masks text of this diff that looks like a secret, so it is not the "
            "change that was tested; the branch of the winner has the whole change"
        )
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console(highlight=False).print(
            Syntax(plain(text, len(text) + 1), "diff", background_color="default", word_wrap=True)
        )
    else:  # for another program, so no byte may differ
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    return 0


@click.command(epilog=example("moothall apply", "moothall apply task-0123456789ab agent-dev-002"))
@task_argument(required=False)
@_SEAT
@with_settings(_LOG)
async def apply(settings: Settings, *, task: str | None, seat: str) -> None:
    """Apply the winner's diff of TASK (or the one of SEAT) to your files: all of it, or nothing if
    it does not fit.

    SEAT without TASK is a seat of the latest task.
    """
    from moothall.app.command_repository import Diff, apply_conversation
    from moothall.app.tasks import files_for, open_tasks
    from moothall.errors import InvalidRequest

    async with open_tasks(settings, print_status) as tasks:
        task_id, result = await tasks.choose(task, seat)
        repository = await tasks.repository(task_id)
        last_task = next(reversed(await tasks.thread(task_id)), None)
        earlier_changes = (
            await tasks.changes(last_task.follows) if last_task and last_task.follows else ()
        )
    if not result.diff:
        raise InvalidRequest(
            f"{result.seat} of {task_id} changed nothing: there is no diff to apply"
        )
    files = await files_for(settings, repository)
    if files is None:
        raise InvalidRequest(
            "the repository's files are not on this machine; go to a clone of it, or use `moothall "
            "diff`"
        )
    paths = await apply_conversation(
        settings,
        files,
        *earlier_changes,
        Diff(result.diff, last_task.base_sha if last_task else ""),
    )
    click.echo(f"{task_id}, {result.seat} ({result.level.words}): applied to {files}")
    for path in paths:
        click.echo(f"  {plain(path, 200)}")


@click.command(epilog=example("moothall cancel task-0123456789ab"))
@task_argument(required=True)
@click.option(
    "--reason", default="cancelled on the command line", help="Reason, which is recorded."
)
@with_settings(_LOG)
async def cancel(settings: Settings, *, task: str, reason: str) -> None:
    """Stop TASK. A task that has ended is unchanged."""
    from moothall.app.tasks import cancel as cancel_task

    task_id, status = await cancel_task(settings, task, reason, print_status)
    click.echo(f"{task_id}: {status.value}")


@click.command(epilog=example("moothall steer task-0123456789ab 'The date is in ISO format.'"))
@task_argument(required=True)
@click.argument("message")
@with_settings(_LOG)
async def steer(settings: Settings, *, task: str, message: str) -> None:
    """Send MESSAGE to the seats of the running TASK; each reads it at its next turn."""
    from moothall.app.tasks import open_tasks
    from moothall.domain.ids import LOCAL, new_task_id
    from moothall.stories import council_actions

    async with open_tasks(settings, print_status) as tasks:
        task_id = await tasks.find(task)
        await council_actions.steer(tasks.deliberations, task_id, message, LOCAL, key=new_task_id())
        if not tasks.served:
            print_status(
                "no process works on it now; its seats receive the message when "
                "`moothall serve` continues the task"
            )
    click.echo(f"{task_id}: message sent")


@click.command(epilog=example("moothall rm task-0123456789ab"))
@task_argument(required=True)
@click.option("--force", is_flag=True, help="Remove it even if its branch is not merged.")
@with_settings(_LOG)
async def rm(settings: Settings, *, task: str, force: bool) -> None:
    """Remove TASK, which has ended: its branch, if that is merged, its events and its status.

    The audit of its tool calls and its data in the graph stay. `moothall log prune` removes patches
    that nothing refers to.
    """
    from moothall.app.tasks import remove

    removed = await remove(settings, task, force=force, report_progress=print_status)
    click.echo(
        f"{removed.task_id} is removed"
        + (f", with its branch {removed.branch}" if removed.branch else "")
    )
    if removed.remaining_branch:
        print_status(f"left: {removed.remaining_branch}")
