"""Who may sign in at the page with a name and a password, and who has: one SQLite file of the data
directory, which `serve` and `moothall account` share.

Passwords are kept as argon2id hashes and sessions as digests of their ids, so whoever reads the
file can sign in as nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import time

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from cachetools import LRUCache, TTLCache

from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import check_id
from moothall.errors import AlreadyExists, ConfigurationError, InvalidRequest, NotFound

ROLES = ("po", "qa", "architect", "operator")
_SHORTEST, _LONGEST = 12, 200
_KEPT = 10_000
_TABLES = """
BEGIN;
CREATE TABLE IF NOT EXISTS person (
    name TEXT PRIMARY KEY, tenant TEXT NOT NULL, roles TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS session (
    id TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES person ON DELETE CASCADE, ends REAL NOT NULL);
COMMIT;
"""  # noqa: E501 - a line of embedded text


class UserAccounts:
    """Those of one file, which is made with the first account. Every method is one transaction; all
    raise `ConfigurationError` where the file cannot be used or others may read it.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time, hasher: PasswordHasher | None = None
    ) -> None:
        self._path = folder / "accounts.db"
        self._clock = clock
        self._seen: tuple[int, bytes] = (0, b"")
        self._found: LRUCache[str, tuple[float, Principal]] = LRUCache(_KEPT)
        self._hasher = hasher or PasswordHasher()

    def add(
        self, name: str, password: str, *, tenant: str = LOCAL.tenant, roles: Sequence[str] = ()
    ) -> None:
        """Add an account. Raises `AlreadyExists`, `InvalidRequest`."""
        if check_id(name, "NAME") == LOCAL.name:
            raise InvalidRequest(
                f"{name} is who has the token of this machine; choose another name"
            )
        if strange := set(roles) - set(ROLES):
            raise InvalidRequest(
                f"unknown role {', '.join(sorted(strange))}; the roles are {', '.join(ROLES)}"
            )
        row = (
            name,
            check_id(tenant, "tenant"),
            ",".join(sorted(set(roles))),
            self._hasher.hash(_check_password(password)),
        )
        with self._writing() as file:
            try:
                file.execute("INSERT INTO person VALUES (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise AlreadyExists(f"there is an account {name} already") from None

    def list(self) -> list[Principal]:
        """Return who has an account, by name."""
        if not self._is_there():
            return []
        with self._open() as file:
            return [
                _principal(*row)
                for row in file.execute("SELECT name, tenant, roles FROM person ORDER BY name")
            ]

    def remove(self, name: str) -> None:
        """Remove an account and sign it out everywhere. Raises `NotFound`."""
        with self._writing() as file:
            if not file.execute("DELETE FROM person WHERE name = ?", (name,)).rowcount:
                raise NotFound(f"no account {name[:80]!r}")

    def change_password(self, name: str, password: str) -> None:
        """Give an account another password and sign it out everywhere. Raises `NotFound`,
        `InvalidRequest`.
        """
        made = self._hasher.hash(_check_password(password))
        with self._writing() as file:
            if not file.execute("UPDATE person SET hash = ? WHERE name = ?", (made, name)).rowcount:
                raise NotFound(f"no account {name[:80]!r}")
            file.execute("DELETE FROM session WHERE name = ?", (name,))

    def sign_in(self, name: str, password: str, seconds: float, most: int) -> str | None:
        """Return the id of a session of so many seconds; None where nobody has this name and
        password. A name that nobody has takes as long.

        Of more than `most` sessions, those that would end first are over.
        """
        given, row = _plain(password), None
        if self._is_there():
            with self._open() as file:
                row = file.execute("SELECT hash FROM person WHERE name = ?", (name,)).fetchone()
        if row is None or len(given) > _LONGEST:
            self._hasher.hash(given[:_LONGEST])
            return None
        try:
            self._hasher.verify(row[0], given)
        except VerifyMismatchError:
            return None
        session_id, now = secrets.token_urlsafe(32), self._clock()
        with self._writing() as file:
            file.execute("DELETE FROM session WHERE ends <= ?", (now,))
            # The password that was right may have been changed meanwhile.
            found = "INSERT INTO session SELECT ?, name, ? FROM person WHERE name = ? AND hash = ?"
            made = file.execute(found, (_digest(session_id), now + seconds, name, row[0])).rowcount
            file.execute(
                "DELETE FROM session WHERE id NOT IN (SELECT id FROM session ORDER BY ends DESC "
                "LIMIT ?)",
                (most,),
            )
        return session_id if made else None

    def find(self, session_id: str) -> Principal | None:
        """Return whose session it is, if it still is one. As long as nobody has written to the file
        it is read once, for who listens asks with every word.
        """
        if not session_id or not self._is_there():
            return None
        if (stamp := self._stamp()) != self._seen:
            self._seen = stamp
            self._found.clear()
        if (found := self._found.get(session_id)) is None:
            with self._open() as file:
                asked = (
                    "SELECT ends, name, tenant, roles FROM session JOIN person USING (name) WHERE "
                    "id = ?"
                )
                row = file.execute(asked, (_digest(session_id),)).fetchone()
            if row is None:
                return None
            found = self._found[session_id] = (row[0], _principal(*row[1:]))
        return found[1] if found[0] > self._clock() else None

    def sign_out(self, session_id: str) -> None:
        """End a session, if it is one."""
        if self._is_there():
            with self._writing() as file:
                file.execute("DELETE FROM session WHERE id = ?", (_digest(session_id),))

    def _stamp(self) -> tuple[int, bytes]:
        """Return what is another after every change: which file it is, and SQLite's own count in it
        (offset 24 of its header).
        """
        try:
            with self._path.open("rb", buffering=0) as file:
                stat, head = os.fstat(file.fileno()), file.read(28)
        except OSError as error:
            raise ConfigurationError(
                f"the accounts {self._path} cannot be used: {error}"
            ) from error
        self._check(stat)
        return stat.st_ino, head[24:]

    def _check(self, stat: os.stat_result) -> None:
        if stat.st_mode & 0o077:
            raise ConfigurationError(
                f"the accounts {self._path} can be read by others; run: chmod 600 {self._path}"
            )

    def _is_there(self) -> bool:
        """Whether anything was ever written: the tables come with the first bytes."""
        try:
            return self._path.stat().st_size > 0
        except FileNotFoundError:
            return False

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError as error:
            raise ConfigurationError(
                f"the accounts {self._path} cannot be used: {error}"
            ) from error
        with self._open() as file:
            file.executescript(_TABLES)
            with file:
                yield file

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._check(self._path.stat())
            with closing(sqlite3.connect(self._path)) as file:
                file.execute("PRAGMA foreign_keys = ON")
                yield file
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the accounts {self._path} cannot be used: {error}"
            ) from error


