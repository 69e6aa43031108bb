"""`db.*` against real servers: what is asked is answered, and nothing that a model can write changes anything."""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis.asyncio
from neo4j import GraphDatabase
from pydantic import SecretStr

from moothall.config import Databases, Db, load_settings
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.guard.audit import AuditLog
from moothall.guard.gate import Gate
from moothall.testing import neo4j as neo4j_server
from moothall.testing import servers
from moothall.testing.bus import MemoryBus
from moothall.testing.gate import Facts, House, Room, in_seconds, tool_call
from moothall.toolkits.databases import DatabaseTools
from moothall.tools.db_tools import SPECS
from moothall.wiring.rules import open_rules

pytestmark = pytest.mark.e2e
_ARGUMENTS = {spec.name: spec.arguments for spec in SPECS}
_PASSWORD = "r-secret-42"
POLICY = """package moothall.tools

import rego.v1

default decision := {"allow": false, "reason": "no rule allows it"}

decision := {"allow": true} if {
    input.category == "db"
    "look" in input.tags
}
"""


async def ask(tool: str, settings: Db, tenant: str = "local", **arguments: Any) -> ToolResult:
    """Ask as the gate would: arguments checked, defaults filled in."""
    checked = _ARGUMENTS[tool].model_validate(arguments).model_dump()
    result = await DatabaseTools(settings).call(ToolCall("request-1", tool, checked, in_seconds(60)), Room(), tenant)
    json.dumps(dict(result.output), allow_nan=False)
    assert _PASSWORD not in str(result)
    return result


# PostgreSQL


@pytest.fixture(scope="module")
def boss() -> Iterator[str]:
    try:
        with servers.postgres() as url:
            yield url
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def reader(boss: str) -> str:
    """A role that may do all with the tables of the test, and nothing more."""
    with psycopg.connect(boss, autocommit=True) as connection:
        for statement in (
            f"create role reader login password '{_PASSWORD}'",
            "create table items (id serial primary key, name text, price numeric, at timestamptz, raw bytea, tags text[])",
            """insert into items (name, price, at, raw, tags)
               values ('bolt', 1.50, '2026-01-02 03:04:05+00', '\\xff00', '{a,b}'), ('nut', 'NaN', 'infinity', null, null)""",
            "grant all on items, items_id_seq to reader",
            "grant create, usage on schema public to reader",
            """create function sly() returns int language plpgsql security definer as
               $$ begin insert into items (name) values ('sly'); return 1; end $$""",
            "create function ok() returns int language sql as 'select 7'",
        ):
            connection.execute(statement)
    return urlsplit(boss)._replace(netloc=f"reader:{_PASSWORD}@{urlsplit(boss).netloc.rpartition('@')[2]}").geturl()


def postgres(url: str, **more: Any) -> Db:
    return Db(postgres_url=SecretStr(url), **{"seconds": 60, **more})


async def test_postgres_answers_as_json(reader: str) -> None:
    result = await ask(
        "db.postgres", postgres(reader), query="select *, 2.5::float8 f, '{\"a\": [1]}'::jsonb j from items order by id"
    )
    assert result.status is ToolStatus.SUCCESS, result.error
    assert result.output["columns"] == ["id", "name", "price", "at", "raw", "tags", "f", "j"]
    first, second = result.output["rows"]
    assert first[:3] == [1, "bolt", "1.50"]
    assert first[3].startswith("2026-01-02 ")
    assert first[4:] == ["\\xff00", ["a", "b"], 2.5, {"a": [1]}]
    assert second[2:4] == ["NaN", "infinity"]


async def test_postgres_takes_parameters_by_place(reader: str) -> None:
    for query, params in (
        ("select name from items where id = $1", ["1"]),
        ("select name from items where name = $2 and id = $1", ["1", "bolt"]),
        ("with x as (select * from items) select name from x where price < $1", ["2"]),
        ("values ('bolt')", []),
        ("select name from items where id = 1 -- and a comment; really", []),
    ):
        result = await ask("db.postgres", postgres(reader), query=query, params=params)
        assert result.output["rows"] == [["bolt"]], result.error
    wrong = await ask("db.postgres", postgres(reader), query="select $1::int", params=["'; drop table items; --"])
    assert (wrong.status, "invalid input syntax" in wrong.error) == (ToolStatus.INVALID, True)


