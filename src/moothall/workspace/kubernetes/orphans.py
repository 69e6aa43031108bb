"""Jobs whose host is gone. A link ends when it hears nobody; of a Job whose link never ran nobody
would know but us.

Every process that makes Jobs says on the bus that it lives, and hears the others. Each deletes the
Jobs of its server whose host nobody has heard of for long: a name that two of them delete is gone
all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from moothall.errors import MoothallError
from moothall.telemetry import get_logger
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.multiplexer import Transport

log = get_logger(__name__)

PRESENCE = "hosts"
"""Under which name hosts are heard; no Job is called so."""
_BEATS = 6
"""How often a host speaks in the time after which it is taken for gone; half of them may be lost.
"""


class Reconciler:
    """Deletes them, until cancelled. `seconds`: how long nothing was heard of a host that is
    gone.
    """

    def __init__(
        self,
        cluster: Cluster,
        carrier: Transport,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._carrier, self._seconds, self._clock = cluster, carrier, seconds, clock
        self._heard: dict[str, float] = {}
        self._hears_since = self._heard_self = clock()

    async def run(self) -> None:
        """Speak, hear and look, each for itself: who waits for an answer of the cluster lives."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear(), name="hosts of jobs")
            for work, trouble in (
                (self._speak, "other hosts are not told that this one lives"),
                (self.look, "Jobs without a host are not looked for"),
            ):
                group.create_task(self._repeat(work, trouble), name="jobs without a host")

    async def _repeat(self, work: Callable[[], Awaitable[None]], trouble: str) -> None:
        while True:
            try:
                await work()
            except MoothallError as error:
                log.warning(trouble, reason=error.message)
            await asyncio.sleep(self._seconds / _BEATS)

    async def _speak(self) -> None:
        await self._carrier.send(PRESENCE, self._cluster.host.encode())

    async def _hear(self) -> None:
        while True:
            try:
                async with aclosing(self._carrier.hear(PRESENCE)) as messages:
                    async for message in messages:
                        self.heard(message.decode(errors="replace"))
            except MoothallError as error:
                log.warning("other hosts are not heard; trying again", reason=error.message)
            await asyncio.sleep(self._seconds / _BEATS)

    def heard(self, host: str) -> None:
        """Note that a host lives."""
        now = self._clock()
        self._heard[host] = now
        if host == self._cluster.host:
            # Who did not hear itself was deaf: of the others it knows no more than who is just
            # beginning to listen.
            if now - self._heard_self > self._seconds / 2:
                self._hears_since = now
            self._heard_self = now

    async def look(self) -> None:
        """Delete the Jobs that are nobody's by now. Raises `SandboxUnavailable`."""
        found = await self._cluster.hosts()
        now = self._clock()
        self._heard = {host: at for host, at in self._heard.items() if now - at <= self._seconds}
        deaf = now - self._heard_self > self._seconds / 2
        for name, host in found.items():
            if host == self._cluster.host:
                gone = not self._cluster.made(
                    name
                )  # it was removed, and the cluster did not hear of that
            else:
                gone = (
                    not deaf and host not in self._heard and now - self._hears_since > self._seconds
                )
            if gone:
                log.info("a workspace's Job is deleted: its host is gone", job=name, host=host)
                await self._cluster.remove(name)
