"""The family `browser`, pages in a Chromium of the call's own, and its settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from moothall.config import Section, Settings
from moothall.errors import MoothallError
from moothall.toolkits import Family, OpenedFamily
from moothall.toolkits.web import WebFamily

if TYPE_CHECKING:
    from moothall.domain.status import Finding
    from moothall.tools.spec import ToolSpec

_NOT_FOUND = "no Chromium is on PATH, nor is MOOTHALL_BROWSER__EXECUTABLE set"
_MEND = "apt-get install chromium, or set MOOTHALL_BROWSER__EXECUTABLE"


class BrowserSettings(Section):
    """The tool `browser.run`, which may open the destinations that `http.allow` and
    `http.only_allowed` permit. No role has it unless the table of roles grants it.
    """

    executable: Path | None = Field(
        None,
        description="a Chromium; unset: the one on PATH; without one, browser.run is not offered",
    )


class BrowserFamily(Family[BrowserSettings]):
    """`browser.run`, in a Chromium of the machine. It may open what `http.*` may call."""

    section = "browser"
    kind = BrowserSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """See `Family`."""
        from moothall.toolkits.browser.toolkit import SPECS

        del settings
        return SPECS

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """See `Family`."""
        from moothall.toolkits.browser.chromium import find_chromium

        del tenant  # all tenants use the browser of the machine
        browser = self.own_settings(settings)
        if find_chromium(browser) is not None:
            return {}
        executable = browser.executable
        reason = (
            f"MOOTHALL_BROWSER__EXECUTABLE {executable} is not a file" if executable else _NOT_FOUND
        )
        return {"browser.run": reason}

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """See `Family`."""
        from moothall.toolkits.browser.toolkit import BrowserTools

        yield OpenedFamily(
            BrowserTools(
                self.own_settings(settings), WebFamily().own_settings(settings), settings.sandbox
            ).call
        )

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Start a browser and ask for its version."""
        from moothall.domain.status import Finding
        from moothall.network.destinations import Destinations
        from moothall.toolkits.browser.chromium import chromium, find_chromium

        browser, part = self.own_settings(settings), "tool browser.run"
        if find_chromium(browser) is None and browser.executable is None:
            yield Finding(part, ok=True, detail=f"not offered: no Chromium on PATH ({_MEND})")
            return
        try:
            async with chromium(
                browser, settings.sandbox, Destinations(), 0, lambda _method, _params: None
            ) as running:
                version = await running.tools.call("Browser.getVersion")
        except MoothallError as error:
            yield Finding(part, ok=False, detail=error.message, mend=_MEND)
            return
        sandbox_note = (
            "in the sandbox of a workspace without network but its proxy; its own sandbox is off "
            "in there"
        )
        yield Finding(part, ok=True, detail=f"{version.get('product')}, {sandbox_note}")
