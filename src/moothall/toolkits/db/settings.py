"""The settings of `db.*`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, SecretStr

from moothall.config import Section


class Databases(Section):
    """Servers, by URLs that hold user and password. Give each a user of its own that may only read
    what is to be read.
    """

    postgres_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host:5432/database; unset: no db.postgres"
    )
    postgres_url_file: Path | None = None
    redis_url: SecretStr | None = Field(
        None, description="redis://user:password@host:6379/0 or rediss://…; unset: no db.redis"
    )
    redis_url_file: Path | None = None
    neo4j_url: SecretStr | None = Field(
        None, description="neo4j://user:password@host:7687/database; unset: no db.neo4j"
    )
    neo4j_url_file: Path | None = None


class DbSettings(Databases):
    """The tools `db.*`. Granted to no role unless `policies/roles.yaml` says so."""

    tenants: Mapping[str, Databases] = Field(
        default_factory=dict,
        description="by tenant, servers of its own: such a tenant has these and none of the "
        "others; [db.tenants.NAME] in the file",
    )
    write: bool = Field(
        default=False, description="tools may change data; else every query is read-only"
    )
    seconds: float = Field(15.0, gt=0, description="one query, connecting included")
    rows: int = Field(500, ge=1, le=100_000, description="of one answer; more are cut")
    result_bytes: int = Field(50_000, ge=1000, description="of one answer, as JSON; more is cut")
    receive_bytes: int = Field(
        8_000_000, ge=10_000, description="what a server may send for one call before it is ended"
    )

    def of(self, tenant: str) -> Databases:
        """Return the servers of a tenant."""
        return self.tenants.get(tenant, self)
