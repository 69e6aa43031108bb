"""Settings of what processes share: the bus, Ray, the graph, logs, traces and metrics."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator

from moothall.config.file import Section

# The services that processes share: the bus, Ray, the graph, and the roles of processes.


Duty = Literal["api", "page", "collector", "planning", "graph", "tools", "hosts"]
"""A role of a serving process, for `serve.only`."""


class BusSettings(Section):
    """NATS JetStream. Without a URL, an embedded server stores its files in the data directory."""

    url: str | None = Field(
        None, description="URL of a NATS server, e.g. nats://127.0.0.1:4222; empty: an embedded one"
    )
    token: SecretStr | None = Field(None, description="token of the bus")
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the start waits for a bus that is unavailable or has no leader",
    )
    credentials: SecretStr | None = Field(
        None, description="token and seed of a NATS user: the text of a .creds file"
    )
    replicas: int = Field(
        1, ge=1, le=5, description="copies of each stream; more than one requires a NATS cluster"
    )
    sync_interval: str = Field(
        "2m",
        description="how often the embedded server syncs to disk; a power failure can lose what "
        "was acked since then. 'always': before each ack",
    )
    ack_wait_seconds: float = Field(
        10.0, gt=0, description="how long a host may be silent before another one gets its work"
    )
    max_store_bytes: int = Field(
        8_000_000_000, ge=10_000_000, description="maximum disk space of all streams together"
    )


FleetMode = Literal["process", "ray", "subprocess"]


class RaySettings(Section):
    """The hosts. Without an address, hosts on Ray use a Ray on this machine that ends with the
    process.
    """

    mode: FleetMode | Literal["auto"] = Field(
        "auto",
        description="where hosts run; process: in the started process; subprocess: in child "
        "processes; ray: on Ray; auto: on Ray if address is set, for demo, and for serve if hosts "
        "is not 1 and Ray is installed; otherwise subprocess for serve and process for commands",
    )
    address: str | None = Field(
        None, description="address of a Ray cluster, e.g. 10.0.0.1:6379; empty: Ray on this machine"
    )
    hosts: int = Field(
        1,
        ge=0,
        description="number of hosts; 0: one on each Ray node that offers a CPU, including nodes "
        "that join later",
    )
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the start waits until Ray has as many nodes as hosts (0: one "
        "node); the hosts are spread over the available nodes",
    )
    seats_per_host: int = Field(
        64,
        ge=1,
        description="concurrent deliberations of one host, for all roles together",
    )
    credentials: SecretStr | None = Field(
        None,
        description="bus credentials of hosts on the Ray cluster at address, such as hosts.creds "
        "of `moothall bus keys`; empty: bus.credentials",
    )
    allow_no_token: bool = Field(
        default=False,
        description="accept a Ray cluster at address without a token: anyone who can reach its "
        "ports can read Moothall's credentials",
    )

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode in {"process", "subprocess"} and self.address is not None:
            raise ValueError(
                f"mode {self.mode!r} runs no hosts on the Ray cluster at address: leave one of "
                "them out"
            )
        return self


class ServeSettings(Section):
    """The roles of a process of `moothall serve`, and its cooperation with others on the bus."""

    only: tuple[Duty, ...] = Field(
        (), description="roles of this process; empty: all roles. A selection needs bus.url"
    )
    leave_seconds: float = Field(
        0.0,
        ge=0,
        description="how long a stopping server still accepts calls, while its health is already "
        "NOT_SERVING",
    )


_NEO4J = "neo4j"
"""The name of Neo4j's first user, and of its default database."""


class GraphSettings(Section):
    """The context graph. Without a URL, it is embedded and stored in the data directory."""

    url: str | None = Field(
        None,
        description="URL of a Neo4j 5 server, e.g. neo4j://127.0.0.1:7687, or with user and "
        "database neo4j://moothall@127.0.0.1:7687/context; both are neo4j by default. Give it a "
        "database of its own",
    )
    password: SecretStr | None = Field(None, description="password of the user in `url`")
    pace_seconds: float = Field(
        0.5, ge=0, description="pause between two batches, which leaves the CPU to the councils"
    )
    keep: int = Field(
        2000,
        ge=0,
        description="decided deliberations in the embedded graph; the oldest are removed. 0: no "
        "limit",
    )

    @property
    def server(self) -> str:
        """The URL without user and database, as the driver takes it."""
        parts = urlsplit(self.url or "")
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="").geturl()

    @property
    def user(self) -> str:
        """The user of the Neo4j server."""
        return unquote(urlsplit(self.url or "").username or _NEO4J)

    @property
    def database(self) -> str:
        """The database of the Neo4j server."""
        return unquote(urlsplit(self.url or "").path.strip("/")) or _NEO4J

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if urlsplit(self.url or "").password:
            raise ValueError("graph.url contains a password: set graph.password instead")
        return self


# Logs, traces and metrics.


class LogSettings(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum severity of log lines"
    )
    format: Literal["text", "json"] = Field(
        "text", description="text for people, or one JSON object per line"
    )


class TraceSettings(Section):
    """The export of OpenTelemetry spans. See docs/telemetry.md."""

    exporter: Literal["off", "otlp", "console"] = Field(
        "off", description="otlp: gRPC to endpoint; console: JSON lines on stderr"
    )
    endpoint: str = Field(
        "http://127.0.0.1:4317",
        pattern="^https?://",
        description="OTLP over gRPC; https:// for a collector elsewhere",
    )
    headers: SecretStr | None = Field(
        None, description="sent with every export: name=value,name=value"
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the traces started here that is recorded; for other traces, the "
        "caller's flag decides",
    )
    content: bool = Field(False, description="record prompts and answers too, without secrets")


class MetricsSettings(Section):
    """Metrics for Prometheus, at http://host:port/metrics of `moothall serve`."""

    enabled: bool = Field(default=True, description="serve metrics")
    host: str = Field("127.0.0.1", description="non-loopback addresses require metrics.token")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="empty: 9464, or none if it is in use; a port that is set must be free; 0: "
        "any free port",
    )
    token: SecretStr | None = Field(None, description="bearer token that scrapers must send")
