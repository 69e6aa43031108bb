"""The graph's answers for people. Much of their text is model-written: it is shown without control
characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from moothall.cli.text import plain

_SHORT, _LONG = 100, 240
Node = Mapping[str, Any]


def show_provenance(console: Console, row: Mapping[str, Any]) -> None:
    """Print what led to a commit, from the story to the single test run."""
    deliberation, proposal, task = row["deliberation"], row["proposal"], row["task"]
    root = Tree(Text(f"commit {row['commit'][:12]}  {_one(deliberation['branch'])}", style="bold"))
    if story := row["story"]:
        root.add(
            _line(
                "story",
                f"{story['story_id']}  {_one(story['headline'])} {_in_brackets(story['state'])}",
            )
        )
    root.add(_line("task", f"{task['task_id']}  {_one(task['description'])}"))
    if repository := row["repository"]:
        root.add(_line("repository", f"{repository['id']}  {_one(repository['url'])}"))
    asked = root.add(
        _line(
            "deliberation",
            f"{deliberation['task_id']}  {_one(deliberation['role'])}, "
            f"{_one(deliberation['protocol'])}",
        )
    )
    asked.add(f"asked by {_one(deliberation['principal'])} at {_time(deliberation['asked_at'])}")
    proven = _one(deliberation["evidence_level"]).replace("_", "-") or (
        "proven" if deliberation["proven"] else "unproven"
    )
    asked.add(
        f"decided at {_time(deliberation['decided_at'])}: {_one(deliberation['final_state'])}, "
        f"{proven}"
    )
    seat = root.add(_line("seat", f"{_one(row['seat']['seat'])}  {_one(row['seat']['approach'])}"))
    place = (
        f"rank {proposal['rank']}, score {proposal['score']:.2f}"
        if proposal["score"] is not None
        else "not ranked"
    )
    answer = seat.add(
        _line(
            "proposal",
            f"{_one(proposal['candidate'])}  {place}, changes {', '.join(proposal['paths'] or ())}",
        )
    )
    for reason in proposal["reasons"] or ():
        answer.add(Text(_one(reason), style="dim"))
    _branch(answer, "test run", row["evidence"], _evidence)
    _branch(answer, "review", row["reviews"], _review)
    _branch(seat, "model call", row["model_calls"], _model_call)
    _branch(seat, "tool call", row["tool_calls"], _tool_call)
    decisions = root.add(_line("approver", "nobody yet" if not row["decisions"] else ""))
    for decision in row["decisions"]:
        decisions.add(
            Text(
                f"{_one(decision['approver'])} {_one(decision['decision'])}: "
                f"{_one(decision['comment'])}"
            )
        )
    console.print(root)


def show_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print any answer: a branch a row."""
    for number, row in enumerate(rows, 1):
        root = Tree(Text(str(number), style="bold"))
        for column, value in row.items():
            _add(root, column, value)
        console.print(root)


def _add(tree: Tree, name: str, value: Any) -> None:
    if value is None or value in ("", [], {}):
        return
    if isinstance(value, Mapping):
        branch = tree.add(Text(name, style="bold cyan"))
        for key, entry in value.items():
            _add(branch, key, entry)
    elif isinstance(value, list) and isinstance(value[0], Mapping):
        branch = tree.add(Text(f"{name} ({len(value)})", style="bold cyan"))
        for number, entry in enumerate(value, 1):
            _add(branch, str(number), entry)
    else:
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
        tree.add(_line(name, plain(" ".join(shown.split()), _LONG)))


def _branch(tree: Tree, name: str, nodes: Sequence[Node], shown: Any) -> None:
    for line in _each(nodes, shown):
        tree.add(_line(name, line))


def _each(nodes: Iterable[Node], shown: Any) -> Iterable[str]:
    return (shown(node) for node in nodes)


def _evidence(node: Node) -> str:
    counts = ", ".join(f"{node[key]} {key}" for key in ("passed", "failed", "skipped") if node[key])
    name = f"tests of {_one(node['tests_of'])}" if node["tests_of"] else _one(node["check"])
    return (
        f"{name}: {_one(node['verdict'])} {_in_brackets(counts)} {node['duration_ms']} ms".replace(
            "  ", " "
        )
    )


def _review(node: Node) -> str:
    return f"{_one(node['reviewer'])} {node['score']:.2f} {_one(node['comment'])}"


def _model_call(node: Node) -> str:
    tokens = (
        f"{node['prompt_tokens']} ({node['cached_tokens']} cached) + {node['completion_tokens']} "
        "tokens"
    )
    prompt = f"prompt sha256 {_one(node['prompt_sha256'])[:16]}…"
    return (
        f"{_one(node['phase'])}: {prompt}, {_one(node['model'])}, {tokens}, {node['duration_ms']} "
        "ms"
    )


def _tool_call(node: Node) -> str:
    return (
        f"{_one(node['tool'])}: {_one(node['status'])} {node['duration_ms']} ms "
        f"{_one(node['error'])}"
    ).rstrip()


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name}  ", "cyan"), text)


def _in_brackets(value: object) -> str:
    return f"({_one(value)})" if value else ""


def _time(value: object) -> str:
    return _one(value)[:19].replace("T", " ")


def _one(value: object) -> str:
    return plain(" ".join(str(value or "").split()), _SHORT)