CHANGES = [
    "insert into items (name) values ('x')",
    "update items set name = 'x'",
    "delete from items",
    "truncate items",
    "drop table items",
    "create table mine (a int)",
    "create temp table mine (a int)",
    "with gone as (delete from items returning *) select * from gone",
    "with more as (insert into items (name) values ('x') returning *) select * from more",
    "select * into mine from items",
    "select nextval('items_id_seq')",
    "select setval('items_id_seq', 1000)",
    "select sly()",
    "select lo_from_bytea(4242, 'x')",
    "select lo_export(4242, '/tmp/moothall-lo')",
    "select pg_read_file('/etc/passwd')",
    "select pg_ls_dir('/')",
    "copy items to program 'touch /tmp/moothall-program'",
    "copy (select 1) to '/tmp/moothall-copy'",
    "copy items from program 'id'",
    "do $$ begin insert into items (name) values ('x'); end $$",
    "do $$ begin commit; end $$",
    "set transaction read write",
    "set session characteristics as transaction read write",
    "reset all",
    "begin",
    "commit",
    "select 1; delete from items",
    "select 1; commit; begin; delete from items",
    "commit; delete from items",
    "select set_config('transaction_read_only', 'off', false), sly()",
    "select set_config('default_transaction_read_only', 'off', false), (select sly())",
    "select set_config('role', 'boss', false)",
    "select query_to_xml('delete from items returning 1', true, true, '')",
    "select query_to_xml('commit', true, true, '')",
    "explain analyze delete from items",
    "select 1) x; delete from items; --",
    "grant all on items to public",
    "alter role reader superuser",
    "alter system set archive_command = 'id'",
    "listen x",
    "notify x",
    "lock table items",
    "select * from items for update",
    "vacuum",
    "prepare p as delete from items",
    "declare c cursor for select 1",
    "create extension dblink",
    "load 'x'",
    "call sly()",
    "select pg_terminate_backend(0), sly()",
    "refresh materialized view x",
    "import foreign schema x from server y into z",
    "\\! touch /tmp/moothall-psql",
]


@pytest.mark.parametrize("query", CHANGES)
async def test_postgres_changes_nothing(boss: str, reader: str, query: str) -> None:
    def state() -> Any:
        with psycopg.connect(boss) as connection:
            return connection.execute(
                """select (select count(*) from items), (select max(name) from items), (select last_value from items_id_seq),
                   (select count(*) from pg_class), (select count(*) from pg_largeobject_metadata),
                   (select rolsuper from pg_roles where rolname = 'reader'), (select count(*) from pg_extension)"""
            ).fetchone()

    before = state()
    result = await ask("db.postgres", postgres(reader), query=query)
    assert state() == before
    assert not any(Path(path).exists() for path in ("/tmp/moothall-program", "/tmp/moothall-copy", "/tmp/moothall-lo"))
    if not query.startswith("select lo_from_bytea"):  # PostgreSQL before 16 lets it pass, and it is rolled back
        assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID, ToolStatus.ERROR}, result
        assert result.error


async def test_postgres_refuses_roles_that_a_transaction_does_not_hold(boss: str, reader: str) -> None:
    result = await ask("db.postgres", postgres(boss), query="select 1")
    assert (result.status, "superuser boss" in result.error, "CREATE ROLE" in result.error) == (ToolStatus.BLOCKED, True, True)
    with psycopg.connect(boss, autocommit=True) as connection:
        connection.execute("grant pg_read_server_files to reader")
        try:
            told = await ask("db.postgres", postgres(reader), query="select pg_read_file('/etc/passwd')")
            assert (told.status, "pg_read_server_files" in told.error) == (ToolStatus.BLOCKED, True)
        finally:
            connection.execute("revoke pg_read_server_files from reader")
        connection.execute("create function dblink_exec(text) returns text language sql as 'select $1'")
        try:
            told = await ask("db.postgres", postgres(reader), query="select 1")
            assert (told.status, "dblink_exec(text)" in told.error) == (ToolStatus.BLOCKED, True)
        finally:
            connection.execute("drop function dblink_exec(text)")


