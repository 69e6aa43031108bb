"""`moothall quota` on a data directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moothall.cli import main

pytestmark = pytest.mark.e2e


def quota(*args: str) -> Result:
    return CliRunner().invoke(main, ["quota", *args])


def test_quotas_are_set_printed_and_reset_to_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOOTHALL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("MOOTHALL_QUOTAS__DEFAULT__DELIBERATIONS", "9")
    changed = quota("--tenant", "team-a", "--tokens-per-day", "2000000", "--deliberations", "0")
    assert changed.exit_code == 0, changed.output
    assert "tokens per day         2,000,000, 0 used\n" in changed.stdout
    assert "deliberations at once  no limit\n" in changed.stdout
    assert "local: tokens per day 2,000,000, deliberations at once 0" in changed.stdout
    document = json.loads(
        quota("--tenant", "team-a", "--deliberations", "default", "--json").stdout
    )
    assert document["own"] == {"tokens_per_day": 2_000_000}
    assert document["quotas"]["deliberations"] == 9
    assert len(document["changes"]) == 2
    assert json.loads(quota("--json").stdout)["own"] == {}
    assert quota("--tokens-per-day", "many").exit_code == 2
