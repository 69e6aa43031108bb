"""What tools may use outside the workspace, each only where it is named here: databases, a browser, a container engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, SecretStr

from moothall.config.section import Section


class Databases(Section):
    """Servers, by URLs that hold user and password. Give each a user of its own that may only read what is to be read."""

    postgres_url: SecretStr | None = Field(
        None, description="postgresql://user:password@host:5432/database; unset: no db.postgres"
    )
    postgres_url_file: Path | None = None
    redis_url: SecretStr | None = Field(None, description="redis://user:password@host:6379/0 or rediss://…; unset: no db.redis")
    redis_url_file: Path | None = None
    neo4j_url: SecretStr | None = Field(None, description="neo4j://user:password@host:7687/database; unset: no db.neo4j")
    neo4j_url_file: Path | None = None


class Db(Databases):
    """The tools `db.*`. Granted to no role unless `policies/roles.yaml` says so."""

    tenants: Mapping[str, Databases] = Field(
        default_factory=dict,
        description="by tenant, servers of its own: such a tenant has these and none of the others; [db.tenants.NAME] in the file",
    )
    write: bool = Field(default=False, description="tools may change data; else every query is read-only")
    seconds: float = Field(15.0, gt=0, description="one query, connecting included")
    rows: int = Field(500, ge=1, le=100_000, description="of one answer; more are cut")
    result_bytes: int = Field(50_000, ge=1000, description="of one answer, as JSON; more is cut")
    receive_bytes: int = Field(8_000_000, ge=10_000, description="what a server may send for one call before it is ended")

    def of(self, tenant: str) -> Databases:
        """Return the servers of a tenant."""
        return self.tenants.get(tenant, self)


class Browser(Section):
    """The tool `browser.run`, which goes where `http.allow` and `http.only_allowed` let tools go. Granted to no role unless the table says so."""

    executable: Path | None = Field(
        None, description="a Chromium; unset: the one on PATH, and without one there is no browser.run"
    )
    seconds: float = Field(60.0, gt=0, description="one call, its actions together")
    action_seconds: float = Field(15.0, gt=0, description="one action, and the page that it loads")
    actions: int = Field(20, ge=1, le=50, description="of one call")
    at_once: int = Field(2, ge=1, description="browsers of one process; more calls wait")
    memory_bytes: int = Field(1_500_000_000, ge=500_000_000, description="of one browser and its profile")
    processes: int = Field(400, ge=100, description="processes and threads of one browser")
    transfer_bytes: int = Field(30_000_000, ge=100_000, description="what one call may load and send")
    text_chars: int = Field(20_000, ge=1000, description="of one action `text`; more is cut")
    screenshot_bytes: int = Field(5_000_000, ge=10_000, le=10_000_000)


class Docker(Section):
    """The tools `docker.*`. No host: there are none. Granted to no role unless the table says so."""

    host: str | None = Field(
        None, description="unix:///path of an engine's socket, best one of its own: who builds on it, trusts it"
    )
    images: tuple[str, ...] = Field(
        (),
        description="images that may be run and built on, as patterns such as python:3.*; they must be there, nothing is pulled",
    )
    build_runs: bool = Field(default=False, description="builds may have RUN, which the engine bounds less well than containers")
    network: str = Field(
        "none", pattern="^[a-zA-Z0-9][a-zA-Z0-9_.-]*$", description="of containers; never host; builds have none"
    )
    user: str = Field(
        "65534:65534", pattern=r"^[1-9]\d*:[1-9]\d*$", description="uid:gid of containers, whatever their image says"
    )
    seconds: float = Field(120.0, gt=0, description="one call")
    ttl_seconds: float = Field(
        1800.0, ge=10, description="containers and images are removed after this long, or with their workspace"
    )
    containers: int = Field(4, ge=1, description="of one workspace")
    built: int = Field(4, ge=1, description="images of one workspace")
    memory_bytes: int = Field(512_000_000, ge=8_000_000, description="of one container, without swap; also of a build's steps")
    cpus: float = Field(1.0, gt=0, description="of one container")
    processes: int = Field(128, ge=4, description="of one container")
    scratch_bytes: int = Field(
        64_000_000, ge=1_000_000, description="of a container's /tmp, in its memory; all else is read-only"
    )
    context_files: int = Field(500, ge=1, description="of a build")
    context_bytes: int = Field(20_000_000, ge=10_000, description="of a build's files, together")
    output_bytes: int = Field(30_000, ge=1000, description="what a container, a build or a log says; more is cut")
