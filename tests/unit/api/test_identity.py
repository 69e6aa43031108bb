from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from moothall import config
from moothall.api.identity import is_loopback, is_open, read_tokens
from moothall.authorization.keys import ensure_token
from moothall.domain.ids import LOCAL, Principal
from moothall.errors import ConfigurationError


def test_the_first_run_creates_a_token_readable_only_by_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "data dir"
    token = ensure_token(home)
    assert len(token) >= 43
    assert (home / "token").stat().st_mode & 0o777 == 0o600
    assert ensure_token(home) == token
    assert [file.name for file in home.iterdir()] == ["token"]


def test_concurrent_first_runs_agree_on_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(ensure_token, [tmp_path] * 64))) == 1


def test_two_data_directories_have_two_tokens(tmp_path: Path) -> None:
    assert ensure_token(tmp_path / "a") != ensure_token(tmp_path / "b")


def test_a_token_readable_by_others_is_refused(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        ensure_token(tmp_path)


def test_an_empty_token_file_is_an_error(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    (tmp_path / "token").write_text("\n", encoding="ascii")
    with pytest.raises(ConfigurationError, match="is empty"):
        ensure_token(tmp_path)


def test_a_file_in_place_of_the_data_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("", encoding="ascii")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        ensure_token(tmp_path / "data")


def test_the_configured_token_is_the_only_one(tmp_path: Path) -> None:
    assert read_tokens(config.GrpcSettings(token=SecretStr("mine")), tmp_path) == {"mine": LOCAL}
    assert not (tmp_path / "token").exists()


def test_a_non_loopback_address_requires_a_configured_token(tmp_path: Path) -> None:
    assert list(read_tokens(config.GrpcSettings(), tmp_path)) == [ensure_token(tmp_path)]
    with pytest.raises(ConfigurationError, match=r"grpc\.token"):
        read_tokens(config.GrpcSettings(host="0.0.0.0"), tmp_path)  # noqa: S104 - refused


def tokens_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


ALICE = '[[principals]]\ntoken = "alices-token-0123456789"\nname = "alice"\ntenant = "team-a"\n'
BOB = '[[principals]]\ntoken = "bobs-token-0123456789"\nname = "bob"\ntenant = "team-b"\n'


def test_a_tokens_file_names_principals_and_their_tenants(tmp_path: Path) -> None:
    path = tokens_file(tmp_path, ALICE + BOB)
    alice, bob = Principal("alice", "team-a"), Principal("bob", "team-b")
    expected = {"alices-token-0123456789": alice, "bobs-token-0123456789": bob}
    public_settings = config.GrpcSettings(host="0.0.0.0", tokens_file=path)  # noqa: S104 - only read here
    assert read_tokens(public_settings, tmp_path) == expected
    assert read_tokens(
        config.GrpcSettings(token=SecretStr("mine"), tokens_file=path), tmp_path
    ) == expected | {"mine": LOCAL}


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (ALICE, 0o644, "chmod 600"),
        ("", 0o600, "principals"),
        ("not toml", 0o600, "is not TOML"),
        pytest.param("a = " + "[" * 60_000, 0o600, "is not TOML", id="a nest of brackets"),
        (ALICE.replace('"alice"', '"Alice S"'), 0o600, r"principals\.0\.name"),
        (ALICE.replace('"team-a"', '"Team A"'), 0o600, r"principals\.0\.tenant"),
        (ALICE.replace("alices-token-0123456789", "alices-token"), 0o600, r"principals\.0\.token"),
        (ALICE + ALICE, 0o600, "contains a token twice"),
        (ALICE + 'role = "admin"\n', 0o600, r"principals\.0\.role"),
    ],
)
def test_an_invalid_tokens_file_is_reported_without_its_tokens(
    tmp_path: Path, text: str, mode: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_tokens(config.GrpcSettings(tokens_file=tokens_file(tmp_path, text, mode)), tmp_path)
    assert "alices-token" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "owner", "uid", "open_to_others"),
    [
        (0o600, 1000, 1000, False),
        (0o640, 1000, 1000, True),
        (0o440, 0, 1000, False),  # the mode of a Secret in a pod with an fsGroup
        (0o444, 0, 1000, True),
        (0o660, 0, 1000, True),
        (0o440, 0, 0, True),
        (0o440, 7, 1000, True),
    ],
)
def test_a_pod_secret_is_open_if_others_can_read_it(
    mode: int, owner: int, uid: int, *, open_to_others: bool
) -> None:
    about = os.stat_result((0o100000 | mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0))
    assert is_open(about, uid) is open_to_others


def test_a_missing_tokens_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_tokens(config.GrpcSettings(tokens_file=tmp_path / "none"), tmp_path)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"]
)
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", ""],  # noqa: S104 - only compared
)
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
