"""The settings of `browser.run`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from moothall.config import Section


class BrowserSettings(Section):
    """The tool `browser.run`, which goes where `http.allow` and `http.only_allowed` let tools go.
    Granted to no role unless the table says so.
    """

    executable: Path | None = Field(
        None,
        description="a Chromium; unset: the one on PATH, and without one there is no browser.run",
    )
    seconds: float = Field(60.0, gt=0, description="one call, its actions together")
    action_seconds: float = Field(15.0, gt=0, description="one action, and the page that it loads")
    actions: int = Field(20, ge=1, le=50, description="of one call")
    at_once: int = Field(2, ge=1, description="browsers of one process; more calls wait")
    memory_bytes: int = Field(
        1_500_000_000, ge=500_000_000, description="of one browser and its profile"
    )
    processes: int = Field(400, ge=100, description="processes and threads of one browser")
    transfer_bytes: int = Field(
        30_000_000, ge=100_000, description="what one call may load and send"
    )
    text_chars: int = Field(20_000, ge=1000, description="of one action `text`; more is cut")
    screenshot_bytes: int = Field(5_000_000, ge=10_000, le=10_000_000)
