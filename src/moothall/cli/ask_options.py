"""The options of `moothall ask`, and the output of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.app.preflight import NamedRepository
from moothall.cli.runtime import plain
from moothall.config import Settings
from moothall.domain.outcome import Outcome
from moothall.domain.task import DeliberationRequest

if TYPE_CHECKING:  # imported once the model server has answered
    from rich.console import Console

    from moothall.cli.council import ProgressPrinter

_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class AskOptions:
    """The options of a question. `request` is common to all questions of a conversation. `goes_on`
    is the task to continue: '' for the last one, None for a new conversation.
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
        """Create the progress printer of one question."""
        from moothall.cli.council import ProgressPrinter

        return ProgressPrinter(quiet=self.quiet, verbose=self.verbose, thoughts=True)


def show_answer(console: Console, outcome: Outcome) -> None:
    """Print the answer and the diff, without control characters, or why there is no answer."""
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
    console.print(Text(plain(winner.content, _MAX_CHARS)))
    if winner.diff:
        readable = "\n".join(
            line for line in winner.diff.splitlines() if not line.startswith("index ")
        )
        console.print(
            Syntax(plain(readable, _MAX_CHARS), "diff", background_color="default", word_wrap=True)
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
        if len(readable) > _MAX_CHARS:
            console.print(
                Text(
                    f"Only the first {_MAX_CHARS} characters of the diff are shown.",
                    style="bold yellow",
                )
            )
        level = outcome.level.words
        checks = ", ".join(
            f"{plain(name, 40)} {verdict}"
            for name, verdict in winner.checks.items()
            if name != "applies"
        )
        console.print(
            Text(
                f"{level}; {checks}" if checks else level,
                style="green" if outcome.level.independent else "yellow",
            )
        )
    if outcome.branch:
        console.print(Text(f"Branch {outcome.branch} at {outcome.commit_sha[:12]}", style="bold"))
    if outcome.error_message:
        console.print(Text(plain(outcome.error_message), style="yellow"))
