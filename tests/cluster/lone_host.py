"""Start one host on the Ray cluster at an address, print `ready`, and end with standard input."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from moothall.config import RaySettings
from moothall.workers import ray_fleet


async def host(name: str, ready: Callable[[], None], *, node: str) -> None:
    """Do nothing until cancelled."""
    del name, node
    ready()
    await asyncio.Event().wait()


async def main(address: str) -> None:
    """Host until the input ends."""
    settings = RaySettings(address=address)
    async with ray_fleet.cluster(settings), ray_fleet.hosting(settings, host):
        os.write(1, b"ready\n")  # Ray's driver redirects sys.stdout
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
