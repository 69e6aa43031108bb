"""`db.postgres`: one statement on a connection of its own, read-only by default.

Four things keep a query read-only. It is declared as a cursor, which accepts only a SELECT, VALUES
or WITH without changes. The extended protocol accepts only one statement. It runs in a READ ONLY
transaction, which is rolled back. A transaction does not prevent access to files, programs and
connections of the server, so a role that may use them is refused, with advice.

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
from moothall.network.proxy import CHUNK, Streams, copy_stream
from moothall.toolkits.calls import ToolOutput
from moothall.toolkits.db import DbLimits
from moothall.toolkits.db.toolkit import RECEIVE_BYTES, Table

_CONNECTIONS = 4  # of a client: its own, and those for cancelling
_ACCEPTING = 5
_Connection = psycopg.AsyncConnection[tuple[Any, ...]]
_BATCH = 50
_NATIVE_TYPES = frozenset(
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
# Privileges to do what a rollback does not undo. A query can assume any role that its own role is a
# member of.
_DANGEROUS_PRIVILEGES = """
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
_FIX = (
    "CREATE ROLE reader LOGIN PASSWORD '…'; GRANT pg_read_all_data TO reader; and REVOKE EXECUTE … "
    "FROM PUBLIC where it is named"
)


class _TooMuchData(OSError):
    """The server sent more than is allowed."""


