"""`db.postgres` against a real server: queries are answered, and no query of a model changes
anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr
from query_tool import PASSWORD, ask, database_tools

from moothall.app.gateway_rules import open_rules
from moothall.authorization.audit import AuditLog
from moothall.authorization.gateway import ToolGateway
from moothall.domain.tool import ToolStatus
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus
from moothall.toolkits.db import Databases
from moothall.toolkits.db.toolkit import DatabaseTools
from support import servers
from support.tool_gateway import App, Facts, tool_call

pytestmark = pytest.mark.e2e
POLICY = """package moothall.tools

import rego.v1

default decision := {"allow": false, "reason": "no rule allows it"}

decision := {"allow": true} if {
    input.category == "db"
    "look" in input.tags
}
"""


@pytest.fixture(scope="module")
def superuser() -> Iterator[str]:
    try:
        with servers.postgres() as url:
            yield url
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def reader(superuser: str) -> str:
    """A role with all rights on the tables of the test, and no others."""
    with psycopg.connect(superuser, autocommit=True) as connection:
        for statement in (
            f"create role reader login password '{PASSWORD}'",
            (
                "create table items (id serial primary key, name text, price numeric, at "
                "timestamptz, raw bytea, tags text[])"
            ),
            """insert into items (name, price, at, raw, tags)
               values ('bolt', 1.50, '2026-01-02 03:04:05+00', '\\xff00', '{a,b}'), ('nut', 'NaN', 'infinity', null, null)""",
            "grant all on items, items_id_seq to reader",
            "grant create, usage on schema public to reader",
            """create function sly() returns int language plpgsql security definer as
               $$ begin insert into items (name) values ('sly'); return 1; end $$""",
            "create function ok() returns int language sql as 'select 7'",
        ):
            connection.execute(statement)
    return (
        urlsplit(superuser)
        ._replace(netloc=f"reader:{PASSWORD}@{urlsplit(superuser).netloc.rpartition('@')[2]}")
        .geturl()
    )


def postgres(url: str, **options: Any) -> DatabaseTools:
    return database_tools(postgres_url=SecretStr(url), **options)


async def test_postgres_answers_as_json(reader: str) -> None:
    result = await ask(
        "db.postgres",
        postgres(reader),
        query="select *, 2.5::float8 f, '{\"a\": [1]}'::jsonb j from items order by id",
    )
    assert result.status is ToolStatus.SUCCESS, result.error
    assert result.output["columns"] == ["id", "name", "price", "at", "raw", "tags", "f", "j"]
    first, second = result.output["rows"]
    assert first[:3] == [1, "bolt", "1.50"]
    assert first[3].startswith("2026-01-02 ")
    assert first[4:] == ["\\xff00", ["a", "b"], 2.5, {"a": [1]}]
    assert second[2:4] == ["NaN", "infinity"]


async def test_postgres_accepts_positional_parameters(reader: str) -> None:
    for query, params in (
        ("select name from items where id = $1", ["1"]),
        ("select name from items where name = $2 and id = $1", ["1", "bolt"]),
        ("with x as (select * from items) select name from x where price < $1", ["2"]),
        ("values ('bolt')", []),
        ("select name from items where id = 1 -- and a comment; really", []),
    ):
        result = await ask("db.postgres", postgres(reader), query=query, params=params)
        assert result.output["rows"] == [["bolt"]], result.error
    refused = await ask(
        "db.postgres", postgres(reader), query="select $1::int", params=["'; drop table items; --"]
    )
    assert (refused.status, "invalid input syntax" in refused.error) == (ToolStatus.INVALID, True)


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
async def test_postgres_changes_nothing(superuser: str, reader: str, query: str) -> None:
    def state() -> Any:
        with psycopg.connect(superuser) as connection:
            return connection.execute(
                """select (select count(*) from items), (select max(name) from items), (select last_value from items_id_seq),
                   (select count(*) from pg_class), (select count(*) from pg_largeobject_metadata),
                   (select rolsuper from pg_roles where rolname = 'reader'), (select count(*) from pg_extension)"""
            ).fetchone()

    state_before = state()
    result = await ask("db.postgres", postgres(reader), query=query)
    assert state() == state_before
    assert not any(
        Path(path).exists()
        for path in ("/tmp/moothall-program", "/tmp/moothall-copy", "/tmp/moothall-lo")
    )
    # PostgreSQL before 16 accepts it, and it is rolled back.
    if not query.startswith("select lo_from_bytea"):
        assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID, ToolStatus.ERROR}, result
        assert result.error


async def test_postgres_refuses_roles_that_a_transaction_cannot_restrict(
    superuser: str, reader: str
) -> None:
    result = await ask("db.postgres", postgres(superuser), query="select 1")
    assert (result.status, "superuser boss" in result.error, "CREATE ROLE" in result.error) == (
        ToolStatus.BLOCKED,
        True,
        True,
    )
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("grant pg_read_server_files to reader")
        try:
            refused = await ask(
                "db.postgres", postgres(reader), query="select pg_read_file('/etc/passwd')"
            )
            assert (refused.status, "pg_read_server_files" in refused.error) == (
                ToolStatus.BLOCKED,
                True,
            )
        finally:
            connection.execute("revoke pg_read_server_files from reader")
        connection.execute(
            "create function dblink_exec(text) returns text language sql as 'select $1'"
        )
        try:
            refused = await ask("db.postgres", postgres(reader), query="select 1")
            assert (refused.status, "dblink_exec(text)" in refused.error) == (
                ToolStatus.BLOCKED,
                True,
            )
        finally:
            connection.execute("drop function dblink_exec(text)")


async def test_postgres_answers_are_bounded(reader: str) -> None:
    rows = await ask(
        "db.postgres", postgres(reader, rows=10), query="select generate_series(1, 100000000)"
    )
    assert (rows.status, len(rows.output["rows"]), rows.output["truncated"]) == (
        ToolStatus.SUCCESS,
        10,
        True,
    )
    wide = await ask(
        "db.postgres",
        postgres(reader),
        query="select repeat('x', 3000) from generate_series(1, 1000)",
    )
    assert (len(wide.output["rows"]) < 20, wide.output["truncated"]) == (True, True)
    huge = await ask("db.postgres", postgres(reader), query="select repeat('x', 60000000)")
    assert (huge.status, "more than 8000000 bytes" in huge.error) == (ToolStatus.ERROR, True)
    for query in (
        "select pg_sleep(60)",
        "select set_config('statement_timeout', '0', false), pg_sleep(60)",
    ):
        slow = await ask("db.postgres", postgres(reader, seconds=1), query=query)
        assert slow.status in {ToolStatus.TIMEOUT, ToolStatus.ERROR}
    result_after = await ask("db.postgres", postgres(reader), query="select ok()")
    assert result_after.output["rows"] == [[7]]


async def test_postgres_leaves_no_session_behind(superuser: str, reader: str) -> None:
    await ask(
        "db.postgres", postgres(reader, seconds=1), query="select pg_sleep(60), pg_advisory_lock(1)"
    )
    with psycopg.connect(superuser, autocommit=True) as connection:
        async with asyncio.timeout(20):
            while connection.execute(
                "select count(*) from pg_stat_activity where usename = 'reader'"
            ).fetchone() != (0,):
                await asyncio.sleep(0.05)


async def test_postgres_writes_if_the_operator_allows_it(superuser: str, reader: str) -> None:
    writable = postgres(reader, write=True)
    try:
        result = await ask(
            "db.postgres",
            writable,
            query="insert into items (name) values ($1) returning name",
            params=["new"],
        )
        assert (result.output["rows"], result.output["changed"]) == ([["new"]], 1), result.error
        result = await ask(
            "db.postgres", writable, query="update items set price = 3 where name = 'new'"
        )
        assert result.output["changed"] == 1
        two_commands = await ask(
            "db.postgres", writable, query="delete from items where name = 'new'; select 1"
        )
        assert (two_commands.status, "multiple commands" in two_commands.error) == (
            ToolStatus.INVALID,
            True,
        )
        selected = await ask(
            "db.postgres", writable, query="select price from items where name = 'new'"
        )
        assert selected.output["rows"] == [["3"]]
    finally:
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute("delete from items where name = 'new'")


async def test_an_unreachable_postgres_and_wrong_credentials_are_reported(reader: str) -> None:
    refused = await ask(
        "db.postgres", postgres(reader.replace(PASSWORD, "other-word")), query="select 1"
    )
    assert (
        refused.status,
        "refuses this user and password" in refused.error,
        "other-word" in refused.error,
    ) == (
        ToolStatus.ERROR,
        True,
        False,
    )
    unreachable = await ask(
        "db.postgres",
        postgres(f"postgresql://reader:{PASSWORD}@127.0.0.1:{servers.free_port()}/x"),
        query="select 1",
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


async def test_postgres_is_reached_through_its_socket(superuser: str, reader: str) -> None:
    with psycopg.connect(superuser) as connection:
        row = connection.execute("show unix_socket_directories").fetchone()
    url = f"postgresql://reader:{PASSWORD}@/postgres?host={row[0] if row else ''}&port={urlsplit(reader).port}"
    assert (await ask("db.postgres", postgres(url), query="select ok()")).output["rows"] == [[7]]
    two_servers = await ask(
        "db.postgres",
        postgres("postgresql://reader@127.0.0.1,127.0.0.2/postgres"),
        query="select 1",
    )
    assert (two_servers.status, "not a URL of one server" in two_servers.error) == (
        ToolStatus.ERROR,
        True,
    )


async def test_a_tenant_reaches_its_own_servers_and_no_others(reader: str) -> None:
    settings = postgres(
        reader, tenants={"acme": Databases(), "beta": Databases(postgres_url=SecretStr(reader))}
    )
    assert (await ask("db.postgres", settings, query="select 1")).status is ToolStatus.SUCCESS
    assert (
        await ask("db.postgres", settings, "beta", query="select 1")
    ).status is ToolStatus.SUCCESS
    refused = await ask("db.postgres", settings, "acme", query="select 1")
    assert (refused.status, "MOOTHALL_DB__POSTGRES_URL" in refused.error) == (
        ToolStatus.ERROR,
        True,
    )


async def test_postgres_reports_errors_of_a_query(reader: str) -> None:
    for query, params, message in (
        ("select", ["\0"], "NUL"),
        ("select $1::int + $2::int", ["1"], "bind message supplies 1 parameters"),
        ("select nothing from items", [], 'column "nothing" does not exist'),
        ("selekt 1", [], "one SELECT, VALUES or WITH"),
        ("--", [], "one SELECT, VALUES or WITH"),
    ):
        result = await ask("db.postgres", postgres(reader), query=query, params=params)
        assert (
            result.status in {ToolStatus.INVALID, ToolStatus.ERROR},
            message in result.error,
        ) == (
            True,
            True,
        ), result


# Through the gateway


async def test_a_granted_query_passes_the_tool_gateway_and_leaves_no_secret(
    reader: str, tmp_path: Path
) -> None:
    policy_folder = tmp_path / "own"
    policy_folder.mkdir()
    (policy_folder / "roles.yaml").write_text(
        'roles: {data: {tools: {"db.*": [outside]}}}', encoding="utf-8"
    )
    (policy_folder / "mine.rego").write_text(POLICY, encoding="utf-8")
    settings = load_settings(
        data_dir=tmp_path / "data", guard={"policies": policy_folder}, db={"postgres_url": reader}
    )
    async with AuditLog(tmp_path, "host-1") as audit, open_rules(settings, MemoryBus()) as rules:
        facts = Facts()
        app = App(tmp_path, audit)
        app.tool_gateway = ToolGateway(audit, facts.publish, rules)
        seat = app.seat(role="data", grant=rules.grants.of("data"))
        assert [spec.name for spec in app.tool_gateway.list_tools("local", seat.grant)] == [
            "db.postgres"
        ]
        result = await app.tool_gateway.call(
            seat,
            tool_call("db.postgres", query="select name from items where id = $1", params=["1"]),
        )
        assert (result.status, result.output["rows"]) == (ToolStatus.SUCCESS, [["bolt"]]), (
            result.error
        )
        changed = await app.tool_gateway.call(
            seat, tool_call("db.postgres", number=2, query="delete from items")
        )
        assert changed.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}
        assert [event.type for event in facts.events] == [
            "moothall.tool.started",
            "moothall.tool.finished",
        ] * 2
        assert PASSWORD not in str(facts.events) + app.chain.read_text()
