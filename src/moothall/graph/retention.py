"""Which deliberations leave a graph that holds so many at most, and the statements that take out what was theirs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Statement = tuple[str, Mapping[str, Any]]

OLDEST = "MATCH (d:Deliberation) WHERE d.decided_at <> '' RETURN d.uid AS uid ORDER BY d.decided_at DESC, d.uid DESC SKIP $keep"
"""Finds the decided ones beyond the newest `keep`. What is under way stays."""

_THEIRS = (
    "-[:ASKED_MODEL]->(n:ModelCall)",
    "-[:HAS_SEAT]->(:Seat)-[:CALLED_MODEL]->(n:ModelCall)",
    "-[:HAS_SEAT]->(:Seat)-[:CALLED_TOOL]->(n:ToolCall)",
    "-[:HAS_SEAT]->(:Seat)-[:GAVE]->(n:Review)",
    "-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(:Proposal)-[:HAS_EVIDENCE]->(n:Evidence)",
    "-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(n:Proposal)",
    "-[:HAS_SEAT]->(n:Seat)",
)
_SHARED = ("Commit", "Task")
"""They go with the last thing that names them; stories, plans and decisions stay."""


def removal(uids: Sequence[str]) -> list[Statement]:
    """Return what takes these deliberations out, the outermost first."""
    given = {"uids": list(uids)}
    found = "UNWIND $uids AS uid MATCH (d:Deliberation {uid: uid})"
    return [
        *((f"{found}{path} DETACH DELETE n", given) for path in _THEIRS),
        (f"{found} DETACH DELETE d", given),
        *((f"MATCH (n:{label}) WHERE NOT (n)--() DELETE n", {}) for label in _SHARED),
    ]
