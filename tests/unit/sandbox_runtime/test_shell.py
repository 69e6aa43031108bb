"""Output of a shell command: shown in part, and stored completely."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.sandbox_runtime.shell import HEAD_BYTES, TAIL_BYTES, Output

LINES = [f"line {number}\n" for number in range(10_000)]
WHOLE = "".join(LINES).encode()


def print_through(
    path: Path, data: bytes, *, piece: int = 4096, max_bytes: int = 10_000_000
) -> str:
    output = Output(str(path), max_bytes)
    for start in range(0, len(data), piece):
        output.add(data[start : start + piece])
    visible = output.bytes()
    output.close()
    return visible.decode()


def test_short_output_is_shown_unchanged_without_a_file(tmp_path: Path) -> None:
    short = "x" * (HEAD_BYTES + TAIL_BYTES)
    assert print_through(tmp_path / "out", short.encode()) == short
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("piece", [1, 7, 4096, len(WHOLE)])
def test_long_output_shows_whole_lines_of_head_and_tail_and_names_the_file(
    tmp_path: Path, piece: int
) -> None:
    visible = print_through(tmp_path / "out", WHOLE, piece=piece)
    assert (tmp_path / "out").read_bytes() == WHOLE
    head, note, tail = visible.partition("[… ")[0], *visible.partition("[… ")[2].split("\n", 1)
    assert WHOLE.decode().startswith(head)
    assert WHOLE.decode().endswith(tail)
    assert (head.endswith("\n"), tail.startswith("line "), tail.splitlines()[-1]) == (
        True,
        True,
        "line 9999",
    )
    hidden = len(LINES) - head.count("\n") - tail.count("\n")
    assert note == (
        f"{hidden} lines, {len(WHOLE) - len(head) - len(tail)} bytes are not shown: all of it is "
        f"in {tmp_path}/out …]"
    )
    assert len(visible) < HEAD_BYTES + TAIL_BYTES + 200


def test_output_without_line_endings_is_cut_anywhere(tmp_path: Path) -> None:
    visible = print_through(tmp_path / "out", b"a" * 30_000 + b"z" * 30_000)
    assert (visible.count("a") >= HEAD_BYTES, visible.count("z") >= TAIL_BYTES) == (True, True)


def test_the_file_is_bounded_and_the_note_mentions_it(tmp_path: Path) -> None:
    visible = print_through(tmp_path / "out", WHOLE, max_bytes=50_000)
    assert (tmp_path / "out").read_bytes() == WHOLE[:50_000]
    assert f"the first 50000 bytes of the output are in {tmp_path}/out" in visible


def test_a_link_in_place_of_the_output_file_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "out").symlink_to(tmp_path / "secret")
    visible = print_through(tmp_path / "out", WHOLE)
    assert (tmp_path / "secret").read_text() == "kept"
    assert "there was no room for it in /tmp" in visible
