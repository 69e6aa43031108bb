"""Access tokens of callers of gRPC and HTTP: created, listed and revoked by `moothall token`, in an
SQLite file of the data directory.

Tokens are random, so a plain digest of them is stored: nobody can call with the contents of the
file.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import time

from moothall.api.identity import Caller
from moothall.api.private_database import PrivateDatabase
from moothall.api.web.user_accounts import format_roles, principal_of
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest, NotFound, Unauthenticated

PREFIX = "moothall_"
"""The beginning of each token, by which secret scanners recognise it."""
MAX_SECONDS = 366 * 86_400.0
_FORGOTTEN_SECONDS = 90 * 86_400.0
"""How long the record of an ended token is stored, so that a refusal can name the reason."""
_TABLES = """
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
            return f"{label} was revoked at {when(self.revoked)}; ask an operator for another one"
        if self.ends <= now:
            return f"{label} expired at {when(self.ends)}; ask an operator for another one"
        return ""


class AccessTokens:
    """The tokens of one file, which is created with the first token; a `TokenSource`. All methods
    raise `ConfigurationError` if the file cannot be used or other users can read it.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time) -> None:
        self._file = PrivateDatabase(folder / "tokens.db", _TABLES, "access tokens")
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
            _digest(token),
            name,
            check_id(tenant, "tenant"),
            format_roles(roles),
            now,
            now + seconds,
        )
        with self._file.writing() as file:
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
        with self._file.writing() as file:
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
        digest = _digest(token)
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


def when(moment: float) -> str:
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


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
