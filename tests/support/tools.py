"""All shipped tools, as on a server with default settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moothall.app.gateway_rules import catalogue_of
from moothall.settings import AllSettings
from moothall.tools.spec import ToolSpec

CATALOGUE: Final[Mapping[str, ToolSpec]] = catalogue_of(AllSettings())
