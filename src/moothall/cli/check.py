"""`moothall check`: check whether and how a council could be judged in a repository."""

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

from moothall.cli import options
from moothall.cli.options import example, json_option
from moothall.cli.runtime import (
    EXIT_WRONG,
    plain,
    print_json,
    with_settings,
)
from moothall.config import Settings

if TYPE_CHECKING:  # imported by the command that needs it
    from moothall.app.command_repository import RepositoryCheck
    from moothall.ranking.baseline import CheckRow, Diagnosis
    from moothall.ranking.failures import FailureReader


_MAX_CASES = 20
_INDENT_COLUMNS, _REASON_CHARS = 2, 400
_OUTPUT_LINES = 8
_SETUP_HINT = (
    'Add the set-up commands to .moothall.toml: setup = ["…"]. To try a file that is not '
    "committed, run moothall check --profile FILE."
)
_MESSAGE_CHARS, _FILE_WIDTH = 20_000, 10_000


@click.command(epilog=example("moothall check", "moothall check ../other --write"))
@click.argument("repo", default="", shell_complete=options.repositories)
@click.option(
    "--ref", default="", help="A branch, tag or commit; the repository's HEAD by default."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File like .moothall.toml to use instead of the repository's own.",
)
@click.option(
    "--write", is_flag=True, help="Write the detected commands to .moothall.toml in the work tree."
)
@click.option("--force", is_flag=True, help="With --write: overwrite an existing file.")
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
    """Set REPO up, run its checks on the unchanged files, and report passed, failed, flaky and slow
    cases.

    REPO is a path, a URL or the id of a registered repository; by default the one you are in.

    Exit codes: 0 if a council could be judged, also with failing tests; 2 if not, with the file and
    setting to write.
    """
    from moothall.app.command_repository import check_repository, write_profile
    from moothall.app.preflight import NamedRepository
    from moothall.ranking.baseline import diagnose

    err, out = Console(stderr=True, highlight=False, quiet=as_json), sys.stdout
    with (
        err.status("looking at the repository")
        if err.is_terminal and not as_json
        else nullcontext() as spinner
    ):

        def report_progress(step: str) -> None:
            message = Text(plain(step, 200), style="dim")
            if spinner is not None:
                spinner.update(message)
            else:
                err.print(message, soft_wrap=not err.is_terminal)

        repository_check = await check_repository(
            settings, NamedRepository(repo, ref, profile=profile), report_progress
        )
    diagnosis = diagnose(repository_check.prepared) if repository_check.prepared else None
    reason = failure_reason(repository_check, diagnosis)
    if not as_json:
        write_report(out, repository_check, diagnosis, reason)
    written_path = await write_profile(repository_check, replace=force) if write else None
    if as_json:
        print_json(check_document(repository_check, diagnosis, reason, written_path), out)
    elif written_path:
        err.print(Text(f"wrote {written_path}; commit it for councils on other machines"))
    return EXIT_WRONG if reason else 0


def create_console(out: TextIO) -> Console:
    """Return the console for the report: as wide as the terminal, or without a limit if `out` is a
    file.
    """
    return Console(file=out, highlight=False, width=None if out.isatty() else _FILE_WIDTH)


def write_report(
    out: TextIO, repository_check: RepositoryCheck, diagnosis: Diagnosis | None, reason: str
) -> None:
    """Write the report to `out`, without trailing spaces."""
    console = create_console(out)
    with console.capture() as captured:
        print_report(console, repository_check, diagnosis, reason)
    out.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
    out.flush()


def failure_reason(repository_check: RepositoryCheck, diagnosis: Diagnosis | None) -> str:
    """Return why no council could be judged, '' if one could."""
    if repository_check.failure is not None:
        message = repository_check.failure.message
        return message if ".moothall.toml" in message else f"{message}\n{_SETUP_HINT}"
    if diagnosis is None or not diagnosis.rows:
        return (
            "It has no check, so nothing could be proven. Name the command that runs the tests: "
            '[checks] tests = "…" in .moothall.toml.'
        )
    return diagnosis.text


