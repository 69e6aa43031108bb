"""The catalogue entries of the database tools. They act beyond the workspace, so no role has them
by default.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from moothall.tools.arguments import Arguments, must_match
from moothall.tools.outputs import Output
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

_COMMAND = must_match(
    r"[A-Za-z][A-Za-z0-9_.]*(?: [A-Za-z]+)?", "a Redis command such as GET or OBJECT ENCODING"
)

Query = Annotated[str, Field(min_length=1, max_length=20_000)]
Value = Annotated[str, Field(max_length=100_000)]


class PostgresQuery(Arguments):
    """One statement; `params` are the values of $1, $2, …, as text. The server derives their types
    from the statement.
    """

    query: Query
    params: Annotated[list[Value], Field(max_length=100)] = Field(default_factory=list)


class RedisCommand(Arguments):
    """One command and its arguments."""

    command: Annotated[str, Field(min_length=1, max_length=60), _COMMAND]
    args: Annotated[list[Value], Field(max_length=100)] = Field(default_factory=list)


class Neo4jQuery(Arguments):
    """One query; `params` are the values of $name, as strings. Write numbers and lists into the
    query, or use toInteger($name).
    """

    query: Query
    params: dict[str, Value] = Field(default_factory=dict)


class Rows(Output):
    """Rows in the order of `columns`. Dates, decimals and identifiers are text; bytes are
    {"base64": …}.
    """

    columns: list[str]
    rows: list[list[object]]
    truncated: bool


class Reply(Output):
    """The server's reply."""

    reply: object
    truncated: bool


def _query_tool(
    server: str, model: type[Arguments], output: type[Output], summary: str, example: Example
) -> ToolSpec:
    return ToolSpec(
        name=f"db.{server}",
        summary=summary,
        arguments=model,
        output=output,
        danger=Danger.OUTSIDE,
        caps=Caps(60),
        requirements=Requirements(network_access=True),
        tags=("network", "database", "look"),
        examples=(example,),
        profiles=("data",),
        cost=Cost.LOW,
    )


SPECS: Final = (
    _query_tool(
        "postgres",
        PostgresQuery,
        Rows,
        "ask the PostgreSQL database",
        Example(
            "how many of a kind there are",
            {"query": "select count(*) from orders where state = $1", "params": ["open"]},
            {"columns": ["count"], "rows": [[12]], "truncated": False},
        ),
    ),
    _query_tool(
        "redis",
        RedisCommand,
        Reply,
        "send the Redis server a command",
        Example(
            "look into a hash",
            {"command": "HGET", "args": ["user:1", "name"]},
            {"reply": "Ada", "truncated": False},
        ),
    ),
    _query_tool(
        "neo4j",
        Neo4jQuery,
        Rows,
        "ask the Neo4j database",
        Example(
            "who knows whom",
            {
                "query": "MATCH (p:Person {name: $name})-[:KNOWS]->(f) RETURN f.name",
                "params": {"name": "Ada"},
            },
            {"columns": ["f.name"], "rows": [["Bob"]], "truncated": False},
        ),
    ),
)
