"""The hosts that work for this data directory now, as they answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from moothall.config import Settings
from moothall.domain.codec import load
from moothall.domain.fleet import FLEET, HostState
from moothall.wiring import lock
from moothall.wiring.bus import Bus, open_bus

_WAIT_SECONDS = 1.0


async def hosts(settings: Settings) -> Sequence[HostState] | None:
    """Return the hosts by name; None where nothing is served. Raises `BusUnavailable`, `ConfigurationError`."""
    address = lock.find(settings.data_dir)
    url = settings.bus.url if address is None else address.bus_url
    if url is None:
        return None
    async with open_bus(settings.bus, url) as bus:
        return await hosts_on(bus)


async def hosts_on(bus: Bus) -> Sequence[HostState]:
    """Return the hosts that answer on a bus, by name. One that stands still does not."""
    async with aclosing(bus.ask_all(FLEET, {"ask": "state"}, _WAIT_SECONDS)) as answers:
        return sorted([load(HostState, said) async for said in answers], key=lambda host: (host.name, host.since))
