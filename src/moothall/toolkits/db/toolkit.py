"""`db.*`: the toolkit that queries the operator's databases. A tenant uses its own, or the common
ones if it has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from moothall.config import secret_values
from moothall.domain.text import scrub_all
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import CallFailed, ConfigurationError
from moothall.ports import Workspace
from moothall.toolkits.db.family import Databases, DbLimits, DbSettings
from moothall.toolkits.results import Output, run_within

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

    async def _output(self, call: ToolCall, tenant: str) -> Output:
        server = call.tool.partition(".")[2]
        return await self.query(server, call.arguments, tenant)

    async def query(self, server: str, args: Mapping[str, Any], tenant: str) -> Output:
        """Return the answer of a tenant's server. Raises `CallFailed`, `InvalidRequest`,
        `Refused`.
        """
        url = server_url(self._settings.for_tenant(tenant), server)
        if not url:
            raise CallFailed(
                f"db.{server} is not configured: MOOTHALL_DB__{server.upper()}_URL is not set"
            )
        output: Output = scrub_all(await self._query(server, url, args), known=self._secrets)
        return output

    async def _query(self, server: str, url: str, args: Mapping[str, Any]) -> Output:
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
