"""One holder at a time among processes that share a bus: a document that its holder renews, and
that another takes over when nobody does.

Who looks on waits until it has seen the same revision for the whole time by its own clock, and
replaces that revision and no other. The holder counts from before it sent what it renewed with. So
it has stopped to believe that it holds before anybody else can begin to, whatever the clocks say
and however late messages come.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from moothall.concurrency import beside
from moothall.errors import AlreadyExists, MoothallError
from moothall.ports import Bucket
from moothall.telemetry import get_logger

log = get_logger(__name__)

BUCKET = "leases"
_BEATS = 3
"""Renewals in the time after which another takes over."""
_MARGIN = 0.9
"""Of that time the holder uses so much: no two clocks run alike."""

Work = Callable[[], Coroutine[Any, Any, None]]


def _clock() -> float:
    """Seconds that go on while the process, or its machine, stands still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A lease by its name. `lead` does some work while it is held."""

    def __init__(
        self, bucket: Bucket, name: str, seconds: float, *, clock: Callable[[], float] = _clock
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._seconds = seconds
        self._clock = clock
        self._holder = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(8)}"
        self._seen = -1
        self._since = 0.0
        self._until = 0.0
        self._got = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether it is held now: whoever stood still asks again before it does anything."""
        return self._clock() < self._until

    async def step(self) -> None:
        """Renew it, or take it where nobody has it or its holder is gone. Raises
        `BusUnavailable`.
        """
        found, revision = await self._bucket.get_with_revision(self._name)
        if revision != self._seen:
            self._seen, self._since = revision, self._clock()
        holder = found.get("holder") if found else ""
        if holder not in {"", self._holder} and self._clock() - self._since < self._seconds:
            return
        sent = self._clock()
        try:
            await self._bucket.replace(self._name, {"holder": self._holder}, revision)
        except AlreadyExists:
            # another was faster; or this is the echo of one that we sent, and the next step says so
            return
        if not self.held:
            tell = log.info if holder else log.debug  # from one that is gone, or free
            tell("took the lease", name=self._name, holder=self._holder, before=holder)
        self._until = sent + self._seconds * _MARGIN

    async def release(self) -> None:
        """Let another have it at once. What was done under it has ended."""
        if self._until:
            self._until = 0.0
            found, revision = await self._bucket.get_with_revision(self._name)
            if found and found.get("holder") == self._holder:
                await self._bucket.replace(self._name, {"holder": ""}, revision)

    async def lead(self, work: Work) -> None:
        """Do some work, anew each time that the lease is had, and cancelled where it is lost. Until
        cancelled.
        """
        async with self._hold():
            while True:
                await self._is_had()
                async with beside(work(), "leading"):
                    await self._is_lost()
                log.warning("lost the lease", name=self._name, holder=self._holder)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[bool]:
        """Take it for as long as this lasts; yields False where another has it."""
        await self.step()
        async with self._hold():
            yield self.held

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Wait until it is had, and keep it for as long as this lasts."""
        async with self._hold():
            await self._is_had()
            yield

    @asynccontextmanager
    async def _hold(self) -> AsyncIterator[None]:
        try:
            async with beside(self._keep(), f"lease-{self._name}"):
                yield
        finally:
            try:
                async with asyncio.timeout(self._seconds):
                    await self.release()
            except (MoothallError, TimeoutError) as error:
                log.info("the lease runs out by itself", name=self._name, reason=str(error))

    async def _keep(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    await self.step()
            except (MoothallError, TimeoutError) as error:
                log.warning("the lease could not be renewed", name=self._name, reason=str(error))
            if self.held:
                self._got.set()
            await asyncio.sleep(self._seconds / _BEATS)

    async def _is_had(self) -> None:
        while not self.held:
            self._got.clear()
            await self._got.wait()

    async def _is_lost(self) -> None:
        while (left := self._until - self._clock()) > 0:  # noqa: ASYNC110 - time is all that is waited for
            await asyncio.sleep(left)
