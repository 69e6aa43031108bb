"""The families of tools that run outside workspaces, in the order of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from moothall.config import Settings
from moothall.toolkits.browser.family import BrowserFamily
from moothall.toolkits.db.family import DbFamily
from moothall.toolkits.docker.family import DockerFamily
from moothall.toolkits.family import Family
from moothall.toolkits.mcp.family import McpFamily
from moothall.toolkits.web.family import WebFamily

if TYPE_CHECKING:  # imported only for annotations, as in `family`
    from moothall.tools.spec import ToolSpec

Families = Iterable[Family[Any]]

FAMILIES: Final[tuple[Family[Any], ...]] = (
    WebFamily(),
    BrowserFamily(),
    DbFamily(),
    DockerFamily(),
    McpFamily(),
)


def family_tools(settings: Settings, families: Families = FAMILIES) -> Mapping[str, ToolSpec]:
    """Return all tools of the families, by name."""
    return {spec.name: spec for family in families for spec in family.specs(settings)}


def unset_tools(
    settings: Settings, tenant: str, families: Families = FAMILIES
) -> Mapping[str, str]:
    """Return the tools that a tenant cannot use yet: name → missing setting."""
    return {
        name: missing_setting
        for family in families
        for name, missing_setting in family.missing_settings(settings, tenant).items()
    }