def print_report(
    console: Console, repository_check: RepositoryCheck, diagnosis: Diagnosis | None, reason: str
) -> None:
    """Print the check's results, and whether a council could be judged."""
    base = repository_check.base
    console.print(Text(f"{plain(base.origin, 200)} at {base.sha[:10]}", style="bold"))
    if repository_check.unseen:
        console.print(Text(plain(repository_check.unseen), style="yellow"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, value in _profile_rows(repository_check):
        grid.add_row(Text(label, style="dim"), Text(plain(value, 500)))
    console.print(grid)
    if diagnosis and diagnosis.rows:
        console.print(_table(diagnosis))
        for row in diagnosis.rows:
            _details(console, repository_check, row)
            if row.advice and not row.fault:
                console.print(Text(plain(row.advice, _MESSAGE_CHARS), style="yellow"))
    if reason:
        console.print(Text(plain(reason, _MESSAGE_CHARS), style="red"))
        return
    rows = diagnosis.rows if diagnosis else ()
    failed = sum(len(row.red) for row in rows if row.required)
    failed_before = (
        f" Failed before: {failed}. They may keep failing; an answer that repairs one is proven."
        if failed
        else ""
    )
    verdict = f"A council can be judged here.{failed_before}"
    console.print(Text(verdict, style="green"))


def _profile_rows(repository_check: RepositoryCheck) -> list[tuple[str, str]]:
    profile = repository_check.base.profile
    setup = [
        ("set-up" if not number else "", " ".join(argv))
        for number, argv in enumerate(profile.setup)
    ]
    build = [
        ("build" if not number else "", " ".join(step.argv))
        for number, step in enumerate(profile.builds)
    ]
    notes = [("note", note) for note in getattr(profile, "notes", ())]
    interpreter = (
        [("interpreter", repository_check.interpreter)] if repository_check.interpreter else []
    )
    return [*interpreter, *(setup or [("set-up", "none")]), *build, *notes]


def _table(diagnosis: Diagnosis) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("check")
    for heading in ("passed", "failed", "skipped", "flaky", "slow", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in diagnosis.rows:
        numbers = (row.green, len(row.red), row.skipped, len(row.flaky), len(row.slow))
        cells = [
            Text(str(number) if number else "·", style=style if number else "dim")
            for number, style in zip(numbers, _STYLES, strict=True)
        ]
        case_note = "judged as one case" if row.check.startswith("tests") and not row.told else ""
        remark = row.fault or (f"{row.findings} findings" if row.findings else case_note)
        cell_text = ", ".join(
            part for part in (remark, "" if row.required else "advises only") if part
        )
        table.add_row(
            plain(row.check),
            *cells,
            f"{row.duration_ms / 1000:.1f}",
            Text(plain(cell_text, 60), style="red" if row.fault else "dim"),
        )
    return table


_STYLES = ("green", "red", "dim", "yellow", "yellow")


def _details(console: Console, repository_check: RepositoryCheck, row: CheckRow) -> None:
    from moothall.ranking.failures import FailureReader

    check_run = repository_check.prepared.runs.get(row.check) if repository_check.prepared else None
    details, failures = (
        check_run.details if check_run else {},
        FailureReader(repository_check.prepared.files if repository_check.prepared else ()),
    )
    if check_run and not row.told and row.red and row.required:  # the command is the case
        details = {row.check: row.output}
    for label, style, count, items in (
        (
            "failed",
            "red",
            len(row.red),
            [(case, _reason(failures, details, case)) for case in row.red[:_MAX_CASES]],
        ),
        (
            "flaky",
            "yellow",
            len(row.flaky),
            [(case, "differed between two runs: never evidence") for case in row.flaky],
        ),
        ("slow", "yellow", len(row.slow), [(case, f"{ms / 1000:.1f} s") for case, ms in row.slow]),
    ):
        for case, reason in items[:_MAX_CASES]:
            line = Text.assemble((f"{label:<8}", style), plain(case, 200))
            full_line = Text.assemble(line, (f"  {reason}" if reason else "", "dim"))
            fits = _INDENT_COLUMNS + full_line.cell_len <= console.width
            console.print(
                Padding(full_line if fits else line, (0, 0, 0, _INDENT_COLUMNS), expand=False),
                no_wrap=True,
                overflow="ellipsis",
            )
            if reason and not fits:
                console.print(Padding(Text(reason, style="dim"), (0, 0, 0, 8), expand=False))
        if (hidden := count - len(items[:_MAX_CASES])) > 0:
            console.print(Text(f"  … and {hidden} more {label}; --json lists all", style="dim"))
    if row.note:
        console.print(
            Text(f"  {plain(row.note, 200)}; declare it if it is a dependency", style="yellow")
        )
    output = [
        line
        for line in row.output.splitlines()
        if line.strip() and not line.lstrip().startswith("at ")
    ]
    for output_line in output[-_OUTPUT_LINES:] if row.required and not row.fault else ():
        console.print(
            Padding(Text(plain(output_line, 200), style="dim"), (0, 0, 0, 8), expand=False),
            no_wrap=True,
            overflow="ellipsis",
        )


def _reason(failures: FailureReader, details: Mapping[str, str], case: str) -> str:
    """Return the failed assertion of a case, with its file and line."""
    failure = plain(str(failures.read_failure(case, details.get(case, ""))), _REASON_CHARS)
    return failure or (
        "its subtests failed" if any(name.startswith(f"{case}/") for name in details) else ""
    )


def check_document(
    repository_check: RepositoryCheck,
    diagnosis: Diagnosis | None,
    reason: str,
    written_path: Path | None,
) -> dict[str, Any]:
    """Return the JSON document of `--json`."""
    from moothall.cli.documents import CheckDocument
    from moothall.domain.codec import dump

    base = repository_check.base
    return dump(
        CheckDocument(
            repository=base.repository,
            origin=base.origin,
            commit=base.sha,
            judgeable=not reason,
            reason=reason,
            interpreter=repository_check.interpreter,
            setup=base.profile.setup,
            commands=base.profile.checks,
            checks=diagnosis.rows if diagnosis else (),
            profile=repository_check.own_file,
            written=str(written_path or ""),
            unseen=repository_check.unseen,
            seconds=round(repository_check.seconds, 1),
        )
    )
