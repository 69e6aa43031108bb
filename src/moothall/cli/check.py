"""`moothall check`: whether a council could be judged in a repository, and by what."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moothall.cli import complete
from moothall.cli.exit_codes import EXIT_WRONG
from moothall.cli.options import example, json_option
from moothall.cli.runtime import print_json, with_settings
from moothall.cli.text import plain
from moothall.config import Settings

if TYPE_CHECKING:  # imported by the command that runs
    from moothall.app.repository import RepositoryCheck
    from moothall.ranking.baseline import CheckRow, Diagnosis
    from moothall.ranking.failures import FailureReader

_SHOWN = 20
_INDENT, _REASON = 2, 400
_LINES = 8
_INSTEAD = (
    'Write what sets it up into .moothall.toml: setup = ["…"]; moothall check --profile FILE '
    "tries such a file uncommitted."
)
_LONG, _WIDEST = 20_000, 10_000


@click.command(epilog=example("moothall check", "moothall check ../other --write"))
@click.argument("repo", default="", shell_complete=complete.repositories)
@click.option(
    "--ref", default="", help="A branch, tag or commit; the repository's HEAD by default."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file like .moothall.toml that stands for the repository's own, this time.",
)
@click.option(
    "--write", is_flag=True, help="Write what was found as .moothall.toml into the work tree."
)
@click.option("--force", is_flag=True, help="With --write: overwrite the one that is there.")
@json_option
@with_settings()
async def check(
    settings: Settings,
    *,
    repo: str,
    ref: str,
    profile: Path | None,
    write: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Set REPO up, run its checks as it is, and say what is green, red, flaky and slow.

    REPO is a path, a URL or the id of a registered repository; by default the one you are in.

    Exit codes: 0 where a council could be judged, also with red tests; 2 where nothing could be,
    with what to write where.
    """
    from moothall.app.preflight import NamedRepository
    from moothall.app.repository import check_repository, write_profile
    from moothall.ranking.baseline import diagnose

    err, out = Console(stderr=True, highlight=False, quiet=as_json), sys.stdout
    with (
        err.status("looking at the repository")
        if err.is_terminal and not as_json
        else nullcontext() as spinner
    ):

        def report_progress(step: str) -> None:
            said = Text(plain(step, 200), style="dim")
            if spinner is not None:
                spinner.update(said)
            else:
                err.print(said, soft_wrap=not err.is_terminal)

        checked = await check_repository(
            settings, NamedRepository(repo, ref, profile=profile), report_progress
        )
    found = diagnose(checked.prepared) if checked.prepared else None
    why = why_not(checked, found)
    if not as_json:
        put(out, checked, found, why)
    written = await write_profile(checked, replace=force) if write else None
    if as_json:
        print_json(document(checked, found, why, written), out)
    elif written:
        err.print(Text(f"wrote {written}; commit it: councils read what is committed"))
    return EXIT_WRONG if why else 0


def page(out: TextIO) -> Console:
    """Return what the table is printed on: a terminal's width cuts lines, and who reads them
    elsewhere wants them whole.
    """
    return Console(file=out, highlight=False, width=None if out.isatty() else _WIDEST)


def put(out: TextIO, checked: RepositoryCheck, found: Diagnosis | None, why: str) -> None:
    """Write what `show` says to `out`, without the spaces with which a table makes its rows as wide
    as the longest.
    """
    console = page(out)
    with console.capture() as captured:
        show(console, checked, found, why)
    out.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
    out.flush()


def why_not(checked: RepositoryCheck, found: Diagnosis | None) -> str:
    """Return why nothing could be judged, '' where something could."""
    if checked.failure is not None:
        said = checked.failure.message
        return said if ".moothall.toml" in said else f"{said}\n{_INSTEAD}"
    if found is None or not found.rows:
        return (
            "It has no check, so nothing could be proven. Name the command that runs the tests: "
            '[checks] tests = "…" in .moothall.toml.'
        )
    return found.text


def show(console: Console, checked: RepositoryCheck, found: Diagnosis | None, why: str) -> None:
    """Print what was found, and whether a council could be judged."""
    base = checked.base
    console.print(Text(f"{plain(base.origin, 200)} at {base.sha[:10]}", style="bold"))
    if checked.unseen:
        console.print(Text(plain(checked.unseen), style="yellow"))
    facts = Table.grid(padding=(0, 2, 0, 0))
    for label, words in _facts(checked):
        facts.add_row(Text(label, style="dim"), Text(plain(words, 500)))
    console.print(facts)
    if found and found.rows:
        console.print(_table(found))
        for row in found.rows:
            _details(console, checked, row)
            if row.advice and not row.fault:
                console.print(Text(plain(row.advice, _LONG), style="yellow"))
    if why:
        console.print(Text(plain(why, _LONG), style="red"))
        return
    rows = found.rows if found else ()
    red = sum(len(row.red) for row in rows if row.required)
    before = (
        f" Red before: {red}. They may stay red; an answer that mends one of them is proven."
        if red
        else ""
    )
    said = f"A council can be judged here.{before}"
    console.print(Text(said, style="green"))


