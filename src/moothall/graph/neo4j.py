"""The graph store on a Neo4j 5 server, through its own driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import neo4j
from neo4j import exceptions as trouble

from moothall.config import GraphSettings
from moothall.errors import ConfigurationError, GraphUnavailable
from moothall.graph.schema import LABELS, POSITION
from moothall.graph.statements import Rows, Statement, schema
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
"""The number of nodes that are removed in one transaction."""


class Neo4jStore:
    """Reads and writes in managed transactions, repeated by the driver after temporary failures."""

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
        """Remove our nodes, the position first: if this is interrupted, the graph is written again
        from the start of the log.
        """
        for label in (POSITION, *LABELS):
            removal = f"MATCH (n:{label}) WITH n LIMIT {_REMOVAL_BATCH} DETACH DELETE n"
            while (await self.read(f"MATCH (n:{label}) RETURN count(n) AS number", {}))[0][
                "number"
            ]:
                await self.write([(removal, {})])

    async def prepare(self) -> None:
        """Create constraints and indexes. If several processes do so at the same time, `IF NOT
        EXISTS` fails for the later ones.
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
                    except trouble.ClientError as error:
                        if error.code not in _EXISTS_CODES:
                            raise
        self._prepared = True

    def _session(self) -> neo4j.AsyncSession:
        return self._driver.session(database=self._settings.database)

    def _limit(self, work: Any) -> Any:
        return neo4j.unit_of_work(timeout=self._settings.query_seconds)(work)


@asynccontextmanager
async def neo4j_store(
    settings: GraphSettings, *, at_once: bool = True
) -> AsyncIterator[Neo4jStore]:
    """Connect to `settings.url`. Raises `ConfigurationError` if the server refuses us, and
    `GraphUnavailable` if none answers. With `at_once` False the latter is not raised: calls then
    fail until the server is available.
    """
    scheme = (settings.url or "").partition("://")[0]
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"graph.url {settings.url!r} is not right: it begins with one of "
            f"{', '.join(_SCHEMES)}, then ://"
        )
    password = settings.password.get_secret_value() if settings.password else ""
    with _translate_errors(settings):
        driver = neo4j.AsyncGraphDatabase.driver(
            settings.url or "",
            auth=(settings.user, password),
            connection_timeout=settings.connect_seconds,
            connection_acquisition_timeout=settings.connect_seconds * 2,
            max_transaction_retry_time=settings.retry_seconds,
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
            # if the server is available and refuses, this is raised in any case
            if at_once or isinstance(error.__cause__, trouble.ClientError | trouble.DatabaseError):
                raise
            log.warning("the graph is away; all else goes on", reason=error.message)
        yield store


@contextmanager
def _translate_errors(settings: GraphSettings) -> Iterator[None]:
    try:
        yield
    except trouble.AuthError as error:
        raise ConfigurationError(
            f"Neo4j at {settings.url} turned {settings.user} away: set graph.user and "
            f"graph.password ({error.code})"
        ) from error
    except trouble.ConfigurationError as error:
        raise ConfigurationError(f"graph.url {settings.url!r} is not right: {error}") from error
    except trouble.ClientError as error:
        if error.code and "Database" in error.code:
            raise ConfigurationError(
                f"Neo4j at {settings.url} has no database {settings.database!r}"
            ) from error
        raise GraphUnavailable(f"Neo4j refused it: {error.message}") from error
    except (trouble.Neo4jError, trouble.DriverError, OSError) as error:
        raise GraphUnavailable(f"Neo4j at {settings.url} did not answer: {error}") from error
