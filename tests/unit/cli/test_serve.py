"""The output of `moothall serve` at its start."""

from __future__ import annotations

from pathlib import Path

from moothall.cli.serve import tokens_are
from moothall.config import GrpcSettings
from moothall.settings import load_settings


def test_the_source_of_the_tokens_is_named(tmp_path: Path) -> None:
    messages = [
        tokens_are(load_settings(data_dir=tmp_path, grpc=grpc))
        for grpc in (
            GrpcSettings(),
            GrpcSettings(token="a-secret-token"),
            GrpcSettings(tokens_file=Path("/etc/people.toml")),
        )
    ]
    assert messages == [
        f"the token is in {tmp_path / 'token'}",
        "the token is that of the settings",
        "tokens are those of /etc/people.toml",
    ]
