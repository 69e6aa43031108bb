"""The graph over any store that speaks Cypher: the statements, made from the shape, and the
questions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from moothall.domain.event import Recorded
from moothall.graph import questions
from moothall.graph.projection import write
from moothall.graph.schema import LABELS, POSITION, RELATIONS, Group
from moothall.graph.statements import OLDEST, Rows, Statement, removal
from moothall.graph.upserts import Writes, group_of

if TYPE_CHECKING:  # each needs a client library, and a server uses one of them
    from moothall.graph.embedded import EmbeddedStore
    from moothall.graph.neo4j import Neo4jStore

_PAGE = 500
_SLACK = 0.05  # of those kept: so many more are there at most before the oldest leave


Store: TypeAlias = "EmbeddedStore | Neo4jStore"
"""What runs Cypher: `read` without changes, `write` all statements in one transaction, `empty`. All
raise `GraphUnavailable`.
"""


class CypherGraph:
    """The context graph: a projection of the log that answers questions across deliberations, and
    can be made again from it.

    Writing is the projector's alone. `text_chars` bounds every text in it, `keep` the decided
    deliberations; 0: no bound.
    """

    def __init__(self, store: Store, *, text_chars: int = 2000, keep: int = 0) -> None:
        self._store = store
        self._text_chars = text_chars
        self._keep = keep
        self._decided = (
            keep  # since the oldest were last taken out, which is not known of an earlier run
        )

    async def project(self, records: Sequence[Recorded]) -> None:
        """Write a batch and remember its last seq, in one transaction."""
        if not records:
            return
        writes = Writes(self._text_chars)
        for recorded in records:
            write(recorded.event, writes)
        await self._store.write(
            [*statements(writes), _position(max(recorded.seq for recorded in records))]
        )
        self._decided += sum(name == "decided" for _, name in writes.groups)
        if self._keep and self._decided > self._keep * _SLACK:
            await self._forget_oldest()

    async def _forget_oldest(self) -> None:
        oldest = [row["uid"] for row in await self._store.read(OLDEST, {"keep": self._keep})]
        for start in range(0, len(oldest), _PAGE):
            await self._store.write(removal(oldest[start : start + _PAGE]))
        self._decided = 0

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Answer a question of `questions.QUESTIONS`; a row is a mapping from column to JSON-shaped
        data. `tenant` is a parameter of every question, and no answer holds another tenant's data.
        Raises `InvalidRequest` that names what would be right, `GraphUnavailable`.
        """
        cypher, values, finish = questions.prepare(question, parameters)
        return [finish(row) for row in await self._store.read(cypher, values)]

    async def position(self) -> int:
        """Return the seq up to which the log is written."""
        rows = await self._store.read(
            f"MATCH (p:{POSITION} {{uid: 'log'}}) RETURN p.seq AS seq", {}
        )
        return int(rows[0]["seq"]) if rows else 0

    async def clear(self) -> None:
        """Remove everything."""
        await self._store.empty()

    async def dump(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield every node and relation as a tuple of texts, in an order that depends on the
        content only.
        """
        for label in LABELS.values():
            shown = ", ".join(f".{name}" for name in label.properties)
            query = (
                f"MATCH (n:{label.name}) WHERE n.uid > $after RETURN n {{{shown}}} AS n ORDER BY "
                f"n.uid LIMIT {_PAGE}"
            )
            after = ""
            while rows := await self._store.read(query, {"after": after}):
                for row in rows:
                    yield (label.name, *(f"{name}={row['n'][name]!r}" for name in label.properties))
                after = rows[-1]["n"]["uid"]
        for relation in RELATIONS:
            query = (
                f"MATCH (a:{relation.start})-[:{relation.type}]->(b:{relation.end}) WHERE a.uid > "
                "$after RETURN a.uid AS a, b.uid AS b ORDER BY a, b"
            )
            for row in await self._store.read(query, {"after": ""}):
                yield (relation.type, relation.start, row["a"], relation.end, row["b"])

    async def counts(self) -> dict[str, int]:
        """Return how many nodes of each label and relations of each type there are."""
        found: dict[str, int] = {}
        for name in LABELS:
            rows = await self._store.read(f"MATCH (n:{name}) RETURN count(n) AS number", {})
            found[name] = int(rows[0]["number"]) if rows else 0
        for relation in RELATIONS:
            ends = f"(:{relation.start})-[r:{relation.type}]->(:{relation.end})"
            rows = await self._store.read(f"MATCH {ends} RETURN count(r) AS number", {})
            found[relation.type] = found.get(relation.type, 0) + (
                int(rows[0]["number"]) if rows else 0
            )
        return found


def statements(writes: Writes) -> list[Statement]:
    """Return what writes a batch: nodes with their properties, those that have none in it, then the
    relations.
    """
    told: dict[tuple[str, str], Rows] = {}
    for (node, name), (by, values) in writes.groups.items():
        stamp = group_of(node.label, name).stamp
        whole = {**values, stamp: by, "tenant": node.tenant, "key": node.key}
        told.setdefault((node.label, name), []).append({"uid": node.uid, "by": by, "values": whole})
    made: list[Statement] = []
    for (label, name), rows in told.items():
        group = group_of(label, name)
        made += [
            (_create(label, *group.properties, group.stamp), {"rows": rows}),
            (_tell(group, label), {"rows": rows}),
        ]
    named: dict[str, Rows] = {}
    for node in writes.nodes - {node for node, _ in writes.groups}:
        named.setdefault(node.label, []).append(
            {"uid": node.uid, "values": {"tenant": node.tenant, "key": node.key}}
        )
    made += [(_create(label), {"rows": rows}) for label, rows in named.items()]
    related: dict[tuple[str, str, str], Rows] = {}
    for start, kind, end in writes.relations:
        related.setdefault((start.label, kind, end.label), []).append(
            {"a": start.uid, "b": end.uid}
        )
    made += [(_relate(*ends), {"rows": rows}) for ends, rows in related.items()]
    return made


def _create(label: str, *names: str) -> str:
    """Most nodes are new, and to make one whole costs a store a quarter of making it and then
    setting each property. The embedded store knows nodes by `id`: those that it thinks of itself it
    gives twice, once it was opened anew after others were deleted.
    """
    values = ", ".join(f"{name}: row.values.{name}" for name in ("tenant", "key", *names))
    missing = (
        f"UNWIND $rows AS row OPTIONAL MATCH (n:{label} {{uid: row.uid}}) WITH row, n WHERE n IS "
        "NULL"
    )
    return f"{missing} CREATE (:{label} {{id: row.uid, uid: row.uid, {values}}})"


def _tell(group: Group, label: str) -> str:
    """Of the nodes that are there, those without this group, and those whose group another event
    ought to have written.
    """
    than = "<" if group.latest else ">"
    stale = f"WHERE n.{group.stamp} IS NULL OR n.{group.stamp} {than} row.by"
    return f"UNWIND $rows AS row MATCH (n:{label} {{uid: row.uid}}) {stale} SET n += row.values"


def _relate(start: str, kind: str, end: str) -> str:
    return (
        f"UNWIND $rows AS row MATCH (a:{start} {{uid: row.a}}) MATCH (b:{end} {{uid: row.b}}) "
        f"MERGE (a)-[:{kind}]->(b)"
    )


def _position(seq: int) -> Statement:
    return (
        (
            f"MERGE (p:{POSITION} {{uid: 'log'}}) SET p.seq = CASE WHEN p.seq IS NULL OR p.seq < "
            "$seq THEN $seq ELSE p.seq END"
        ),
        {"seq": seq},
    )
