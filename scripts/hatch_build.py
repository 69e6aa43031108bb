"""A build hook that generates `moothall.pb` for wheels and editable installs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface[Any]):
    """A hook that generates the package before a wheel is built, also an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run `scripts/protoc.py`. `artifacts` in pyproject.toml adds the files."""
        del version, build_data
        root = Path(self.root)
        runpy.run_path(str(root / "scripts" / "protoc.py"))["generate"](root)
