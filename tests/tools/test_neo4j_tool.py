"""`db.neo4j` against a real server: queries are answered, and no query of a model changes
anything.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from neo4j import GraphDatabase
from pydantic import SecretStr
from query_tool import PASSWORD, ask, database_tools

from moothall.domain.tool import ToolStatus
from moothall.toolkits.db.toolkit import DatabaseTools
from support import neo4j as neo4j_server
from support import servers

pytestmark = pytest.mark.e2e


class Hits(socketserver.ThreadingTCPServer):
    """A server that counts connections."""

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
            location = address.url.partition("://")[2]
            with GraphDatabase.driver(address.url, auth=(address.user, address.password)) as driver:
                driver.execute_query(
                    "CREATE (a:Person {name: 'Ada', born: date('1815-12-10')})-[:KNOWS {since: "
                    "3}]->(:Person {name: 'Bob'})"
                )
            yield f"bolt://{address.user}:{address.password}@{location}"
    except neo4j_server.Missing as missing:
        pytest.skip(str(missing))


def graphs(url: str, **options: Any) -> DatabaseTools:
    return database_tools(neo4j_url=SecretStr(url), **options)


async def test_neo4j_answers_as_json(graph: str) -> None:
    query = (
        "MATCH p = (a:Person {name: $name})-[r]->(b) RETURN a, r, a.born, p, [1, 2.5, null] AS "
        "some, duration('P1D') AS d"
    )
    result = await ask("db.neo4j", graphs(graph), query=query, params={"name": "Ada"})
    assert result.status is ToolStatus.SUCCESS, result.error
    assert result.output["columns"] == ["a", "r", "a.born", "p", "some", "d"]
    [[node, relation, born, path, numbers, length]] = result.output["rows"]
    assert node == {"labels": ["Person"], "properties": {"name": "Ada", "born": "1815-12-10"}}
    assert relation == {"type": "KNOWS", "properties": {"since": 3}}
    assert (born, numbers, length, len(path)) == ("1815-12-10", [1, 2.5, None], "P1D", 3)
    for query in (
        "CALL db.labels() YIELD label RETURN label",
        "call `db`.`labels`()",
        "CALL db.labels",
    ):
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
    (
        "SHOW TRANSACTIONS YIELD transactionId AS i TERMINATE TRANSACTIONS i YIELD message RETURN "
        "message"
    ),
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

    def read_state() -> Any:
        with GraphDatabase.driver(
            f"bolt://{parts.hostname}:{parts.port}",
            auth=(parts.username or "", parts.password or ""),
        ) as driver:
            nodes = driver.execute_query(
                "MATCH (n) OPTIONAL MATCH (n)-[r]->() RETURN count(DISTINCT n), count(r), "
                "collect(properties(n))"
            )
            schema = driver.execute_query("SHOW INDEXES YIELD name RETURN name")
            return [record.values() for record in (*nodes.records, *schema.records)]

    state_before = read_state()
    result = await ask(
        "db.neo4j", graphs(graph), query=query.replace("{port}", str(hits.server_address[1]))
    )
    assert result.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}, result
    assert read_state() == state_before
    assert hits.count == 0


async def test_neo4j_answers_are_bounded(graph: str) -> None:
    rows = await ask("db.neo4j", graphs(graph), query="UNWIND range(1, 10000000) AS n RETURN n")
    assert (len(rows.output["rows"]), rows.output["truncated"]) == (500, True)
    slow = await ask(
        "db.neo4j",
        graphs(graph, seconds=3),
        query="UNWIND range(1, 100000000) AS a UNWIND range(1, 100000000) AS b WITH a, b WHERE a = "
        "-b RETURN count(*)",
    )
    assert slow.status in {ToolStatus.TIMEOUT, ToolStatus.ERROR, ToolStatus.INVALID}
    assert (await ask("db.neo4j", graphs(graph), query="RETURN 7 AS n")).output["rows"] == [[7]]


async def test_neo4j_writes_if_the_operator_allows_it(graph: str, hits: Hits) -> None:
    writable = graphs(graph, write=True)
    result = await ask(
        "db.neo4j",
        writable,
        query="CREATE (n:Note {text: $text}) RETURN n.text",
        params={"text": "t"},
    )
    assert (result.output["rows"], result.output["changed"]["nodes_created"]) == ([["t"]], 1), (
        result.error
    )
    deleted = await ask("db.neo4j", writable, query="MATCH (n:Note) DELETE n")
    assert deleted.output["changed"]["nodes_deleted"] == 1
    for query in (
        "LOAD CSV FROM 'http://127.0.0.1:{port}/x.csv' AS line CREATE (:X)",
        "CALL dbms.listConfig()",
        "CREATE USER eve SET PASSWORD 'abcdefgh'",
    ):
        refused = await ask(
            "db.neo4j", writable, query=query.replace("{port}", str(hits.server_address[1]))
        )
        assert refused.status in {ToolStatus.BLOCKED, ToolStatus.INVALID}
    assert hits.count == 0


async def test_an_unreachable_neo4j_and_wrong_credentials_are_reported(graph: str) -> None:
    location = graph.rpartition("@")[2]
    refused = await ask("db.neo4j", graphs(f"bolt://neo4j:{PASSWORD}@{location}"), query="RETURN 1")
    assert (refused.status, "refuses this user and password" in refused.error) == (
        ToolStatus.ERROR,
        True,
    ), refused
    unreachable = await ask(
        "db.neo4j",
        graphs(f"bolt://neo4j:{PASSWORD}@127.0.0.1:{servers.free_port()}"),
        query="RETURN 1",
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
