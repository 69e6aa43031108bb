"""An installation without extras: what is missing is reported, and the rest works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from moothall.app.graph import graph_of
from moothall.cli import doctor
from moothall.errors import GraphUnavailable
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus


async def test_without_the_embedded_graph_councils_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "kglite", None)  # as Python marks a module that is missing
    lines: list[str] = []
    bus: Any = MemoryBus()
    async with graph_of(load_settings(data_dir=tmp_path), bus, lines.append, None) as graph:
        with pytest.raises(GraphUnavailable, match=r"pip install 'moothall\[local\]'"):
            await graph.ask("context")
        with pytest.raises(GraphUnavailable):
            await graph.position()
    (line,) = lines
    assert line.endswith("councils work without it")


@pytest.mark.parametrize(
    ("extra", "mend"),
    [("ray", "pip install 'moothall[ray]'"), ("", "pip install no-such-package-anywhere")],
)
def test_a_missing_package_is_a_fault_only_if_it_is_needed(extra: str, mend: str) -> None:
    name = "no-such-package-anywhere"
    needed = doctor._package(name, extra, is_needed=True)
    assert (needed.ok, mend in needed.mend) == (False, True)
    assert doctor._package(name, extra, is_needed=False).ok
