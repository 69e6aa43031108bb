"""Settings of servers and services: the servers for callers and the sign-in of users, forges, issue
trackers and webhooks, agents, and what processes share: the bus, Ray, the graph, logs, traces and
metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, model_validator

from moothall.config.file import Section

# The servers for callers: gRPC and HTTP, and the sign-in of users.


class GrpcSettings(Section):
    """The gRPC server."""

    host: str = Field(
        "127.0.0.1",
        description="address to listen on; non-loopback addresses require TLS and a token",
    )
    port: int = Field(50055, ge=0, le=65535, description="port to listen on; 0: any free port")
    token: SecretStr | None = Field(
        None,
        description="bearer token of the local operator; if it and tokens_file are empty, one is "
        "created in the data directory",
    )
    tls_cert: Path | None = Field(None, description="certificate chain of the server, PEM")
    tls_key: Path | None = Field(None, description="private key of the server, PEM")
    tls_client_ca: Path | None = Field(
        None, description="PEM; if set, clients need a certificate that it signed"
    )
    tokens_file: Path | None = Field(
        None,
        description="TOML: [[principals]] with token, name, tenant, operator (false) and roles "
        "(of po, qa, architect) each; only its owner may read it, or also the group if root owns "
        "it (such as a Secret with defaultMode 0440)",
    )
    calls: int = Field(
        1000, ge=1, description="concurrent calls, including streams; further calls are refused"
    )
    grace_seconds: float = Field(
        5.0, ge=0, description="how long running calls may take to finish when the server stops"
    )
    more_ports: tuple[int, ...] = Field(
        (),
        description="further ports, such as 50052 for the story coach, 50056 for the agent "
        "service, 50057 for the kernel, 50058 for the runner and 50059 for tools",
    )


class WebSettings(Section):
    """The HTTP server of `moothall serve`. It accepts the tokens of `grpc`."""

    enabled: bool = Field(default=True, description="serve HTTP and the page")
    host: str = Field(
        "127.0.0.1",
        description="non-loopback addresses require TLS, and grpc.token, grpc.tokens_file or "
        "oidc.audience",
    )
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="empty: 8080, or none if it is in use; a port that is set must be free; 0: "
        "any free port",
    )
    hosts: tuple[str, ...] = Field(
        (), description="further host names of this server that are accepted in the Host header"
    )
    tls_cert: Path | None = Field(None, description="certificate chain of the server, PEM")
    tls_key: Path | None = Field(None, description="private key of the server, PEM")


class OidcSettings(Section):
    """An OpenID provider, for sign-in to the page (client_id) and for the tokens of callers
    (audience): docs/api.md. Without an issuer, users sign in by link, token or account.
    """

    issuer: str | None = Field(
        None,
        pattern="^https?://",
        description="the issuer in its tokens, e.g. https://id.example.org/realms/main; http:// "
        "only on loopback",
    )
    client_id: str = Field(
        "", description="id of this server at the provider; empty: no sign-in through the provider"
    )
    client_secret: SecretStr | None = Field(
        None, description="empty for a public client; PKCE is used in both cases"
    )
    url: str = Field(
        "",
        pattern="^(https?://[^/?#]+)?$",
        description="public URL of the page, e.g. https://moothall.example.org; empty: as "
        "browsers request it, on loopback. The provider must allow this URL with "
        "/sign-in/oidc/done",
    )
    scopes: tuple[str, ...] = Field(
        ("profile",),
        description="scopes to request in addition to openid, so that the ID token has the "
        "claims below",
    )
    name_claim: str = Field(
        "sub",
        min_length=1,
        description="claim with the user's name in the log and on the page; use one that users "
        "cannot choose",
    )
    tenant_claim: str = Field(
        "", description="claim with the user's tenant, an id; empty: all are of the tenant local"
    )
    roles_claim: str = Field(
        "groups",
        min_length=1,
        description="claim with the user's groups; a dot separates levels, such as "
        "realm_access.roles",
    )
    roles: Mapping[str, tuple[Literal["po", "qa", "architect", "operator", "reader"], ...]] = Field(
        {},
        description="roles of each group; reader: read, write stories and comment. Users without "
        "a role cannot sign in",
    )
    audience: str = Field(
        "",
        description="audience of the access tokens of gRPC and HTTP callers; empty: tokens of the "
        "provider are refused there",
    )

    @model_validator(mode="after")
    def _check_issuer(self) -> Self:
        if self.issuer is None and (self.client_id or self.roles or self.audience):
            raise ValueError("oidc.issuer is missing; set it to the URL of the provider")
        if self.issuer is not None and not (self.client_id or self.audience):
            raise ValueError(
                "oidc.client_id is missing; set it to the id of this server at the provider, or "
                "set oidc.audience to accept only tokens of callers"
            )
        if self.audience and self.audience == self.client_id:
            raise ValueError(
                "oidc.audience is the same as oidc.client_id, so ID tokens of the page would be "
                "accepted as access tokens; choose another audience"
            )
        if self.issuer is not None and not any(self.roles.values()):
            raise ValueError(
                "oidc.roles is empty, so nobody would have access; set the roles of a group, such "
                'as {"product": ["po"]}'
            )
        return self


# Forges, and webhooks to other systems.


_PATH_PART = r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_OWNER_AND_NAME = re.compile(f"{_PATH_PART}/{_PATH_PART}")
_GROUPS_AND_NAME = re.compile(f"{_PATH_PART}(/{_PATH_PART}){{1,20}}")


class ForgeSettings(Section):
    """The forge whose issues `moothall watch` answers with pull requests: docs/api.md."""

    kind: Literal["github", "gitea", "gitlab"] = Field(
        "github", description="the REST API of the forge; for Forgejo, use gitea"
    )
    url: str = Field(
        "https://github.com",
        pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$",
        description="public URL of the forge; http:// only on loopback",
    )
    token: SecretStr | None = Field(
        None,
        description="token of the account that pushes, opens pull requests and comments: in a "
        "file, or in MOOTHALL_FORGE__TOKEN",
    )
    token_file: Path | None = Field(None, description="file that contains `token`")
    repositories: tuple[str, ...] = Field(
        (), description="repositories to watch, as owner/name, or group/subgroup/name on GitLab"
    )
    label: str = Field(
        "moothall",
        description="open issues with this label are worked on; empty: no label is used",
    )
    mention: str = Field(
        "",
        description="a word, such as @moothall: an issue or comment that contains it is worked "
        "on if its author may write to the repository",
    )
    webhook_address: str = Field(
        "",
        pattern=r"^([^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5})?$",
        description="HOST:PORT to listen on for webhooks of the forge, such as 127.0.0.1:8081, so "
        "that changes need not wait for the next poll; empty: no webhooks",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="secret that the forge signs webhooks with; unsigned webhooks are refused"
    )

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        pattern = _GROUPS_AND_NAME if self.kind == "gitlab" else _OWNER_AND_NAME
        for name in self.repositories:
            if not pattern.fullmatch(name):
                raise ValueError(f"repositories: {name[:80]!r} must have the form owner/name")
        return self

    @model_validator(mode="after")
    def _check_webhook_secret(self) -> Self:
        if self.webhook_address and self.webhook_secret is None:
            raise ValueError(
                "forge.webhook_secret is missing; set it, because unsigned webhooks are refused"
            )
        return self


class TrackerSettings(Section):
    """The issue trackers whose webhooks put stories on the board: docs/api.md."""

    label: str = Field(
        "moothall", description="label of the issues that become stories; empty: every issue"
    )
    linear_secret: SecretStr | None = Field(
        None, description="signing secret of Linear's webhook; empty: none is accepted"
    )
    jira_secret: SecretStr | None = Field(
        None, description="secret of Jira's webhook; empty: none is accepted"
    )
    repositories: dict[str, str] = Field(
        {},
        description="registered repositories of the stories, by the key of Linear's team or "
        "Jira's project",
    )


class WebhookSettings(Section):
    """The webhook for each decision and each transition of a story: docs/api.md."""

    url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#@\s]+(/[^#@\s]*)?$",
        description="URL that receives the webhooks; http:// only on loopback. Empty: no webhooks",
    )
    secret: SecretStr | None = Field(
        None, description="secret to sign the body with: in a file, or in MOOTHALL_WEBHOOK__SECRET"
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.url is not None and self.secret is None:
            raise ValueError(
                "webhook.secret is missing; set it, so that the receiver can verify the sender"
            )
        return self


# Agents: queries of other orchestrators, agents in YAML, and remote agents.


class AgentSettings(Section):
    """Agents: queries of other orchestrators, and runs of `moothall agents run`."""

    tasks: int = Field(
        64, ge=1, description="running queries of one tenant; further ones are refused"
    )
    calls_a_second: float = Field(
        10.0, gt=0, description="queries that one caller may start per second"
    )
    endpoints: dict[str, tuple[str, ...]] = Field(
        {},
        description="remote agents that seats may use: the registered endpoint, and the "
        "HOST:PORTs of its replicas",
    )
    endpoint_token_file: Path | None = Field(None, description="the token that is sent to them")
    endpoint_ca: Path | None = Field(
        None,
        description="the certificate authority of their certificates; default: those of this "
        "machine",
    )


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
    user: str = Field("", description="user of the Neo4j server; empty: the user in `url`")
    password: SecretStr | None = Field(None, description="password of that user")
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
        """The URL without user and database, as the driver expects it."""
        parts = urlsplit(self.url or "")
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="").geturl()

    @property
    def login(self) -> str:
        """The user of the Neo4j server, from `user` or the URL."""
        return self.user or unquote(urlsplit(self.url or "").username or _NEO4J)

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
