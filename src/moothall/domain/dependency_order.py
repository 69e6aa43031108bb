"""The order in which things that depend on each other may start: the agents of a file, the steps of
a workflow, the tasks of a plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from moothall.errors import InvalidRequest

_MAX_SHOWN_CHARS = 500  # of names in an error


class DependencyOrder:
    """Names in the order in which they may start: a name after those that it needs.

    Raises `InvalidRequest` that names the missing dependency, or the cycle.
    """

    def __init__(
        self,
        needs: Mapping[str, Collection[str]],
        ranks: Mapping[str, Any] | None = None,
        *,
        label: str,
        verb: str = "needs",
    ) -> None:
        """Check the dependencies.

        needs: the names that must finish before each name.
        ranks: by name a value that orders those that are ready, lowest first; without it they come
        as they became ready.
        label, verb: what a name is and what it does to another one, for errors.
        """
        for name, dependencies in needs.items():
            missing = next((need for need in dependencies if need not in needs), None)
            if missing is not None:
                raise InvalidRequest(
                    f"{label} {name[:80]} {verb} {missing[:80]!r}, which does not exist; there are "
                    f"{', '.join(sorted(needs))[:_MAX_SHOWN_CHARS]}"
                )
        self._sorter = TopologicalSorter(needs)
        try:
            self._sorter.prepare()
        except CycleError as error:
            cycle = " → ".join(reversed(error.args[1]))[:_MAX_SHOWN_CHARS]
            raise InvalidRequest(f"these {label}s depend on each other: {cycle}") from error
        self._ranks = ranks or {}
        self._pushed = 0
        self._ready: list[tuple[Any, int, str]] = []

    def next(self) -> str | None:
        """Return the first name that is ready, each once. Return None if all ready names were
        returned.
        """
        for name in self._sorter.get_ready():
            heapq.heappush(self._ready, (self._ranks.get(name, 0), self._pushed, name))
            self._pushed += 1
        return heapq.heappop(self._ready)[2] if self._ready else None

    def finish(self, name: str) -> None:
        """Mark a name as finished, which may make others ready."""
        self._sorter.done(name)

    def __iter__(self) -> Iterator[str]:
        """Yield all names, finishing each before the next."""
        while (name := self.next()) is not None:
            yield name
            self.finish(name)
