"""Cases that further runs on an unchanged base confirmed as failing, shared by the deliberations of
a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from moothall.deliberation.judging.hidden import is_hidden
from moothall.domain.repository import Prepared

_VALID_SECONDS = 600.0
"""A test may begin to pass by itself later, with the date or the load of the machine."""
_MAX_CASES = 10_000


@dataclass(slots=True)
class BaseFailures:
    """Failures that were confirmed in the last ten minutes, by base, bounds, check and case.

    Hidden tests are left out: other deliberations have others under the same names.

    clock: returns seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _confirmed_at: dict[tuple[object, ...], float] = field(default_factory=dict)

    def find(self, prepared: Prepared, check: str, cases: Collection[str]) -> frozenset[str]:
        """Return the cases whose failure is confirmed."""
        since = self.clock() - _VALID_SECONDS
        return frozenset(
            case
            for case in cases
            if self._confirmed_at.get(_key(prepared, check, case), since) > since
        )

    def add(self, prepared: Prepared, check: str, cases: Collection[str]) -> None:
        """Store failures that were confirmed now."""
        if is_hidden(check):
            return
        for case in cases:
            key = _key(prepared, check, case)
            self._confirmed_at.pop(key, None)  # so that the oldest one comes first
            self._confirmed_at[key] = self.clock()
        while len(self._confirmed_at) > _MAX_CASES:
            del self._confirmed_at[next(iter(self._confirmed_at))]


def _key(prepared: Prepared, check: str, case: str) -> tuple[object, ...]:
    return prepared.key, prepared.bounds, check, case
