"""All settings, with a section for each family of tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import create_model

from moothall.config import Settings, read_settings
from moothall.toolkits.families import FAMILIES, Families


def settings_with(families: Families) -> type[Settings]:
    """Return a settings class with a section for each of these tool families."""
    sections: dict[str, Any] = {family.section: (family.kind, family.kind()) for family in families}
    return create_model("AllSettings", __base__=Settings, __module__=__name__, **sections)


AllSettings = settings_with(FAMILIES)


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Return the effective settings. Raises `ConfigurationError`, which names invalid settings."""
    return read_settings(AllSettings, config, **overrides)
