from __future__ import annotations

from pathlib import Path

from moothall.graph.schema import LABELS, RELATIONS


def test_the_docs_match_the_schema() -> None:
    """If this fails, insert the results of `mermaid()` and `tables()` into docs/graph.md."""
    text = (Path(__file__).parents[3] / "docs" / "graph.md").read_text(encoding="utf-8")
    assert mermaid() in text
    assert tables() in text


def mermaid() -> str:
    """The diagram of labels and relations."""
    return "\n".join(["graph LR", *(f"  {r.start} -->|{r.type}| {r.end}" for r in RELATIONS)])


def tables() -> str:
    """The descriptions of nodes and relations, as Markdown."""
    lines = ["| node | what it is | key | properties |", "|---|---|---|---|"]
    for label in LABELS.values():
        names = ", ".join(f"`{name}`" for group in label.groups for name in group.properties)
        lines.append(f"| `{label.name}` | {label.description} | {label.key} | {names} |")
    lines += ["", "| relation | means |", "|---|---|"]
    lines += [f"| `({r.start})-[:{r.type}]->({r.end})` | {r.description} |" for r in RELATIONS]
    return "\n".join(lines)
