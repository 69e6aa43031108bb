"""Ids and callers. Ids are short, lower-case, and safe in file names, branch names and subjects."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType, overload

from moothall.errors import InvalidRequest

ID_PATTERN = r"[a-z0-9][a-z0-9-]{0,62}"
TaskId = NewType("TaskId", str)
"""The id of a task as the users of its tenant see it, unique in the tenant."""
TaskKey = NewType("TaskKey", str)
"""The key of a task id (`key_of`), unique among the tasks of all tenants."""
_ID = re.compile(ID_PATTERN)
_KEY = re.compile(f"({ID_PATTERN}_)?{ID_PATTERN}")
LOCAL_TENANT = "local"
ROLES = ("dev", "qa", "architect", "devops", "data", "po")


_MAX_SIZES = 512
_SIZES = tuple(size.to_bytes(8, "big") for size in range(_MAX_SIZES))


def seed_of(*parts: object) -> int:
    """Return a sampling seed derived from the parts, the same in each run."""
    return int(digest(*map(str, parts))[:7], 16)


def check_id(value: str, label: str) -> str:
    """Return `value` if it is an id. Raises `InvalidRequest`, which calls the value `label`."""
    if not is_id(value):
        raise InvalidRequest(
            f"{label} {value[:80]!r} is not an id: lower-case letters, digits and '-', 1 to 63 "
            "characters, beginning with a letter or digit"
        )
    return value


def is_id(value: str) -> bool:
    """Return whether a value is an id, not a key of another tenant."""
    return _ID.fullmatch(value) is not None


def check_task_id(value: str, label: str = "task_id") -> TaskId:
    """Return `value` as a task id. Raises what `check_id` raises."""
    return TaskId(check_id(value, label))


@overload
def key_of(value: TaskId, tenant: str) -> TaskKey: ...
@overload
def key_of(value: str, tenant: str) -> str: ...
def key_of(value: str, tenant: str) -> str:
    """Return the key of a tenant's id. Keys are used where the data of all tenants are together: in
    subjects, documents, branches and workspaces. Two ids of different tenants never have the same
    key; ids of the tenant `local` are their own keys.
    """
    return value if tenant == LOCAL_TENANT else f"{tenant}_{value}"


def tenant_of(key: str) -> str:
    """Return the tenant of a key; '' for a key of the tenant `local` or any other text."""
    return key.partition("_")[0] if "_" in key and _KEY.fullmatch(key) else ""


@overload
def own_id(key: TaskKey, tenant: str) -> TaskId: ...
@overload
def own_id(key: str, tenant: str) -> str: ...
def own_id(key: str, tenant: str) -> str:
    """Return a tenant's own id for a key, or for a text that begins with a key."""
    return key if tenant == LOCAL_TENANT else key.removeprefix(f"{tenant}_")


def check_key(value: str, label: str) -> str:
    """Return `value` if it is the key of an id. Raises `InvalidRequest`, which calls the value
    `label`.
    """
    if not _KEY.fullmatch(value):
        raise InvalidRequest(
            f"{label} {value[:160]!r} is neither an id nor TENANT_ID: lower-case letters, digits "
            "and '-' each"
        )
    return value


def check_task_key(value: str, label: str = "task_id") -> TaskKey:
    """Return `value` as the key of a task. Raises what `check_key` raises."""
    return TaskKey(check_key(value, label))


def read_role(value: str) -> str:
    """Return a role in lower case. Raises `InvalidRequest`."""
    role = value.strip().lower()
    if role not in ROLES:
        raise InvalidRequest(f"unknown role {value[:40]!r}; the roles are {', '.join(ROLES)}")
    return role


def derived_task_id(*parts: str) -> TaskId:
    """Return the id of a task that is derived from the parts: the same parts, the same id."""
    return TaskId(f"task-{digest(*parts)[:16]}")


def new_task_id() -> TaskId:
    """Return a new id for a deliberation."""
    return TaskId(f"task-{secrets.token_hex(6)}")


def find_seat(seat_name: str, seats: Iterable[str]) -> str | None:
    """Return the seat with a name, given in full, by its end or by its number; None if there is
    none.
    """
    suffixes = (
        f"-{seat_name}",
        f"-{int(seat_name):03d}" if seat_name.isdecimal() else f"-{seat_name}",
    )
    return next((seat for seat in seats if seat == seat_name or seat.endswith(suffixes)), None)


def digest(*parts: str | bytes) -> str:
    """Return the sha256 hex digest of the parts. Each part is length-prefixed, so that different
    lists never have the same digest.
    """
    pieces: list[bytes] = []
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        size = len(encoded)
        pieces += (_SIZES[size] if size < _MAX_SIZES else size.to_bytes(8, "big"), encoded)
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def seat_id(role: str, number: int) -> str:
    """Return the stable id of the `number`-th seat (from 1) of a role's council."""
    return f"agent-{role}-{number:03d}"


# The authenticated caller. It comes from credentials, never from message fields.


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller and the tenant whose data it may see. An `operator` may approve
    requests; `roles` are its other roles: po, qa, architect.
    """

    name: str
    tenant: str
    operator: bool = False
    roles: frozenset[str] = frozenset()

    @property
    def all_roles(self) -> frozenset[str]:
        """The roles in which the caller may move stories, with `operator` if it is one."""
        return self.roles | {"operator"} if self.operator else self.roles

    @property
    def may_act(self) -> bool:
        """Whether the caller may do more than look at the councils of others."""
        return bool(self.all_roles)


LOCAL = Principal(
    name="local", tenant="local", operator=True, roles=frozenset({"po", "qa", "architect"})
)
