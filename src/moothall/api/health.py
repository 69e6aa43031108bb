"""How the server's parts stand, asked when somebody asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import moothall
from moothall.domain.status import Condition, Health, Part
from moothall.errors import MoothallError

_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Probe:
    """How one part is looked at. `look` returns its condition and a detail; it raises a
    `MoothallError` where the part is down.
    `needed`: nothing works without it.
    """

    look: Callable[[], Awaitable[tuple[Condition, str]]]
    needed: bool = True


class HealthCheck:
    """Asks every part how it is. An answer stands for `keep_seconds`, so that whoever asks often
    costs nothing; a part that does not answer within `patience_seconds` is down.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        *,
        patience_seconds: float = 3.0,
        keep_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probes = probes
        self._patience = patience_seconds
        self._keep = keep_seconds
        self._clock = clock
        self._since = clock()
        self._found: Health | None = None
        self._at = -keep_seconds
        self._looking = asyncio.Lock()

    async def look(self) -> Health:
        """Return how all parts stand."""
        async with self._looking:
            if self._found is None or self._clock() - self._at >= self._keep:
                parts = await asyncio.gather(
                    *(self._part(name, probe) for name, probe in self._probes.items())
                )
                self._found = Health(
                    _together(parts),
                    tuple(parts),
                    moothall.__version__,
                    int(self._clock() - self._since),
                )
                self._at = self._clock()
            return self._found

    async def _part(self, name: str, probe: Probe) -> Part:
        try:
            async with asyncio.timeout(self._patience):
                status, detail = await probe.look()
        except MoothallError as error:
            status, detail = Condition.DOWN, f"{error.message} [{error.code}]"
        except TimeoutError:
            status, detail = Condition.DOWN, f"no answer within {self._patience:g} seconds"
        return Part(name, status, detail[:_DETAIL], probe.needed)


def _together(parts: list[Part]) -> Condition:
    if any(part.needed and part.status is Condition.DOWN for part in parts):
        return Condition.DOWN
    return (
        Condition.HEALTHY
        if all(part.status is Condition.HEALTHY for part in parts)
        else Condition.DEGRADED
    )
