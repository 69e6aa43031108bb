"""The grants of roles and personas, from `policies/roles.yaml`, and operators' overrides."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from moothall.domain.codec import wrong
from moothall.domain.ids import check_id, read_role
from moothall.domain.tool import Grant
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.ports import Bucket
from moothall.telemetry import get_logger
from moothall.tools.catalogue import CATALOGUE, is_granted
from moothall.tools.spec import Danger, ToolSpec

# The grants of roles and personas: operations by role and tool, from `policies/roles.yaml`.


ROLES_FILE = "roles.yaml"


class _Entry(BaseModel):
    """Operations by tool pattern, and paths that may not be written (gitignore style)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: Mapping[str, tuple[Danger, ...]]
    protected: tuple[str, ...] = ()


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: Mapping[str, _Entry]
    personas: Mapping[str, _Entry] = {}


@dataclass(frozen=True, slots=True)
class Grants:
    """The table of grants, resolved to the tools of the catalogue. Unlisted tools are not
    granted.
    """

    roles: Mapping[str, Grant]
    personas: Mapping[str, Grant]

    def of(self, role: str, protected: Sequence[str] = (), persona: str = "") -> Grant:
        """Return the grant of a role's seats, narrowed to the persona's. Raises `InvalidRequest`
        for unknown ones.

        `protected` (tests and their configuration) can be edited in a workspace, but candidates are
        judged with these files as they are on the base. The seat is told so when it writes one.
        """
        grant = self.roles.get(read_role(role), Grant(tools=()))
        if persona:
            if persona not in self.personas:
                raise InvalidRequest(
                    f"unknown persona {persona[:40]!r}; there are "
                    f"{', '.join(self.personas) or 'none'}"
                )
            grant = intersection(grant, self.personas[persona])
        return Grant(tools=grant.tools, protected=grant.protected, judged=tuple(protected))


def intersection(grant: Grant, by: Grant) -> Grant:
    """Return what both grants allow: the tools of `grant` that `by` covers too, without the paths
    that either protects.
    """
    tools = tuple(tool for tool in grant.tools if is_granted(by, tool))
    return Grant(tools, tuple(dict.fromkeys((*grant.protected, *by.protected))), grant.judged)


def read_grants(text: str, specs: Iterable[ToolSpec] = CATALOGUE.values()) -> Grants:
    """Return the table in a YAML text. Raises `ConfigurationError` with what is wrong."""
    import yaml

    try:
        table = _Table.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the table of roles is no YAML: {error}") from error
    except ValidationError as error:
        raise ConfigurationError(f"the table of roles is wrong: {wrong(error)}") from error
    known = tuple(specs)
    return Grants(
        {_read_role(name): _read_grant(name, entry, known) for name, entry in table.roles.items()},
        {name: _read_grant(name, entry, known) for name, entry in table.personas.items()},
    )


def _read_role(name: str) -> str:
    try:
        return read_role(name)
    except InvalidRequest as error:
        raise ConfigurationError(f"the table of roles is wrong: {error.message}") from error


def _read_grant(name: str, entry: _Entry, specs: Sequence[ToolSpec]) -> Grant:
    for pattern in entry.tools:
        if not any(fnmatchcase(spec.name, pattern) for spec in specs):
            raise ConfigurationError(
                f"the table of roles is wrong: {name} is granted {pattern!r}, and there is no such "
                "tool"
            )
    tools = tuple(
        spec.name
        for spec in specs
        if any(
            fnmatchcase(spec.name, pattern) and spec.danger in operations
            for pattern, operations in entry.tools.items()
        )
    )
    return Grant(tools, entry.protected)


@cache
def shipped_grants() -> Grants:
    """Return the table that is part of Moothall."""
    return read_grants((policies_folder() / ROLES_FILE).read_text(encoding="utf-8"))


def policies_folder() -> Path:
    """Return the folder of the policies that are part of Moothall: in the installed package, or in
    the source tree.
    """
    packaged = Path(__file__).parents[1] / "policies"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "policies"


def grant_for(role: str, profile_protected: Sequence[str] = ()) -> Grant:
    """Return a role's grant in the table that is part of Moothall."""
    return shipped_grants().of(role, profile_protected)


# Operators' overrides, which every gateway follows without a restart: switched-off tools of a
# tenant, revoked tokens and workspaces.


log = get_logger(__name__)

SWITCHES, REVOKED = "tools", "revoked"
"""The buckets of these overrides."""


class _Overrides:
    """The local copy of a bucket. `refresh` reads it once, `run` follows it, and lookups are
    local.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def refresh(self) -> None:
        """Read the current entries. Raises `BusUnavailable`."""
        for key, document in (await self._bucket.entries()).items():
            self._apply(key, document)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._bucket.follow()) as changes:
            async for key, document in changes:
                self._apply(key, document)

    async def _publish(self, key: str, actor: str, reason: str, **fields: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        document = {**fields, "who": actor, "reason": reason[:500], "time": time}
        await self._bucket.put(key, document)
        self._apply(key, document)

    def _apply(self, key: str, document: Mapping[str, Any]) -> None:
        raise NotImplementedError


class Switches(_Overrides):
    """The tools that are switched off per tenant, from the bucket SWITCHES."""

    def __init__(self, bucket: Bucket, known: Container[str] = CATALOGUE) -> None:
        super().__init__(bucket)
        self._known = known
        self._off: dict[str, frozenset[str]] = {}

    def off(self, tenant: str) -> frozenset[str]:
        """Return the names of the tools that are switched off for a tenant."""
        return self._off.get(tenant, frozenset())

    async def switch(
        self, tenant: str, tool: str, *, enabled: bool, actor: str, reason: str = ""
    ) -> None:
        """Switch a tool on or off for a tenant. Raises `InvalidRequest` for an unknown tool,
        `BusUnavailable`.
        """
        check_id(tenant, "tenant")
        if tool not in self._known:
            raise InvalidRequest(
                f"there is no tool {tool[:60]!r}; `moothall tools list` shows them"
            )
        await self._publish(f"{tenant}.{tool}", actor, reason, enabled=enabled)

    def _apply(self, key: str, document: Mapping[str, Any]) -> None:
        tenant, _, tool = key.partition(".")
        off = self._off.get(tenant, frozenset())
        # Anything but True is off: an unreadable document must not switch a tool on.
        self._off[tenant] = off - {tool} if document.get("enabled") is True else off | {tool}
        log.debug("tool switched", tenant=tenant, tool=tool, enabled=document.get("enabled"))


class Revocations(_Overrides):
    """Revoked tokens and workspaces, from the bucket REVOKED. Its entries outlive every token."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._ids: set[str] = set()

    def any(self, ids: Iterable[str]) -> bool:
        """Return whether one of these ids was revoked."""
        return not self._ids.isdisjoint(ids)

    async def revoke(self, token_or_workspace: str, *, actor: str, reason: str = "") -> None:
        """Revoke a token and its children by its id (`jti`), or all tokens of a workspace.

        Raises `InvalidRequest`, `BusUnavailable`.
        """
        await self._publish(token_or_workspace, actor, reason)

    def _apply(self, key: str, document: Mapping[str, Any]) -> None:
        del document
        self._ids.add(key)
