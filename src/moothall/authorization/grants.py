"""The grants of roles and personas: operations by role and tool, from `policies/roles.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from moothall.domain.codec import wrong
from moothall.domain.ids import read_role
from moothall.domain.tool import Grant
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.tools.catalogue import CATALOGUE, is_granted
from moothall.tools.spec import Danger, ToolSpec

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
