"""The family `web`, whose settings are called `http`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moothall.config import Settings
from moothall.toolkits.family import Family, OpenedFamily
from moothall.toolkits.web.settings import HttpSettings

if TYPE_CHECKING:  # as in `toolkits.family`
    from moothall.tools.spec import ToolSpec


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
        del tenant  # one search server is all tenants'
        if self.own(settings).search_url:
            return {}
        return {"web.search": "MOOTHALL_HTTP__SEARCH_URL, the root of a SearXNG server, is not set"}

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """See `Family`."""
        from moothall.toolkits.web.toolkit import WebTools

        yield OpenedFamily(WebTools(self.own(settings)).call)
