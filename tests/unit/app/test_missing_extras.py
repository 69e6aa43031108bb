"""An installation without extras: what is missing is reported, and the rest works."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from moothall.app.graph import graph_of, open_graph
from moothall.app.workspaces import _check_python
from moothall.cli import doctor
from moothall.cli.access import keys
from moothall.cli.runtime import result_of
from moothall.config import BusSettings
from moothall.errors import ConfigurationError, GraphUnavailable
from moothall.events.nats.connection import connection
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus
from moothall.workspace.runner import can_run_blocks


async def test_councils_work_without_the_embedded_graph(
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
def test_a_missing_package_is_a_fault_only_if_needed(extra: str, mend: str) -> None:
    name = "no-such-package-anywhere"
    needed = doctor._package(name, extra, is_needed=True)
    assert (needed.ok, mend in needed.mend) == (False, True)
    assert doctor._package(name, extra, is_needed=False).ok


async def test_a_configured_neo4j_needs_its_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "moothall.graph.neo4j", raising=False)
    monkeypatch.setitem(sys.modules, "neo4j", None)
    settings = load_settings(data_dir=tmp_path, graph={"url": "bolt://127.0.0.1:1"})
    with pytest.raises(ConfigurationError, match=r"pip install 'moothall\[neo4j\]'"):
        async with open_graph(settings.graph, tmp_path):
            pass


def test_creating_bus_keys_needs_nkeys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    result = CliRunner().invoke(keys, [str(tmp_path / "keys")])
    assert result.exit_code == 2
    assert "pip install 'moothall[server]'" in result.output
    assert not (tmp_path / "keys").exists()


async def test_bus_credentials_need_nkeys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    url = "nats://127.0.0.1:1"
    settings = BusSettings(url=url, credentials=SecretStr("any"))
    with pytest.raises(ConfigurationError, match=r"pip install 'moothall\[server\]'"):
        async with connection(settings, url, on_lost=lambda: None):
            pass


async def test_without_monty_python_is_off_and_doctor_explains_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    settings = load_settings(data_dir=tmp_path)
    assert not can_run_blocks(settings.runner)
    finding = await _check_python(settings)
    assert finding.ok
    assert "pip install 'moothall[tools]'" in finding.detail


def test_without_uvloop_commands_run_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def loop_class() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert result_of(loop_class()).__module__.startswith("asyncio.")
