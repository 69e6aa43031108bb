"""`db.postgres`: one statement on a connection of its own, read-only unless the operator says
otherwise.

A read-only query is held by four things: it is declared as a cursor, which takes nothing but a
SELECT, VALUES or WITH without changes; by the extended protocol, which takes one statement; in a
READ ONLY transaction that is rolled back. What a transaction does not hold (files, programs and
connections of the server) is held by the role: one that may use them
is refused, with what to do about it.

A relay ends the connection if the answer is too large, for clients that read a whole answer into
memory first.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types import TypeInfo
from psycopg.types.string import TextLoader

from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.network.proxy import CHUNK, Streams, pump
from moothall.toolkits.answering import Output
from moothall.toolkits.db.family import DbSettings
from moothall.toolkits.db.rows import Table

_CONNECTIONS = 4  # a client's own, and those by which it cancels
_ACCEPTING = 5


class _Flooded(OSError):
    """The server sent more than it may."""


@dataclass(slots=True)
class LoopbackRelay:
    """Listens on a port of loopback. `left` bytes may still come back; `flooded` says that more
    came.
    """

    connect: Callable[[], Awaitable[Streams]]
    left: int
    port: int = 0
    flooded: bool = False
    failed: str = ""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one connection says, and what it is told."""
        if len(self._open) >= _CONNECTIONS * 2:
            writer.transport.abort()
            return
        self._open.add(writer)
        upstream = None
        try:
            upstream = await self.connect()
            self._open.add(upstream[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(pump(reader, upstream[1], lambda _: None), name="relay-out")
                both.create_task(pump(upstream[0], writer, self._spend), name="relay-in")
        except* _Flooded:
            self.flooded = True
        except* OSError as errors:
            self.failed = self.failed or str(errors.exceptions[0])
        finally:
            for one in (writer, *((upstream[1],) if upstream else ())):
                self._open.discard(one)
                one.transport.abort()

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise _Flooded

    async def close(self) -> None:
        """End every connection."""
        for _ in range(
            _ACCEPTING
        ):  # what was accepted just now becomes a connection in a few rounds of the loop
            await asyncio.sleep(0)
        for writer in tuple(self._open):
            writer.transport.abort()
        for _ in range(_ACCEPTING):
            await asyncio.sleep(0)


@asynccontextmanager
async def relaying(
    connect: Callable[[], Awaitable[Streams]], most: int
) -> AsyncIterator[LoopbackRelay]:
    """Relay to what `connect` opens until the context ends; at most `most` bytes come back in
    all.
    """
    relay = LoopbackRelay(connect, most)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=CHUNK)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()


_Connection = psycopg.AsyncConnection[tuple[Any, ...]]

_BATCH = 50
_PLAIN = frozenset(
    {
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "json",
        "jsonb",
        "oid",
        "text",
        "varchar",
        "name",
        "bpchar",
    }
)
_SYNTAX = "42601"

# What a rolled back transaction does not undo, and who may do it. A query may take on any role that
# its own is a member of.
_POWERS = """
select 'it is or may become the superuser ' || rolname from pg_catalog.pg_roles
 where rolsuper and pg_catalog.pg_has_role(session_user, oid, 'member')
union all
select 'it is a member of ' || rolname from pg_catalog.pg_roles
 where rolname in ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files', 'pg_signal_backend')
   and pg_catalog.pg_has_role(session_user, oid, 'member')
union all
select 'it may call ' || p.oid::pg_catalog.regprocedure
  from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
 where ((not l.lanpltrusted and l.lanname not in ('internal', 'c'))
     or p.proname ~ '^(dblink.*|lo_(ex|im)port|pg_read_(binary_)?file|pg_file_.*|pg_ls_dir|pg_reload_conf|pg_rotate_logfile|http_.*|http)$')
   and pg_catalog.has_function_privilege(session_user, p.oid, 'execute')
limit 3
"""  # noqa: E501 - a line of embedded text
_MEND = (
    "CREATE ROLE reader LOGIN PASSWORD '…'; GRANT pg_read_all_data TO reader; and REVOKE EXECUTE … "
    "FROM PUBLIC where it is named"
)


async def query(url: str, text: str, params: list[str], limits: DbSettings) -> Output:
    """Return the rows of one statement. Raises `InvalidRequest`, `Refused`, `CallFailed`."""
    try:
        where = conninfo_to_dict(url)
        host, port = _place(where)
    except (psycopg.Error, ValueError) as error:
        raise CallFailed(
            "db.postgres_url is no URL of one server that PostgreSQL's client can read"
        ) from error
    # libpq takes a whole row into memory, and one may be a gigabyte: what comes is counted on its
    # way.
    async with relaying(
        functools.partial(_open, host, port, limits.seconds), limits.receive_bytes
    ) as relay:
        try:
            async with _connection(
                {**where, "host": where.get("host") or host}, relay, limits
            ) as connection:
                powers = await (await connection.execute(_POWERS)).fetchall()
                if powers:
                    told = "; ".join(str(row[0]) for row in powers)
                    raise Refused(
                        f"the role of db.postgres_url may do too much: {told}. Mend: {_MEND}"
                    )
                run = _change if limits.write else _read
                return await run(connection, sql.SQL(text), params, limits)
        except UnicodeError as error:
            raise CallFailed("the answer, or the query, has text that is not UTF-8") from error
        except psycopg.Error as error:
            if relay.flooded:
                most = limits.receive_bytes
                raise CallFailed(
                    f"the server sent more than {most} bytes (db.receive_bytes); ask for less"
                ) from error
            raise _error_of(error, reading=not limits.write) from error


async def _open(host: str, port: int, seconds: float) -> Streams:
    async with asyncio.timeout(seconds):
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


def _place(where: Mapping[str, Any]) -> tuple[str, int]:
    """Return the host and port of the one server that a URL names; without a host that is its
    socket on this machine.
    """
    host = str(where.get("hostaddr") or where.get("host") or "/var/run/postgresql")
    if "," in host:
        raise ValueError("several hosts")
    return host, int(where.get("port") or 5432)


@asynccontextmanager
async def _connection(
    where: Mapping[str, Any], relay: LoopbackRelay, limits: DbSettings
) -> AsyncIterator[_Connection]:
    given: dict[str, Any] = {**where, "hostaddr": "127.0.0.1", "port": relay.port}
    if str(where["host"]).startswith("/"):
        given |= {"host": "localhost", "sslmode": "disable"}
    try:
        connection = await psycopg.AsyncConnection.connect(
            **{
                **given,
                "connect_timeout": max(2, round(limits.seconds)),
                "client_encoding": "utf8",
                "application_name": "moothall",
            },
            prepare_threshold=0 if limits.write else None,
        )
    except (psycopg.Error, OSError, ValueError) as error:
        inside = "FATAL" in str(error)  # the server's own word; that a port is closed is not
        reason = "it lets nobody in with this user and password" if inside else "it does not answer"
        raise CallFailed(
            f"PostgreSQL cannot be asked: {reason} (db.postgres_url); `moothall doctor` says more"
        ) from (OSError(relay.failed) if relay.failed else error)
    try:
        await _set_limits(connection, limits)
        yield connection
    finally:
        # What was not committed is gone with the connection. A query that still runs is told to
        # end.
        if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
            with suppress(psycopg.Error, TimeoutError):
                await connection.cancel_safe(timeout=2)
        await connection.close()


async def _set_limits(connection: _Connection, limits: DbSettings) -> None:
    for info in psycopg.adapters.types:
        if info.name not in _PLAIN and type(info) is TypeInfo:
            connection.adapters.register_loader(info.oid, TextLoader)
    await connection.set_read_only(not limits.write)
    milliseconds = str(round(limits.seconds * 1000))
    settings = {
        "default_transaction_read_only": "off" if limits.write else "on",
        "statement_timeout": milliseconds,
        "lock_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
    }
    for name, value in settings.items():
        await connection.execute("select pg_catalog.set_config(%s, %s, false)", (name, value))


async def _read(
    connection: _Connection, text: sql.SQL, params: list[str], limits: DbSettings
) -> Output:
    async with psycopg.AsyncRawServerCursor(connection, "moothall") as cursor:
        await cursor.execute(text, params)
        table = Table([column.name for column in cursor.description or ()], limits)
        while rows := await cursor.fetchmany(_BATCH):
            if not all(table.take(row) for row in rows):
                break
        return table.output()


async def _change(
    connection: _Connection, text: sql.SQL, params: list[str], limits: DbSettings
) -> Output:
    """Run a statement that may change data, and keep what it did."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(text, params, prepare=True)  # prepared: one statement, never several
        table = Table([column.name for column in cursor.description or ()], limits)
        while cursor.description and (rows := await cursor.fetchmany(_BATCH)):
            if not all(table.take(row) for row in rows):
                break
        changed = max(cursor.rowcount, 0)
    await connection.commit()
    return table.output() | {"changed": changed}


def _error_of(error: psycopg.Error, *, reading: bool) -> Exception:
    """The server's own words, which name neither its address nor a password."""
    told = error.diag
    words = told.message_primary
    if words is None and isinstance(
        error, psycopg.ProgrammingError | psycopg.DataError
    ):  # the client's own, before it asks
        return InvalidRequest(f"PostgreSQL is not asked: {str(error)[:300]}")
    if words is None:
        return CallFailed(f"the connection to PostgreSQL broke ({type(error).__name__})")
    more = "".join(f" {part}" for part in (told.message_detail, told.message_hint) if part)
    said = f"PostgreSQL: {words} ({error.sqlstate}){more}"
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Refused(f"{said}. Queries are read-only here (db.write)")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Refused(said)
    if reading and error.sqlstate == _SYNTAX:
        said += ". Taken is one SELECT, VALUES or WITH: queries are read-only here (db.write)"
    return (
        InvalidRequest(said)
        if isinstance(error, psycopg.ProgrammingError | psycopg.DataError)
        else CallFailed(said)
    )
