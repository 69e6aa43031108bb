"""Cypher statements for constraints and indexes, and for the removal of the oldest deliberations
with the nodes that belong only to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moothall.graph.schema import LABELS, POSITION

Statement = tuple[str, Mapping[str, Any]]
Rows = list[dict[str, Any]]

OLDEST = (
    "MATCH (d:Deliberation) WHERE d.decided_at <> '' RETURN d.uid AS uid ORDER BY d.decided_at "
    "DESC, d.uid DESC SKIP $keep"
)
"""Find the decided deliberations beyond the newest `keep`. Running deliberations stay."""

_OWNED_PATHS = (
    "-[:ASKED_MODEL]->(n:ModelCall)",
    "-[:HAS_SEAT]->(:Seat)-[:CALLED_MODEL]->(n:ModelCall)",
    "-[:HAS_SEAT]->(:Seat)-[:CALLED_TOOL]->(n:ToolCall)",
    "-[:HAS_SEAT]->(:Seat)-[:GAVE]->(n:Review)",
    "-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(:Proposal)-[:HAS_EVIDENCE]->(n:Evidence)",
    "-[:HAS_SEAT]->(:Seat)-[:PROPOSED]->(n:Proposal)",
    "-[:HAS_SEAT]->(n:Seat)",
)
_SHARED_LABELS = ("Commit", "Task")
"""Removed with the last node that refers to them; stories, plans and decisions stay."""


def removal(uids: Sequence[str]) -> list[Statement]:
    """Return the statements that remove these deliberations, the outermost nodes first."""
    parameters = {"uids": list(uids)}
    match = "UNWIND $uids AS uid MATCH (d:Deliberation {uid: uid})"
    return [
        *((f"{match}{path} DETACH DELETE n", parameters) for path in _OWNED_PATHS),
        (f"{match} DETACH DELETE d", parameters),
        *((f"MATCH (n:{label}) WHERE NOT (n)--() DELETE n", {}) for label in _SHARED_LABELS),
    ]


def schema() -> tuple[str, ...]:
    """Return the statements that create constraints and indexes. They can be run repeatedly."""
    statements = [
        f"CREATE CONSTRAINT moothall_{name.lower()}_uid IF NOT EXISTS FOR (n:{name}) REQUIRE n.uid "
        "IS UNIQUE"
        for name in (*LABELS, POSITION)
    ]
    statements += [
        f"CREATE INDEX moothall_{label.name.lower()}_{'_'.join(names)} IF NOT EXISTS FOR "
        f"(n:{label.name}) ON ({', '.join(f'n.{name}' for name in names)})"
        for label in LABELS.values()
        for names in label.indexed
    ]
    return tuple(statements)
