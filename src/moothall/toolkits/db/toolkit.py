"""`db.*`: the catalogue entries of the database tools, and the toolkit that queries the operator's
databases. A tenant uses its own, or the common ones if it has none. The tools act beyond the
workspace, so no role has them by default.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from moothall.config import secret_values
from moothall.domain.text import scrub_all
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import CallFailed, ConfigurationError
from moothall.ports import Workspace
from moothall.toolkits.calls import ToolOutput, run_within
from moothall.toolkits.db import Databases, DbLimits, DbSettings
from moothall.tools.schemas import Arguments, Output, must_match
from moothall.tools.spec import Caps, Cost, Danger, Example, Requirements, ToolSpec

# The catalogue entries.


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


# The toolkit.


SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "postgres": ("postgresql", "postgres"),
    "redis": ("redis", "rediss", "unix"),
    "neo4j": ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc"),
}


def server_url(databases: Databases, server: str) -> str:
    """Return the URL of a server, or '' if it is not set. Raises `ConfigurationError` if it is
    invalid.
    """
    secret_url: SecretStr | None = getattr(databases, f"{server}_url")
    url = secret_url.get_secret_value() if secret_url else ""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if url and scheme not in SCHEMES[server]:
        raise ConfigurationError(
            f"db.{server}_url must be a URL that begins with "
            f"{' or '.join(f'{name}://' for name in SCHEMES[server])}"
        )
    return url


TEST_QUERIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "postgres": {"query": "select 1", "params": []},
    "redis": {"command": "DBSIZE", "args": []},
    "neo4j": {"query": "RETURN 1 AS one", "params": {}},
}
"""A query for each kind of server that any server answers."""


class DatabaseTools:
    """The toolkit of the category `db`. `call` is a `ports.Toolkit`."""

    def __init__(self, settings: DbSettings, limits: DbLimits | None = None) -> None:
        """Create the toolkit. Raises `ConfigurationError` for an invalid URL. `settings` decide
        whether queries may write.
        """
        self._settings = settings
        self._limits = replace(limits or DbLimits(), write=settings.write)
        self._secrets = secret_values(settings)
        for databases in (settings, *settings.tenants.values()):
            for server in SCHEMES:
                server_url(databases, server)

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Query a database until the call's deadline or for 15 seconds. If a query that may have
        changed data times out, its outcome is unknown.
        """
        del workspace  # not needed
        timeout_status = ToolStatus.OUTCOME_UNKNOWN if self._settings.write else ToolStatus.TIMEOUT
        return await run_within(
            call, self._limits.seconds, self._output(call, tenant), timeout_status=timeout_status
        )

    async def _output(self, call: ToolCall, tenant: str) -> ToolOutput:
        server = call.tool.partition(".")[2]
        return await self.query(server, call.arguments, tenant)

    async def query(self, server: str, args: Mapping[str, Any], tenant: str) -> ToolOutput:
        """Return the answer of a tenant's server. Raises `CallFailed`, `InvalidRequest`,
        `Refused`.
        """
        url = server_url(self._settings.for_tenant(tenant), server)
        if not url:
            raise CallFailed(
                f"db.{server} is not configured: MOOTHALL_DB__{server.upper()}_URL is not set"
            )
        output: ToolOutput = scrub_all(
            await self._query(server, url, args), known_secrets=self._secrets
        )
        return output

    async def _query(self, server: str, url: str, args: Mapping[str, Any]) -> ToolOutput:
        limits = self._limits
        try:
            match server:
                case "postgres":
                    from moothall.toolkits.db import postgres

                    return await postgres.query(
                        url, str(args["query"]), list(args["params"]), limits
                    )
                case "redis":
                    from moothall.toolkits.db import redis

                    return await redis.command(
                        url, str(args["command"]), list(args["args"]), limits
                    )
                case _:
                    from moothall.toolkits.db import neo4j

                    return await neo4j.query(url, str(args["query"]), dict(args["params"]), limits)
        except ImportError as error:
            raise CallFailed(
                f"db.{server} needs a client that is not installed: pip install 'moothall[tools]'"
            ) from error


# The answer of a database as JSON of limited size.


_MAX_DEPTH = 40
RECEIVE_BYTES = 8_000_000
"""A server may send this much for one call; more ends the call."""
ANSWER_BYTES = 50_000
"""Size of one answer as JSON; a longer one is truncated."""


def jsonable(value: Any, depth: int = _MAX_DEPTH) -> Any:  # noqa: PLR0911 - one case a kind of value
    """Convert a value to JSON: bytes to text, or to {"base64": …} if they are not text, and other
    types to text.
    """
    if depth == 0:
        return "[nested deeper than is shown]"
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return _bytes(value)
        case Mapping():
            return {
                str(jsonable(key, depth - 1)): jsonable(item, depth - 1)
                for key, item in value.items()
            }
        case list() | tuple() | set() | frozenset():
            return [jsonable(item, depth - 1) for item in value]
    return str(value)


def _bytes(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def size(value: Any) -> int:
    """Return the number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


@dataclass(slots=True)
class Table:
    """Rows of an answer, up to the limits."""

    columns: Sequence[str]
    limits: DbLimits
    rows: list[list[Any]] = field(default_factory=list)
    is_truncated: bool = False
    _chars_left: int = 0

    def __post_init__(self) -> None:
        self._chars_left = ANSWER_BYTES - size(list(self.columns))

    def add(self, row: Iterable[Any]) -> bool:
        """Add a row. Return False if it does not fit; no more rows can be added then."""
        values = [jsonable(value) for value in row]
        self._chars_left -= size(values) + 2
        if len(self.rows) >= self.limits.rows or self._chars_left < 0:
            self.is_truncated = True
            return False
        self.rows.append(values)
        return True

    def output(self) -> ToolOutput:
        """Return the table."""
        return {"columns": list(self.columns), "rows": self.rows, "truncated": self.is_truncated}