async def test_postgres_answers_are_bounded(reader: str) -> None:
    rows = await ask("db.postgres", postgres(reader, rows=10), query="select generate_series(1, 100000000)")
    assert (rows.status, len(rows.output["rows"]), rows.output["truncated"]) == (ToolStatus.SUCCESS, 10, True)
    wide = await ask("db.postgres", postgres(reader), query="select repeat('x', 3000) from generate_series(1, 1000)")
    assert (len(wide.output["rows"]) < 20, wide.output["truncated"]) == (True, True)
    huge = await ask("db.postgres", postgres(reader), query="select repeat('x', 60000000)")
    assert (huge.status, "db.receive_bytes" in huge.error) == (ToolStatus.ERROR, True)
    for query in ("select pg_sleep(60)", "select set_config('statement_timeout', '0', false), pg_sleep(60)"):
        slow = await ask("db.postgres", postgres(reader, seconds=1), query=query)
        assert slow.status in {ToolStatus.TIMEOUT, ToolStatus.ERROR}
    after = await ask("db.postgres", postgres(reader), query="select ok()")
    assert after.output["rows"] == [[7]]


async def test_postgres_leaves_no_session_behind(boss: str, reader: str) -> None:
    await ask("db.postgres", postgres(reader, seconds=1), query="select pg_sleep(60), pg_advisory_lock(1)")
    with psycopg.connect(boss, autocommit=True) as connection:
        async with asyncio.timeout(20):
            while connection.execute("select count(*) from pg_stat_activity where usename = 'reader'").fetchone() != (0,):
                await asyncio.sleep(0.05)


async def test_postgres_writes_where_the_operator_says_so(boss: str, reader: str) -> None:
    may = postgres(reader, write=True)
    try:
        done = await ask("db.postgres", may, query="insert into items (name) values ($1) returning name", params=["new"])
        assert (done.output["rows"], done.output["changed"]) == ([["new"]], 1), done.error
        done = await ask("db.postgres", may, query="update items set price = 3 where name = 'new'")
        assert done.output["changed"] == 1
        several = await ask("db.postgres", may, query="delete from items where name = 'new'; select 1")
        assert (several.status, "multiple commands" in several.error) == (ToolStatus.INVALID, True)
        seen = await ask("db.postgres", may, query="select price from items where name = 'new'")
        assert seen.output["rows"] == [["3"]]
    finally:
        with psycopg.connect(boss, autocommit=True) as connection:
            connection.execute("delete from items where name = 'new'")


async def test_postgres_that_does_not_answer_or_lets_nobody_in(reader: str) -> None:
    wrong = await ask("db.postgres", postgres(reader.replace(_PASSWORD, "other-word")), query="select 1")
    assert (wrong.status, "lets nobody in" in wrong.error, "other-word" in wrong.error) == (ToolStatus.ERROR, True, False)
    gone = await ask(
        "db.postgres", postgres(f"postgresql://reader:{_PASSWORD}@127.0.0.1:{servers.free_port()}/x"), query="select 1"
    )
    assert (gone.status, "does not answer" in gone.error, "127.0.0.1" in gone.error) == (ToolStatus.ERROR, True, False)


async def test_postgres_by_its_socket(boss: str, reader: str) -> None:
    with psycopg.connect(boss) as connection:
        told = connection.execute("show unix_socket_directories").fetchone()
    url = f"postgresql://reader:{_PASSWORD}@/postgres?host={told[0] if told else ''}&port={urlsplit(reader).port}"
    assert (await ask("db.postgres", postgres(url), query="select ok()")).output["rows"] == [[7]]
    several = await ask("db.postgres", postgres("postgresql://reader@127.0.0.1,127.0.0.2/postgres"), query="select 1")
    assert (several.status, "no URL of one server" in several.error) == (ToolStatus.ERROR, True)


async def test_a_tenant_reaches_its_own_servers_and_no_others(reader: str) -> None:
    settings = postgres(reader, tenants={"acme": Databases(), "beta": Databases(postgres_url=SecretStr(reader))})
    assert (await ask("db.postgres", settings, query="select 1")).status is ToolStatus.SUCCESS
    assert (await ask("db.postgres", settings, "beta", query="select 1")).status is ToolStatus.SUCCESS
    refused = await ask("db.postgres", settings, "acme", query="select 1")
    assert (refused.status, "MOOTHALL_DB__POSTGRES_URL" in refused.error) == (ToolStatus.ERROR, True)


async def test_postgres_says_what_is_wrong_with_a_query(reader: str) -> None:
    for query, params, said in (
        ("select", ["\0"], "NUL"),
        ("select $1::int + $2::int", ["1"], "bind message supplies 1 parameters"),
        ("select nothing from items", [], 'column "nothing" does not exist'),
        ("selekt 1", [], "one SELECT, VALUES or WITH"),
        ("--", [], "one SELECT, VALUES or WITH"),
    ):
        result = await ask("db.postgres", postgres(reader), query=query, params=params)
        assert (result.status in {ToolStatus.INVALID, ToolStatus.ERROR}, said in result.error) == (True, True), result


