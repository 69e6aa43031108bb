"""`moothall audit`: the hash-chained record of every tool call."""

from __future__ import annotations

import sys

import click

from moothall.cli.run import EXIT_NONE, errors_spoken, settings_of


@click.group()
def audit() -> None:
    """The audit of tool calls."""


@audit.command()
@click.pass_context
@errors_spoken
def verify(context: click.Context) -> None:
    """Check that no record was changed, removed, reordered or cut off. Exit code 1 where one was."""
    from moothall.guard.chain import verify_all

    report = verify_all(settings_of(context).data_dir)
    for problem in report.problems:
        click.echo(
            f"{problem.path}, line {problem.line}: {problem.what}" + ("" if problem.serious else " (a crash; marked, harmless)")
        )
    unfinished = f", {report.unfinished} calls whose end is not recorded" if report.unfinished else ""
    click.echo(f"{report.records} records in {report.chains} chains{unfinished}: " + ("whole" if report.ok else "NOT whole"))
    sys.exit(0 if report.ok else EXIT_NONE)
