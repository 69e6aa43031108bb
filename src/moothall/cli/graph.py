"""`moothall graph`: queries of the context graph, and their answers. Much of their text is
model-written, so control characters are removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.options import example, json_option
from moothall.cli.runtime import EXIT_NONE, plain, print_json, print_status, with_settings
from moothall.config import Settings
from moothall.domain.ids import LOCAL, check_id
from moothall.errors import InvalidRequest

if TYPE_CHECKING:  # imported by the commands that print a graph
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree


# The commands.


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
        _show_answer(question, rows)
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
        _show_answer("provenance", rows)
    return 0 if rows else EXIT_NONE


def _show_answer(question: str, rows: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not rows:
        click.echo(
            "The graph has no record of it: no council of this server delivered it, or its log was "
            "pruned."
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
        print_status(f"replayed up to seq {seq} of {last}")

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
                print_status(f"{mark} {' '.join(line)[:300]}")
    return 0 if same else EXIT_NONE


# The answers, printed as trees.


_TEXT_CHARS, _VALUE_CHARS, _CHOICE_CHARS = 100, 240, 800
Node = Mapping[str, Any]


def show_provenance(console: Console, row: Mapping[str, Any]) -> None:
    """Print the origin of a commit, from the story to the single test run."""
    deliberation, task = row["deliberation"], row["task"]
    root = _tree(f"commit {row['commit'][:12]}  {_clean(deliberation['branch'])}")
    if story := row["story"]:
        root.add(
            _line(
                "story",
                f"{story['story_id']}  {_clean(story['headline'])} {_in_brackets(story['state'])}",
            )
        )
    root.add(_line("task", f"{task['task_id']}  {_clean(task['description'])}"))
    if repository := row["repository"]:
        root.add(_line("repository", f"{repository['id']}  {_clean(repository['url'])}"))
    _add_deliberation(root, deliberation)
    seat = root.add(
        _line("seat", f"{_clean(row['seat']['seat'])}  {_clean(row['seat']['approach'])}")
    )
    answer = _add_proposal(seat, row["proposal"])
    _branch(answer, "test run", row["evidence"], _evidence)
    _branch(answer, "review", row["reviews"], _review)
    _branch(seat, "model call", row["model_calls"], _model_call)
    _branch(seat, "tool call", row["tool_calls"], _tool_call)
    decisions = root.add(_line("approver", "nobody yet" if not row["decisions"] else ""))
    for decision in row["decisions"]:
        made = "requested changes" if decision["decision"] == "changes" else decision["decision"]
        comment = f": {_clean(decision['comment'])}" if decision["comment"] else ""
        decisions.add(_text(f"{_clean(decision['approver'])} {_clean(made)}{comment}"))
    console.print(root)


def _add_deliberation(root: Tree, deliberation: Node) -> None:
    branch = root.add(
        _line(
            "deliberation",
            f"{deliberation['task_id']}  {_clean(deliberation['role'])}, "
            f"{_clean(deliberation['protocol'])}",
        )
    )
    branch.add(f"asked by {_clean(deliberation['principal'])} at {_time(deliberation['asked_at'])}")
    level = _clean(deliberation["evidence_level"]).replace("_", "-") or (
        "proven" if deliberation["proven"] else "unproven"
    )
    branch.add(
        f"decided at {_time(deliberation['decided_at'])}: {_clean(deliberation['final_state'])}, "
        f"{level}"
    )
    if choice := deliberation.get("choice"):
        branch.add(_line("models", plain(" ".join(str(choice).split()), _CHOICE_CHARS)))
    for guide in deliberation.get("guides") or ():
        branch.add(_line("guide", _clean(guide)))


def _add_proposal(seat: Tree, proposal: Node) -> Tree:
    rank_text = (
        f"rank {proposal['rank']}, score {proposal['score']:.2f}"
        if proposal["score"] is not None
        else "not ranked"
    )
    branch = seat.add(
        _line(
            "proposal",
            f"{_clean(proposal['candidate'])}  {rank_text}, changes "
            f"{', '.join(proposal['paths'] or ())}",
        )
    )
    for reason in proposal["reasons"] or ():
        branch.add(_text(_clean(reason), style="dim"))
    return branch


def show_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print any answer, one branch for each row."""
    for number, row in enumerate(rows, 1):
        root = _tree(str(number))
        for column, value in row.items():
            _add_value(root, column, value)
        console.print(root)


def _add_value(tree: Tree, name: str, value: Any) -> None:
    if value is None or value in ("", [], {}):
        return
    if isinstance(value, Mapping):
        branch = tree.add(_text(name, style="bold cyan"))
        for key, entry in value.items():
            _add_value(branch, key, entry)
    elif isinstance(value, list) and isinstance(value[0], Mapping):
        branch = tree.add(_text(f"{name} ({len(value)})", style="bold cyan"))
        for number, entry in enumerate(value, 1):
            _add_value(branch, str(number), entry)
    else:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
        tree.add(_line(name, plain(" ".join(text.split()), _VALUE_CHARS)))


def _branch(tree: Tree, name: str, nodes: Sequence[Node], describe: Callable[[Node], str]) -> None:
    for node in nodes:
        tree.add(_line(name, describe(node)))


def _evidence(node: Node) -> str:
    counts = ", ".join(f"{node[key]} {key}" for key in ("passed", "failed", "skipped") if node[key])
    name = f"tests of {_clean(node['tests_of'])}" if node["tests_of"] else _clean(node["check"])
    verdict = f"{_clean(node['verdict'])} {_in_brackets(counts)}".rstrip()
    return f"{name}: {verdict} {node['duration_ms']} ms".replace("  ", " ")


def _review(node: Node) -> str:
    return f"{_clean(node['reviewer'])} {node['score']:.2f} {_clean(node['comment'])}"


def _model_call(node: Node) -> str:
    tokens = (
        f"{node['prompt_tokens']} ({node['cached_tokens']} cached) + {node['completion_tokens']} "
        "tokens"
    )
    prompt = f"prompt sha256 {_clean(node['prompt_sha256'])[:16]}…"
    return (
        f"{_clean(node['phase'])}: {prompt}, {_clean(node['model'])}, {tokens}, "
        f"{node['duration_ms']} ms"
    )


def _tool_call(node: Node) -> str:
    return (
        f"{_clean(node['tool'])}: {_clean(node['status'])} {node['duration_ms']} ms "
        f"{_clean(node['error'])}"
    ).rstrip()


def _tree(title: str) -> Tree:
    from rich.tree import Tree

    return Tree(_text(title, style="bold"))


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _line(name: str, text: str) -> Text:
    return _text("").append(f"{name}  ", style="cyan").append(text)


def _in_brackets(value: object) -> str:
    return f"({_clean(value)})" if value else ""


def _time(value: object) -> str:
    return _clean(value)[:19].replace("T", " ")


def _clean(value: object) -> str:
    return plain(" ".join(str(value or "").split()), _TEXT_CHARS)
