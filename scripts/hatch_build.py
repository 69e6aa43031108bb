"""Build hook: wheels and editable installs get `moothall.pb`, generated on the spot."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoBuildHook(BuildHookInterface[Any]):
    """Generates before a wheel (also an editable one) is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run `scripts/protoc.py`. The files enter by `artifacts` in pyproject.toml."""
        del version, build_data
        root = Path(self.root)
        runpy.run_path(str(root / "scripts" / "protoc.py"))["generate"](root)
