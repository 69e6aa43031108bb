"""`--hidden-tests`: files and folders of tests that no seat sees, laid over the repository."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from moothall.errors import InvalidRequest

_SKIPPED = frozenset({".git", "__pycache__", "node_modules", ".pytest_cache"})
_MOST_FILES, _MOST_BYTES = 500, 3_000_000


def read_hidden_tests(arguments: Sequence[str], top: Path | None) -> dict[str, str]:
    """Return tests by their path in the repository.

    arguments: `PATH` or `PATH:DEST`. A folder mirrors the repository's tree, below DEST if that is
    given. A file keeps its path below `top`, the work tree on this machine, unless DEST names
    another
    one; a DEST that ends with a slash is a folder. Raises `InvalidRequest`.
    """
    tests: dict[str, str] = {}
    left = _MOST_BYTES
    for argument in arguments:
        empty = True
        for path, place in _files(argument, top):
            content = _read(path, left)
            left -= len(content)
            if left < 0 or len(tests) == _MOST_FILES:
                raise InvalidRequest(
                    f"--hidden-tests {argument}: more than {_MOST_FILES} files or {_MOST_BYTES:,} "
                    "bytes. Name the folder or the files that hold tests"
                )
            tests[place] = _decode(path, content)
            empty = False
        if empty:
            raise InvalidRequest(f"--hidden-tests {argument} has no file; name a folder with tests")
    return tests


def _files(argument: str, top: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the files that an argument names, each with its path in the repository."""
    if ":" in argument and not Path(argument).exists():
        name, _, dest = argument.rpartition(":")
    else:
        name, dest = argument, ""
    path = Path(name)
    if path.is_dir():
        yield from _files_below(path, dest.strip("/"))
    elif not path.is_file():
        raise InvalidRequest(f"--hidden-tests {argument}: there is no file or folder {name!r}")
    elif dest:
        yield path, f"{dest}{path.name}" if dest.endswith("/") else dest
    elif top is None or not path.resolve().is_relative_to(top.resolve()):
        raise InvalidRequest(
            f"--hidden-tests {argument}: the file lies outside the repository; say where it goes "
            f"with {argument}:tests/{path.name}"
        )
    else:
        yield path, path.resolve().relative_to(top.resolve()).as_posix()


def _files_below(path: Path, dest: str) -> Iterator[tuple[Path, str]]:
    """Yield the regular files of a folder without caches, compiled files and links."""
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink() and not name.endswith((".pyc", ".pyo")):
                inner = file.relative_to(path).as_posix()
                yield file, inner if dest in {"", "."} else f"{dest}/{inner}"


def _read(path: Path, limit: int) -> bytes:
    """Return the bytes of a file, at most one more than `limit`."""
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise InvalidRequest(f"--hidden-tests: {path} cannot be read: {error.strerror}") from error


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"--hidden-tests: {path} is not UTF-8 text: {error}") from error
