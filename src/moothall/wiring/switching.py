"""What operators say of tools, for a command: which a tenant has, and which parked requests may run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from moothall.config import Settings
from moothall.guard.switches import BUCKET, Switches
from moothall.wiring.bus import open_log

if TYPE_CHECKING:  # most commands wait for neither
    from moothall.guard.parking import Parking


@asynccontextmanager
async def switches(settings: Settings) -> AsyncIterator[Switches]:
    """Yield the switches as they stand now: those of the process that serves, or of this data directory."""
    from moothall.wiring.rules import catalogue_of

    async with open_log(settings, lambda _: None) as bus:
        known = Switches(bus.bucket(BUCKET), await asyncio.to_thread(catalogue_of, settings))
        await known.refresh()
        yield known


@asynccontextmanager
async def parking(settings: Settings) -> AsyncIterator[Parking]:
    """Yield what waits for an operator now."""
    from moothall.wiring.rules import guard_key, parking_of

    key = await asyncio.to_thread(guard_key, settings)
    async with open_log(settings, lambda _: None) as bus:
        known = parking_of(settings, bus, key)
        await known.refresh()
        yield known
