"""Accounts with passwords for the web page, and their sessions: one SQLite file in the data
directory, which `serve` and `moothall account` share.

Passwords are stored as argon2id hashes and sessions as digests of their ids, so that nobody can
sign in with the contents of the file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from cachetools import TTLCache

from moothall.api.private_database import PrivateDatabase
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import check_id
from moothall.errors import AlreadyExists, InvalidRequest, NotFound

ROLES = ("po", "qa", "architect", "operator")
_MIN_PASSWORD_CHARS, _MAX_PASSWORD_CHARS = 12, 200
_TABLES = """
BEGIN;
CREATE TABLE IF NOT EXISTS person (
    name TEXT PRIMARY KEY, tenant TEXT NOT NULL, roles TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS session (
    id TEXT PRIMARY KEY, name TEXT NOT NULL REFERENCES person ON DELETE CASCADE, ends REAL NOT NULL);
COMMIT;
"""  # noqa: E501 - a line of embedded text


class UserAccounts:
    """The accounts of one file, which is created with the first account. Every method is one
    transaction. All raise `ConfigurationError` if the file cannot be used or other users can read
    it.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time, hasher: PasswordHasher | None = None
    ) -> None:
        self._file = PrivateDatabase(folder / "accounts.db", _TABLES, "accounts")
        self._clock = clock
        self._hasher = hasher or PasswordHasher()

    def add(
        self, name: str, password: str, *, tenant: str = LOCAL.tenant, roles: Sequence[str] = ()
    ) -> None:
        """Add an account. Raises `AlreadyExists`, `InvalidRequest`."""
        if check_id(name, "NAME") == LOCAL.name:
            raise InvalidRequest(
                f"{name} is the owner of this machine's token; choose another name"
            )
        row = (
            name,
            check_id(tenant, "tenant"),
            format_roles(roles),
            self._hasher.hash(_check_password(password)),
        )
        with self._file.writing() as file:
            try:
                file.execute("INSERT INTO person VALUES (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise AlreadyExists(f"the account {name} exists already") from None

    def list(self) -> list[Principal]:
        """Return all accounts, by name."""
        if not self._file.exists():
            return []
        with self._file.reading() as file:
            return [
                principal_of(*row)
                for row in file.execute("SELECT name, tenant, roles FROM person ORDER BY name")
            ]

    def remove(self, name: str) -> None:
        """Remove an account and sign it out everywhere. Raises `NotFound`."""
        with self._file.writing() as file:
            if not file.execute("DELETE FROM person WHERE name = ?", (name,)).rowcount:
                raise NotFound(f"no account {name[:80]!r}")

    def change_password(self, name: str, password: str) -> None:
        """Change an account's password and sign it out everywhere. Raises `NotFound`,
        `InvalidRequest`.
        """
        password_hash = self._hasher.hash(_check_password(password))
        with self._file.writing() as file:
            if not file.execute(
                "UPDATE person SET hash = ? WHERE name = ?", (password_hash, name)
            ).rowcount:
                raise NotFound(f"no account {name[:80]!r}")
            file.execute("DELETE FROM session WHERE name = ?", (name,))

    def sign_in(self, name: str, password: str, seconds: float, max_sessions: int) -> str | None:
        """Return the id of a new session that lasts `seconds`; None if name or password is wrong.
        Unknown names take as long as known ones.

        If there are more than `max_sessions` sessions, those that end first are deleted.
        """
        normalized, row = _normalize(password), None
        if self._file.exists():
            with self._file.reading() as file:
                row = file.execute("SELECT hash FROM person WHERE name = ?", (name,)).fetchone()
        if row is None or len(normalized) > _MAX_PASSWORD_CHARS:
            self._hasher.hash(normalized[:_MAX_PASSWORD_CHARS])
            return None
        try:
            self._hasher.verify(row[0], normalized)
        except VerifyMismatchError:
            return None
        session_id, now = secrets.token_urlsafe(32), self._clock()
        with self._file.writing() as file:
            file.execute("DELETE FROM session WHERE ends <= ?", (now,))
            # The password may have changed since it was verified.
            statement = (
                "INSERT INTO session SELECT ?, name, ? FROM person WHERE name = ? AND hash = ?"
            )
            inserted = file.execute(
                statement, (_digest(session_id), now + seconds, name, row[0])
            ).rowcount
            file.execute(
                "DELETE FROM session WHERE id NOT IN (SELECT id FROM session ORDER BY ends DESC "
                "LIMIT ?)",
                (max_sessions,),
            )
        return session_id if inserted else None

    def find(self, session_id: str) -> Principal | None:
        """Return the account of a session; None if the session is unknown or has ended. Cached
        until the file changes, because event streams check it for every line.
        """
        query = (
            "SELECT ends, name, tenant, roles FROM session JOIN person USING (name) WHERE id = ?"
        )
        row = self._file.find_cached(query, _digest(session_id)) if session_id else None
        return None if row is None or row[0] <= self._clock() else principal_of(*row[1:])

    def sign_out(self, session_id: str) -> None:
        """End a session if it exists."""
        if self._file.exists():
            with self._file.writing() as file:
                file.execute("DELETE FROM session WHERE id = ?", (_digest(session_id),))


class Attempts:
    """Counts of sign-in attempts, whether or not the name exists: by name and address, by address,
    and by name.
    """

    SECONDS = 300
    MOST = (10, 30, 100)
    _KEPT = 30_000

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._counts: TTLCache[tuple[str, str], int] = TTLCache(self._KEPT, self.SECONDS, clock)

    def begin(self, name: str, address: str) -> bool:
        """Count an attempt before its result is known, so that parallel attempts count too. Return
        False, without counting, if there were too many.
        """
        counts = [(key, self._counts.get(key, 0)) for key in self._keys(name, address)]
        if any(count >= limit for (_, count), limit in zip(counts, self.MOST, strict=True)):
            return False
        for key, count in counts:
            self._counts[key] = count + 1
        return True

    def succeed(self, name: str, address: str) -> None:
        """Do not count a successful attempt."""
        for key in self._keys(name, address):
            if (count := self._counts.get(key, 0)) > 1:
                self._counts[key] = count - 1
            else:
                self._counts.pop(key, None)

    @staticmethod
    def _keys(name: str, address: str) -> tuple[tuple[str, str], ...]:
        name_digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return (name_digest, address), ("", address), (name_digest, "")


def form_secret(session_id: str) -> str:
    """Return the secret of a session's forms. It is the same after a restart and does not reveal
    the id.
    """
    return hmac.digest(session_id.encode(), b"form", "sha256").hex()


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()


def format_roles(roles: Sequence[str]) -> str:
    """Return roles as the text that is stored. Raises `InvalidRequest` for unknown ones."""
    if unknown := set(roles) - set(ROLES):
        raise InvalidRequest(
            f"unknown role {', '.join(sorted(unknown))}; the roles are {', '.join(ROLES)}"
        )
    return ",".join(sorted(set(roles)))


def principal_of(name: str, tenant: str, roles: str) -> Principal:
    """Return the principal of a stored account or token, with roles from `format_roles`."""
    names = set(roles.split(",")) - {""}
    return Principal(name, tenant, "operator" in names, frozenset(names - {"operator"}))


def _normalize(password: str) -> str:
    """Return a password in a normal form, independent of how a system composes characters."""
    return unicodedata.normalize("NFKC", password.encode("utf-8", "replace").decode())


def _check_password(password: str) -> str:
    if not _MIN_PASSWORD_CHARS <= len(normalized := _normalize(password)) <= _MAX_PASSWORD_CHARS:
        raise InvalidRequest(
            f"the password has {len(normalized)} characters; allowed are {_MIN_PASSWORD_CHARS} "
            f"to {_MAX_PASSWORD_CHARS}"
        )
    return normalized
