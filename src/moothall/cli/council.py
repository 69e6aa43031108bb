"""Run a deliberation: submit it, show its events, print its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console

from moothall.cli.exit_codes import exit_code
from moothall.cli.runtime import say
from moothall.cli.show import as_json, show_outcome
from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import LOCAL
from moothall.domain.ids import TaskId, new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest, MoothallError

if TYPE_CHECKING:  # whoever calls has one of them
    from moothall.api.remote import RemoteKernel
    from moothall.orchestrator.service import DeliberationService

_CANCEL_SECONDS = 5.0


async def run_deliberation(
    deliberations: DeliberationService | RemoteKernel,
    request: DeliberationRequest,
    on_event: Callable[[Recorded], Awaitable[None] | None],
) -> Outcome:
    """Submit a deliberation and wait for its outcome; `on_event` receives every event. If
    interrupted, cancel the deliberation and wait until its work has stopped.
    """
    is_own = not request.task_id  # an id from the caller may name another caller's deliberation
    task_id = TaskId(request.task_id) or (
        new_task_id() if request.fork is None else TaskId("")
    )  # the server numbers forks
    try:
        task_id = (await deliberations.submit(replace(request, task_id=task_id), LOCAL)).own_id
        is_own = True
        return await follow(deliberations, task_id, on_event)
    except BaseException:
        if is_own and task_id:
            with suppress(MoothallError):
                await asyncio.shield(_cancel(deliberations, task_id))
        raise


async def follow(
    deliberations: DeliberationService | RemoteKernel,
    task_id: TaskId,
    on_event: Callable[[Recorded], Awaitable[None] | None],
) -> Outcome:
    """Pass every event to `on_event` until the decision, and return the outcome."""
    async for recorded in deliberations.watch(task_id, 0, LOCAL):
        if (awaitable := on_event(recorded)) is not None:
            await awaitable
        if recorded.event.type == EventType.DELIBERATION_DECIDED:
            return load(Outcome, recorded.event.data)
    return await deliberations.result(task_id, LOCAL)


async def _cancel(deliberations: DeliberationService | RemoteKernel, task_id: TaskId) -> None:
    if await deliberations.cancel(task_id, "interrupted", LOCAL) == DeliberationStatus.CANCELLED:
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await deliberations.wait(task_id, LOCAL)
        except TimeoutError:
            say(f"moothall: {task_id} did not confirm its cancellation in time")


def print_outcome(outcome: Outcome, out: TextIO, *, json_wanted: bool) -> int:
    """Print the outcome and return the exit code.

    `out` is the process's stdout from before a server was opened, because later prints go to
    stderr.
    """
    if json_wanted:
        click.echo(as_json(outcome), file=out)
    else:
        show_outcome(Console(file=out, highlight=False), outcome)
    return exit_code(outcome)


def summarize(outcome: Outcome, request: DeliberationRequest, path: Path) -> None:
    """Append the ranking with its reasons to a Markdown file. Text of models and callers is
    escaped.

    Raises `InvalidRequest` if the file cannot be written.
    """
    from moothall.forge.texts import how_it_ended, ranking, text

    lines = [
        f"### {text(request.description)}",
        "",
        f"{outcome.task_id}: {how_it_ended(outcome)}",
        "",
        *ranking(outcome),
    ]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, "", ""]))
    except OSError as error:
        raise InvalidRequest(f"the summary {path} cannot be written: {error.strerror}") from error
