"""Running one deliberation in front of a person: submit, show what happens, say how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Protocol, TextIO

import click
from rich.console import Console
from rich.text import Text

from moothall.cli.exits import exit_code
from moothall.cli.plain import plain
from moothall.cli.show import as_json, line_of, show_outcome, thought_of
from moothall.collector.progress import Progress, describe
from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import MoothallError

_CANCEL_SECONDS = 5.0


class Course(Protocol):
    """Where a deliberation is submitted and followed; a desk is one."""

    async def submit(self, request: DeliberationRequest, who: Principal) -> object:
        """Submit; a repeat is the same one."""
        ...

    def watch(self, task_id: str, after_seq: int, who: Principal) -> AsyncGenerator[Recorded, None]:
        """Yield its events, and end after its decision."""
        ...

    async def result(self, task_id: str, who: Principal) -> Outcome:
        """Return how it stands."""
        ...

    async def wait(self, task_id: str, who: Principal) -> Outcome:
        """Return the end."""
        ...

    async def cancel(self, task_id: str, reason: str, who: Principal) -> DeliberationStatus:
        """Stop it."""
        ...


class Narrator:
    """Speaks on stderr: lines always, and a spinner with the percentage where a person watches. `thoughts`: also what a seat says
    that it is about.
    """

    def __init__(self, *, quiet: bool = False, thoughts: bool = False) -> None:
        self._thoughts = thoughts
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._status = self.console.status("starting") if self.console.is_terminal and not quiet else nullcontext(None)

    def say(self, line: str) -> None:
        """Print a line about what is being set up."""
        self.console.print(Text(f"{'':<16}{line}", style="dim"))

    async def follow(self, desk: Course, task_id: str) -> Outcome:
        """Show every event until the decision and return it."""
        progress = Progress()
        with self._status as spinner:
            async for recorded in desk.watch(task_id, 0, LOCAL):
                if self._thoughts and (thought := thought_of(recorded)) is not None:
                    self.console.print(thought)
                line = line_of(recorded)
                if line is not None:
                    self.console.print(line)
                progress, step = describe(progress, recorded)
                if spinner is not None:
                    spinner.update(Text(f"{step.percent} %  {plain(step.step)}"))
                if recorded.event.type == EventType.DELIBERATION_DECIDED:
                    return load(Outcome, recorded.event.data)
        return await desk.result(task_id, LOCAL)


async def hold_council(desk: Course, request: DeliberationRequest, narrator: Narrator) -> Outcome:
    """Submit and follow to the end. Interrupted, it cancels the deliberation and waits until its hands are still."""
    ours = not request.task_id  # an id that the caller gave may name a deliberation of somebody else
    request = replace(request, task_id=request.task_id or new_task_id())
    try:
        await desk.submit(request, LOCAL)
        ours = True
        return await narrator.follow(desk, request.task_id)
    except BaseException:
        if ours:
            with suppress(MoothallError):
                await asyncio.shield(_cancel(desk, request.task_id))
        raise


async def _cancel(desk: Course, task_id: str) -> None:
    if await desk.cancel(task_id, "interrupted", LOCAL) == DeliberationStatus.CANCELLED:
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await desk.wait(task_id, LOCAL)
        except TimeoutError:
            click.echo(f"moothall: {task_id} did not confirm its cancellation in time", err=True)


def tell_outcome(outcome: Outcome, out: TextIO, *, json_wanted: bool) -> int:
    """Print the end and return the exit code.

    `out` is the process's stdout as it was before a house was opened: inside, stray prints go to stderr.
    """
    if json_wanted:
        click.echo(as_json(outcome), file=out)
    else:
        show_outcome(Console(file=out, highlight=False), outcome)
    return exit_code(outcome)
