"""The family `db`, the operator's databases, and its settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from moothall.config import Section, Settings
from moothall.domain.ids import LOCAL
from moothall.domain.text import scrub
from moothall.errors import ConfigurationError, MoothallError
from moothall.toolkits import Family, OpenedFamily

if TYPE_CHECKING:
    from moothall.domain.status import Finding
    from moothall.tools.spec import ToolSpec

_SERVERS = ("postgres", "redis", "neo4j")
_FIX = "see docs/tools.md, Databases"


class Databases(Section):
    """Servers, by URLs with user and password. Create a user for each that can read only the
    required data.
    """

    postgres_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host:5432/database; unset: no db.postgres"
    )
    redis_url: SecretStr | None = Field(
        None, description="redis://user:password@host:6379/0 or rediss://…; unset: no db.redis"
    )
    neo4j_url: SecretStr | None = Field(
        None, description="neo4j://user:password@host:7687/database; unset: no db.neo4j"
    )


class DbSettings(Databases):
    """The tools `db.*`. No role has them unless `policies/roles.yaml` grants them."""

    tenants: Mapping[str, Databases] = Field(
        default_factory=dict,
        description="servers by tenant; such a tenant has only these; [db.tenants.NAME] in the "
        "file",
    )
    write: bool = Field(
        default=False, description="tools may change data; otherwise every query is read-only"
    )

    def for_tenant(self, tenant: str) -> Databases:
        """Return the servers of a tenant."""
        return self.tenants.get(tenant, self)


@dataclass(frozen=True, slots=True)
class DbLimits:
    """Limits of one query: whether it may `write`, its seconds, connecting included, and the rows
    of its answer; more are dropped.
    """

    write: bool = False
    seconds: float = 15.0
    rows: int = 500


class DbFamily(Family[DbSettings]):
    """`db.*`, one tool for each kind of server. A tenant has its own servers, or the common
    ones.
    """

    section = "db"
    kind = DbSettings

    def specs(self, settings: Settings) -> Sequence[ToolSpec]:
        """Return the tools. If the operator lets them change data, they have the tag `change`."""
        from moothall.toolkits.db.toolkit import SPECS

        return (
            [_as_changing(spec) for spec in SPECS] if self.own_settings(settings).write else SPECS
        )

    def missing_settings(self, settings: Settings, tenant: str) -> Mapping[str, str]:
        """See `Family`."""
        db = self.own_settings(settings)
        section = f" in [db.tenants.{tenant}]" if tenant in db.tenants else ""
        servers = db.for_tenant(tenant)
        return {
            f"db.{server}": f"MOOTHALL_DB__{server.upper()}_URL is not set{section}"
            for server in _SERVERS
            if getattr(servers, f"{server}_url") is None
        }

    @asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator[OpenedFamily]:
        """See `Family`."""
        from moothall.toolkits.db.toolkit import DatabaseTools

        yield OpenedFamily(DatabaseTools(self.own_settings(settings)).call)

    async def examine(self, settings: Settings) -> AsyncIterator[Finding]:
        """Send a query to each server."""
        from moothall.domain.status import Finding
        from moothall.toolkits.db.toolkit import TEST_QUERIES, DatabaseTools

        db = self.own_settings(settings)
        try:
            tools = DatabaseTools(db)
        except ConfigurationError as error:
            yield Finding("tools db.*", ok=False, detail=error.message, mend=_FIX)
            return
        for tenant in (LOCAL.tenant, *sorted(db.tenants)):
            for server, arguments in TEST_QUERIES.items():
                part = f"tool db.{server}" + (f" of {tenant}" if tenant in db.tenants else "")
                if getattr(db.for_tenant(tenant), f"{server}_url") is None:
                    if tenant not in db.tenants:
                        yield Finding(
                            part,
                            ok=True,
                            detail=f"not offered: MOOTHALL_DB__{server.upper()}_URL is not set",
                        )
                    continue
                try:
                    await tools.query(server, arguments, tenant)
                except MoothallError as error:
                    cause = scrub(str(error.__cause__)) if error.__cause__ else ""
                    yield Finding(
                        part,
                        ok=False,
                        detail=" ".join(f"{error.message} {cause}".split()),
                        mend=_FIX,
                    )
                else:
                    yield Finding(
                        part,
                        ok=True,
                        detail="answers; " + ("may be written to" if db.write else "read-only"),
                    )


def _as_changing(spec: ToolSpec) -> ToolSpec:
    tags = tuple("change" if tag == "look" else tag for tag in spec.tags)
    return replace(spec, summary=f"{spec.summary}, or change what is in it", tags=tags)
