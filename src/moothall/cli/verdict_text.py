"""A verdict for people: on the terminal, and as Markdown. Most of its text is foreign."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from moothall.cli.runtime import plain
from moothall.cli.verdict import CheckResult, MatrixRow, VerdictDocument
from moothall.domain.task import CHANGE

_GOOD, _BAD, _WARNING, _DIM = "green", "red", "yellow", "dim"
_MAX_ROWS, _MAX_LINES = 20, 10
_STYLES = {"passed": _GOOD, "failed": _BAD}


def headline(verdict: VerdictDocument) -> str:
    """Return the verdict in one line."""
    about = f"{verdict.head[:12]} on {verdict.base[:12]}"
    if verdict.finding == "none":
        return f"No verdict on {about}: {verdict.error}"
    if verdict.finding == "broken":
        return f"Broken: {about}"
    if verdict.finding == "disputed":
        return f"Disputed: {about} fails only tests that it edits or deletes; a person decides"
    short = "" if verdict.accepted else f", below the required {verdict.required}"
    return f"{verdict.level.capitalize()}: {about} breaks nothing{short}"


def show_verdict(console: Console, verdict: VerdictDocument) -> None:
    """Print a verdict: its line, reasons, checks, the tests that tell base and change apart, and
    what was not judged.
    """
    console.print(Rule(plain(f"{verdict.task_id}: verdict")))
    console.print(Text(plain(headline(verdict)), style=f"bold {_style_of(verdict)}"))
    if verdict.finding == "none":
        return
    task = " ".join(verdict.task.split())
    console.print(Text(f"Task: {plain(task, 200)}", style=_DIM))
    for reason in verdict.reasons:
        console.print(Padding(Text(plain(reason)), (0, 0, 0, 3), expand=False))
    if verdict.checks:
        console.print(_check_table(verdict.checks))
    if verdict.matrix:
        console.print(_matrix_table(verdict.matrix))
    for title, lines in _sections(verdict):
        console.print(Text(title, style="bold cyan"))
        for line in lines[:_MAX_LINES]:
            console.print(Padding(Text(plain(line)), (0, 0, 0, 3), expand=False))
        if len(lines) > _MAX_LINES:
            console.print(Padding(Text(f"and {len(lines) - _MAX_LINES} more"), (0, 0, 0, 3)))


def _style_of(verdict: VerdictDocument) -> str:
    if verdict.finding == "passed":
        return _GOOD if verdict.accepted else _WARNING
    return _WARNING if verdict.finding == "disputed" else _BAD


def _check_table(checks: tuple[CheckResult, ...]) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("check", "verdict", "passed", "failed", "red before", "skipped"):
        table.add_column(heading)
    for item in checks:
        counts = (item.passed, item.failed, item.before, item.skipped)
        style = _STYLES.get(item.verdict, _WARNING)
        table.add_row(
            plain(item.check, 60), Text(item.verdict, style=style), *(str(n or "·") for n in counts)
        )
    return table


def _matrix_table(rows: tuple[MatrixRow, ...]) -> Table:
    answers = sorted({answer for row in rows for answer in row.results}, key=_change_first)
    title = "Tests that tell the base and the answers apart"
    if len(rows) > _MAX_ROWS:
        title += f" (the first {_MAX_ROWS} of {len(rows)})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in ("written by", "test", "base", *answers):
        table.add_column(plain(heading, 40), overflow="fold")
    for row in rows[:_MAX_ROWS]:
        outcomes = [row.base, *(row.results.get(answer, "·") for answer in answers)]
        table.add_row(
            plain(row.author, 40),
            Text(plain(row.case, 160)),
            *(Text(outcome, style=_STYLES.get(outcome, _DIM)) for outcome in outcomes),
        )
    return table


def _change_first(answer: str) -> tuple[bool, str]:
    return answer != CHANGE, answer


def _sections(verdict: VerdictDocument) -> Iterator[tuple[str, tuple[str, ...]]]:
    if verdict.unnoticed:
        yield "No test fails without", verdict.unnoticed
    if verdict.look:
        yield "A person should look", verdict.look
    if verdict.reviews:
        lines = tuple(
            f"{review.reviewer} {review.score:.2f}: {' '.join(review.comment.split())}"
            for review in verdict.reviews
        )
        yield "Reviews", lines
    if verdict.rivals:
        lines = tuple(
            f"{rival.seat}: rank {rival.rank}, {rival.level}, "
            f"{'passes' if rival.passed else 'fails'} the acceptance checks, {rival.lines} lines"
            for rival in verdict.rivals
        )
        yield f"Rivals (the change has rank {verdict.rank})", lines
    if verdict.not_judged:
        yield "Not judged", verdict.not_judged


def verdict_markdown(verdict: VerdictDocument) -> str:
    """Return a verdict as Markdown, for the summary of a pipeline. Foreign text is escaped."""
    from moothall.forge.texts import text

    lines = [f"### Moothall: {text(headline(verdict))}", ""]
    lines += [f"- {text(reason)}" for reason in verdict.reasons]
    for title, items in _sections(verdict):
        lines += ["", f"**{text(title)}**", "", *(f"- {text(item)}" for item in items)]
    return "\n".join([*lines, "", ""])
