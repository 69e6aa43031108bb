"""Running one deliberation in front of a person: submit, show what happens, say how it ended."""

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
from moothall.domain.ids import new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest, MoothallError

if TYPE_CHECKING:  # whoever calls has one of them
    from moothall.api.remote import RemoteKernel
    from moothall.orchestrator.service import DeliberationService

_CANCEL_SECONDS = 5.0


async def hold_council(
    deliberations: DeliberationService | RemoteKernel,
    request: DeliberationRequest,
    take: Callable[[Recorded], Awaitable[None] | None],
) -> Outcome:
    """Submit and follow to the end; `take` is given every event. Interrupted, it cancels the
    deliberation and waits until its hands are still.
    """
    ours = (
        not request.task_id
    )  # an id that the caller gave may name a deliberation of somebody else
    task_id = request.task_id or (
        new_task_id() if request.fork is None else ""
    )  # a fork's follows from those that there are
    try:
        task_id = (await deliberations.submit(replace(request, task_id=task_id), LOCAL)).task_id
        ours = True
        return await follow(deliberations, task_id, take)
    except BaseException:
        if ours and task_id:
            with suppress(MoothallError):
                await asyncio.shield(_cancel(deliberations, task_id))
        raise


async def follow(
    deliberations: DeliberationService | RemoteKernel,
    task_id: str,
    take: Callable[[Recorded], Awaitable[None] | None],
) -> Outcome:
    """Give every event until the decision and return that."""
    async for recorded in deliberations.watch(task_id, 0, LOCAL):
        if (taken := take(recorded)) is not None:
            await taken
        if recorded.event.type == EventType.DELIBERATION_DECIDED:
            return load(Outcome, recorded.event.data)
    return await deliberations.result(task_id, LOCAL)


async def _cancel(deliberations: DeliberationService | RemoteKernel, task_id: str) -> None:
    if await deliberations.cancel(task_id, "interrupted", LOCAL) == DeliberationStatus.CANCELLED:
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await deliberations.wait(task_id, LOCAL)
        except TimeoutError:
            say(f"moothall: {task_id} did not confirm its cancellation in time")


def tell_outcome(outcome: Outcome, out: TextIO, *, json_wanted: bool) -> int:
    """Print the end and return the exit code.

    `out` is the process's stdout as it was before a server was opened: inside, stray prints go to
    stderr.
    """
    if json_wanted:
        click.echo(as_json(outcome), file=out)
    else:
        show_outcome(Console(file=out, highlight=False), outcome)
    return exit_code(outcome)


def summarize(outcome: Outcome, request: DeliberationRequest, path: Path) -> None:
    """Add the ranking with its reasons to a file, as Markdown in which nothing that a model or the
    caller wrote is more than text.

    Raises `InvalidRequest` where it cannot be written.
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
