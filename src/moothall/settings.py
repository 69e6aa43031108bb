"""All settings, with a section for each family of tools that run outside workspaces; and these
families, in the order of prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, create_model

from moothall.config import Settings, read_settings
from moothall.toolkits import Family
from moothall.toolkits.browser import BrowserFamily
from moothall.toolkits.db import DbFamily
from moothall.toolkits.docker import DockerFamily
from moothall.toolkits.mcp import McpFamily
from moothall.toolkits.web import WebFamily

if TYPE_CHECKING:  # `moothall config` needs only the settings
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


def settings_with(families: Families) -> type[Settings]:
    """Return a settings class with a section for each of these tool families."""
    sections: dict[str, Any] = {
        family.section: (family.kind, Field(default_factory=family.kind)) for family in families
    }
    return create_model("AllSettings", __base__=Settings, __module__=__name__, **sections)


AllSettings = settings_with(FAMILIES)


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Return the effective settings. Raises `ConfigurationError`, which names invalid settings."""
    return read_settings(AllSettings, config, **overrides)