def _facts(checked: RepositoryCheck) -> list[tuple[str, str]]:
    profile = checked.base.profile
    setup = [
        ("set-up" if not number else "", " ".join(argv))
        for number, argv in enumerate(profile.setup)
    ]
    build = [
        ("build" if not number else "", " ".join(step.argv))
        for number, step in enumerate(profile.builds)
    ]
    notes = [("note", note) for note in getattr(profile, "notes", ())]
    used = [("interpreter", checked.interpreter)] if checked.interpreter else []
    return [*used, *(setup or [("set-up", "none")]), *build, *notes]


def _table(found: Diagnosis) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("check")
    for heading in ("green", "red", "skipped", "flaky", "slow", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in found.rows:
        numbers = (row.green, len(row.red), row.skipped, len(row.flaky), len(row.slow))
        cells = [
            Text(str(number) if number else "·", style=style if number else "dim")
            for number, style in zip(numbers, _STYLES, strict=True)
        ]
        untold = "judged as one case" if row.check.startswith("tests") and not row.told else ""
        remark = row.fault or (f"{row.findings} findings" if row.findings else untold)
        said = ", ".join(part for part in (remark, "" if row.required else "advises only") if part)
        table.add_row(
            plain(row.check),
            *cells,
            f"{row.duration_ms / 1000:.1f}",
            Text(plain(said, 60), style="red" if row.fault else "dim"),
        )
    return table


_STYLES = ("green", "red", "dim", "yellow", "yellow")


def _details(console: Console, checked: RepositoryCheck, row: CheckRow) -> None:
    from moothall.ranking.failures import FailureReader

    run = checked.prepared.runs.get(row.check) if checked.prepared else None
    told, failures = (
        run.details if run else {},
        FailureReader(checked.prepared.files if checked.prepared else ()),
    )
    if run and not row.told and row.red and row.required:  # the command is the case
        told = {row.check: row.output}
    for word, style, count, items in (
        (
            "red",
            "red",
            len(row.red),
            [(case, _reason(failures, told, case)) for case in row.red[:_SHOWN]],
        ),
        (
            "flaky",
            "yellow",
            len(row.flaky),
            [(case, "differed between two runs: never evidence") for case in row.flaky],
        ),
        ("slow", "yellow", len(row.slow), [(case, f"{ms / 1000:.1f} s") for case, ms in row.slow]),
    ):
        for case, why in items[:_SHOWN]:
            line = Text.assemble((f"{word:<6}", style), plain(case, 200))
            whole = Text.assemble(line, (f"  {why}" if why else "", "dim"))
            fits = _INDENT + whole.cell_len <= console.width
            console.print(
                Padding(whole if fits else line, (0, 0, 0, _INDENT), expand=False),
                no_wrap=True,
                overflow="ellipsis",
            )
            if why and not fits:
                console.print(Padding(Text(why, style="dim"), (0, 0, 0, 8), expand=False))
        if (more := count - len(items[:_SHOWN])) > 0:
            console.print(Text(f"  … and {more} more {word}; --json lists all", style="dim"))
    if row.note:
        console.print(
            Text(f"  {plain(row.note, 200)}; declare it if it is a dependency", style="yellow")
        )
    output = [
        line
        for line in row.output.splitlines()
        if line.strip() and not line.lstrip().startswith("at ")
    ]
    for printed in output[-_LINES:] if row.required and not row.fault else ():
        console.print(
            Padding(Text(plain(printed, 200), style="dim"), (0, 0, 0, 8), expand=False),
            no_wrap=True,
            overflow="ellipsis",
        )


def _reason(failures: FailureReader, details: Mapping[str, str], case: str) -> str:
    """Return the assertion of a red case, and its file and line."""
    said = plain(str(failures.read_failure(case, details.get(case, ""))), _REASON)
    return said or (
        "its subtests failed" if any(other.startswith(f"{case}/") for other in details) else ""
    )


def document(
    checked: RepositoryCheck, found: Diagnosis | None, why: str, written: Path | None
) -> dict[str, Any]:
    """Return the one JSON document of `--json`."""
    from moothall.cli.documents import CheckDocument
    from moothall.domain.codec import dump

    base = checked.base
    return dump(
        CheckDocument(
            repository=base.repository,
            origin=base.origin,
            commit=base.sha,
            judgeable=not why,
            reason=why,
            interpreter=checked.interpreter,
            setup=base.profile.setup,
            commands=base.profile.checks,
            checks=found.rows if found else (),
            profile=checked.own_file,
            written=str(written or ""),
            unseen=checked.unseen,
            seconds=round(checked.seconds, 1),
        )
    )
