"""`db.redis`: one command on a connection of its own. The server itself says of each command what
it does; read-only ones are taken, and with `db.write` those that write; never one that administers,
blocks, subscribes or runs scripts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.toolkits.answering import Output
from moothall.toolkits.db.family import DbSettings
from moothall.toolkits.db.rows import jsonable, size

_NEVER = frozenset(
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
_BESIDES = "may_replicate"  # reads, and yet writes: PFCOUNT, and PUBLISH


class _Flooded(Exception):
    """The server sent more than it may."""


class _Bounded:
    """A stream that ends a reply which is too long before it is read."""

    def __init__(self, stream: asyncio.StreamReader, most: int) -> None:
        self._stream, self._left = stream, most

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _Flooded

    async def readexactly(self, count: int) -> bytes:
        """Read so many bytes."""
        self._spend(count)
        return await self._stream.readexactly(count)

    async def readline(self) -> bytes:
        """Read a line."""
        line = await self._stream.readline()
        self._spend(len(line))
        return line

    async def read(self, count: int) -> bytes:
        """Read at most so many bytes."""
        some = await self._stream.read(count)
        self._spend(len(some))
        return some

    def at_eof(self) -> bool:
        """Whether nothing comes any more."""
        return self._stream.at_eof()


async def command(url: str, words: str, args: list[str], limits: DbSettings) -> Output:
    """Return the reply to a command. Raises `InvalidRequest`, `Refused`, `CallFailed`."""
    connection = _connection(url, limits)
    try:
        await _connect(connection, limits)
        return await _ask(connection, words.upper().split(" "), args, limits)
    except _Flooded as error:
        raise CallFailed(
            f"the server sent more than {limits.receive_bytes} bytes (db.receive_bytes); ask for "
            "less"
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


def _connection(url: str, limits: DbSettings) -> AbstractConnection:
    options: dict[str, Any] = dict(parse_url(url))
    kind = options.pop("connection_class", Connection)
    given = {"decode_responses": False, "protocol": 2, "socket_connect_timeout": limits.seconds}
    made: AbstractConnection = kind(**(options | given))
    return made


async def _connect(connection: AbstractConnection, limits: DbSettings) -> None:
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
    except (RedisError, OSError) as error:
        refused = isinstance(error, AuthenticationError | NoPermissionError | ResponseError)
        reason = (
            "it lets nobody in with this user and password" if refused else "it does not answer"
        )
        raise CallFailed(
            f"Redis cannot be asked: {reason} (db.redis_url); `moothall doctor` says more"
        ) from error
    parser: Any = connection._parser  # noqa: SLF001 - the one place where a reply can be bounded before it is in memory
    parser._stream = _Bounded(parser._stream, limits.receive_bytes)  # noqa: SLF001 - as above


async def _ask(
    connection: AbstractConnection, name: list[str], args: list[str], limits: DbSettings
) -> Output:
    await connection.send_command("COMMAND", "INFO", *_candidates(name, args))
    told = await connection.read_response()
    known = {entry[0].decode().upper().replace("|", " "): entry for entry in told if entry}
    _judge(" ".join(name), args, known, limits)
    await connection.send_command(*name, *args)
    return _cut(jsonable(await connection.read_response()), limits)


def _candidates(name: list[str], args: list[str]) -> list[str]:
    """The command, and it with its first argument as a subcommand: OBJECT ENCODING may come in
    either place.
    """
    subcommand = name[1] if len(name) > 1 else (args[0] if args else "")
    return [name[0], f"{name[0]}|{subcommand}"] if subcommand else name[:1]


def _judge(name: str, args: list[str], known: dict[str, list[Any]], limits: DbSettings) -> None:
    base = known.get(name.split(" ", maxsplit=1)[0])
    if base is None:
        raise InvalidRequest(f"this Redis server knows no command {name}")
    subcommands = len(base) > _SUBCOMMANDS and base[_SUBCOMMANDS]
    found = base
    if subcommands:
        whole = name if " " in name else f"{name} {args[0].upper() if args else ''}"
        if whole not in known:
            raise InvalidRequest(f"this Redis server knows no command {whole.strip()}")
        found = known[whole]
    elif " " in name:
        raise InvalidRequest(
            f"{name.split(' ', maxsplit=1)[0]} has no subcommands: give its arguments in args"
        )
    said = {
        _word(flag)
        for flag in (*found[_FLAGS], *(found[_CATEGORIES] if len(found) > _CATEGORIES else ()))
    }
    taken = {"readonly", "write"} if limits.write else {"readonly"}
    if not said & taken or said & _NEVER or (_BESIDES in said and not limits.write):
        only = (
            "neither reads nor writes data, or can harm the server"
            if limits.write
            else "is not a command that only reads (db.write)"
        )
        raise Refused(f"{name} is not taken: it {only}")


_FLAGS, _CATEGORIES, _SUBCOMMANDS = 2, 6, 9


def _word(flag: bytes | str) -> str:
    return flag.decode() if isinstance(flag, bytes) else flag


def _cut(reply: Any, limits: DbSettings) -> Output:
    if isinstance(reply, list):
        kept, left = [], limits.result_bytes
        for item in reply[: limits.rows]:
            left -= size(item) + 2
            if left < 0:
                break
            kept.append(item)
        return {"reply": kept, "truncated": len(kept) < len(reply)}
    if isinstance(reply, str) and len(reply) > limits.result_bytes:
        return {"reply": reply[: limits.result_bytes], "truncated": True}
    if size(reply) > limits.result_bytes:
        return {"reply": None, "truncated": True}
    return {"reply": reply, "truncated": False}
