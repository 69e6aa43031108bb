"""Run a deliberation from a command: submit it, show its progress on stderr, print its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moothall.cli.runtime import exit_code, plain, print_status
from moothall.cli.show import BASE, as_json, describe_event, line_of, show_outcome, thought_of
from moothall.collector.progress import ENDED, WAITING_ACTIVITIES, Progress, apply_event
from moothall.domain.codec import load
from moothall.domain.event import EventType, Recorded
from moothall.domain.evidence import TEST_WRITER, TIE_BREAKER
from moothall.domain.ids import LOCAL, TaskId, new_task_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import DeliberationRequest
from moothall.errors import InvalidRequest, MoothallError

if TYPE_CHECKING:
    from moothall.api.kernel_client import RemoteKernel
    from moothall.orchestrator.service import DeliberationService


# The progress of a council on stderr: every event with `-v`, otherwise one live line for each seat
# and the important events.


_COUNCIL = "council"
_QUIET_SECONDS = 2.0
_REFRESHES_PER_SECOND = 4
_NAME_COLUMNS, _CLOCK_COLUMNS = 20, 6

_AGENT_TEXTS = {
    TEST_WRITER: "the test writer is at work",
    TIE_BREAKER: "the tie-breaker is at work",
    "-": "a model reads the answers and their tests",
}
"""The text of the council's line after a model call that is not a seat's."""
_CHECKING, _REVIEWING = "checks the answers", "reviews the answers"
_COUNCIL_TEXTS = frozenset({*_AGENT_TEXTS.values(), _CHECKING, _REVIEWING})
"""What the council does while its seats wait."""

_IMPORTANT = {
    EventType.DELIBERATION_REQUESTED,
    EventType.DELIBERATION_STARTED,
    EventType.SEAT_PROPOSED,
    EventType.SEAT_REVISED,
    EventType.CHECK_FINISHED,
    EventType.EVIDENCE_REPORTED,
    EventType.SEAT_FAILED,
    EventType.SEAT_FINISHED,
    EventType.DELIBERATION_CANCELLED,
}
"""The events printed without `-v` if live lines cannot be shown, besides preparation steps."""


@dataclass(slots=True)
class _Line:
    """The last activity of a seat, what it waits for, and since when."""

    text: str = ""
    style: str = ""
    activity: str = ""
    since: float = field(default_factory=time.monotonic)


class SeatLines:
    """One line for each seat and one for the council, with the activity and what it waits for."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {_COUNCIL: _Line("starting")}
        self._progress = Progress()

    def set_council_text(self, text: str) -> None:
        """Set the text of the council's line."""
        self._lines[_COUNCIL] = _Line(" ".join(plain(text).split()))

    def add_event(self, recorded: Recorded) -> None:
        """Update the lines by an event."""
        event = recorded.event
        self._progress, step = apply_event(self._progress, recorded)
        if event.type is EventType.DELIBERATION_REQUESTED:
            self._lines |= {
                seat: _Line(activity=seat_progress.activity)
                for seat, seat_progress in self._progress.seats.items()
            }
        seat = str(event.data.get("seat") or "")
        if seat in self._progress.seats:
            description = describe_event(recorded)
            previous = self._lines[seat]
            text, style = description or (previous.text, previous.style)
            if event.type is EventType.MODEL_CALLED:  # figures: with -v
                text, style = previous.text, previous.style
            self._lines[seat] = _Line(text, style, self._progress.seats[seat].activity)
        elif event.type in {EventType.AGENT_PROGRESS, EventType.DELIBERATION_STARTED}:
            self.set_council_text(step.step)
        if (
            event.type is EventType.DELIBERATION_STARTED
        ):  # the model is asked on behalf of the seats, before any of them starts
            self._lines[_COUNCIL].activity = "waits for the model"
        elif event.type is EventType.MODEL_CALLED and event.data.get("phase") != "plan":
            self.set_council_text(_AGENT_TEXTS.get(seat, "at work"))
        if event.type is EventType.SEAT_STARTED:
            self.set_council_text("at work")
        elif event.type is EventType.SEAT_PROPOSED and self._progress.phase == "re-checking":
            self.set_council_text(_CHECKING)
        elif event.type is EventType.SEAT_REVIEWED:
            self.set_council_text(_REVIEWING)

    @property
    def awaited(self) -> str:
        """The activities that the council and running seats wait for, and what the council does
        meanwhile, in words; '' if none is running.
        """
        names_by_activity: dict[str, list[str]] = {}
        for name, line in self._lines.items():
            if line.activity in WAITING_ACTIVITIES:
                names_by_activity.setdefault(line.activity, []).append(name)
        awaited = "; ".join(
            f"{', '.join(names)} "
            f"{activity if len(names) == 1 else activity.replace('waits', 'wait')}"
            for activity, names in names_by_activity.items()
        )
        text = self._lines[_COUNCIL].text
        return f"{awaited}; {_COUNCIL}: {text}" if awaited and text in _COUNCIL_TEXTS else awaited

    def __rich__(self) -> Table:
        """Return the lines as a table, each one terminal line."""
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(
            width=min(_NAME_COLUMNS, max(map(len, self._lines))), no_wrap=True, overflow="ellipsis"
        )
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")  # only this column may shrink
        table.add_column(width=_CLOCK_COLUMNS, no_wrap=True, justify="right")
        now = time.monotonic()
        for name, line in self._lines.items():
            seconds = now - line.since
            percent = f"{self._progress.percent} %" if name == _COUNCIL else ""
            activity = "" if line.activity == ENDED else line.activity
            # What the seat waits for comes first, because a narrow terminal cuts the end.
            summary = "  ".join(part for part in (percent, activity, line.text) if part)
            has_ended = line.activity == ENDED
            clock = "" if has_ended or seconds <= _QUIET_SECONDS else f"{seconds:.0f} s"
            bold = "bold" if name == _COUNCIL else "bold cyan"
            table.add_row(
                Text(name, style=bold), Text(summary, style=line.style), Text(clock, style="dim")
            )
        return table


