from __future__ import annotations

import asyncio
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from moothall.app import data_dir_lock
from moothall.app.bus import hold_or_find
from moothall.errors import ConfigurationError


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with (
        data_dir_lock.hold(tmp_path),
        pytest.raises(data_dir_lock.DirectoryTaken),
        data_dir_lock.hold(tmp_path),
    ):
        pytest.fail("held twice")
    with data_dir_lock.hold(tmp_path):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(ConfigurationError, match="file/below"),
        data_dir_lock.hold(tmp_path / "file/below"),
    ):
        pass


def test_the_address_is_found_until_it_is_withdrawn_and_private(tmp_path: Path) -> None:
    assert data_dir_lock.find(tmp_path) is None
    address = data_dir_lock.Address(1, "nats://secret@127.0.0.1:1", 2, {"llm.model": "0"})
    data_dir_lock.announce(tmp_path, address)
    assert data_dir_lock.find(tmp_path) == address
    assert stat.S_IMODE((tmp_path / "serving.json").stat().st_mode) == 0o600
    data_dir_lock.withdraw(tmp_path)
    assert data_dir_lock.find(tmp_path) is None


async def test_who_waits_for_one_that_ends_without_serving_takes_its_place(tmp_path: Path) -> None:
    messages: list[str] = []
    async with AsyncExitStack() as stack, AsyncExitStack() as ours:
        # Like a short command, which publishes no address.
        stack.enter_context(data_dir_lock.hold(tmp_path))
        waiting = asyncio.create_task(hold_or_find(tmp_path, messages.append, ours))
        while not messages:
            await asyncio.sleep(0.01)
        await stack.aclose()
        assert await waiting is None
        with pytest.raises(data_dir_lock.DirectoryTaken), data_dir_lock.hold(tmp_path):
            pytest.fail("held twice")


async def test_who_waits_for_one_that_starts_finds_it(tmp_path: Path) -> None:
    address = data_dir_lock.Address(1, "nats://127.0.0.1:1", 2, {"llm.model": "0"})
    async with AsyncExitStack() as stack:
        with data_dir_lock.hold(tmp_path):
            waiting = asyncio.create_task(
                hold_or_find(
                    tmp_path, lambda _line: data_dir_lock.announce(tmp_path, address), stack
                )
            )
            assert await waiting == address
