"""`db.*`: the toolkit that asks the operator's databases. A tenant reaches its own, or those of all
who have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from moothall.config import secret_values
from moothall.domain.secrets import scrub_all
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import CallFailed, ConfigurationError
from moothall.ports import Workspace
from moothall.toolkits.answering import Output, answer_within
from moothall.toolkits.db.family import Databases, DbSettings

SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "postgres": ("postgresql", "postgres"),
    "redis": ("redis", "rediss", "unix"),
    "neo4j": ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc"),
}


def url_of(databases: Databases, server: str) -> str:
    """Return where a server is; empty where none is set. Raises `ConfigurationError` for what is no
    URL of it.
    """
    given: SecretStr | None = getattr(databases, f"{server}_url")
    url = given.get_secret_value() if given else ""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if url and scheme not in SCHEMES[server]:
        raise ConfigurationError(
            f"db.{server}_url is no URL that begins with "
            f"{' or '.join(f'{name}://' for name in SCHEMES[server])}"
        )
    return url


TRIALS: Final[Mapping[str, Mapping[str, Any]]] = {
    "postgres": {"query": "select 1", "params": []},
    "redis": {"command": "DBSIZE", "args": []},
    "neo4j": {"query": "RETURN 1 AS one", "params": {}},
}
"""A call of each that any server answers."""


class DatabaseTools:
    """The toolkit of the category `db`. `call` is a `ports.Toolkit`."""

    def __init__(self, settings: DbSettings) -> None:
        """Raises `ConfigurationError` for a URL that is none."""
        self._settings = settings
        self._secrets = secret_values(settings)
        for databases in (settings, *settings.tenants.values()):
            for server in SCHEMES:
                url_of(databases, server)

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Ask until the call's deadline or `db.seconds`. What may have changed something when its
        time was over has an unknown outcome.
        """
        del workspace  # nothing of it is needed
        late = ToolStatus.OUTCOME_UNKNOWN if self._settings.write else ToolStatus.TIMEOUT
        return await answer_within(
            call, self._settings.seconds, self._output(call, tenant), late=late
        )

    async def _output(self, call: ToolCall, tenant: str) -> Output:
        server = call.tool.partition(".")[2]
        return await self.ask(server, call.arguments, tenant)

    async def ask(self, server: str, args: Mapping[str, Any], tenant: str) -> Output:
        """Return what a tenant's server answers. Raises `CallFailed`, `InvalidRequest`,
        `Refused`.
        """
        url = url_of(self._settings.of(tenant), server)
        if not url:
            raise CallFailed(
                f"db.{server} is not set up here: MOOTHALL_DB__{server.upper()}_URL is not set"
            )
        output: Output = scrub_all(await self._ask(server, url, args), known=self._secrets)
        return output

    async def _ask(self, server: str, url: str, args: Mapping[str, Any]) -> Output:
        limits = self._settings
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
                f"db.{server} needs a client that is not installed: pip install 'moothall[db]'"
            ) from error
