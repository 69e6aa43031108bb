"""The graph's answers, printed. Much of their text is model-written, so control characters are
removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from moothall.cli.runtime import plain

_TEXT_CHARS, _VALUE_CHARS, _CHOICE_CHARS = 100, 240, 800
Node = Mapping[str, Any]


def show_provenance(console: Console, row: Mapping[str, Any]) -> None:
    """Print the origin of a commit, from the story to the single test run."""
    deliberation, task = row["deliberation"], row["task"]
    root = Tree(
        Text(f"commit {row['commit'][:12]}  {_clean(deliberation['branch'])}", style="bold")
    )
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
        decisions.add(
            Text(
                f"{_clean(decision['approver'])} {_clean(decision['decision'])}: "
                f"{_clean(decision['comment'])}"
            )
        )
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
        branch.add(Text(_clean(reason), style="dim"))
    return branch


def show_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print any answer, one branch for each row."""
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


def _line(name: str, text: str) -> Text:
    return Text.assemble((f"{name}  ", "cyan"), text)


def _in_brackets(value: object) -> str:
    return f"({_clean(value)})" if value else ""


def _time(value: object) -> str:
    return _clean(value)[:19].replace("T", " ")


def _clean(value: object) -> str:
    return plain(" ".join(str(value or "").split()), _TEXT_CHARS)
