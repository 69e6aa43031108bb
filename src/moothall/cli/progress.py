"""What a person sees on stderr while a council works: every event with `-v`, else one live line a
seat and what matters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from moothall.cli.show import BASE, describe_event, line_of, thought_of
from moothall.cli.text import plain
from moothall.collector.progress import Progress, apply_event
from moothall.collector.seat_progress import ENDED, WAITING_ACTIVITIES
from moothall.domain.event import EventType, Recorded

_COUNCIL = "council"
_WAIT_SECONDS = 2.0
_PER_SECOND = 4
_NAME, _CLOCK = 20, 6

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
"""What is printed without `-v` where no live lines can be shown; steps of the preparation are, too.
"""


@dataclass(slots=True)
class _Line:
    """What one seat did last, what it waits for, and since when."""

    words: str = ""
    style: str = ""
    waits: str = ""
    since: float = field(default_factory=time.monotonic)


class SeatLines:
    """One line a seat, and one for the council: how far it is and what it waits for."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {_COUNCIL: _Line("starting")}
        self._progress = Progress()

    def tell(self, words: str) -> None:
        """Say what the council waits for."""
        self._lines[_COUNCIL] = _Line(" ".join(plain(words).split()))

    def take(self, recorded: Recorded) -> None:
        """Note an event."""
        event = recorded.event
        self._progress, step = apply_event(self._progress, recorded)
        if event.type is EventType.DELIBERATION_REQUESTED:
            self._lines |= {
                seat: _Line(waits=seat_progress.activity)
                for seat, seat_progress in self._progress.seats.items()
            }
        seat = str(event.data.get("seat") or "")
        if seat in self._progress.seats:
            said = describe_event(recorded)
            known = self._lines[seat]
            words, style = said or (known.words, known.style)
            if event.type is EventType.MODEL_CALLED:  # figures: with -v
                words, style = known.words, known.style
            self._lines[seat] = _Line(words, style, self._progress.seats[seat].activity)
        elif event.type in {EventType.AGENT_PROGRESS, EventType.DELIBERATION_STARTED}:
            self.tell(step.step)
        if (
            event.type is EventType.DELIBERATION_STARTED
        ):  # what it asks for its seats, before any of them begins
            self._lines[_COUNCIL].waits = "waits for the model"
        if event.type is EventType.SEAT_STARTED:
            self.tell("at work")

    @property
    def awaited(self) -> str:
        """What the council and seats at work wait for, in words; '' while none is at work."""
        found: dict[str, list[str]] = {}
        for name, line in self._lines.items():
            if line.waits in WAITING_ACTIVITIES:
                found.setdefault(line.waits, []).append(name)
        return "; ".join(
            f"{', '.join(names)} {waits if len(names) == 1 else waits.replace('waits', 'wait')}"
            for waits, names in found.items()
        )

    def __rich__(self) -> Table:
        """The lines as they are now, each one line of the terminal."""
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(
            width=min(_NAME, max(map(len, self._lines))), no_wrap=True, overflow="ellipsis"
        )
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")  # only what is said gives way
        table.add_column(width=_CLOCK, no_wrap=True, justify="right")
        now = time.monotonic()
        for name, line in self._lines.items():
            waited = now - line.since
            percent = f"{self._progress.percent} %" if name == _COUNCIL else ""
            waits = "" if line.waits == ENDED else line.waits
            # What it waits for comes first: a narrow terminal cuts the end.
            shown = "  ".join(part for part in (percent, waits, line.words) if part)
            ended = line.waits == ENDED
            clock = "" if ended or waited <= _WAIT_SECONDS else f"{waited:.0f} s"
            bold = "bold" if name == _COUNCIL else "bold cyan"
            table.add_row(
                Text(name, style=bold), Text(shown, style=line.style), Text(clock, style="dim")
            )
        return table


class ProgressPrinter:
    """Speaks on stderr. `verbose`: every event; `thoughts`: with them what a seat says that it is
    about; `quiet`: not a word.
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
        self._waiting: asyncio.TimerHandle | None = None
        self._awaited = ""
        """The last line about waiting seats."""
        self._said = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the live lines on the screen, where there are any, until the block ends."""
        if self._live is None:
            try:
                yield
            finally:
                self._hush()
            return
        live = Live(
            self._live,
            console=self.console,
            refresh_per_second=_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        with live:
            self._stop = live.stop
            yield

    def rest(self) -> None:
        """Take the live lines away: what is said from now on is printed."""
        self._hush()
        self._live = None
        self._stop()

    def say(self, line: str) -> None:
        """Say what is being set up: on the council's live line, or printed."""
        if self._live is not None:
            self._board.tell(line)
        elif line != self._said:
            self._said = line
            self._line(Text(f"{'':<16}{plain(line)}", style="dim"))

    def note(self, line: str) -> None:
        """Print what should not be missed."""
        self._line(Text(plain(line, 1000), style="yellow"))

    def take(self, recorded: Recorded) -> None:
        """Show an event."""
        self._board.take(recorded)
        if self._live is not None:
            printed = recorded.event.type in {
                EventType.DELIBERATION_STARTED,
                EventType.EVIDENCE_REPORTED,
            }
            if printed or _is_base(recorded) or _is_refusal(recorded):
                self._print(recorded)
            return
        self._wait()
        if self._thoughts and (thought := thought_of(recorded)) is not None:
            self._line(thought)
        important = (
            recorded.event.type in _IMPORTANT or recorded.event.type is EventType.AGENT_PROGRESS
        )
        if self._verbose or important or _is_refusal(recorded):
            self._print(recorded)

    def _print(self, recorded: Recorded) -> None:
        line = line_of(recorded)
        if line is not None:
            self._line(line)

    def _line(self, line: Text) -> None:
        self.console.print(
            line, soft_wrap=not self.console.is_terminal
        )  # who reads it elsewhere wants lines whole

    def _wait(self, seconds: float = _WAIT_SECONDS) -> None:
        """Say what is waited for where nothing more comes for some seconds."""
        self._hush()
        try:
            self._waiting = asyncio.get_running_loop().call_later(seconds, self.waits)
        except RuntimeError:
            return  # nobody waits: what happened is shown afterwards

    def _hush(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def waits(self) -> None:
        """Print what seats wait for, if any is at work."""
        if (awaited := self._board.awaited) and awaited != self._awaited:
            self._awaited = awaited
            self.say(awaited)


def _is_refusal(recorded: Recorded) -> bool:
    """Whether this tells that a submit was refused."""
    return recorded.event.type is EventType.SEAT_TURN and bool(recorded.event.data.get("refused"))


def _is_base(recorded: Recorded) -> bool:
    """Whether this tells what the checks say of the untouched base."""
    task = recorded.event.data.get("current_task")
    return (
        recorded.event.type is EventType.AGENT_PROGRESS
        and isinstance(task, str)
        and task.startswith(BASE)
    )