# Through the gate


async def test_a_granted_query_passes_the_gate_where_policy_allows_it_and_leaves_no_secret(reader: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "roles.yaml").write_text('roles: {data: {tools: {"db.*": [outside]}}}', encoding="utf-8")
    (own / "mine.rego").write_text(POLICY, encoding="utf-8")
    settings = load_settings(data_dir=tmp_path / "data", guard={"policies": own}, db={"postgres_url": reader})
    async with AuditLog(tmp_path, "host-1") as audit, open_rules(settings, MemoryBus()) as rules:
        facts = Facts()
        house = House(tmp_path, audit, settings.guard)
        house.gate = Gate(settings.guard, audit, facts, rules)
        seat = house.seat(role="data", grant=rules.grants.of("data"))
        assert [spec.name for spec in house.gate.offered("local", seat.grant)] == ["db.postgres"]
        result = await house.gate.call(seat, tool_call("db.postgres", query="select name from items where id = $1", params=["1"]))
        assert (result.status, result.output["rows"]) == (ToolStatus.SUCCESS, [["bolt"]]), result.error
        changed = await house.gate.call(seat, tool_call("db.postgres", number=2, query="delete from items"))
        assert changed.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}
        assert [event.type for event in facts.events] == ["moothall.tool.started", "moothall.tool.finished"] * 2
        assert _PASSWORD not in str(facts.events) + house.chain.read_text()


# Redis


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


def reds(url: str, **more: Any) -> Db:
    return Db(redis_url=SecretStr(url), **{"seconds": 60, **more})


async def test_redis_answers(redis_url: str, filled: redis.asyncio.Redis) -> None:
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
        assert (result.status, result.output.get("reply")) == (ToolStatus.SUCCESS, reply), (command, result.error)
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


@pytest.mark.parametrize(("command", "args"), REDIS_CHANGES, ids=lambda part: part if isinstance(part, str) else "")
async def test_redis_changes_nothing(redis_url: str, filled: redis.asyncio.Redis, command: str, args: list[str]) -> None:
    before = await state(filled)
    result = await ask("db.redis", reds(redis_url), command=command, args=args)
    assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, result
    assert result.error
    assert await state(filled) == before


async def test_redis_arguments_are_no_commands(redis_url: str, filled: redis.asyncio.Redis) -> None:
    before = await state(filled)
    result = await ask("db.redis", reds(redis_url), command="GET", args=["a\r\nSET a 2\r\n"])
    assert result.output["reply"] is None
    assert await state(filled) == before


async def test_redis_answers_are_bounded(redis_url: str, filled: redis.asyncio.Redis) -> None:
    await filled.set("big", b"x" * 20_000_000)
    result = await ask("db.redis", reds(redis_url), command="GET", args=["big"])
    assert (result.status, "db.receive_bytes" in result.error) == (ToolStatus.ERROR, True)
    await filled.set("big", b"x" * 200_000)
    result = await ask("db.redis", reds(redis_url), command="GET", args=["big"])
    assert (len(result.output["reply"]), result.output["truncated"]) == (50_000, True)


async def test_redis_writes_where_the_operator_says_so(redis_url: str, filled: redis.asyncio.Redis) -> None:
    done = await ask("db.redis", reds(redis_url, write=True), command="SET", args=["a", "5"])
    assert done.output["reply"] == "OK", done.error
    assert await filled.get("a") == b"5"
    for command, args in (("FLUSHALL", []), ("EVAL", ["return 1", "0"]), ("CONFIG", ["SET", "dir", "/"]), ("KEYS", ["*"])):
        refused = await ask("db.redis", reds(redis_url, write=True), command=command, args=list(args))
        assert refused.status is ToolStatus.BLOCKED


async def test_redis_serves_a_user_that_may_only_read(redis_url: str, filled: redis.asyncio.Redis) -> None:
    rules = f"reader on >{_PASSWORD} ~* +@read -@dangerous +command +select"
    await filled.execute_command("ACL", "SETUSER", *rules.split())  # type: ignore[no-untyped-call]  # redis-py
    mine = redis_url.replace("/0", "/1").replace(urlsplit(redis_url).netloc.rpartition("@")[0], f"reader:{_PASSWORD}")
    result = await ask("db.redis", reds(mine), command="DBSIZE")
    assert (result.status, result.output.get("reply")) == (ToolStatus.SUCCESS, 0), result.error
    refused = await ask("db.redis", reds(mine, write=True), command="SET", args=["a", "2"])
    assert (refused.status, "NOPERM" in refused.error or "permissions" in refused.error) == (ToolStatus.BLOCKED, True)


