from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import socket
import struct
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from moothall.errors import WorkspaceFailed
from moothall.workspace.archive import Pipe, pack, piped, receive, send, unpack

MOST = 10_000_000


def copy_packed(source: Path, target: Path) -> None:
    packed = io.BytesIO()
    pack(source, packed)
    packed.seek(0)
    target.mkdir()
    unpack(packed, target, max_bytes=MOST)


def list_entries(root: Path) -> dict[str, tuple[str, int]]:
    entries = {}
    for path in sorted(root.rglob("*")):
        kind = (
            f"link {path.readlink()}"
            if path.is_symlink()
            else "folder"
            if path.is_dir()
            else path.read_text()
        )
        entries[str(path.relative_to(root))] = kind, path.lstat().st_mode & 0o777
    return entries


def test_a_tree_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "empty").mkdir(parents=True)
    (tree / "a" / "run.sh").write_text("echo")
    (tree / "a" / "run.sh").chmod(0o755)
    (tree / "a" / "again").hardlink_to(tree / "a" / "run.sh")
    (tree / "python").symlink_to("/usr/bin/python3")
    (tree / os.fsdecode(b"no\xfftext")).write_text("named oddly")
    expected = list_entries(tree)
    os.mkfifo(tree / "pipe")
    copy_packed(tree, tmp_path / "back")
    assert list_entries(tmp_path / "back") == expected


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"evil" if kind == tarfile.REGTYPE else b""


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("a/../../out")],
        [member("//out")],
        [member("link", tarfile.SYMTYPE, ".."), member("link/out")],
        [member("link", tarfile.SYMTYPE, "/"), member("link/tmp/out")],
        [
            member("deep", tarfile.DIRTYPE),
            member("deep/link", tarfile.SYMTYPE, "../.."),
            member("deep/link/out"),
        ],
        [member("out", tarfile.LNKTYPE, "../out")],
        [member("device", tarfile.CHRTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("out\0side")],
    ],
    ids=lambda members: " ".join(entry.name for entry, _ in members).replace("\0", "0"),
)
def test_nothing_is_written_outside_the_folder(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "in").mkdir()
    with contextlib.suppress(WorkspaceFailed):
        unpack(archive_of(*members), tmp_path / "in", max_bytes=MOST)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert not any(
        path.is_fifo() or path.is_block_device() or path.is_char_device()
        for path in tmp_path.rglob("*")
    )


def test_a_link_in_place_of_a_file_is_replaced_instead_of_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "precious").write_text("mine")
    unpack(
        archive_of(member("file", tarfile.SYMTYPE, "../precious"), member("file")),
        tmp_path / "in",
        max_bytes=MOST,
    )
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "in" / "file").read_text() == "evil"


def test_too_many_bytes_and_invalid_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceFailed, match="more than 3 bytes"):
        unpack(archive_of(member("file")), tmp_path, max_bytes=3)
    with pytest.raises(WorkspaceFailed, match="the received tree is invalid"):
        unpack(io.BytesIO(b"x" * 2000), tmp_path, max_bytes=MOST)


def test_a_pipe_reports_the_error_that_ended_its_other_end(tmp_path: Path) -> None:
    pipe = Pipe(lambda source: unpack(source, tmp_path, max_bytes=MOST), reads=True)
    while pipe.write(b"x" * 100_000):
        pass
    with pytest.raises(WorkspaceFailed, match="the received tree is invalid"):
        pipe.finish()


def member_with_headers(name: str, link: str = "", **headers: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member with pax headers, which override the fields of the member itself."""
    info, content = member(name, tarfile.SYMTYPE if link else tarfile.REGTYPE, link)
    info.pax_headers = headers
    return info, content


@pytest.mark.parametrize(
    "invalid_member",
    [
        member_with_headers("link", link="x", linkpath="elsewhere\0"),
        member_with_headers("late", mtime=str((1 << 63) - 1)),
        member_with_headers("never", mtime="nan"),
        member_with_headers("ever", mtime="inf"),
        member_with_headers("less", size="-1000000"),
    ],
    ids=lambda entry: str(entry[0].name),
)
def test_a_tree_with_an_entry_that_cannot_be_written_is_refused(
    tmp_path: Path, invalid_member: tuple[tarfile.TarInfo, bytes]
) -> None:
    pipe = Pipe(lambda source: unpack(source, tmp_path, max_bytes=MOST), reads=True)
    pipe.write(archive_of(member("first"), invalid_member, member("last")).read())
    with pytest.raises(WorkspaceFailed):
        pipe.finish()


def peak_of(packed: io.BytesIO, root: Path, max_bytes: int) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(WorkspaceFailed):
            unpack(packed, root, max_bytes=max_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_large_headers_use_little_memory(tmp_path: Path) -> None:
    packed = archive_of(member_with_headers("file", comment="x" * 20_000_000))
    assert peak_of(packed, tmp_path, max_bytes=1000) < 5_000_000


def test_empty_entries_count_and_use_no_memory(tmp_path: Path) -> None:
    packed = archive_of(*(member(f"folder-{number}/", tarfile.DIRTYPE) for number in range(1500)))
    with pytest.raises(WorkspaceFailed, match="more than 2000000 bytes"):
        unpack(packed, tmp_path, max_bytes=2_000_000)
    packed.seek(0)
    assert peak_of(packed, tmp_path, max_bytes=1_000_000_000) < 500_000


@pytest.mark.parametrize("size", [0, 1, 1 << 18, 5_000_000])
async def test_trees_are_sent_in_pieces_one_after_another(size: int, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)
    for number in range(2):
        tree, back = tmp_path / f"tree{number}", tmp_path / f"back{number}"
        tree.mkdir()
        back.mkdir()
        (tree / "file").write_bytes(os.urandom(size))
        async with (
            piped(functools.partial(unpack, root=back, max_bytes=MOST), reads=True) as out,
            piped(functools.partial(pack, tree), reads=False) as into,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(send(into, ours))
            await receive(out, reader)
        assert (back / "file").read_bytes() == (tree / "file").read_bytes()
    writer.close()
    ours.close()


@pytest.mark.parametrize("cut", [2, 4, 3000])
async def test_a_truncated_tree_is_reported(cut: int, tmp_path: Path) -> None:
    packed = io.BytesIO()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(bytes(9000))
    pack(tmp_path / "tree", packed)
    reader = asyncio.StreamReader()
    reader.feed_data((struct.pack("!I", len(packed.getvalue())) + packed.getvalue())[:cut])
    reader.feed_eof()
    with pytest.raises(WorkspaceFailed, match="was cut off"):
        async with piped(
            functools.partial(unpack, root=tmp_path, max_bytes=MOST), reads=True
        ) as out:
            await receive(out, reader)


def test_a_finished_pipe_never_reads_or_writes_the_files_of_others(
    tmp_path: Path,
) -> None:
    reads, writes = Pipe(lambda end: None, reads=False), Pipe(lambda end: None, reads=True)
    reads.finish()
    writes.finish()
    other_files = [
        (tmp_path / name).open("w+b", buffering=0) for name in "abcd"
    ]  # they reuse the descriptor numbers of the pipe
    for file in other_files:
        file.write(b"another's")
        file.seek(0)
    with pytest.raises(BrokenPipeError):
        reads.read(9)
    assert not writes.write(b"into another's")
    for file in other_files:
        assert file.read() == b"another's"
        file.close()
