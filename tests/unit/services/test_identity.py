from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from moothall import config
from moothall.domain.identity import LOCAL
from moothall.errors import ConfigurationError
from moothall.services.identity import ensure_token, is_loopback, read_tokens


def test_the_first_run_makes_a_token_that_only_its_owner_reads(tmp_path: Path) -> None:
    home = tmp_path / "data dir"
    token = ensure_token(home)
    assert len(token) >= 43
    assert (home / "token").stat().st_mode & 0o777 == 0o600
    assert ensure_token(home) == token
    assert [file.name for file in home.iterdir()] == ["token"]


def test_many_first_runs_at_once_agree_on_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(ensure_token, [tmp_path] * 64))) == 1


def test_two_data_directories_have_two_tokens(tmp_path: Path) -> None:
    assert ensure_token(tmp_path / "a") != ensure_token(tmp_path / "b")


def test_a_token_that_others_can_read_is_no_secret(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        ensure_token(tmp_path)


def test_an_empty_token_file_is_an_error(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    (tmp_path / "token").write_text("\n", encoding="ascii")
    with pytest.raises(ConfigurationError, match="is empty"):
        ensure_token(tmp_path)


def test_a_data_directory_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("", encoding="ascii")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        ensure_token(tmp_path / "data")


def test_the_configured_token_is_the_only_one(tmp_path: Path) -> None:
    assert read_tokens(config.Grpc(token=SecretStr("mine")), tmp_path) == {"mine": LOCAL}
    assert not (tmp_path / "token").exists()


def test_beyond_loopback_a_token_must_be_configured(tmp_path: Path) -> None:
    assert list(read_tokens(config.Grpc(), tmp_path)) == [ensure_token(tmp_path)]
    with pytest.raises(ConfigurationError, match=r"grpc\.token"):
        read_tokens(config.Grpc(host="0.0.0.0"), tmp_path)  # noqa: S104 - refused


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", ""])  # noqa: S104 - told apart
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
