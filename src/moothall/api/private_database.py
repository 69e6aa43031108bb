"""SQLite files in the data directory that only their owner can read. `serve` and commands share
them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from moothall.errors import ConfigurationError

_MAX_CACHED = 10_000


class PrivateDatabase:
    """One file, which is created with the first change. `tables` is the script that creates its
    tables; `what` names its content in errors.

    All methods raise `ConfigurationError` if the file cannot be used or other users can read it.
    """

    def __init__(self, path: Path, tables: str, what: str) -> None:
        self._path, self._tables, self._what = path, tables, what
        self._stamp: tuple[int, bytes] = (0, b"")
        self._cache: LRUCache[tuple[str, str], tuple[Any, ...] | None] = LRUCache(_MAX_CACHED)

    def exists(self) -> bool:
        """Return whether the file has content; the tables are created with the first bytes."""
        try:
            return self._path.stat().st_size > 0
        except FileNotFoundError:
            return False

    def find_cached(self, query: str, key: str) -> tuple[Any, ...] | None:
        """Return the first row of a query with one parameter; None if there is no row or no file.
        Cached until the file changes.
        """
        if not self.exists():
            return None
        if (stamp := self._read_stamp()) != self._stamp:
            self._stamp = stamp
            self._cache.clear()
        if (query, key) not in self._cache:
            with self.reading() as file:
                self._cache[query, key] = file.execute(query, (key,)).fetchone()
        return self._cache[query, key]

    def _read_stamp(self) -> tuple[int, bytes]:
        """Return a value that differs after every change: the inode, and SQLite's change counter
        (offset 24 of the header).
        """
        try:
            with self._path.open("rb", buffering=0) as file:
                stat, head = os.fstat(file.fileno()), file.read(28)
        except OSError as error:
            raise self._unusable(error) from error
        self._check(stat)
        return stat.st_ino, head[24:]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the existing file."""
        try:
            self._check(self._path.stat())
            with closing(sqlite3.connect(self._path)) as file:
                file.execute("PRAGMA foreign_keys = ON")
                yield file
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, and create it if necessary."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError as error:
            raise self._unusable(error) from error
        with self.reading() as file:
            file.executescript(self._tables)
            with file:
                yield file

    def _check(self, stat: os.stat_result) -> None:
        if stat.st_mode & 0o077:
            raise ConfigurationError(
                f"the {self._what} {self._path} can be read by others; run: chmod 600 {self._path}"
            )

    def _unusable(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(f"the {self._what} {self._path} cannot be used: {error}")
