"""The family `browser`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moothall.config import Settings
from moothall.errors import MoothallError
from moothall.toolkits.browser.settings import BrowserSettings
from moothall.toolkits.family import Family, OpenedFamily
from moothall.toolkits.web.family import WebFamily

if TYPE_CHECKING:  # as in `toolkits.family`
    from moothall.domain.status import Finding
    from moothall.tools.spec import ToolSpec


class BrowserFamily(Family[BrowserSettings]):
    """`browser.run`, in a Chromium of the machine. It goes where `http.*` may go."""

    section = "browser"
    kind = BrowserSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """See `Family`."""
        from moothall.toolkits.browser.spec import SPECS

        del settings
        return SPECS

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """See `Family`."""
        from moothall.toolkits.browser.chromium import find_chromium

        del tenant  # the machine has one for all
        own = self.own(settings)
        if find_chromium(own) is not None:
            return {}
        named = own.executable
        lack = f"MOOTHALL_BROWSER__EXECUTABLE {named} is no file" if named else _NONE_FOUND
        return {"browser.run": lack}

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """See `Family`."""
        from moothall.toolkits.browser.toolkit import BrowserTools

        yield OpenedFamily(
            BrowserTools(self.own(settings), WebFamily().own(settings), settings.sandbox).call
        )

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Start it."""
        from moothall.domain.status import Finding
        from moothall.network.destinations import Destinations
        from moothall.toolkits.browser.chromium import chromium, find_chromium

        own, part = self.own(settings), "tool browser.run"
        if find_chromium(own) is None and own.executable is None:
            yield Finding(part, ok=True, detail=f"not offered: no Chromium on PATH ({_MEND})")
            return
        try:
            async with chromium(
                own, settings.sandbox, Destinations(), lambda _method, _told: None
            ) as running:
                version = await running.tools.call("Browser.getVersion")
        except MoothallError as error:
            yield Finding(part, ok=False, detail=error.message, mend=_MEND)
            return
        where = (
            "in the sandbox of a workspace without network but its proxy; its own sandbox is off "
            "in there"
        )
        yield Finding(part, ok=True, detail=f"{version.get('product')}, {where}")


_NONE_FOUND = "no Chromium is on PATH, nor is MOOTHALL_BROWSER__EXECUTABLE set"
_MEND = "apt-get install chromium, or set MOOTHALL_BROWSER__EXECUTABLE"
