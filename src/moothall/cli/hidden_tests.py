"""`--hidden-tests`: files and folders of tests that no seat sees, laid over the repository."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from moothall.errors import InvalidRequest

_LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", ".pytest_cache"})
_MOST_FILES, _MOST_BYTES = 500, 3_000_000


def read_hidden_tests(given: Sequence[str], top: Path | None) -> dict[str, str]:
    """Return tests by their path in the repository, whose files lie in `top` if they are on this machine.

    A folder mirrors the repository's tree. A file lies where it does in `top`, or where `PATH:DEST` says. Raises `InvalidRequest`.
    """
    found: dict[str, str] = {}
    for word in given:
        for path, place in _files(word, top):
            found[place] = _text(path)
            if len(found) > _MOST_FILES or sum(map(len, found.values())) > _MOST_BYTES:
                raise InvalidRequest(f"--hidden-tests {word} has more than {_MOST_FILES} files or {_MOST_BYTES} bytes")
    return found


def _files(word: str, top: Path | None) -> Iterator[tuple[Path, str]]:
    named, _, dest = word.rpartition(":") if ":" in word and not Path(word).exists() else (word, "", "")
    path = Path(named)
    if path.is_dir():
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
            for name in sorted(names):
                file = Path(folder, name)
                if file.is_file() and not file.is_symlink() and not name.endswith((".pyc", ".pyo")):
                    inner = file.relative_to(path).as_posix()
                    yield file, f"{dest.strip('/')}/{inner}" if dest.strip("/.") else inner
        return
    if not path.is_file():
        raise InvalidRequest(f"--hidden-tests {word}: there is no file or folder {str(path)!r}")
    if dest:
        yield path, dest.strip("/")
        return
    if top is None or not path.resolve().is_relative_to(top.resolve()):
        raise InvalidRequest(
            f"--hidden-tests {word}: the file lies outside the repository; say where it goes with {word}:tests/{path.name}"
        )
    yield path, path.resolve().relative_to(top.resolve()).as_posix()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--hidden-tests: {path} cannot be read as UTF-8 text: {error}") from error
