"""All tools, in the order of prompts. A tool is added by a file that says what it is, and by its line in `_FAMILIES`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from moothall.domain.tool import Grant
from moothall.tools import browser_tools, code_tools, db_tools, docker_tools, web_tools, workspace_tools
from moothall.tools.spec import Danger, ToolSpec

__all__ = ["CATALOGUE", "Danger", "ToolSpec", "describe", "is_granted", "offered"]

_FAMILIES = (workspace_tools.SPECS, code_tools.SPECS, web_tools.SPECS, browser_tools.SPECS, db_tools.SPECS, docker_tools.SPECS)

CATALOGUE: Final[Mapping[str, ToolSpec]] = {spec.name: spec for family in _FAMILIES for spec in family}


def is_granted(grant: Grant, tool: str) -> bool:
    """Whether the grant covers the tool."""
    return any(fnmatchcase(tool, pattern) for pattern in grant.tools)


def offered(
    grant: Grant,
    *,
    core: bool = False,
    without: Collection[str] = (),
    catalogue: Mapping[str, ToolSpec] = CATALOGUE,
) -> tuple[ToolSpec, ...]:
    """Return the tools that a grant covers, in catalogue order, but for those named `without` (a tenant's disabled ones);
    with `core` only the few for a small window.
    """
    return tuple(
        spec
        for spec in catalogue.values()
        if spec.name not in without and is_granted(grant, spec.name) and (spec.core or not core)
    )


def describe(specs: Iterable[ToolSpec]) -> str:
    """Return one line a tool for a prompt; the same specs give the same bytes."""
    return "\n".join(f"{spec.signature}  {spec.summary}" for spec in specs)
