"""A fake graph with planned answers: rows by question, and the received questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moothall.domain.event import Recorded


class MemoryGraph:
    """A graph with planned answers. Rows belong to a tenant."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        self.requested: list[tuple[str, Mapping[str, Any]]] = []

    def announce(self, question: str, *rows: Mapping[str, Any], tenant: str = "local") -> None:
        """Plan the rows of a question."""
        self.rows[question, tenant] = list(rows)

    async def project(self, records: Sequence[Recorded]) -> None:
        """Ignore the events: a test plans the answers."""
        raise NotImplementedError(f"{len(records)} records for a graph of a test")

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a question, at most `limit`."""
        self.requested.append((question, parameters))
        return self.rows.get((question, str(parameters["tenant"])), [])[: parameters.get("limit")]

    async def position(self) -> int:
        """Return 0."""
        return 0

    async def clear(self) -> None:
        """Forget the rows."""
        self.rows.clear()
