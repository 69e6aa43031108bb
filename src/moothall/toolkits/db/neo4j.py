"""`db.neo4j`: one query in a transaction of its own, in read mode by default.

The server's read mode allows reading of files and URLs (LOAD CSV), and procedures that only claim
to read. So a query is planned first, without running it, and checked by its plan instead of its
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from neo4j import READ_ACCESS, WRITE_ACCESS, AsyncDriver, AsyncGraphDatabase, AsyncTransaction
from neo4j.exceptions import AuthError, ClientError, DriverError, Forbidden, Neo4jError
from neo4j.graph import Node, Path, Relationship
from neo4j.spatial import Point
from neo4j.time import Duration

from moothall.errors import CallFailed, InvalidRequest, Refused
from moothall.toolkits.calls import ToolOutput
from moothall.toolkits.db import DbLimits
from moothall.toolkits.db.toolkit import Table

_ALLOWED_PROCEDURES = frozenset(
    [
        "db.labels",
        "db.propertykeys",
        "db.relationshiptypes",
        "db.schema.visualization",
        "db.schema.nodetypeproperties",
        "db.schema.reltypeproperties",
        "db.index.fulltext.querynodes",
        "db.index.fulltext.queryrelationships",
        "db.index.vector.querynodes",
        "db.index.vector.queryrelationships",
    ]
)
_BATCH = 20
_LOAD_CSV = re.compile(r"loadcsv", re.IGNORECASE)
_ADMINISTRATION = re.compile(
    r"^(terminate|kill|alter|create(user|role|database|alias|composite)|drop(user|role|database|alias)|grant|deny|revoke|rename(user|role)"
    r"|start|stop|enable|deallocate|reallocate|set(owncredentials|password)|dump|system|administration|assert|ensure|donothing)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\u+([0-9A-Fa-f]{4})")
_CUSTOM_FUNCTIONS = "SHOW FUNCTIONS YIELD name, isBuiltIn WHERE NOT isBuiltIn RETURN name"


async def query(url: str, text: str, params: Mapping[str, str], limits: DbLimits) -> ToolOutput:
    """Return the rows of a query. Raises `InvalidRequest`, `Refused`, `CallFailed`."""
    parts = urlsplit(url)
    server = parts._replace(netloc=parts.netloc.rpartition("@")[2], path="").geturl()
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    try:
        async with AsyncGraphDatabase.driver(
            server,
            auth=auth,
            connection_timeout=limits.seconds,
            max_transaction_retry_time=0,
            max_connection_pool_size=1,
            notifications_min_severity="OFF",
            user_agent="moothall",
        ) as driver:
            return await _run_query(driver, parts.path.strip("/") or None, text, params, limits)
    except (AuthError, DriverError, OSError, ValueError) as error:
        was_rejected = isinstance(error, AuthError)
        reason = (
            "it refuses this user and password"
            if was_rejected
            else f"it does not answer ({type(error).__name__})"
        )
        raise CallFailed(
            f"Neo4j cannot be queried: {reason} (db.neo4j_url); `moothall doctor` shows details"
        ) from error
    except Neo4jError as error:
        raise _translate_error(error) from error


async def _run_query(
    driver: AsyncDriver,
    database: str | None,
    text: str,
    params: Mapping[str, str],
    limits: DbLimits,
) -> ToolOutput:
    access = WRITE_ACCESS if limits.write else READ_ACCESS
    async with driver.session(database=database, default_access_mode=READ_ACCESS) as session:
        async with await session.begin_transaction(timeout=limits.seconds) as planning:
            await _check_functions(planning, text)
        async with await session.begin_transaction(timeout=limits.seconds) as planning:
            explanation = await planning.run(f"EXPLAIN {text}", dict(params))
            summary = await explanation.consume()
            if summary.plan is None:
                raise Refused("queries that cannot be planned before they run are not allowed")
            _check_plan(summary.plan, summary.query_type or "", limits)
    async with (
        driver.session(database=database, default_access_mode=access, fetch_size=_BATCH) as session,
        await session.begin_transaction(timeout=limits.seconds) as transaction,
    ):
        result = await transaction.run(text, dict(params))
        table = Table(result.keys(), limits)
        async for record in result:
            if not table.add(_to_json(value) for value in record.values()):
                break
        summary = await result.consume()
        if limits.write:
            await transaction.commit()
            return table.output() | {"changed": dict(summary.counters.__dict__)}
        await transaction.rollback()
        return table.output()


async def _check_functions(transaction: AsyncTransaction, text: str) -> None:
    """Raise `Refused` if a query may call a function that was added to the server: such functions
    may do anything and are not in plans.
    """
    unescaped = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text).lower()
    names = set(re.findall(r"\w+", unescaped))
    functions = await transaction.run(_CUSTOM_FUNCTIONS)
    async for record in functions:
        name = str(record["name"])
        if set(re.findall(r"\w+", name.lower())) <= names:
            raise Refused(
                f"{name} is not a built-in function of Neo4j; queries that name one are not allowed"
            )


def _check_plan(plan: Mapping[str, Any], kind: str, limits: DbLimits) -> None:
    if kind not in ({"r", "w", "rw"} if limits.write else {"r"}):
        raise Refused(
            "it administers the server"
            if limits.write
            else "it changes data, and queries are read-only here (db.write)"
        )
    for step in _steps(plan):
        name = str(step.get("operatorType", "")).partition("@")[0]
        if _LOAD_CSV.search(name):
            raise Refused("LOAD CSV is not allowed: it reads the server's files and network")
        if _ADMINISTRATION.match(name):
            raise Refused("commands that administer the server are not allowed")
        if "procedure" in name.lower():
            procedure = (
                str(step.get("args", {}).get("Details", ""))
                .partition("(")[0]
                .replace("`", "")
                .strip()
            )
            if procedure.lower() not in _ALLOWED_PROCEDURES:
                raise Refused(
                    f"the procedure {procedure[:80]} is not allowed; allowed are "
                    f"{', '.join(sorted(_ALLOWED_PROCEDURES))}"
                )


def _steps(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    pending = [plan]
    while pending:
        step = pending.pop()
        yield step
        pending += step.get("children") or ()


def _to_json(value: Any) -> Any:  # noqa: PLR0911 - one case a kind of value
    """Convert a value of a graph to JSON."""
    match value:
        case Node():
            return {"labels": sorted(value.labels), "properties": _to_json(dict(value))}
        case Relationship():
            return {"type": value.type, "properties": _to_json(dict(value))}
        case Path():
            steps = zip(value.nodes, (*value.relationships, None), strict=True)
            return [_to_json(part) for step in steps for part in step if part is not None]
        case Duration():
            return value.iso_format()
        case Point():
            return {"srid": value.srid, "coordinates": list(value)}
        case dict():
            return {name: _to_json(item) for name, item in value.items()}
        case list():
            return [_to_json(item) for item in value]
    return value


def _translate_error(error: Neo4jError) -> Exception:
    text = f"Neo4j: {error.message} ({error.code})"
    code = error.code or ""
    if isinstance(error, Forbidden) or "AccessMode" in code or "Security" in code:
        return Refused(f"{text}. Queries are read-only here (db.write)")
    return InvalidRequest(text) if isinstance(error, ClientError) else CallFailed(text)
