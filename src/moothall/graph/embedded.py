"""The embedded graph store: kglite, a file in the data directory. Only one process can open it.
Calls run in threads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import kglite

from moothall.errors import ConfigurationError, GraphUnavailable
from moothall.graph.schema import EMPTY, LABELS, Label, Rows, Statement, schema

T = TypeVar("T")
_MAX_ATTEMPTS, _FIRST_PAUSE_SECONDS = 8, 0.005
_REOPEN_ROWS = 200_000
"""The minimum number of written rows after which the file is reopened. Until then, the store keeps
the texts of deleted nodes in memory, about 60 bytes per row.
"""


class EmbeddedStore:
    """A graph in memory with a log on disk. It survives a crash of the process. Changes that are
    lost in a power failure are projected again from the event log.
    """

    def __init__(self, path: Path, *, query_seconds: float, rows: int = _REOPEN_ROWS) -> None:
        self._path = path
        self._milliseconds = int(query_seconds * 1000)
        self._session = _open_database(path)
        self._reopen_rows = rows
        self._rows_written = 0
        self._write_lock = asyncio.Lock()  # parallel writes of the store conflict with each other

    async def read(self, cypher: str, parameters: Mapping[str, Any]) -> Rows:
        """Return the rows of a query."""
        return await _call(
            lambda: self._session.cypher(
                cypher, params=dict(parameters), timeout_ms=self._milliseconds
            ).to_list()
        )

    async def write(self, statements: Sequence[Statement]) -> None:
        """Run all statements in one transaction. Repeat it after a conflict."""
        async with self._write_lock:
            for attempt in range(_MAX_ATTEMPTS):
                try:
                    await _call(lambda: self._write_statements(statements))
                except kglite.TransactionConflictError as error:
                    if attempt + 1 == _MAX_ATTEMPTS:
                        raise GraphUnavailable(
                            f"the embedded graph had write conflicts in {_MAX_ATTEMPTS} attempts"
                        ) from error
                    await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2**attempt * random.random())  # noqa: S311 - spreads writers
                else:
                    break
            self._rows_written += sum(
                len(parameters.get("rows", ())) for _, parameters in statements
            )
            if self._rows_written > max(self._reopen_rows, self._session.node_count()):
                await _call(self._reopen)

    def _write_statements(self, statements: Sequence[Statement]) -> None:
        transaction = self._session.begin()
        try:
            for cypher, parameters in statements:
                transaction.cypher(cypher, params=dict(parameters))
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()

    async def empty(self) -> None:
        """Replace the file by an empty one."""
        async with self._write_lock:
            await _call(self._empty)

    def _empty(self) -> None:
        self._session.close()
        for path in self._path.parent.glob(f"{self._path.name}*"):
            path.unlink()
        self._session = _open_database(self._path)

    def _reopen(self) -> None:
        """Free the memory of deleted nodes. Concurrent reads fail, since the session is closed."""
        self._session.close()
        self._session = _open_database(self._path)
        self._rows_written = 0

    async def close(self) -> None:
        """Write the file in a compact form for a fast start, and close it."""
        async with self._write_lock:
            await _call(self._session.close)


def _open_database(path: Path) -> kglite.Session:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    session = kglite.open_session(str(path), durable="normal")
    for statement in schema():
        session.execute(statement)
    for label in LABELS.values():
        _register_properties(session, label)
    return session


def _register_properties(session: kglite.Session, label: Label) -> None:
    """Register all properties of a label. The store refuses patterns with a property that no node
    of the label ever had, so a node with all properties is created and deleted.
    """
    properties = {
        name: kind
        for group in label.groups
        for name, kind in {**group.properties, group.stamp: "text"}.items()
    }
    values = {
        name: list[str]() if kind == "texts" else EMPTY[kind] for name, kind in properties.items()
    }
    node = f"(n:{label.name} {{id: ''}})"
    session.execute(
        f"MERGE {node} SET n += $values",
        params={"values": {"uid": "", "tenant": "", "key": "", **values}},
    )
    session.execute(f"MATCH {node} DELETE n")


async def _call(function: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(function)
    except kglite.TransactionConflictError:
        raise
    except (kglite.KgError, OSError) as error:
        raise GraphUnavailable(f"the embedded graph failed: {error}") from error


@asynccontextmanager
async def embedded_store(
    path: Path, *, query_seconds: float, rows: int = _REOPEN_ROWS
) -> AsyncIterator[EmbeddedStore]:
    """Open or create the graph at `path`. It is reopened each time `rows` rows were written. Raises
    `ConfigurationError` if the file is damaged or another process has it open.
    """
    kglite.set_query_warning_policy("silent")  # a property that no node has yet is not an error
    try:
        store = await asyncio.to_thread(
            lambda: EmbeddedStore(path, query_seconds=query_seconds, rows=rows)
        )
    except kglite.WriterLeaseHeldError as error:
        raise ConfigurationError(
            f"the graph {path} is open in another process; stop that process, or query it instead"
        ) from error
    except (kglite.KgError, OSError) as error:
        raise ConfigurationError(
            f"the graph {path} cannot be opened ({error}); remove it and run `moothall graph "
            "rebuild`, which restores it from the log"
        ) from error
    try:
        yield store
    finally:
        await store.close()