@dataclass(slots=True)
class LoopbackRelay:
    """A relay that listens on a loopback port.

    bytes_left: how many bytes the server may still send.
    too_much_data: whether it sent more.
    """

    connect: Callable[[], Awaitable[Streams]]
    bytes_left: int
    port: int = 0
    too_much_data: bool = False
    failed: str = ""
    _open_socket: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection in both directions."""
        if len(self._open_socket) >= _CONNECTIONS * 2:
            writer.transport.abort()
            return
        self._open_socket.add(writer)
        upstream = None
        try:
            upstream = await self.connect()
            self._open_socket.add(upstream[1])
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    copy_stream(reader, upstream[1], lambda _: None), name="relay-out"
                )
                group.create_task(
                    copy_stream(upstream[0], writer, self._count_bytes), name="relay-in"
                )
        except* _TooMuchData:
            self.too_much_data = True
        except* OSError as errors:
            self.failed = self.failed or str(errors.exceptions[0])
        finally:
            for stream_writer in (writer, *((upstream[1],) if upstream else ())):
                self._open_socket.discard(stream_writer)
                stream_writer.transport.abort()

    def _count_bytes(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise _TooMuchData

    async def close(self) -> None:
        """Close all connections."""
        # An accepted connection appears only after a few rounds of the event loop.
        for _ in range(_ACCEPTING):
            await asyncio.sleep(0)
        for writer in tuple(self._open_socket):
            writer.transport.abort()
        for _ in range(_ACCEPTING):
            await asyncio.sleep(0)


@asynccontextmanager
async def open_relay(
    connect: Callable[[], Awaitable[Streams]], max_bytes: int
) -> AsyncIterator[LoopbackRelay]:
    """Relay to the server that `connect` connects to, until the context ends. At most `max_bytes`
    come back in total.
    """
    relay = LoopbackRelay(connect, max_bytes)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=CHUNK)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.close()


async def query(url: str, text: str, params: list[str], limits: DbLimits) -> ToolOutput:
    """Return the rows of a statement. Raises `InvalidRequest`, `Refused`, `CallFailed`."""
    try:
        conninfo = conninfo_to_dict(url)
        host, port = _server_address(conninfo)
    except (psycopg.Error, ValueError) as error:
        raise CallFailed(
            "db.postgres_url is not a URL of one server that PostgreSQL's client can parse"
        ) from error
    # libpq reads a whole row into memory, and a row may be a gigabyte, so the relay counts the
    # bytes.
    async with open_relay(
        functools.partial(_open_socket, host, port, limits.seconds), RECEIVE_BYTES
    ) as relay:
        try:
            async with _connection(
                {**conninfo, "host": conninfo.get("host") or host}, relay, limits
            ) as connection:
                privileges = await (await connection.execute(_DANGEROUS_PRIVILEGES)).fetchall()
                if privileges:
                    privilege_list = "; ".join(str(row[0]) for row in privileges)
                    raise Refused(
                        f"the role of db.postgres_url has dangerous privileges: {privilege_list}. "
                        f"Fix: {_FIX}"
                    )
                run_statement = _run_write if limits.write else _run_read
                return await run_statement(connection, sql.SQL(text), params, limits)
        except UnicodeError as error:
            raise CallFailed("the answer, or the query, has text that is not UTF-8") from error
        except psycopg.Error as error:
            if relay.too_much_data:
                raise CallFailed(
                    f"the server sent more than {RECEIVE_BYTES} bytes; ask for less"
                ) from error
            raise _translate_error(error, reading=not limits.write) from error


async def _open_socket(host: str, port: int, seconds: float) -> Streams:
    async with asyncio.timeout(seconds):
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


def _server_address(conninfo: Mapping[str, Any]) -> tuple[str, int]:
    """Return the host and port of the server in a URL. Without a host it is the server's socket on
    this machine.
    """
    host = str(conninfo.get("hostaddr") or conninfo.get("host") or "/var/run/postgresql")
    if "," in host:
        raise ValueError("several hosts")
    return host, int(conninfo.get("port") or 5432)


@asynccontextmanager
async def _connection(
    conninfo: Mapping[str, Any], relay: LoopbackRelay, limits: DbLimits
) -> AsyncIterator[_Connection]:
    options: dict[str, Any] = {**conninfo, "hostaddr": "127.0.0.1", "port": relay.port}
    if str(conninfo["host"]).startswith("/"):
        options |= {"host": "localhost", "sslmode": "disable"}
    try:
        connection = await psycopg.AsyncConnection.connect(
            **{
                **options,
                "connect_timeout": max(2, round(limits.seconds)),
                "client_encoding": "utf8",
                "application_name": "moothall",
            },
            prepare_threshold=0 if limits.write else None,
        )
    except (psycopg.Error, OSError, ValueError) as error:
        was_rejected = "FATAL" in str(error)  # from the server, unlike a refused connection
        reason = "it refuses this user and password" if was_rejected else "it does not answer"
        raise CallFailed(
            f"PostgreSQL cannot be queried: {reason} (db.postgres_url); `moothall doctor` shows "
            "details"
        ) from (OSError(relay.failed) if relay.failed else error)
    try:
        await _set_limits(connection, limits)
        yield connection
    finally:
        # Closing the connection rolls back. A query that still runs is cancelled.
        if connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
            with suppress(psycopg.Error, TimeoutError):
                await connection.cancel_safe(timeout=2)
        await connection.close()


async def _set_limits(connection: _Connection, limits: DbLimits) -> None:
    for info in psycopg.adapters.types:
        if info.name not in _NATIVE_TYPES and type(info) is TypeInfo:
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


async def _run_read(
    connection: _Connection, text: sql.SQL, params: list[str], limits: DbLimits
) -> ToolOutput:
    async with psycopg.AsyncRawServerCursor(connection, "moothall") as cursor:
        await cursor.execute(text, params)
        table = Table([column.name for column in cursor.description or ()], limits)
        while rows := await cursor.fetchmany(_BATCH):
            if not all(table.add(row) for row in rows):
                break
        return table.output()


async def _run_write(
    connection: _Connection, text: sql.SQL, params: list[str], limits: DbLimits
) -> ToolOutput:
    """Run a statement that may change data, and commit."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(text, params, prepare=True)  # prepared: one statement, never several
        table = Table([column.name for column in cursor.description or ()], limits)
        while cursor.description and (rows := await cursor.fetchmany(_BATCH)):
            if not all(table.add(row) for row in rows):
                break
        changed = max(cursor.rowcount, 0)
    await connection.commit()
    return table.output() | {"changed": changed}


def _translate_error(error: psycopg.Error, *, reading: bool) -> Exception:
    """Translate an error. The server's messages contain neither its address nor a password."""
    diagnostics = error.diag
    message = diagnostics.message_primary
    is_invalid = isinstance(error, psycopg.ProgrammingError | psycopg.DataError)
    if message is None and is_invalid:  # an error of the client, before the query was sent
        return InvalidRequest(f"the query was not sent: {str(error)[:300]}")
    if message is None:
        return CallFailed(f"the connection to PostgreSQL broke ({type(error).__name__})")
    details = "".join(
        f" {part}" for part in (diagnostics.message_detail, diagnostics.message_hint) if part
    )
    text = f"PostgreSQL: {message} ({error.sqlstate}){details}"
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Refused(f"{text}. Queries are read-only here (db.write)")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Refused(text)
    if reading and error.sqlstate == _SYNTAX:
        text += ". Allowed is one SELECT, VALUES or WITH: queries are read-only here (db.write)"
    return InvalidRequest(text) if is_invalid else CallFailed(text)
