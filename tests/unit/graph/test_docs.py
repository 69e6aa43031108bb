from __future__ import annotations

from pathlib import Path

from moothall.graph.shape import mermaid, tables


def test_the_picture_is_the_shapes() -> None:
    """Where this fails, put what `mermaid()` and `tables()` return into docs/graph.md."""
    text = (Path(__file__).parents[3] / "docs" / "graph.md").read_text(encoding="utf-8")
    assert mermaid() in text
    assert tables() in text
