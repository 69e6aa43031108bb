"""Removal of Jobs whose host is gone. A link ends by itself without messages, but a Job whose link
never started must be deleted.

Each process that creates Jobs publishes beats on the bus and receives those of others. Each deletes
the Jobs of its server whose host has sent no beat for long. Several processes may delete the same
Job.
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
"""The name of the topic of beats; no Job has that name."""
_BEATS = 6
"""How many beats a host sends in the time after which it counts as gone; half of them may be lost.
"""


class Reconciler:
    """A task that deletes orphaned Jobs. `seconds` is the time without a beat after which a host
    counts as gone.
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
        self._last_beats: dict[str, float] = {}
        self._listening_since = self._last_own_beat = clock()

    async def run(self) -> None:
        """Send beats, receive beats and delete orphans, independently of each other, so that a slow
        cluster does not delay beats.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._receive_beats(), name="hosts of jobs")
            for action, failure_message in (
                (self._send_beat, "the beat of this host could not be sent"),
                (self.delete_orphans, "orphaned Jobs could not be deleted"),
            ):
                group.create_task(self._repeat(action, failure_message), name="jobs without a host")

    async def _repeat(self, action: Callable[[], Awaitable[None]], failure_message: str) -> None:
        while True:
            try:
                await action()
            except MoothallError as error:
                log.warning(failure_message, reason=error.message)
            await asyncio.sleep(self._seconds / _BEATS)

    async def _send_beat(self) -> None:
        await self._carrier.send(PRESENCE, self._cluster.host.encode())

    async def _receive_beats(self) -> None:
        while True:
            try:
                async with aclosing(self._carrier.listen(PRESENCE)) as messages:
                    async for message in messages:
                        self.record_beat(message.decode(errors="replace"))
            except MoothallError as error:
                log.warning(
                    "beats of other hosts cannot be received; trying again", reason=error.message
                )
            await asyncio.sleep(self._seconds / _BEATS)

    def record_beat(self, host: str) -> None:
        """Record the beat of a host."""
        now = self._clock()
        self._last_beats[host] = now
        if host == self._cluster.host:
            # A process that missed its own beats missed those of others too, so it knows no more
            # than one that just started.
            if now - self._last_own_beat > self._seconds / 2:
                self._listening_since = now
            self._last_own_beat = now

    async def delete_orphans(self) -> None:
        """Delete the Jobs whose host is gone. Raises `SandboxUnavailable`."""
        hosts = await self._cluster.hosts()
        now = self._clock()
        self._last_beats = {
            host: last_beat
            for host, last_beat in self._last_beats.items()
            if now - last_beat <= self._seconds
        }
        misses_beats = now - self._last_own_beat > self._seconds / 2
        for name, host in hosts.items():
            if host == self._cluster.host:
                # It was removed, but the cluster missed the deletion.
                is_orphan = not self._cluster.created_here(name)
            else:
                is_orphan = (
                    not misses_beats
                    and host not in self._last_beats
                    and now - self._listening_since > self._seconds
                )
            if is_orphan:
                log.info("a workspace's Job is deleted: its host is gone", job=name, host=host)
                await self._cluster.remove(name)
