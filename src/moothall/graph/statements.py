"""Statements about the graph as a whole: its constraints and indexes, and what takes out the oldest
deliberations with what was theirs alone.
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


def schema() -> tuple[str, ...]:
    """Return the statements that make constraints and indexes; they may be run again."""
    made = [
        f"CREATE CONSTRAINT moothall_{name.lower()}_uid IF NOT EXISTS FOR (n:{name}) REQUIRE n.uid "
        "IS UNIQUE"
        for name in (*LABELS, POSITION)
    ]
    made += [
        f"CREATE INDEX moothall_{label.name.lower()}_{'_'.join(names)} IF NOT EXISTS FOR "
        f"(n:{label.name}) ON ({', '.join(f'n.{name}' for name in names)})"
        for label in LABELS.values()
        for names in label.indexed
    ]
    return tuple(made)
