"""Locks that processes share, and files readable for their owner alone."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

from moothall.processes import lock, lock_file, write_private

_HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_has_one_holder_and_is_free_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with lock_file(path) as free:
            assert not free
        holder.kill()
    with lock_file(path) as free:
        assert free


async def test_a_second_caller_waits_for_the_first(tmp_path: Path) -> None:
    path, order = tmp_path / "locks" / "base", []
    first_is_in = asyncio.Event()
    leave = asyncio.Event()

    async def first() -> None:
        async with lock(path):
            first_is_in.set()
            await leave.wait()
            order.append("first")

    async def second() -> None:
        await first_is_in.wait()
        with lock_file(path) as free:
            assert not free
        leave.set()
        async with lock(path):
            order.append("second")

    await asyncio.gather(first(), second())
    assert order == ["first", "second"]


def test_a_private_text_is_readable_only_by_its_owner_even_if_it_was_not_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]
