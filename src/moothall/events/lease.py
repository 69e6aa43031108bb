"""A lease: at most one holder at a time among processes that share a bus. It is a document that the
holder renews and that another process takes over when it is no longer renewed.

A process that wants the lease waits until it has seen the same revision for the whole lease time by
its own clock, and then replaces exactly that revision. The holder counts the lease time from before
it sent its renewal. So it stops believing that it holds the lease before any other process can take
it, whatever the clocks say and however late messages arrive.
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

from moothall.concurrency import run_in_background
from moothall.errors import AlreadyExists, MoothallError
from moothall.ports import Bucket
from moothall.telemetry import get_logger

log = get_logger(__name__)

BUCKET = "leases"
_RENEWALS_PER_TERM = 3
"""How many times the lease is renewed within its lease time."""
_HOLDER_FRACTION = 0.9
"""The part of the lease time that the holder relies on: no two clocks run at the same rate."""

Work = Callable[[], Coroutine[Any, Any, None]]


def _clock() -> float:
    """Return seconds that also count while the process or its machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """A lease with a name. `lead` runs some work while the lease is held."""

    def __init__(
        self, bucket: Bucket, name: str, seconds: float, *, clock: Callable[[], float] = _clock
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._seconds = seconds
        self._clock = clock
        self._holder = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(8)}"
        self._seen_revision = -1
        self._seen_at = 0.0
        self._held_until = 0.0
        self._acquired = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether the lease is held now. A process that was suspended must check again."""
        return self._clock() < self._held_until

    async def step(self) -> None:
        """Renew the lease, or take it if it is free or its holder is gone. Raises
        `BusUnavailable`.
        """
        document, revision = await self._bucket.get_with_revision(self._name)
        if revision != self._seen_revision:
            self._seen_revision, self._seen_at = revision, self._clock()
        holder = document.get("holder") if document else ""
        if holder not in {"", self._holder} and self._clock() - self._seen_at < self._seconds:
            return
        sent_at = self._clock()
        try:
            await self._bucket.replace(self._name, {"holder": self._holder}, revision)
        except AlreadyExists:
            # another process was faster, or our own write was repeated; the next step shows which
            return
        if not self.held:
            # `info` if it was taken over from a lost holder
            log_at_level = log.info if holder else log.debug
            log_at_level("acquired the lease", name=self._name, holder=self._holder, before=holder)
        self._held_until = sent_at + self._seconds * _HOLDER_FRACTION

    async def release(self) -> None:
        """Free the lease at once. The work that was done under it must have ended."""
        if self._held_until:
            self._held_until = 0.0
            document, revision = await self._bucket.get_with_revision(self._name)
            if document and document.get("holder") == self._holder:
                await self._bucket.replace(self._name, {"holder": ""}, revision)

    async def lead(self, work: Work) -> None:
        """Run `work` each time the lease is acquired, and cancel it when the lease is lost. Runs
        until cancelled.
        """
        async with self._keep_renewed():
            while True:
                await self._wait_until_held()
                async with run_in_background(work(), "leading"):
                    await self._wait_until_expired()
                log.warning("lost the lease", name=self._name, holder=self._holder)

    @asynccontextmanager
    async def try_acquire(self) -> AsyncIterator[bool]:
        """Try to acquire the lease for the duration of the block; yield False if another process
        holds it.
        """
        await self.step()
        async with self._keep_renewed():
            yield self.held

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Wait for the lease, and keep it for the duration of the block."""
        async with self._keep_renewed():
            await self._wait_until_held()
            yield

    @asynccontextmanager
    async def _keep_renewed(self) -> AsyncIterator[None]:
        try:
            async with run_in_background(self._renew_forever(), f"lease-{self._name}"):
                yield
        finally:
            try:
                async with asyncio.timeout(self._seconds):
                    await self.release()
            except (MoothallError, TimeoutError) as error:
                log.info("the lease could not be released", name=self._name, reason=str(error))

    async def _renew_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    await self.step()
            except (MoothallError, TimeoutError) as error:
                log.warning("the lease could not be renewed", name=self._name, reason=str(error))
            if self.held:
                self._acquired.set()
            await asyncio.sleep(self._seconds / _RENEWALS_PER_TERM)

    async def _wait_until_held(self) -> None:
        while not self.held:
            self._acquired.clear()
            await self._acquired.wait()

    async def _wait_until_expired(self) -> None:
        while (seconds := self._held_until - self._clock()) > 0:  # noqa: ASYNC110 - time is all that is waited for
            await asyncio.sleep(seconds)
