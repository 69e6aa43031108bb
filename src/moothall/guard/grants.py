"""Which role may use what. The table is `roles.toml` beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from moothall.domain.ids import read_role
from moothall.domain.tool import Grant
from moothall.errors import ConfigurationError


class _Role(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tools: tuple[str, ...]
    protected: tuple[str, ...] = ()


_Table = TypeAdapter(dict[str, _Role])


def read_roles(text: str) -> Mapping[str, Grant]:
    """Return the grant of each role in a TOML table; raises `ConfigurationError`."""
    try:
        table = _Table.validate_python(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigurationError(f"the table of roles is wrong: {error}") from error
    return {name: Grant(tools=role.tools, protected=role.protected) for name, role in table.items()}


@cache
def _shipped() -> Mapping[str, Grant]:
    return read_roles(resources.files(__package__).joinpath("roles.toml").read_text(encoding="utf-8"))


def grant_for(role: str, profile_protected: Sequence[str] = ()) -> Grant:
    """Return what a role's seats may do; raises `InvalidRequest` for an unknown role.

    `profile_protected` (tests and their configuration) may be edited in a workspace, but the judges use them
    as they were on the base: the seat is told so when it writes one.
    """
    known = _shipped().get(read_role(role), Grant(tools=()))
    return Grant(tools=known.tools, protected=known.protected, judged=tuple(profile_protected))
