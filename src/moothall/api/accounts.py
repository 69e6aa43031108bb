"""Access tokens of callers, and accounts with passwords for the web page. Both are in SQLite
files in the data directory that only their owner can read.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from cachetools import LRUCache, TTLCache

from moothall.api.identity import Caller
from moothall.domain.ids import LOCAL, Principal, check_id
from moothall.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidRequest,
    NotFound,
    Unauthenticated,
)

# SQLite files in the data directory that only their owner can read. `serve` and commands share
# them.


_MAX_CACHED = 10_000


class PrivateDatabase:
    """One file, which is created with the first change. `tables` is the script that creates its
    tables; `label` names its content in errors.

    All methods raise `ConfigurationError` if the file cannot be used or other users can read it.
    """

    def __init__(self, path: Path, tables: str, label: str) -> None:
        self._path, self._tables, self._label = path, tables, label
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
        self._check_mode(stat)
        return stat.st_ino, head[24:]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the existing file."""
        try:
            self._check_mode(self._path.stat())
            with closing(sqlite3.connect(self._path)) as file:
                file.execute("PRAGMA foreign_keys = ON")
                yield file
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
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

    def _check_mode(self, stat: os.stat_result) -> None:
        if stat.st_mode & 0o077:
            raise ConfigurationError(
                f"the {self._label} {self._path} can be read by others; run: chmod 600 {self._path}"
            )

    def _unusable(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(f"the {self._label} {self._path} cannot be used: {error}")


# Accounts with passwords for the web page, and their sessions: one SQLite file in the data
# directory, which `serve` and `moothall account` share.
#
# Passwords are stored as argon2id hashes and sessions as digests of their ids, so that nobody can
# sign in with the contents of the file.


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
        with self._file.transaction() as file:
            try:
                file.execute("INSERT INTO person VALUES (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise AlreadyExists(f"the account {name} already exists") from None

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
        with self._file.transaction() as file:
            if not file.execute("DELETE FROM person WHERE name = ?", (name,)).rowcount:
                raise NotFound(f"no account {name[:80]!r}")

    def change_password(self, name: str, password: str) -> None:
        """Change an account's password and sign it out everywhere. Raises `NotFound`,
        `InvalidRequest`.
        """
        password_hash = self._hasher.hash(_check_password(password))
        with self._file.transaction() as file:
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
        with self._file.transaction() as file:
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
            with self._file.transaction() as file:
                file.execute("DELETE FROM session WHERE id = ?", (_digest(session_id),))


class Attempts:
    """Counts of sign-in attempts, whether or not the name exists: by name and address, by address,
    and by name.
    """

    SECONDS = 300
    MAX_ATTEMPTS = (10, 30, 100)
    _MAX_COUNTS = 30_000

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._counts: TTLCache[tuple[str, str], int] = TTLCache(
            self._MAX_COUNTS, self.SECONDS, clock
        )

    def begin(self, name: str, address: str) -> bool:
        """Count an attempt before its result is known, so that parallel attempts count too. Return
        False, without counting, if there were too many.
        """
        counts = [(key, self._counts.get(key, 0)) for key in self._keys(name, address)]
        if any(count >= limit for (_, count), limit in zip(counts, self.MAX_ATTEMPTS, strict=True)):
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


# Access tokens of callers of gRPC and HTTP: created, listed and revoked by `moothall token`, in an
# SQLite file of the data directory.
#
# Tokens are random, so a plain digest of them is stored: nobody can call with the contents of the
# file.


PREFIX = "moothall_"
"""The beginning of each token, by which secret scanners recognise it."""
MAX_SECONDS = 366 * 86_400.0
_FORGOTTEN_SECONDS = 90 * 86_400.0
"""How long the record of an ended token is stored, so that a refusal can name the reason."""
_ACCESS_TABLES = """
CREATE TABLE IF NOT EXISTS token (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL, tenant TEXT NOT NULL,
    roles TEXT NOT NULL, created REAL NOT NULL, ends REAL NOT NULL, revoked REAL);
"""
_SELECT = "SELECT id, name, tenant, roles, created, ends, revoked FROM token"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """The record of a token. Times are Unix seconds; `revoked` is None for a token that was not
    revoked.
    """

    id: str
    principal: Principal
    created: float
    ends: float
    revoked: float | None = None

    def refusal(self, now: float) -> str:
        """Return why the token is refused; empty if it is valid."""
        label = f"the token {self.id} of {self.principal.name}"
        if self.revoked is not None:
            revoked_time = format_time(self.revoked)
            return f"{label} was revoked at {revoked_time}; ask an operator for another one"
        if self.ends <= now:
            return f"{label} expired at {format_time(self.ends)}; ask an operator for another one"
        return ""


class AccessTokens:
    """The tokens of one file, which is created with the first token; a `TokenSource`. All methods
    raise `ConfigurationError` if the file cannot be used or other users can read it.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time) -> None:
        self._file = PrivateDatabase(folder / "tokens.db", _ACCESS_TABLES, "access tokens")
        self._clock = clock

    def create(
        self,
        name: str,
        seconds: float,
        *,
        tenant: str = LOCAL.tenant,
        roles: Sequence[str] = (),
    ) -> tuple[str, AccessToken]:
        """Create a token that is valid for `seconds`, and return it with its record. A name may
        have several tokens. Raises `InvalidRequest`.
        """
        if check_id(name, "NAME") == LOCAL.name:
            raise InvalidRequest(
                f"{name} is the owner of this machine's token; choose another name"
            )
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidRequest(
                f"the lifetime of a token must be positive and at most {MAX_SECONDS / 86_400:g} "
                "days"
            )
        now = self._clock()
        token, token_id = PREFIX + secrets.token_urlsafe(32), f"t-{secrets.token_hex(4)}"
        row = (
            token_id,
            _token_digest(token),
            name,
            check_id(tenant, "tenant"),
            format_roles(roles),
            now,
            now + seconds,
        )
        with self._file.transaction() as file:
            file.execute(
                "DELETE FROM token WHERE min(ends, coalesce(revoked, ends)) < ?",
                (now - _FORGOTTEN_SECONDS,),
            )
            file.execute("INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return token, AccessToken(token_id, principal_of(*row[2:5]), now, now + seconds)

    def list(self) -> Sequence[AccessToken]:
        """Return all tokens, including recently ended ones, by name and age."""
        if not self._file.exists():
            return []
        with self._file.reading() as file:
            return [_record(row) for row in file.execute(f"{_SELECT} ORDER BY name, created")]

    def revoke(self, name_or_id: str) -> Sequence[AccessToken]:
        """Revoke a token by its id, or all tokens of a name, and return their records. Raises
        `NotFound`.
        """
        now = self._clock()
        revoked = [
            token
            for token in self.list()
            if name_or_id in {token.id, token.principal.name} and not token.refusal(now)
        ]
        if not revoked:
            raise NotFound(
                f"no valid token has the id or name {name_or_id[:80]!r}; run: moothall token list"
            )
        with self._file.transaction() as file:
            file.executemany(
                "UPDATE token SET revoked = ? WHERE id = ?", [(now, token.id) for token in revoked]
            )
        return revoked

    async def find(self, token: str) -> Caller | None:
        """Return the caller of a token; None if the token is unknown. Raises `Unauthenticated` if
        it has expired or was revoked.
        """
        if not token.startswith(PREFIX):
            return None
        digest = _token_digest(token)
        if (record := self._find(digest)) is None:
            return None
        if refusal := record.refusal(self._clock()):
            raise Unauthenticated(refusal)
        return Caller(record.principal, partial(self._is_valid, digest))

    def _is_valid(self, digest: str) -> bool:
        record = self._find(digest)
        return record is not None and not record.refusal(self._clock())

    def _find(self, digest: str) -> AccessToken | None:
        row = self._file.find_cached(f"{_SELECT} WHERE digest = ?", digest)
        return None if row is None else _record(row)


def format_time(moment: float) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _record(row: Sequence[object]) -> AccessToken:
    token_id, name, tenant, roles, created, ends, revoked = row
    return AccessToken(
        str(token_id),
        principal_of(str(name), str(tenant), str(roles)),
        float(str(created)),
        float(str(ends)),
        None if revoked is None else float(str(revoked)),
    )


def _token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
