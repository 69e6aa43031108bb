from __future__ import annotations

import stat
from pathlib import Path

import pytest

from moothall.errors import ConfigurationError
from moothall.wiring import lock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with lock.hold(tmp_path), pytest.raises(lock.Taken), lock.hold(tmp_path):
        pytest.fail("held twice")
    with lock.hold(tmp_path):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="file/below"), lock.hold(tmp_path / "file/below"):
        pass


def test_the_address_is_found_until_it_is_withdrawn_and_private(tmp_path: Path) -> None:
    assert lock.find(tmp_path) is None
    address = lock.Address(1, "nats://secret@127.0.0.1:1", 2, "print")
    lock.announce(tmp_path, address)
    assert lock.find(tmp_path) == address
    assert stat.S_IMODE((tmp_path / "serving.json").stat().st_mode) == 0o600
    lock.withdraw(tmp_path)
    assert lock.find(tmp_path) is None
