"""`moothall graph`: what the context graph knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from moothall.cli.exits import EXIT_NONE
from moothall.cli.options import example
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.errors import InvalidRequest


@click.group()
def graph() -> None:
    """The context graph: where lines come from, what was decided and why."""


@graph.command(epilog=example("moothall graph questions"))
def questions() -> None:
    """List what can be asked, with parameters and what the answers hold."""
    from moothall.graph.questions import QUESTIONS

    for name, question in QUESTIONS.items():
        click.echo(f"{name}: {question.about}")
        for parameter, spec in question.parameters.items():
            default = "" if spec.default is None else f" (default {spec.default!r})"
            click.echo(f"    {parameter}={'NUMBER' if spec.number else 'TEXT'}  {spec.about}{default}")
        for column, meaning in question.columns.items():
            click.echo(f"    -> {column}: {meaning}")


@graph.command(epilog=example("moothall graph query provenance --repo . --file src/app.py --line 12"))
@click.argument("question")
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--repo", default="", help="provenance: a local path, or the id of a registered repository.")
@click.option("--file", "path", default="", help="provenance: a file, from the repository's root.")
@click.option("--line", type=int, default=0, help="provenance: a line of that file, from 1.")
@click.option("--ref", default="", help="provenance: a branch, tag or commit; HEAD by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.pass_context
@errors_spoken
def query(
    context: click.Context,
    *,
    question: str,
    parameters: tuple[str, ...],
    repo: str,
    path: str,
    line: int,
    ref: str,
    as_json: bool,
) -> None:
    """Ask one of the named QUESTIONS (`moothall graph questions` lists them).

    With --repo, --file and --line, `provenance` begins at a line: git says which commit it comes from, the graph where
    that commit does. Exit code 1 where there is no answer.
    """
    given = dict(_pair(text) for text in parameters)
    settings = settings_of(context, narrated=True)
    if repo or path or line or ref:
        if question != "provenance":
            raise InvalidRequest(f"--repo, --file, --line and --ref belong to provenance, not to {question[:60]}")
        if not (repo and path and line):
            raise InvalidRequest("a line is named by --repo, --file and --line together")
        run(_query_line(settings, given, (repo, ref, path, line), as_json=as_json))
    run(_query(settings, question, given, as_json=as_json))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{text[:60]!r} is no parameter; give NAME=VALUE")
    return name, value


async def _query(settings: Settings, question: str, given: Mapping[str, str], *, as_json: bool) -> int:
    from moothall.graph.questions import prepare
    from moothall.wiring.graph import open_answers

    asked = {"tenant": LOCAL.tenant, **given}
    prepare(question, asked)  # a wrong question needs no graph
    async with open_answers(settings) as answers:
        rows = await answers.ask(question, **asked)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        _show(question, rows)
    return 0 if rows else EXIT_NONE


async def _query_line(settings: Settings, given: Mapping[str, str], place: tuple[str, str, str, int], *, as_json: bool) -> int:
    from dataclasses import asdict

    from moothall.cli.plain import plain
    from moothall.wiring.asking import line_provenance

    _, _, path, line = place
    origin, rows = await line_provenance(settings, place, given)
    if as_json:
        click.echo(json.dumps({"line": asdict(origin), "proposals": rows}, indent=2))
    else:
        click.echo(f"{path}:{line}  {plain(origin.text)}")
        click.echo(f"commit {origin.commit[:12]} by {plain(origin.author)}, {origin.time}: {plain(origin.summary)}\n")
        _show("provenance", rows)
    return 0 if rows else EXIT_NONE


def _show(question: str, rows: Any) -> None:
    from rich.console import Console

    from moothall.cli.provenance import show_provenance, show_rows

    console = Console(highlight=False)
    if not rows:
        click.echo("The graph knows nothing of that: no council of this house delivered it, or the log of it was pruned.")
    elif question == "provenance":
        for row in rows:
            show_provenance(console, row)
    else:
        show_rows(console, rows)


@graph.command(epilog=example("moothall graph show"))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.pass_context
@errors_spoken
def show(context: click.Context, *, as_json: bool) -> None:
    """Count nodes and relations."""
    run(_counts(settings_of(context, narrated=True), as_json=as_json))


async def _counts(settings: Settings, *, as_json: bool) -> int:
    from moothall.wiring.graph import open_answers

    async with open_answers(settings) as answers:
        counts = await answers.counts()
    _tell_counts(counts, as_json=as_json)
    return 0


def _tell_counts(counts: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(counts, indent=2))
        return
    for name, number in counts.items():
        if number:
            click.echo(f"{number:>8}  {name}")


@graph.command(epilog=example("moothall graph rebuild"))
@click.option("--lossy", is_flag=True, help="Even where the log's beginning was pruned, and what the graph knows of it goes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
@click.pass_context
@errors_spoken
def rebuild(context: click.Context, *, lossy: bool, as_json: bool) -> None:
    """Empty the graph and replay the log into it; then compare it with what it was. Exit code 1 where it differs."""
    run(_rebuild(settings_of(context, narrated=True), lossy=lossy, as_json=as_json))


async def _rebuild(settings: Settings, *, lossy: bool, as_json: bool) -> int:
    from moothall.wiring.graph import rebuild as rebuilt

    def tell(seq: int, last: int) -> None:
        click.echo(f"replayed up to seq {seq} of {last}", err=True)

    result = await rebuilt(settings, tell, lossy=lossy)
    same = result.before == result.after
    if as_json:
        click.echo(json.dumps({"events": result.events, "same": same, "counts": result.counts}, indent=2))
    else:
        _tell_counts(result.counts, as_json=False)
        click.echo(f"{result.events} events replayed; the graph is {'the same as before' if same else 'NOT as it was before'}")
        for mark, lines, others in (("-", result.before, set(result.after)), ("+", result.after, set(result.before))):
            for line in [entry for entry in lines if entry not in others][:10]:
                click.echo(f"{mark} {' '.join(line)[:300]}", err=True)
    return 0 if same else EXIT_NONE