class Attempts:
    """How often somebody tried to sign in, whether or not there is such a name: by a name from one
    address, by an address, by a name.
    """

    SECONDS = 300
    MOST = (10, 30, 100)
    _KEPT = 30_000

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._tried: TTLCache[tuple[str, str], int] = TTLCache(self._KEPT, self.SECONDS, clock)

    def begin(self, name: str, address: str) -> bool:
        """Count an attempt, before it is known how it ends: many at once are counted too. False:
        there were too many, and this is none.
        """
        counts = [(key, self._tried.get(key, 0)) for key in self._keys(name, address)]
        if any(count >= most for (_, count), most in zip(counts, self.MOST, strict=True)):
            return False
        for key, count in counts:
            self._tried[key] = count + 1
        return True

    def succeed(self, name: str, address: str) -> None:
        """Take an attempt back that was right."""
        for key in self._keys(name, address):
            if (count := self._tried.get(key, 0)) > 1:
                self._tried[key] = count - 1
            else:
                self._tried.pop(key, None)

    @staticmethod
    def _keys(name: str, address: str) -> tuple[tuple[str, str], ...]:
        said = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return (said, address), ("", address), (said, "")


def form_of(session_id: str) -> str:
    """Return the secret that forms of a session carry, which is the same after a restart and does
    not tell the id.
    """
    return hmac.digest(session_id.encode(), b"form", "sha256").hex()


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()


def _principal(name: str, tenant: str, roles: str) -> Principal:
    given = set(roles.split(",")) - {""}
    return Principal(name, tenant, "operator" in given, frozenset(given - {"operator"}))


def _plain(password: str) -> str:
    """The same text for the same keys, however a system composes its characters."""
    return unicodedata.normalize("NFKC", password.encode("utf-8", "replace").decode())


def _check_password(password: str) -> str:
    if not _SHORTEST <= len(given := _plain(password)) <= _LONGEST:
        raise InvalidRequest(
            f"the password has {len(given)} characters; allowed are {_SHORTEST} to {_LONGEST}"
        )
    return given