class ProgressPrinter:
    """A printer of progress on stderr. `verbose`: every event; `thoughts`: also the seats'
    thoughts; `quiet`: nothing.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        thoughts: bool = False,
        console: Console | None = None,
    ) -> None:
        self._thoughts = thoughts and verbose
        self._verbose = verbose
        self.console = console or Console(stderr=True, quiet=quiet, highlight=False)
        self._board = SeatLines()
        self._stop: Callable[[], None] = lambda: None
        self._live = None if quiet or verbose or not self.console.is_terminal else self._board
        self._waiting_timer: asyncio.TimerHandle | None = None
        self._awaited = ""
        """The last line about waiting seats."""
        self._last_report = ""

    @contextmanager
    def live_display(self) -> Iterator[None]:
        """Show the live lines, if there are any, until the block ends."""
        if self._live is None:
            try:
                yield
            finally:
                self._cancel_timer()
            return
        live = Live(
            self._live,
            console=self.console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        with live:
            self._stop = live.stop
            yield

    def stop_live(self) -> None:
        """Remove the live lines; later reports are printed."""
        self._cancel_timer()
        self._live = None
        self._stop()

    def report(self, line: str) -> None:
        """Report a preparation step, on the council's live line or as a printed line."""
        if self._live is not None:
            self._board.set_council_text(line)
        elif line != self._last_report:
            self._last_report = line
            self._line(Text(f"{'':<16}{plain(line)}", style="dim"))

    def print_note(self, line: str) -> None:
        """Print a line that should not be missed."""
        self._line(Text(plain(line, 1000), style="yellow"))

    def show_event(self, recorded: Recorded) -> None:
        """Show an event."""
        self._board.add_event(recorded)
        if self._live is not None:
            is_printed = bool(recorded.event.data.get("choice")) or recorded.event.type in {
                EventType.DELIBERATION_STARTED,
                EventType.EVIDENCE_REPORTED,
            }
            if is_printed or _is_base(recorded) or _is_refusal(recorded):
                self._print(recorded)
            return
        self._start_timer()
        if self._thoughts and (thought := thought_of(recorded)) is not None:
            self._line(thought)
        is_important = (
            recorded.event.type in _IMPORTANT or recorded.event.type is EventType.AGENT_PROGRESS
        )
        if self._verbose or is_important or _is_refusal(recorded):
            self._print(recorded)

    def _print(self, recorded: Recorded) -> None:
        line = line_of(recorded)
        if line is not None:
            self._line(line)

    def _line(self, line: Text) -> None:
        self.console.print(
            line, soft_wrap=not self.console.is_terminal
        )  # do not wrap lines in files

    def _start_timer(self, seconds: float = _QUIET_SECONDS) -> None:
        """Print what seats wait for if no event follows for `seconds`."""
        self._cancel_timer()
        try:
            self._waiting_timer = asyncio.get_running_loop().call_later(seconds, self.print_waiting)
        except RuntimeError:
            return  # no event loop: past events are being shown

    def _cancel_timer(self) -> None:
        if self._waiting_timer is not None:
            self._waiting_timer.cancel()
            self._waiting_timer = None

    def print_waiting(self) -> None:
        """Print what seats wait for, if any is running and it has changed."""
        if (awaited := self._board.awaited) and awaited != self._awaited:
            self._awaited = awaited
            self.report(awaited)


def _is_refusal(recorded: Recorded) -> bool:
    """Return whether an event reports a refused submit."""
    return recorded.event.type is EventType.SEAT_TURN and bool(recorded.event.data.get("refused"))


def _is_base(recorded: Recorded) -> bool:
    """Return whether an event reports the checks of the unchanged base."""
    task = recorded.event.data.get("current_task")
    return (
        recorded.event.type is EventType.AGENT_PROGRESS
        and isinstance(task, str)
        and task.startswith(BASE)
    )


# Run a deliberation: submit it, show its events, print its outcome.


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
            print_status(f"moothall: {task_id} did not confirm its cancellation in time")


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
