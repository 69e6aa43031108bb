"""The context graph on any store that supports Cypher; the projection of the log into it, in
batches, from the position that the graph itself stores; and queries of another process's graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from moothall.domain.event import Recorded
from moothall.errors import GraphUnavailable
from moothall.graph import questions
from moothall.graph.projection import write
from moothall.graph.schema import (
    LABELS,
    OLDEST,
    POSITION,
    RELATIONS,
    Group,
    Rows,
    Statement,
    removal,
)
from moothall.graph.upserts import Writes, group_of
from moothall.ports import Log
from moothall.telemetry import get_logger

if TYPE_CHECKING:
    from moothall.graph.embedded import EmbeddedStore
    from moothall.graph.neo4j import Neo4jStore


import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from moothall.domain.event import Channel
from moothall.errors import BusUnavailable, InvalidRequest, MoothallError
from moothall.ports import Bus
from moothall.processes import MAX_REQUEST_BYTES, send_request, serve_requests

# The context graph on any store that supports Cypher. Statements are generated from the schema.


QUERY_SECONDS = 30.0
"""The maximum duration of one question or one batch."""
_PAGE_ROWS = 500
_EXCESS_SHARE = 0.05  # the share beyond `keep` that is tolerated before the oldest are removed


Store: TypeAlias = "EmbeddedStore | Neo4jStore"
"""A store that runs Cypher. `read` runs a query, `write` runs statements in one transaction, and
`empty` removes everything. All raise `GraphUnavailable`.
"""


class CypherGraph:
    """The context graph: a projection of the log that answers questions across deliberations. It
    can be rebuilt from the log.

    Only the projector writes it. `text_chars` limits each text, `keep` the number of decided
    deliberations; `keep` 0 means no limit.
    """

    def __init__(self, store: Store, *, text_chars: int = 2000, keep: int = 0) -> None:
        self._store = store
        self._text_chars = text_chars
        self._keep = keep
        # Decided since the last removal; unknown after a start, so it begins above the threshold.
        self._decided = keep

    async def project(self, records: Sequence[Recorded]) -> None:
        """Write a batch and its last seq in one transaction."""
        if not records:
            return
        writes = Writes(self._text_chars)
        for recorded in records:
            write(recorded.event, writes)
        await self._store.write(
            [*statements(writes), _position(max(recorded.seq for recorded in records))]
        )
        self._decided += sum(name == "decided" for _, name in writes.groups)
        if self._keep and self._decided > self._keep * _EXCESS_SHARE:
            await self._remove_oldest()

    async def _remove_oldest(self) -> None:
        oldest = [row["uid"] for row in await self._store.read(OLDEST, {"keep": self._keep})]
        for start in range(0, len(oldest), _PAGE_ROWS):
            await self._store.write(removal(oldest[start : start + _PAGE_ROWS]))
        self._decided = 0

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Answer a question of `questions.QUESTIONS` with rows of JSON-like data by column. Every
        question has the parameter `tenant`, and no answer contains another tenant's data. Raises
        `InvalidRequest`, which names the valid values, and `GraphUnavailable`.
        """
        cypher, values, convert_row = questions.prepare(question, parameters)
        return [convert_row(row) for row in await self._store.read(cypher, values)]

    async def position(self) -> int:
        """Return the seq up to which the log has been projected."""
        rows = await self._store.read(
            f"MATCH (p:{POSITION} {{uid: 'log'}}) RETURN p.seq AS seq", {}
        )
        return int(rows[0]["seq"]) if rows else 0

    async def clear(self) -> None:
        """Remove all nodes and relations."""
        await self._store.empty()

    async def dump(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield each node and relation as a tuple of texts, in an order that depends only on the
        content.
        """
        for label in LABELS.values():
            properties = ", ".join(f".{name}" for name in label.properties)
            query = (
                f"MATCH (n:{label.name}) WHERE n.uid > $after RETURN n {{{properties}}} AS n "
                f"ORDER BY n.uid LIMIT {_PAGE_ROWS}"
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
        """Return the number of nodes of each label and of relations of each type."""
        counts: dict[str, int] = {}
        for name in LABELS:
            rows = await self._store.read(f"MATCH (n:{name}) RETURN count(n) AS number", {})
            counts[name] = int(rows[0]["number"]) if rows else 0
        for relation in RELATIONS:
            pattern = f"(:{relation.start})-[r:{relation.type}]->(:{relation.end})"
            rows = await self._store.read(f"MATCH {pattern} RETURN count(r) AS number", {})
            counts[relation.type] = counts.get(relation.type, 0) + (
                int(rows[0]["number"]) if rows else 0
            )
        return counts


def statements(writes: Writes) -> list[Statement]:
    """Return the statements that write a batch: nodes with properties, then nodes without, then
    relations.
    """
    group_rows: dict[tuple[str, str], Rows] = {}
    for (node, name), (sort_key, values) in writes.groups.items():
        stamp = group_of(node.label, name).stamp
        all_values = {**values, stamp: sort_key, "tenant": node.tenant, "key": node.key}
        group_rows.setdefault((node.label, name), []).append(
            {"uid": node.uid, "by": sort_key, "values": all_values}
        )
    result: list[Statement] = []
    for (label, name), rows in group_rows.items():
        group = group_of(label, name)
        result += [
            (_create(label, *group.properties, group.stamp), {"rows": rows}),
            (_set_group(group, label), {"rows": rows}),
        ]
    bare_rows: dict[str, Rows] = {}
    for node in writes.nodes - {node for node, _ in writes.groups}:
        bare_rows.setdefault(node.label, []).append(
            {"uid": node.uid, "values": {"tenant": node.tenant, "key": node.key}}
        )
    result += [(_create(label), {"rows": rows}) for label, rows in bare_rows.items()]
    relation_rows: dict[tuple[str, str, str], Rows] = {}
    for start, kind, end in writes.relations:
        relation_rows.setdefault((start.label, kind, end.label), []).append(
            {"a": start.uid, "b": end.uid}
        )
    result += [(_relate(*key), {"rows": rows}) for key, rows in relation_rows.items()]
    return result


def _create(label: str, *names: str) -> str:
    """Return the statement that creates missing nodes. Most nodes are new, and creating a node with
    all properties takes a quarter of the time of creating it and setting each property. `id`, by
    which the embedded store finds nodes, is set explicitly: after deletions and reopening, the
    store would otherwise assign some ids twice.
    """
    values = ", ".join(f"{name}: row.values.{name}" for name in ("tenant", "key", *names))
    missing = (
        f"UNWIND $rows AS row OPTIONAL MATCH (n:{label} {{uid: row.uid}}) WITH row, n WHERE n IS "
        "NULL"
    )
    return f"{missing} CREATE (:{label} {{id: row.uid, uid: row.uid, {values}}})"


def _set_group(group: Group, label: str) -> str:
    """Return the statement that sets a group of properties on the nodes without the group, and on
    those whose group was written by an event that does not take precedence.
    """
    operator = "<" if group.latest else ">"
    stale = f"WHERE n.{group.stamp} IS NULL OR n.{group.stamp} {operator} row.by"
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


# Project the log into the graph in batches, from the position that the graph itself stores.
#
# Decisions never wait for the projector. The graph contains nothing that is not in the log: after a
# crash, the projector continues from the graph's position, and while the graph is unavailable, it
# falls behind but stays correct.


log = get_logger(__name__)

BATCH_EVENTS = 2000
"""Events that are written in one transaction."""
_PACE_SECONDS = 0.5
"""The pause between two batches, which leaves the CPU to the councils."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0


class Projector:
    """The only writer of a graph. It calls `is_writer` before each batch, which returns whether
    this process may still write.

    pace_seconds: the pause between two batches. pause_seconds: the first pause after a failure.
    """

    def __init__(
        self,
        log_: Log,
        graph: CypherGraph,
        *,
        batch_size: int = BATCH_EVENTS,
        pace_seconds: float = _PACE_SECONDS,
        pause_seconds: float = _FIRST_PAUSE_SECONDS,
        is_writer: Callable[[], bool] = lambda: True,
    ) -> None:
        self._log = log_
        self._graph = graph
        self._batch_size = batch_size
        self._pace_seconds = pace_seconds
        self._pause_seconds = pause_seconds
        self._is_writer = is_writer
        self._written = 0
        self._progress = asyncio.Condition()

    @property
    def written(self) -> int:
        """The seq up to which the log is in the graph."""
        return self._written

    async def run(self, last_seq: int) -> None:
        """Project until cancelled. `last_seq` is the current end of the log: a graph that is ahead
        of it belongs to another log.
        """
        self._written = await self._start(last_seq)
        waiting: asyncio.Queue[Recorded] = asyncio.Queue(2 * self._batch_size)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_log(waiting, self._written), name="graph-read")
            group.create_task(self._write_events(waiting), name="graph-write")

    async def catch_up(
        self, last_seq: int, on_batch: Callable[[int], None] = lambda _: None
    ) -> int:
        """Project what is recorded now and return the number of events. `on_batch` is called with
        the last seq of each batch.
        """
        self._written = await self._start(last_seq)
        count, batch = 0, list[Recorded]()
        async with aclosing(self._log.replay(after_seq=self._written)) as records:
            async for recorded in records:
                batch.append(recorded)
                if len(batch) == self._batch_size:
                    await self._project(batch)
                    count += len(batch)
                    on_batch(batch[-1].seq)
                    batch = []
        if batch:
            await self._project(batch)
            on_batch(batch[-1].seq)
        return count + len(batch)

    async def wait_written(self, seq: int) -> None:
        """Return once the log is written up to `seq`."""
        async with self._progress:
            await self._progress.wait_for(lambda: self._written >= seq)

    async def _start(self, last_seq: int) -> int:
        position = await self._position()
        if position <= last_seq:
            return position
        log.warning(
            "the graph belongs to another log, since it is ahead of this one; projecting again",
            position=position,
            last_seq=last_seq,
        )
        return 0

    async def _read_log(self, waiting: asyncio.Queue[Recorded], after_seq: int) -> None:
        async with aclosing(self._log.follow(after_seq=after_seq)) as records:
            async for recorded in records:
                await waiting.put(recorded)

    async def _write_events(self, waiting: asyncio.Queue[Recorded]) -> None:
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(self._pace_seconds)
            while len(batch) < self._batch_size and not waiting.empty():
                batch.append(waiting.get_nowait())
            await self._project_until_written(batch)

    async def _project_until_written(self, batch: Sequence[Recorded]) -> None:
        """Retry until the batch is written, even if the graph is unavailable for a long time. After
        a failure, write half as many events at a time, since the batch may be too large for one
        transaction.
        """
        pause, size = self._pause_seconds, len(batch)
        while batch:
            try:
                await self._project(batch[:size])
            except GraphUnavailable as error:
                log.warning(
                    "the graph is unavailable and falls behind; trying again",
                    events=len(batch),
                    retry_seconds=pause,
                    reason=error.message,
                )
                await asyncio.sleep(pause)
                pause, size = min(2 * pause, _MAX_PAUSE_SECONDS), max(size // 2, 1)
            else:
                batch, size, pause = batch[size:], 2 * size, self._pause_seconds

    async def _position(self) -> int:
        pause = self._pause_seconds
        while True:
            try:
                return await self._graph.position()
            except GraphUnavailable as error:
                log.warning(
                    "the graph does not answer; trying again",
                    retry_seconds=pause,
                    reason=error.message,
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _project(self, batch: Sequence[Recorded]) -> None:
        if not self._is_writer():
            raise GraphUnavailable("another process writes the graph now")
        await self._graph.project(batch)
        async with self._progress:
            self._written = max(self._written, batch[-1].seq)
            self._progress.notify_all()


# Queries of the embedded graph of another process, over a Unix socket in the data directory (one
# question per connection) or over the bus.


_CONNECT_SECONDS, _RETRY_SECONDS = 5.0, 0.1


def serve_socket(graph: CypherGraph, path: Path) -> AbstractAsyncContextManager[None]:
    """Answer questions on the Unix socket `path` for the duration of the block."""

    async def answer(line: bytes) -> Mapping[str, Any]:
        return await _answer(graph, line)

    return serve_requests(path, answer)


async def _answer(graph: CypherGraph, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise InvalidRequest("a request must be an object with `question` and `parameters`")
        if request.get("counts"):
            return {"rows": [await graph.counts()]}
        if request.get("position"):
            return {"rows": [{"seq": await graph.position()}]}
        return {
            "rows": list(
                await graph.ask(str(request.get("question")), **(request.get("parameters") or {}))
            )
        }
    except MoothallError as error:
        return {"code": error.code, "message": error.message}
    except (ValueError, TypeError) as error:
        return {"code": InvalidRequest.code, "message": f"invalid request: {error}"}


class SocketGraphClient:
    """A client for the graph of another process. It waits up to `connect_seconds` for a process
    that is still starting.
    """

    def __init__(self, path: Path, connect_seconds: float = _CONNECT_SECONDS) -> None:
        self._path = path
        self._connect_seconds = connect_seconds

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Ask a named question. Raises the errors of `CypherGraph.ask`."""
        rows: Sequence[Mapping[str, Any]] = (
            await self._send({"question": question, "parameters": parameters})
        )["rows"]
        return rows

    async def counts(self) -> dict[str, int]:
        """Return the numbers of nodes and relations."""
        rows: Sequence[dict[str, int]] = (await self._send({"counts": True}))["rows"]
        return rows[0]

    async def _send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        size = len(json.dumps(request))
        if size >= MAX_REQUEST_BYTES:
            raise InvalidRequest(f"the question has {size} bytes; the limit is {MAX_REQUEST_BYTES}")
        for _ in range(1 + int(self._connect_seconds / _RETRY_SECONDS)):
            try:
                return _read_answer(await send_request(self._path, request))
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_RETRY_SECONDS)
            except (OSError, ValueError) as error:
                raise GraphUnavailable(
                    f"the process that has the graph open did not answer: {error}"
                ) from error
        raise GraphUnavailable(
            "the process that has the graph open does not answer; it may be starting or ending. "
            "Try again"
        )


GRAPH_TOPIC = Channel.GRAPH.of("embedded")
_MAX_ANSWER_BYTES = 900_000
"""The limit for an answer, so that it fits into a message."""


async def serve_bus(bus: Bus, graph: CypherGraph) -> None:
    """Answer questions on the bus until cancelled."""

    async def answer(request: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        reply = json.dumps(await _answer(graph, json.dumps(request).encode())).encode()
        if len(reply) > _MAX_ANSWER_BYTES:
            message = (
                f"the answer has {len(reply)} bytes, which is too much for a message; request "
                "less, or set graph.url"
            )
            reply = json.dumps({"code": InvalidRequest.code, "message": message}).encode()
        return {}, reply

    await bus.answer(GRAPH_TOPIC, answer)


class BusGraphClient:
    """A client for the graph of the process that answers on the bus."""

    def __init__(self, bus: Bus, timeout_seconds: float) -> None:
        self._bus = bus
        self._timeout_seconds = timeout_seconds

    async def ask(self, question: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Ask a named question. Raises the errors of `CypherGraph.ask`."""
        return await self._rows({"question": question, "parameters": parameters})

    async def position(self) -> int:
        """Return the seq up to which the other process has projected the log."""
        return int((await self._rows({"position": True}))[0]["seq"])

    async def _rows(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        try:
            _, reply = await self._bus.ask(GRAPH_TOPIC, request, self._timeout_seconds)
        except BusUnavailable as error:
            raise GraphUnavailable(
                "no process serves the graph; start `moothall serve` with the role graph"
            ) from error
        rows: Sequence[Mapping[str, Any]] = _read_answer(json.loads(reply))["rows"]
        return rows


def _read_answer(answer: dict[str, Any]) -> dict[str, Any]:
    if "rows" in answer:
        return answer
    if answer.get("code") == InvalidRequest.code:
        raise InvalidRequest(str(answer.get("message")))
    raise GraphUnavailable(str(answer.get("message")))
