"""The tools that every workspace has, in the order of prompts. Families beside them are
`moothall.toolkits`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from moothall.domain.tool import Grant
from moothall.tools import code_tools, workspace_tools
from moothall.tools.spec import Danger, ToolSpec

__all__ = ["CATALOGUE", "Danger", "ToolSpec", "describe", "is_granted", "list_tools"]

CATALOGUE: Final[Mapping[str, ToolSpec]] = {
    spec.name: spec for spec in (*workspace_tools.SPECS, *code_tools.SPECS)
}


def is_granted(grant: Grant, tool: str) -> bool:
    """Whether the grant covers the tool."""
    return any(fnmatchcase(tool, pattern) for pattern in grant.tools)


def list_tools(
    grant: Grant,
    *,
    core: bool = False,
    without: Collection[str] = (),
    catalogue: Mapping[str, ToolSpec] = CATALOGUE,
) -> tuple[ToolSpec, ...]:
    """Return the tools that a grant covers, in catalogue order, but for those named `without` (a
    tenant's disabled ones); with `core` only the few for a small window.
    """
    return tuple(
        spec
        for spec in catalogue.values()
        if spec.name not in without and is_granted(grant, spec.name) and (spec.core or not core)
    )


def describe(specs: Iterable[ToolSpec]) -> str:
    """Return one line a tool for a prompt; the same specs give the same bytes."""
    return "\n".join(f"{spec.signature}  {spec.summary}" for spec in specs)
