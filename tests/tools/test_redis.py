"""`db.redis` against a real server: queries are answered, and no query of a model changes
anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio
from pydantic import SecretStr
from query_tool import PASSWORD, ask, database_tools

from moothall.domain.tool import ToolStatus
from moothall.toolkits.db.toolkit import DatabaseTools
from support import servers

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    try:
        with servers.redis() as url:
            yield url
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
async def filled(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.flushall()
        await client.set("a", "1")
        await client.hset("h", mapping={"name": "Ada", "raw": b"\xff\x00"})
        await client.rpush("l", *[str(number) for number in range(2000)])
        yield client


async def state(client: redis.asyncio.Redis) -> list[Any]:
    settings = await client.config_get("*")
    return [
        await client.dbsize(),
        await client.get("a"),
        await client.llen("l"),
        await client.hgetall("h"),
        settings,
        await client.acl_list(),
    ]


def reds(url: str, **options: Any) -> DatabaseTools:
    return database_tools(redis_url=SecretStr(url), **options)


async def test_redis_replies_are_returned(redis_url: str, filled: redis.asyncio.Redis) -> None:
    for command, args, reply in (
        ("GET", ["a"], "1"),
        ("get", ["nothing"], None),
        ("HGET", ["h", "name"], "Ada"),
        ("HGET", ["h", "raw"], {"base64": "/wA="}),
        ("LRANGE", ["l", "0", "2"], ["0", "1", "2"]),
        ("TYPE", ["a"], "string"),
        ("DBSIZE", [], 3),
        ("OBJECT ENCODING", ["a"], "int"),
        ("OBJECT", ["ENCODING", "a"], "int"),
        ("EXISTS", ["a", "h"], 2),
    ):
        result = await ask("db.redis", reds(redis_url), command=command, args=args)
        assert (result.status, result.output.get("reply")) == (ToolStatus.SUCCESS, reply), (
            command,
            result.error,
        )
    long = await ask("db.redis", reds(redis_url), command="LRANGE", args=["l", "0", "-1"])
    assert (len(long.output["reply"]), long.output["truncated"]) == (500, True)


REDIS_CHANGES: list[tuple[str, list[str]]] = [
    ("SET", ["a", "2"]),
    ("DEL", ["a"]),
    ("GETDEL", ["a"]),
    ("GETEX", ["a", "EX", "1"]),
    ("EXPIRE", ["a", "1"]),
    ("FLUSHALL", []),
    ("CONFIG", ["SET", "dir", "/tmp"]),
    ("CONFIG GET", ["*"]),
    ("EVAL", ["return redis.call('set','a','2')", "0"]),
    ("EVAL_RO", ["return redis.call('get','a')", "0"]),
    ("EVALSHA", ["0" * 40, "0"]),
    ("FCALL", ["f", "0"]),
    ("FCALL_RO", ["f", "0"]),
    ("SCRIPT", ["LOAD", "return 1"]),
    ("FUNCTION", ["LOAD", "#!lua name=x\nredis.register_function('f', function() end)"]),
    ("MIGRATE", ["127.0.0.1", "1", "a", "0", "10"]),
    ("DEBUG", ["SLEEP", "1"]),
    ("MODULE", ["LOAD", "/tmp/x.so"]),
    ("SUBSCRIBE", ["x"]),
    ("PSUBSCRIBE", ["*"]),
    ("MONITOR", []),
    ("BLPOP", ["nothing", "0"]),
    ("XREAD", ["BLOCK", "0", "STREAMS", "s", "$"]),
    ("WAIT", ["1", "0"]),
    ("KEYS", ["*"]),
    ("SAVE", []),
    ("BGSAVE", []),
    ("SHUTDOWN", []),
    ("REPLICAOF", ["127.0.0.1", "1"]),
    ("SLAVEOF", ["127.0.0.1", "1"]),
    ("PSYNC", ["?", "-1"]),
    ("ACL SETUSER", ["x", "on", "nopass", "+@all"]),
    ("ACL", ["SETUSER", "x", "on"]),
    ("CLIENT", ["KILL", "TYPE", "normal"]),
    ("AUTH", ["x"]),
    ("HELLO", ["3"]),
    ("SELECT", ["1"]),
    ("SWAPDB", ["0", "1"]),
    ("MULTI", []),
    ("EXEC", []),
    ("SORT", ["l", "STORE", "l2"]),
    ("PUBLISH", ["x", "y"]),
    ("PFCOUNT", ["a"]),
    ("RESET", []),
    ("QUIT", []),
    ("LATENCY", ["RESET"]),
    ("MEMORY", ["PURGE"]),
    ("OBJECT", []),
    ("GET x", ["a"]),
    ("NOSUCH", []),
]


@pytest.mark.parametrize(
    ("command", "args"), REDIS_CHANGES, ids=lambda part: part if isinstance(part, str) else ""
)
async def test_redis_changes_nothing(
    redis_url: str, filled: redis.asyncio.Redis, command: str, args: list[str]
) -> None:
    state_before = await state(filled)
    result = await ask("db.redis", reds(redis_url), command=command, args=args)
    assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, result
    assert result.error
    assert await state(filled) == state_before


async def test_redis_arguments_are_never_read_as_commands(
    redis_url: str, filled: redis.asyncio.Redis
) -> None:
    state_before = await state(filled)
    result = await ask("db.redis", reds(redis_url), command="GET", args=["a\r\nSET a 2\r\n"])
    assert result.output["reply"] is None
    assert await state(filled) == state_before


async def test_redis_answers_are_bounded(redis_url: str, filled: redis.asyncio.Redis) -> None:
    await filled.set("big", b"x" * 20_000_000)
    result = await ask("db.redis", reds(redis_url), command="GET", args=["big"])
    assert (result.status, "more than 8000000 bytes" in result.error) == (ToolStatus.ERROR, True)
    await filled.set("big", b"x" * 200_000)
    result = await ask("db.redis", reds(redis_url), command="GET", args=["big"])
    assert (len(result.output["reply"]), result.output["truncated"]) == (50_000, True)


async def test_redis_writes_if_the_operator_allows_it(
    redis_url: str, filled: redis.asyncio.Redis
) -> None:
    result = await ask("db.redis", reds(redis_url, write=True), command="SET", args=["a", "5"])
    assert result.output["reply"] == "OK", result.error
    assert await filled.get("a") == b"5"
    for command, args in (
        ("FLUSHALL", []),
        ("EVAL", ["return 1", "0"]),
        ("CONFIG", ["SET", "dir", "/"]),
        ("KEYS", ["*"]),
    ):
        refused = await ask(
            "db.redis", reds(redis_url, write=True), command=command, args=list(args)
        )
        assert refused.status is ToolStatus.BLOCKED


async def test_redis_works_for_a_read_only_user(
    redis_url: str, filled: redis.asyncio.Redis
) -> None:
    rules = f"reader on >{PASSWORD} ~* +@read -@dangerous +command +select"
    await filled.execute_command("ACL", "SETUSER", *rules.split())  # type: ignore[no-untyped-call]  # redis-py
    reader_url = redis_url.replace("/0", "/1").replace(
        urlsplit(redis_url).netloc.rpartition("@")[0], f"reader:{PASSWORD}"
    )
    result = await ask("db.redis", reds(reader_url), command="DBSIZE")
    assert (result.status, result.output.get("reply")) == (ToolStatus.SUCCESS, 0), result.error
    refused = await ask("db.redis", reds(reader_url, write=True), command="SET", args=["a", "2"])
    assert (refused.status, "NOPERM" in refused.error or "permissions" in refused.error) == (
        ToolStatus.BLOCKED,
        True,
    )


async def test_an_unreachable_redis_and_wrong_credentials_are_reported(redis_url: str) -> None:
    refused = await ask(
        "db.redis",
        reds(f"redis://:{PASSWORD}@{redis_url.rpartition('@')[2]}"),
        command="GET",
        args=["a"],
    )
    assert (refused.status, "refuses this user and password" in refused.error) == (
        ToolStatus.ERROR,
        True,
    ), refused
    unreachable = await ask(
        "db.redis",
        reds(f"redis://:{PASSWORD}@127.0.0.1:{servers.free_port()}/0"),
        command="GET",
        args=["a"],
    )
    assert (
        unreachable.status,
        "does not answer" in unreachable.error,
        "127.0.0.1" in unreachable.error,
    ) == (
        ToolStatus.ERROR,
        True,
        False,
    )
