"""Where hosts run: in the process of the command, or on Ray."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from moothall.config import Settings
from moothall.errors import ConfigurationError
from moothall.fleet.owner import this_process
from moothall.wiring.bus import Bus


class Hosts(Protocol):
    """The hosts, wherever they run."""

    async def alive(self) -> tuple[int, int]:
        """Return how many hosts answer, and how many there should be."""
        ...


Hosting = Callable[[Bus, str, str], AbstractAsyncContextManager[Hosts]]
"""Starts the hosts, given the bus, its URL and that of the model."""


@asynccontextmanager
async def open_fleet(settings: Settings, *, on_ray: bool) -> AsyncIterator[Hosting]:
    """Start what hosts need and yield what starts the hosts. Raises `ConfigurationError` where Ray is wanted and does not come."""
    from moothall.wiring.host import host_beside, host_main

    if not on_ray:
        from moothall.fleet import in_process

        def here(bus: Bus, bus_url: str, model_url: str) -> AbstractAsyncContextManager[Hosts]:
            main = functools.partial(host_beside, settings=settings, bus=bus, bus_url=bus_url, model_url=model_url)
            return in_process.hosting(settings.ray.hosts, main)

        yield here
        return
    try:  # in a thread, for it takes a second, in which the model begins to load
        ray_fleet: Any = await asyncio.to_thread(importlib.import_module, "moothall.fleet.ray_fleet")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Ray is not installed: pip install 'moothall[fleet]', or set MOOTHALL_RAY__MODE=process"
        ) from error

    def elsewhere(_bus: Bus, bus_url: str, model_url: str) -> AbstractAsyncContextManager[Hosts]:
        main = functools.partial(host_main, house=this_process(), settings=settings, bus_url=bus_url, model_url=model_url)
        hosts: AbstractAsyncContextManager[Hosts] = ray_fleet.hosting(settings.ray, main)
        return hosts

    async with ray_fleet.cluster(settings.ray):
        yield elsewhere
