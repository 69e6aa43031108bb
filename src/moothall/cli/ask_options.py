"""What `moothall ask` asks, and how an answer is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.app.preflight import NamedRepository
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.outcome import Outcome
from moothall.domain.task import DeliberationRequest

if TYPE_CHECKING:  # imported once the model server has answered
    from rich.console import Console

    from moothall.cli.progress import ProgressPrinter

_LONG = 20_000


@dataclass(frozen=True, slots=True)
class AskOptions:
    """What is asked and where. `request` is what each question has in common; `goes_on` the task
    whose conversation goes on, '' for the last one, None for a new one.
    """

    settings: Settings
    request: DeliberationRequest
    named: NamedRepository
    goes_on: str | None = None
    server: str = ""
    token_file: Path | None = None
    quiet: bool = False
    verbose: bool = False

    def printer(self) -> ProgressPrinter:
        """Return who tells of one question."""
        from moothall.cli.progress import ProgressPrinter

        return ProgressPrinter(quiet=self.quiet, verbose=self.verbose, thoughts=True)


def show_answer(console: Console, outcome: Outcome) -> None:
    """Print the answer and the diff, without their control characters; or why there is none."""
    from rich.syntax import Syntax
    from rich.text import Text

    from moothall.cli.show import count_changes

    if not outcome.winner_id or not outcome.results:
        console.print(Text(f"No answer. {plain(outcome.error_message)}", style="bold red"))
        for seat in outcome.seats:
            if seat.error_code:
                console.print(
                    Text(plain(f"{seat.error_message} [{seat.error_code}]"), style="yellow")
                )
        return
    winner = outcome.results[0]
    console.print(Text(plain(winner.content, _LONG)))
    if winner.diff:
        readable = "\n".join(
            line for line in winner.diff.splitlines() if not line.startswith("index ")
        )
        console.print(
            Syntax(plain(readable, _LONG), "diff", background_color="default", word_wrap=True)
        )
        added, removed = count_changes(winner.diff)
        paths = [
            line.split(" b/", 1)[-1]
            for line in winner.diff.splitlines()
            if line.startswith("diff --git ")
        ]
        console.print(
            Text(
                f"{len(paths)} files, +{added} -{removed}: "
                f"{', '.join(plain(path, 80) for path in paths)}"
            )
        )
        if len(readable) > _LONG:
            console.print(
                Text(
                    f"Only the first {_LONG} characters of the diff are shown.", style="bold yellow"
                )
            )
        proven = outcome.level.words
        checks = ", ".join(
            f"{plain(name, 40)} {verdict}"
            for name, verdict in winner.checks.items()
            if name != "applies"
        )
        console.print(
            Text(
                f"{proven}; {checks}" if checks else proven,
                style="green" if outcome.level.independent else "yellow",
            )
        )
    if outcome.branch:
        console.print(Text(f"Branch {outcome.branch} at {outcome.commit_sha[:12]}", style="bold"))
    if outcome.error_message:
        console.print(Text(plain(outcome.error_message), style="yellow"))
