"""The graph store on a Neo4j 5 server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import neo4j
from neo4j import exceptions as errors

from moothall.config import GraphSettings
from moothall.errors import ConfigurationError, GraphUnavailable
from moothall.graph.schema import LABELS, POSITION, Rows, Statement, schema
from moothall.graph.store import QUERY_SECONDS
from moothall.telemetry import get_logger

log = get_logger(__name__)

_SCHEMES = ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc")
_EXISTS_CODES = frozenset(
    {
        "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists",
        "Neo.ClientError.Schema.ConstraintAlreadyExists",
    }
)
_REMOVAL_BATCH = 5000
_CONNECT_SECONDS, _RETRY_SECONDS = 5.0, 15.0
"""The number of nodes that are removed in one transaction."""


class Neo4jStore:
    """Runs managed transactions, which the driver repeats after temporary failures."""

    def __init__(self, driver: neo4j.AsyncDriver, settings: GraphSettings) -> None:
        self._driver = driver
        self._settings = settings
        self._prepared = False

    async def read(self, cypher: str, parameters: Mapping[str, Any]) -> Rows:
        """Return the rows of a query."""

        async def work(transaction: neo4j.AsyncManagedTransaction) -> Rows:
            return await (await transaction.run(cypher, dict(parameters))).data()

        with _translate_errors(self._settings):
            async with self._session() as session:
                return await session.execute_read(self._limit(work))

    async def write(self, statements: Sequence[Statement]) -> None:
        """Run all statements in one transaction."""
        if not self._prepared:
            await self.prepare()

        async def work(transaction: neo4j.AsyncManagedTransaction) -> None:
            for cypher, parameters in statements:
                await (await transaction.run(cypher, dict(parameters))).consume()

        with _translate_errors(self._settings):
            async with self._session() as session:
                await session.execute_write(self._limit(work))

    async def empty(self) -> None:
        """Remove Moothall's nodes, the position first: if this is interrupted, the graph is
        projected again from the start of the log.
        """
        for label in (POSITION, *LABELS):
            removal = f"MATCH (n:{label}) WITH n LIMIT {_REMOVAL_BATCH} DETACH DELETE n"
            while (await self.read(f"MATCH (n:{label}) RETURN count(n) AS number", {}))[0][
                "number"
            ]:
                await self.write([(removal, {})])

    async def prepare(self) -> None:
        """Create constraints and indexes. Ignore errors about existing ones, since `IF NOT EXISTS`
        may fail if several processes create them at the same time.
        """
        for statement in schema():

            async def work(
                transaction: neo4j.AsyncManagedTransaction, statement: str = statement
            ) -> None:
                await (await transaction.run(statement)).consume()

            with _translate_errors(self._settings):
                async with self._session() as session:
                    try:
                        await session.execute_write(work)
                    except errors.ClientError as error:
                        if error.code not in _EXISTS_CODES:
                            raise
        self._prepared = True

    def _session(self) -> neo4j.AsyncSession:
        return self._driver.session(database=self._settings.database)

    def _limit(self, work: Any) -> Any:
        return neo4j.unit_of_work(timeout=QUERY_SECONDS)(work)


@asynccontextmanager
async def neo4j_store(
    settings: GraphSettings, *, must_answer: bool = True, retry_seconds: float = _RETRY_SECONDS
) -> AsyncIterator[Neo4jStore]:
    """Connect to `settings.url`. Raises `ConfigurationError` if the server refuses the connection,
    and `GraphUnavailable` if no server answers. If `must_answer` is False, the latter is not
    raised; calls fail until the server is available. retry_seconds: how long the driver retries
    after temporary errors.
    """
    scheme = (settings.url or "").partition("://")[0]
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"graph.url {settings.url!r} is invalid: it must begin with one of "
            f"{', '.join(_SCHEMES)}, then ://"
        )
    password = settings.password.get_secret_value() if settings.password else ""
    with _translate_errors(settings):
        driver = neo4j.AsyncGraphDatabase.driver(
            settings.server,
            auth=(settings.login, password),
            connection_timeout=_CONNECT_SECONDS,
            connection_acquisition_timeout=2 * _CONNECT_SECONDS,
            max_transaction_retry_time=retry_seconds,
            notifications_min_severity="OFF",
            user_agent="moothall",
        )
    async with driver:
        store = Neo4jStore(driver, settings)
        try:
            with _translate_errors(settings):
                await driver.verify_connectivity()
            await store.prepare()
        except GraphUnavailable as error:
            # The refusal of an available server is always raised.
            is_refusal = isinstance(error.__cause__, errors.ClientError | errors.DatabaseError)
            if must_answer or is_refusal:
                raise
            log.warning("the graph is unavailable; continuing without it", reason=error.message)
        yield store


@contextmanager
def _translate_errors(settings: GraphSettings) -> Iterator[None]:
    try:
        yield
    except errors.AuthError as error:
        raise ConfigurationError(
            f"Neo4j at {settings.url} rejected the credentials of {settings.login} ({error.code}); "
            "set graph.user and graph.password"
        ) from error
    except errors.ConfigurationError as error:
        raise ConfigurationError(f"graph.url {settings.url!r} is invalid: {error}") from error
    except errors.ClientError as error:
        if error.code and "Database" in error.code:
            raise ConfigurationError(
                f"Neo4j at {settings.url} has no database {settings.database!r}; set it in "
                "graph.url, as in neo4j://host:7687/database"
            ) from error
        raise GraphUnavailable(f"Neo4j refused the query: {error.message}") from error
    except (errors.Neo4jError, errors.DriverError, OSError) as error:
        raise GraphUnavailable(f"Neo4j at {settings.url} did not answer: {error}") from error
