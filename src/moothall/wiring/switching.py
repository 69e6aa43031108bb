"""Which tools a tenant has, for a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moothall.config import Settings
from moothall.guard.switches import BUCKET, Switches
from moothall.wiring.log import open_log


@asynccontextmanager
async def switches(settings: Settings) -> AsyncIterator[Switches]:
    """Yield the switches as they stand now: those of the process that serves, or of this data directory."""
    async with open_log(settings, lambda _: None) as bus:
        known = Switches(bus.bucket(BUCKET))
        await known.refresh()
        yield known
