"""The family `web`, with the tools `http.*` and `web.*`, and its settings, which are called `http`:
they apply to all network access that a model chooses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from moothall.config import Section, Settings
from moothall.toolkits import Family, OpenedFamily

if TYPE_CHECKING:
    from moothall.tools.spec import ToolSpec


class HttpSettings(Section):
    """Network access of tools: `http.*` and `web.*`. No role has them unless `policies/roles.yaml`
    grants them.
    """

    allow: tuple[str, ...] = Field(
        (),
        description="hosts (name or name:port) and networks that tools may call although their "
        "addresses are not public",
    )
    only_allowed: bool = Field(default=False, description="tools may call only those in `allow`")
    search_url: str | None = Field(None, description="root of a SearXNG server, for web.search")


class WebFamily(Family[HttpSettings]):
    """`http.*` and `web.*`."""

    section = "http"
    kind = HttpSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """See `Family`."""
        from moothall.toolkits.web.spec import SPECS

        del settings
        return SPECS

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """See `Family`."""
        del tenant  # all tenants use one search server
        if self.own_settings(settings).search_url:
            return {}
        return {"web.search": "MOOTHALL_HTTP__SEARCH_URL, the root of a SearXNG server, is not set"}

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """See `Family`."""
        from moothall.toolkits.web.toolkit import WebTools

        yield OpenedFamily(WebTools(self.own_settings(settings)).call)
