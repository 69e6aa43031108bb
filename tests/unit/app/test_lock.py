from __future__ import annotations

import asyncio
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from moothall.app import preflight
from moothall.app.bus import hold_or_find
from moothall.errors import ConfigurationError


def test_the_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    with (
        preflight.hold(tmp_path),
        pytest.raises(preflight.DirectoryTaken),
        preflight.hold(tmp_path),
    ):
        pytest.fail("held twice")
    with preflight.hold(tmp_path):
        pass


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(ConfigurationError, match="file/below"),
        preflight.hold(tmp_path / "file/below"),
    ):
        pass


def test_the_address_is_private_and_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    assert preflight.find(tmp_path) is None
    address = preflight.Address(1, "nats://secret@127.0.0.1:1", 2, {"llm.model": "0"})
    preflight.announce(tmp_path, address)
    assert preflight.find(tmp_path) == address
    assert stat.S_IMODE((tmp_path / "serving.json").stat().st_mode) == 0o600
    preflight.remove_address(tmp_path)
    assert preflight.find(tmp_path) is None


async def test_a_waiting_process_takes_the_lock_of_one_that_ends_without_serving(
    tmp_path: Path,
) -> None:
    messages: list[str] = []
    async with AsyncExitStack() as stack, AsyncExitStack() as own_stack:
        # Like a short command, which publishes no address.
        stack.enter_context(preflight.hold(tmp_path))
        waiting = asyncio.create_task(hold_or_find(tmp_path, messages.append, own_stack))
        while not messages:
            await asyncio.sleep(0.01)
        await stack.aclose()
        assert await waiting is None
        with pytest.raises(preflight.DirectoryTaken), preflight.hold(tmp_path):
            pytest.fail("held twice")


async def test_a_waiting_process_finds_the_address_of_a_starting_one(tmp_path: Path) -> None:
    address = preflight.Address(1, "nats://127.0.0.1:1", 2, {"llm.model": "0"})
    async with AsyncExitStack() as stack:
        with preflight.hold(tmp_path):
            waiting = asyncio.create_task(
                hold_or_find(tmp_path, lambda _line: preflight.announce(tmp_path, address), stack)
            )
            assert await waiting == address