async def test_redis_that_does_not_answer_or_lets_nobody_in(redis_url: str) -> None:
    wrong = await ask("db.redis", reds(f"redis://:{_PASSWORD}@{redis_url.rpartition('@')[2]}"), command="GET", args=["a"])
    assert (wrong.status, "lets nobody in" in wrong.error) == (ToolStatus.ERROR, True), wrong
    gone = await ask("db.redis", reds(f"redis://:{_PASSWORD}@127.0.0.1:{servers.free_port()}/0"), command="GET", args=["a"])
    assert (gone.status, "does not answer" in gone.error, "127.0.0.1" in gone.error) == (ToolStatus.ERROR, True, False)


# Neo4j


class Hits(socketserver.ThreadingTCPServer):
    """Counts who comes."""

    allow_reuse_address = True
    daemon_threads = True
    count = 0


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Hits)
        self.server.count += 1
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\na,b\n")


@pytest.fixture(scope="module")
def hits() -> Iterator[Hits]:
    with Hits(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with neo4j_server.some_server(tmp_path_factory.mktemp("neo4j") / "home") as address:
            where = address.url.partition("://")[2]
            with GraphDatabase.driver(address.url, auth=(address.user, address.password)) as driver:
                driver.execute_query(
                    "CREATE (a:Person {name: 'Ada', born: date('1815-12-10')})-[:KNOWS {since: 3}]->(:Person {name: 'Bob'})"
                )
            yield f"bolt://{address.user}:{address.password}@{where}"
    except neo4j_server.Missing as missing:
        pytest.skip(str(missing))


def graphs(url: str, **more: Any) -> Db:
    return Db(neo4j_url=SecretStr(url), **{"seconds": 60, **more})


async def test_neo4j_answers_as_json(graph: str) -> None:
    query = "MATCH p = (a:Person {name: $name})-[r]->(b) RETURN a, r, a.born, p, [1, 2.5, null] AS some, duration('P1D') AS d"
    result = await ask("db.neo4j", graphs(graph), query=query, params={"name": "Ada"})
    assert result.status is ToolStatus.SUCCESS, result.error
    assert result.output["columns"] == ["a", "r", "a.born", "p", "some", "d"]
    [[node, relation, born, path, some, length]] = result.output["rows"]
    assert node == {"labels": ["Person"], "properties": {"name": "Ada", "born": "1815-12-10"}}
    assert relation == {"type": "KNOWS", "properties": {"since": 3}}
    assert (born, some, length, len(path)) == ("1815-12-10", [1, 2.5, None], "P1D", 3)
    for query in ("CALL db.labels() YIELD label RETURN label", "call `db`.`labels`()", "CALL db.labels"):
        labels = await ask("db.neo4j", graphs(graph), query=query)
        assert labels.output.get("rows") == [["Person"]], labels.error


NEO4J_CHANGES = [
    "CREATE (:X)",
    "MERGE (:X)",
    "MATCH (n) SET n.x = 1",
    "MATCH (n) REMOVE n.name",
    "MATCH (n) DETACH DELETE n",
    "MATCH (n) CALL { WITH n CREATE (:X) } RETURN 1",
    "MATCH (n) CALL { WITH n DETACH DELETE n } IN TRANSACTIONS RETURN 1",
    "FOREACH (x IN [1] | CREATE (:X))",
    "CREATE INDEX mine FOR (n:Person) ON (n.name)",
    "CREATE CONSTRAINT mine FOR (n:Person) REQUIRE n.name IS UNIQUE",
    "CREATE USER eve SET PASSWORD 'abcdefgh'",
    "ALTER CURRENT USER SET PASSWORD FROM 'a' TO 'abcdefgh'",
    "ALTER USER neo4j SET PASSWORD 'abcdefgh'",
    "SHOW TRANSACTIONS YIELD transactionId AS i TERMINATE TRANSACTIONS i YIELD message RETURN message",
    "TERMINATE TRANSACTIONS 'neo4j-transaction-1'",
    "CALL db.createLabel('X')",
    "CALL db.create.setNodeVectorProperty(null, 'a', [1.0])",
    "CALL db.clearQueryCaches()",
    "CALL dbms.listConfig()",
    "CALL dbms.setConfigValue('db.logs.query.enabled', 'off')",
    "CALL dbms.killConnections(['bolt-1'])",
    "CALL db.checkpoint()",
    "CALL tx.setMetaData({a: 1})",
    "CALL apoc.load.json('http://127.0.0.1:{port}/')",
    "CALL apoc.cypher.doIt('CREATE (:X)', {})",
    "LOAD CSV FROM 'http://127.0.0.1:{port}/x.csv' AS line RETURN line",
    "LOAD CSV WITH HEADERS FROM 'file:///etc/passwd' AS line RETURN line",
    "l\\u006fad /* */ csv FROM 'http://127.0.0.1:{port}/x.csv' AS line RETURN line",
    "CALL { LOAD CSV FROM 'http://127.0.0.1:{port}/x.csv' AS line RETURN line } RETURN line",
    "EXPLAIN CREATE (:X)",
    "PROFILE CREATE (:X)",
    "RETURN 1; CREATE (:X)",
    "RETURN 1 UNION CREATE (:X) RETURN 1",
    "USE system SHOW USERS",
    ":param x => 1",
    "MATCH (n) WHERE EXISTS { CALL db.createLabel('X') } RETURN n",
]


@pytest.mark.parametrize("query", NEO4J_CHANGES)
async def test_neo4j_changes_nothing(graph: str, hits: Hits, query: str) -> None:
    parts = urlsplit(graph)

    def looked() -> Any:
        with GraphDatabase.driver(
            f"bolt://{parts.hostname}:{parts.port}", auth=(parts.username or "", parts.password or "")
        ) as driver:
            found = driver.execute_query(
                "MATCH (n) OPTIONAL MATCH (n)-[r]->() RETURN count(DISTINCT n), count(r), collect(properties(n))"
            )
            schema = driver.execute_query("SHOW INDEXES YIELD name RETURN name")
            return [record.values() for record in (*found.records, *schema.records)]

    before = looked()
    result = await ask("db.neo4j", graphs(graph), query=query.replace("{port}", str(hits.server_address[1])))
    assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, result
    assert looked() == before
    assert hits.count == 0


async def test_neo4j_answers_are_bounded(graph: str) -> None:
    rows = await ask("db.neo4j", graphs(graph), query="UNWIND range(1, 10000000) AS n RETURN n")
    assert (len(rows.output["rows"]), rows.output["truncated"]) == (500, True)
    slow = await ask(
        "db.neo4j",
        graphs(graph, seconds=3),
        query="UNWIND range(1, 100000000) AS a UNWIND range(1, 100000000) AS b WITH a, b WHERE a = -b RETURN count(*)",
    )
    assert slow.status in {ToolStatus.TIMEOUT, ToolStatus.ERROR, ToolStatus.INVALID}
    assert (await ask("db.neo4j", graphs(graph), query="RETURN 7 AS n")).output["rows"] == [[7]]


async def test_neo4j_writes_where_the_operator_says_so(graph: str, hits: Hits) -> None:
    may = graphs(graph, write=True)
    done = await ask("db.neo4j", may, query="CREATE (n:Note {text: $text}) RETURN n.text", params={"text": "t"})
    assert (done.output["rows"], done.output["changed"]["nodes_created"]) == ([["t"]], 1), done.error
    gone = await ask("db.neo4j", may, query="MATCH (n:Note) DELETE n")
    assert gone.output["changed"]["nodes_deleted"] == 1
    for query in (
        "LOAD CSV FROM 'http://127.0.0.1:{port}/x.csv' AS line CREATE (:X)",
        "CALL dbms.listConfig()",
        "CREATE USER eve SET PASSWORD 'abcdefgh'",
    ):
        refused = await ask("db.neo4j", may, query=query.replace("{port}", str(hits.server_address[1])))
        assert refused.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}
    assert hits.count == 0


async def test_neo4j_that_does_not_answer_or_lets_nobody_in(graph: str) -> None:
    where = graph.rpartition("@")[2]
    wrong = await ask("db.neo4j", graphs(f"bolt://neo4j:{_PASSWORD}@{where}"), query="RETURN 1")
    assert (wrong.status, "lets nobody in" in wrong.error) == (ToolStatus.ERROR, True), wrong
    gone = await ask("db.neo4j", graphs(f"bolt://neo4j:{_PASSWORD}@127.0.0.1:{servers.free_port()}"), query="RETURN 1")
    assert (gone.status, "does not answer" in gone.error, "127.0.0.1" in gone.error) == (ToolStatus.ERROR, True, False)
