from __future__ import annotations

import stat
from pathlib import Path

import click
import pytest

from moothall.cli.run import settings_of


def test_the_data_directory_is_its_owner_s_alone_whoever_needs_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOOTHALL_DATA_DIR", str(tmp_path / "deep" / "data"))
    settings = settings_of(click.Context(click.Command("any")))
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700
