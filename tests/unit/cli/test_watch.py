"""A forge with incomplete settings is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from moothall.cli.serve import open_watch
from moothall.config import ForgeSettings
from moothall.errors import ConfigurationError
from moothall.settings import AllSettings

SECRET = SecretStr("a token of these tests")


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (ForgeSettings(token=SECRET), r"forge\.repositories is empty"),
        (
            ForgeSettings(token=SECRET, repositories=("acme/app",), label=""),
            r"forge\.label and forge\.mention are both empty",
        ),
        (ForgeSettings(repositories=("acme/app",)), r"forge\.token is missing"),
        (ForgeSettings(token=SECRET, repositories=("acme/app",)), r"git needs forge\.token too"),
    ],
)
async def test_missing_settings_are_named(
    tmp_path: Path, forge: ForgeSettings, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOOTHALL_FORGE__TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match=message):
        async with open_watch(AllSettings(data_dir=tmp_path, forge=forge), lambda line: None):
            pass
    assert not (tmp_path / "lock").exists()
