from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import SandboxSettings
from moothall.errors import SandboxUnavailable
from moothall.sandbox.probe import LAYERS, Layer, probe, require

FINE = Layer("files", ok=True, detail="refused")
GONE = Layer("landlock", ok=False, detail="the kernel has none", mend="use another kernel")


async def test_every_isolation_layer_works_here(tmp_path: Path) -> None:
    layers = await probe(SandboxSettings(), tmp_path)
    assert [layer.name for layer in layers] == [name for name, _ in LAYERS]
    assert [layer for layer in layers if not layer.ok] == []
    assert list(tmp_path.iterdir()) == []


async def test_without_bubblewrap_the_layer_and_its_remedy_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    layers = await probe(SandboxSettings(), tmp_path)
    assert not any(layer.ok for layer in layers)
    with pytest.raises(
        SandboxUnavailable,
        match=r"'bubblewrap' is missing: .*not found on PATH; .*apt-get install bubblewrap",
    ):
        require(layers, ["bubblewrap"])


async def test_a_busy_machine_is_not_reported_as_missing_bubblewrap(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        SandboxUnavailable,
        match=r"no answer within 0.001 s; the machine may be too busy; try again once it has less "
        r"to do$",
    ):
        require(await probe(SandboxSettings(), tmp_path, 0.001))


def test_a_missing_isolation_layer_stops_the_start_unless_accepted() -> None:
    with pytest.raises(
        SandboxUnavailable,
        match=r"'landlock' is missing: the kernel has none; use another kernel; or accept",
    ):
        require([FINE, GONE], ["seccomp"])
    require([FINE, GONE], ["landlock"])
    require([FINE])
