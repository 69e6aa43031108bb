"""The health of the server's parts, checked on request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import moothall
from moothall.domain.status import Condition, Health, Part
from moothall.errors import MoothallError

_DETAIL_CHARS = 500


@dataclass(frozen=True, slots=True)
class Probe:
    """The health check of one part. `check` returns its condition and a detail, and raises a
    `MoothallError` if the part is down. `needed`: nothing works without the part.
    """

    check: Callable[[], Awaitable[tuple[Condition, str]]]
    needed: bool = True


class HealthCheck:
    """The health of all parts. A result is cached for `cache_seconds`; a part that does not answer
    within `patience_seconds` is down.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        *,
        patience_seconds: float = 3.0,
        cache_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probes = probes
        self._patience = patience_seconds
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._started_at = clock()
        self._health: Health | None = None
        self._checked_at = -cache_seconds
        self._lock = asyncio.Lock()

    async def check(self) -> Health:
        """Return the health of all parts."""
        async with self._lock:
            if self._health is None or self._clock() - self._checked_at >= self._cache_seconds:
                parts = await asyncio.gather(
                    *(self._check_part(name, probe) for name, probe in self._probes.items())
                )
                self._health = Health(
                    _combine(parts),
                    tuple(parts),
                    moothall.__version__,
                    int(self._clock() - self._started_at),
                )
                self._checked_at = self._clock()
            return self._health

    async def _check_part(self, name: str, probe: Probe) -> Part:
        try:
            async with asyncio.timeout(self._patience):
                status, detail = await probe.check()
        except MoothallError as error:
            status, detail = Condition.DOWN, f"{error.message} [{error.code}]"
        except TimeoutError:
            status, detail = Condition.DOWN, f"no answer within {self._patience:g} seconds"
        return Part(name, status, detail[:_DETAIL_CHARS], probe.needed)


def _combine(parts: list[Part]) -> Condition:
    if any(part.needed and part.status is Condition.DOWN for part in parts):
        return Condition.DOWN
    return (
        Condition.HEALTHY
        if all(part.status is Condition.HEALTHY for part in parts)
        else Condition.DEGRADED
    )
