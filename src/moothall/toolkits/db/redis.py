"""`db.redis`: one command on a connection of its own. The server itself describes what each command
does. Read-only commands are allowed, and with `db.write` those that write, but none that
administers, blocks, subscribes or runs scripts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.toolkits.calls import ToolOutput
from moothall.toolkits.db import DbLimits
from moothall.toolkits.db.toolkit import ANSWER_BYTES, RECEIVE_BYTES, jsonable, size

_FORBIDDEN_FLAGS = frozenset(
    {
        "admin",
        "noscript",
        "blocking",
        "pubsub",
        "no_auth",
        "@admin",
        "@dangerous",
        "@scripting",
        "@blocking",
        "@pubsub",
        "@connection",
    }
)
_ALSO_WRITES = "may_replicate"  # of commands that read and also write, such as PFCOUNT and PUBLISH


class _TooMuchData(Exception):
    """The server sent more than is allowed."""


class _LimitedStream:
    """A stream that ends a reply that is too long."""

    def __init__(self, stream: asyncio.StreamReader, max_bytes: int) -> None:
        self._stream, self._bytes_left = stream, max_bytes

    def _count_bytes(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise _TooMuchData

    async def readexactly(self, count: int) -> bytes:
        """Read `count` bytes."""
        self._count_bytes(count)
        return await self._stream.readexactly(count)

    async def readline(self) -> bytes:
        """Read a line."""
        line = await self._stream.readline()
        self._count_bytes(len(line))
        return line

    async def read(self, count: int) -> bytes:
        """Read at most `count` bytes."""
        data = await self._stream.read(count)
        self._count_bytes(len(data))
        return data

    def at_eof(self) -> bool:
        """Return whether the stream has ended."""
        return self._stream.at_eof()


async def command(url: str, name: str, args: list[str], limits: DbLimits) -> ToolOutput:
    """Return the reply to a command. Raises `InvalidRequest`, `Refused`, `CallFailed`."""
    connection = _connection(url, limits)
    try:
        await _connect(connection)
        return await _run_command(connection, name.upper().split(" "), args, limits)
    except _TooMuchData as error:
        raise CallFailed(
            f"the server sent more than {RECEIVE_BYTES} bytes; ask for less"
        ) from error
    except NoPermissionError as error:
        raise Refused(f"Redis: {error}") from error
    except ResponseError as error:
        raise InvalidRequest(f"Redis: {error}") from error
    except UnicodeError as error:
        raise InvalidRequest(
            "the command or its arguments have text that is not Unicode"
        ) from error
    except (RedisError, OSError, asyncio.IncompleteReadError) as error:
        raise CallFailed(f"the connection to Redis broke ({type(error).__name__})") from error
    finally:
        await connection.disconnect(nowait=True)


def _connection(url: str, limits: DbLimits) -> AbstractConnection:
    options: dict[str, Any] = dict(parse_url(url))
    kind = options.pop("connection_class", Connection)
    overrides = {"decode_responses": False, "protocol": 2, "socket_connect_timeout": limits.seconds}
    connection: AbstractConnection = kind(**(options | overrides))
    return connection


async def _connect(connection: AbstractConnection) -> None:
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
    except (RedisError, OSError) as error:
        was_rejected = isinstance(error, AuthenticationError | NoPermissionError | ResponseError)
        reason = "it refuses this user and password" if was_rejected else "it does not answer"
        raise CallFailed(
            f"Redis cannot be queried: {reason} (db.redis_url); `moothall doctor` shows details"
        ) from error
    parser: Any = connection._parser  # noqa: SLF001 - the one place where a reply can be bounded before it is in memory
    parser._stream = _LimitedStream(parser._stream, RECEIVE_BYTES)  # noqa: SLF001 - as above


async def _run_command(
    connection: AbstractConnection, name: list[str], args: list[str], limits: DbLimits
) -> ToolOutput:
    await connection.send_command("COMMAND", "INFO", *_candidates(name, args))
    entries = await connection.read_response()
    commands = {entry[0].decode().upper().replace("|", " "): entry for entry in entries if entry}
    _check_command(" ".join(name), args, commands, limits)
    await connection.send_command(*name, *args)
    return _truncate(jsonable(await connection.read_response()), limits)


def _candidates(name: list[str], args: list[str]) -> list[str]:
    """Return the command, and the command with its first argument as a subcommand, because OBJECT
    ENCODING may be given in either way.
    """
    subcommand = name[1] if len(name) > 1 else (args[0] if args else "")
    return [name[0], f"{name[0]}|{subcommand}"] if subcommand else name[:1]


def _check_command(
    name: str, args: list[str], commands: dict[str, list[Any]], limits: DbLimits
) -> None:
    base = commands.get(name.split(" ", maxsplit=1)[0])
    if base is None:
        raise InvalidRequest(f"this Redis server has no command {name}")
    subcommands = len(base) > _SUBCOMMANDS and base[_SUBCOMMANDS]
    entry = base
    if subcommands:
        full_name = name if " " in name else f"{name} {args[0].upper() if args else ''}"
        if full_name not in commands:
            raise InvalidRequest(f"this Redis server has no command {full_name.strip()}")
        entry = commands[full_name]
    elif " " in name:
        raise InvalidRequest(
            f"{name.split(' ', maxsplit=1)[0]} has no subcommands: give its arguments in args"
        )
    flags = {
        _text(flag)
        for flag in (*entry[_FLAGS], *(entry[_CATEGORIES] if len(entry) > _CATEGORIES else ()))
    }
    allowed = {"readonly", "write"} if limits.write else {"readonly"}
    if (
        not flags & allowed
        or flags & _FORBIDDEN_FLAGS
        or (_ALSO_WRITES in flags and not limits.write)
    ):
        reason = (
            "neither reads nor writes data, or can harm the server"
            if limits.write
            else "is not a command that only reads (db.write)"
        )
        raise Refused(f"{name} is not allowed: it {reason}")


_FLAGS, _CATEGORIES, _SUBCOMMANDS = 2, 6, 9


def _text(flag: bytes | str) -> str:
    return flag.decode() if isinstance(flag, bytes) else flag


def _truncate(reply: Any, limits: DbLimits) -> ToolOutput:
    if isinstance(reply, list):
        items, remaining = [], ANSWER_BYTES
        for item in reply[: limits.rows]:
            remaining -= size(item) + 2
            if remaining < 0:
                break
            items.append(item)
        return {"reply": items, "truncated": len(items) < len(reply)}
    if isinstance(reply, str) and len(reply) > ANSWER_BYTES:
        return {"reply": reply[:ANSWER_BYTES], "truncated": True}
    if size(reply) > ANSWER_BYTES:
        return {"reply": None, "truncated": True}
    return {"reply": reply, "truncated": False}
