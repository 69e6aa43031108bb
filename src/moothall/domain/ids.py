"""Ids: short, lower-case, safe in file names, branch names and subjects of a bus."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable

from moothall.errors import InvalidRequest

ID_PATTERN = r"[a-z0-9][a-z0-9-]{0,62}"
_ID = re.compile(ID_PATTERN)
_KEY = re.compile(f"({ID_PATTERN}_)?{ID_PATTERN}")
LOCAL_TENANT = "local"
ROLES = ("dev", "qa", "architect", "devops", "data", "po")


def seed_of(*parts: object) -> int:
    """Return a sampling seed that follows from these: the same on a second run."""
    return int(digest(*map(str, parts))[:7], 16)


def check_id(value: str, what: str) -> str:
    """Return `value` if it is an id; `what` names it in the error."""
    if not is_id(value):
        raise InvalidRequest(
            f"{what} {value[:80]!r} is not an id: lower-case letters, digits and '-', 1 to 63 "
            "characters, beginning with a letter or digit"
        )
    return value


def is_id(value: str) -> bool:
    """Whether it is an id, and not the key of another tenant's."""
    return _ID.fullmatch(value) is not None


def key_of(value: str, tenant: str) -> str:
    """Return what a tenant's id is called in the server, where all tenants' things lie side by
    side:
    in subjects, documents, branches and workspaces. No two ids of two tenants have one key; those
    of the tenant `local` are their own.
    """
    return value if tenant == LOCAL_TENANT else f"{tenant}_{value}"


def tenant_of(key: str) -> str:
    """Return the tenant that a key names; '' for a key of the tenant `local` or any other text."""
    return key.partition("_")[0] if "_" in key and _KEY.fullmatch(key) else ""


def own_id(key: str, tenant: str) -> str:
    """Return what a tenant calls what the server calls `key`, or what begins with a key."""
    return key if tenant == LOCAL_TENANT else key.removeprefix(f"{tenant}_")


def check_key(value: str, what: str) -> str:
    """Return `value` if it is the key of an id; `what` names it in the error."""
    if not _KEY.fullmatch(value):
        raise InvalidRequest(
            f"{what} {value[:160]!r} is neither an id nor TENANT_ID: lower-case letters, digits "
            "and '-' each"
        )
    return value


def read_role(value: str) -> str:
    """Return the lower-case role; roles are read in any case."""
    role = value.strip().lower()
    if role not in ROLES:
        raise InvalidRequest(f"unknown role {value[:40]!r}; the roles are {', '.join(ROLES)}")
    return role


def new_task_id() -> str:
    """Return a fresh id for a deliberation."""
    return f"task-{secrets.token_hex(6)}"


def seat_named(named: str, seats: Iterable[str]) -> str | None:
    """Return which of the seats is named: whole, by its end or by its number."""
    ends = (f"-{named}", f"-{int(named):03d}" if named.isdecimal() else f"-{named}")
    return next((seat for seat in seats if seat == named or seat.endswith(ends)), None)


def digest(*parts: str | bytes) -> str:
    """Return the sha256 hex digest of the parts, each length-prefixed so that no two lists
    collide.
    """
    pieces: list[bytes] = []
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        pieces += (len(raw).to_bytes(8, "big"), raw)
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def seat_id(role: str, number: int) -> str:
    """Return the stable id of the `number`-th seat (from 1) of a role's council."""
    return f"agent-{role}-{number:03d}"
