"""The archive of a backup: a tar file with the files of a data directory and snapshots."""

from __future__ import annotations

import os
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from moothall.errors import ConfigurationError

_SECRETS = ("guard.key", "token")
_DATABASES = ("accounts.db", "tokens.db")
_FOLDERS = ("acp", "repositories", "evaluations", "mcp", "wasm")
_ALLOWED_IN_EMPTY = frozenset({"lock", "logs"})
_CHUNK_BYTES = 128 * 1024
_LINE_BYTES = 1 << 20


@contextmanager
def new_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a new archive for its owner only, since it holds keys and tokens. It appears at `path`
    when the block ends without an error. Raises `ConfigurationError`.
    """
    partial = path.with_name(f"{path.name}.partial")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        if path.exists():
            raise ConfigurationError(f"{path} exists already; name a new file")
        with os.fdopen(os.open(partial, flags, 0o600), "w+b") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                yield tar
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an existing archive. Raises `ConfigurationError`."""
    try:
        tar = tarfile.open(path, "r:")  # noqa: SIM115 - the block below closes it
    except (OSError, tarfile.TarError) as error:
        raise ConfigurationError(f"{path} cannot be read as a backup: {error}") from error
    with tar:
        yield tar


def check_empty(data_dir: Path) -> None:
    """Raise `ConfigurationError` if a data directory has content."""
    if found := sorted({entry.name for entry in data_dir.iterdir()} - _ALLOWED_IN_EMPTY):
        raise ConfigurationError(
            f"{data_dir} is not empty (it has {', '.join(found[:5])}): set MOOTHALL_DATA_DIR to an "
            "empty folder, or empty this one"
        )


def add_files(tar: tarfile.TarFile, data_dir: Path, spool: Path) -> int:
    """Add the files of a data directory, and return the number of clones. Everything else in it is
    recreated when needed.
    """
    for name in _SECRETS:
        if (data_dir / name).exists():
            tar.add(data_dir / name, f"files/{name}")
    for name in _DATABASES:
        if (data_dir / name).exists():
            _add_database(tar, data_dir / name, spool)
    for name in _FOLDERS:
        for path in _files_below(data_dir / name):
            _add_file(tar, data_dir, path)
    _add_audit(tar, data_dir)
    clones = sorted((data_dir / "repos").glob("*.git"))
    for clone in clones:
        _add_clone(tar, data_dir, clone)
    return len(clones)


def _add_audit(tar: tarfile.TarFile, data_dir: Path) -> None:
    """Add the chains of the audit. The heads come first, so that none points beyond the end of its
    chain.
    """
    paths = sorted(_files_below(data_dir / "audit"), key=lambda path: path.suffix != ".head")
    for path in paths:
        _add_file(tar, data_dir, path, whole_lines=path.suffix == ".jsonl")


def _add_clone(tar: tarfile.TarFile, data_dir: Path, clone: Path) -> None:
    """Add a clone, references first. Objects are never removed, so a list of objects that is read
    later contains all that the references need.
    """
    objects = clone / "objects"
    for path in _files_below(clone):
        if objects not in path.parents and path.suffix != ".lock":
            _add_file(tar, data_dir, path)
    for path in _files_below(objects):
        if not path.name.startswith("tmp_"):
            _add_file(tar, data_dir, path)


def _files_below(folder: Path) -> Sequence[Path]:
    """Return the current files of a folder and its subfolders, without symbolic links."""
    paths = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _add_file(
    tar: tarfile.TarFile, data_dir: Path, path: Path, *, whole_lines: bool = False
) -> None:
    """Add a file with its current length, or up to its last whole line. Skip a removed file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        member = tar.gettarinfo(arcname=f"files/{path.relative_to(data_dir)}", fileobj=file)
        member.type, member.linkname = tarfile.REGTYPE, ""  # hard links are separate files here
        member.size = os.fstat(file.fileno()).st_size
        if whole_lines:
            member.size = _end_of_last_line(file, member.size)
        file.seek(0)
        tar.addfile(member, file)


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    start = max(size - _LINE_BYTES, 0)
    file.seek(start)
    return start + file.read(size - start).rfind(b"\n") + 1


def _add_database(tar: tarfile.TarFile, path: Path, spool: Path) -> None:
    """Add a consistent copy of an SQLite file that others may be changing."""
    with tempfile.TemporaryDirectory(dir=spool) as folder:
        copy = Path(folder) / path.name
        copy.touch(mode=0o600)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        tar.add(copy, f"files/{path.name}")


def add_content(tar: tarfile.TarFile, name: str, content: BinaryIO) -> None:
    """Add a file with this content."""
    member = tarfile.TarInfo(name)
    member.mode = 0o600
    member.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    tar.addfile(member, content)


def extract_files(tar: tarfile.TarFile, data_dir: Path) -> None:
    """Restore the files of a data directory."""
    for member in tar.getmembers():
        if member.isfile() and member.name.startswith("files/"):
            name = member.name.removeprefix("files/")
            tar.extract(member.replace(name=name, deep=False), data_dir, filter="data")


def read_chunks(tar: tarfile.TarFile, stream: str) -> Iterator[bytes]:
    """Yield the snapshot of a stream."""
    file = cast("BinaryIO", tar.extractfile(f"streams/{stream}"))
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
