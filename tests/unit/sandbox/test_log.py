from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moothall.sandbox.spawn import SandboxLog


async def test_output_is_marked_and_cannot_be_mistaken_for_a_note(tmp_path: Path) -> None:
    log = SandboxLog(tmp_path / "log")
    writing = os.dup(log.writing)
    log.start()
    os.write(writing, b"one\n2026-01-01 check program=pytest status=passed\nunfinished")
    log.note("a note\n")
    os.write(writing, b"more\n")
    assert log.tail() == "more"
    os.close(writing)
    log.close()
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines() == [
        "| one",
        "| 2026-01-01 check program=pytest status=passed",
        "| unfinished",
        "a note",
        "| more",
    ]
    assert log.tail() == "more", "what was read is there after the end"


@pytest.mark.e2e
async def test_a_flood_of_output_does_not_fill_the_disk_and_the_tail_is_kept(
    tmp_path: Path,
) -> None:
    log = SandboxLog(tmp_path / "log")
    writing = os.dup(log.writing)
    log.start()
    line = b"x" * 999 + b"\n"

    def flood() -> None:
        for _ in range(8000):
            os.write(writing, line)
        os.write(writing, b"the end\n")
        os.close(writing)

    flooding = asyncio.ensure_future(asyncio.to_thread(flood))
    async with asyncio.timeout(60):
        await flooding
        while not log.tail().endswith("the end"):
            await asyncio.sleep(0.01)
    log.note("a note\n")
    log.close()
    text = (tmp_path / "log").read_bytes()
    assert 4_000_000 < len(text) < 4_100_000
    assert text.splitlines()[-2:] == [b"| ... the log keeps 4000000 bytes of output", b"a note"]


async def test_a_full_disk_does_not_end_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    log = SandboxLog(tmp_path / "log")
    os.write(log.writing, b"why it ended\n")
    log.start()
    assert log.tail() == "why it ended"
    log.note("a note\n")
    log.close()


@pytest.mark.parametrize("path", [None, "log"])
async def test_the_tail_is_kept_without_a_file(tmp_path: Path, path: str | None) -> None:
    log = SandboxLog(tmp_path / path if path else None)
    os.write(log.writing, b"why it ended\n")
    log.start()
    assert log.tail() == "why it ended"
    log.close()


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_every_line_of_output_is_marked_however_it_is_split(pieces: list[bytes]) -> None:
    async def main() -> bytes:
        log = SandboxLog(None)
        read, write = os.pipe()
        log._file = os.fdopen(write, "wb", buffering=0)
        log.start()
        for piece in pieces:
            log._write_limited(piece)
        log.close()
        with os.fdopen(read, "rb") as file:
            return file.read()

    marked = asyncio.run(main())
    original = b"".join(pieces)
    assert all(line.startswith(b"| ") for line in marked.split(b"\n")[:-1])
    assert marked.replace(b"\n| ", b"\n").removeprefix(b"| ") == original
