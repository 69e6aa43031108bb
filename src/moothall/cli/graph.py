"""`moothall graph`: queries of the context graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from moothall.cli.options import example, json_option
from moothall.cli.runtime import EXIT_NONE, print_json, say, with_settings
from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest


@click.group()
def graph() -> None:
    """The context graph: the origin of lines, and decisions with their reasons."""


@graph.command(epilog=example("moothall graph questions"))
def questions() -> None:
    """List the questions, with their parameters and the columns of their answers."""
    from moothall.graph.questions import QUESTIONS

    for name, question in QUESTIONS.items():
        click.echo(f"{name}: {question.description}")
        for parameter, spec in question.parameters.items():
            default = "" if spec.default is None else f" (default {spec.default!r})"
            kind = "NUMBER" if spec.is_number else "TEXT"
            click.echo(f"    {parameter}={kind}  {spec.description}{default}")
        for column, meaning in question.columns.items():
            click.echo(f"    -> {column}: {meaning}")


@graph.command(
    epilog=example("moothall graph query provenance --repo . --file src/app.py --line 12")
)
@click.argument("question")
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--repo", default="", help="provenance: a local path, or the id of a registered repository."
)
@click.option("--file", "path", default="", help="provenance: a file, from the repository's root.")
@click.option(
    "--line", type=click.IntRange(1, 2**31 - 1), help="provenance: a line of that file, from 1."
)
@click.option("--ref", default="", help="provenance: a branch, tag or commit; HEAD by default.")
@click.option(
    "--tenant",
    default="",
    help="Tenant. By default provenance derives it from the branch or commit, and other "
    "questions use yours.",
)
@json_option
@with_settings()
async def query(
    settings: Settings,
    *,
    question: str,
    parameters: tuple[str, ...],
    repo: str,
    path: str,
    line: int | None,
    ref: str,
    tenant: str,
    as_json: bool,
) -> int:
    """Ask one of the named QUESTIONS (`moothall graph questions` lists them).

    With --repo, --file and --line, `provenance` begins at a line: git finds its commit, the graph
    the origin of that commit. Exit code 1 if there is no answer.
    """
    values = dict(_pair(text) for text in parameters)
    named_tenant = values.pop("tenant", "")
    tenant = check_id(tenant or named_tenant, "--tenant") if tenant or named_tenant else ""
    if repo or path or line or ref:
        if question != "provenance":
            raise InvalidRequest(
                f"--repo, --file, --line and --ref belong to provenance, not to {question[:60]}"
            )
        if not (repo and path and line):
            raise InvalidRequest("a line is named by --repo, --file and --line together")
        return await _query_line(settings, values, (repo, ref, path, line), tenant, as_json=as_json)
    return await _query(
        settings, question, {**values, "tenant": tenant or LOCAL.tenant}, as_json=as_json
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{text[:60]!r} is not a parameter; give NAME=VALUE")
    return name, value


async def _query(
    settings: Settings, question: str, values: Mapping[str, str], *, as_json: bool
) -> int:
    from moothall.app.graph import open_answers
    from moothall.graph.questions import prepare

    prepare(question, values)  # an invalid question is refused before the graph is opened
    async with open_answers(settings) as answers:
        rows = await answers.ask(question, **values)
    if as_json:
        print_json(rows)
    else:
        _show(question, rows)
    return 0 if rows else EXIT_NONE


async def _query_line(
    settings: Settings,
    values: Mapping[str, str],
    location: tuple[str, str, str, int],
    tenant: str,
    *,
    as_json: bool,
) -> int:
    from dataclasses import asdict

    from moothall.app.command_repository import line_provenance
    from moothall.cli.runtime import plain

    _, _, path, line = location
    origin, rows = await line_provenance(settings, location, values, tenant)
    if as_json:
        print_json({"line": asdict(origin), "proposals": rows})
    else:
        click.echo(f"{path}:{line}  {plain(origin.text)}")
        click.echo(
            f"commit {origin.commit[:12]} by {plain(origin.author)}, {origin.time}: "
            f"{plain(origin.summary)}\n"
        )
        _show("provenance", rows)
    return 0 if rows else EXIT_NONE


def _show(question: str, rows: Any) -> None:
    from rich.console import Console

    from moothall.cli.provenance import show_provenance, show_rows

    console = Console(highlight=False)
    if not rows:
        click.echo(
            "The graph knows nothing of that: no council of this server delivered it, or the log "
            "of it was pruned."
        )
    elif question == "provenance":
        for row in rows:
            show_provenance(console, row)
    else:
        show_rows(console, rows)


@graph.command(epilog=example("moothall graph show"))
@json_option
@with_settings()
async def show(settings: Settings, *, as_json: bool) -> None:
    """Count nodes and relations."""
    from moothall.app.graph import open_answers

    async with open_answers(settings) as answers:
        counts = await answers.counts()
    _print_counts(counts, as_json=as_json)


def _print_counts(counts: Mapping[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json(counts)
        return
    for name, number in counts.items():
        if number:
            click.echo(f"{number:>8}  {name}")


@graph.command(epilog=example("moothall graph rebuild"))
@click.option(
    "--lossy",
    is_flag=True,
    help="Rebuild even if the beginning of the log was pruned; its data in the graph is lost.",
)
@json_option
@with_settings()
async def rebuild(settings: Settings, *, lossy: bool, as_json: bool) -> int:
    """Empty the graph, replay the log into it, and compare it with its previous state. Exit code 1
    if it differs.
    """
    from moothall.app.graph import rebuild as rebuild_graph

    def report_progress(seq: int, last: int) -> None:
        say(f"replayed up to seq {seq} of {last}")

    result = await rebuild_graph(settings, report_progress, lossy=lossy)
    same = result.before == result.after
    if as_json:
        print_json({"events": result.events, "same": same, "counts": result.counts})
    else:
        _print_counts(result.counts, as_json=False)
        click.echo(
            f"{result.events} events replayed; the graph is "
            f"{'the same as before' if same else 'NOT as it was before'}"
        )
        for mark, lines, other_lines in (
            ("-", result.before, set(result.after)),
            ("+", result.after, set(result.before)),
        ):
            for line in [entry for entry in lines if entry not in other_lines][:10]:
                say(f"{mark} {' '.join(line)[:300]}")
    return 0 if same else EXIT_NONE
