"""Settings of the services that Moothall uses and of the servers that it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from moothall.config.section import Section

Role = Literal["dev", "qa", "architect", "devops", "data", "po"]
Duty = Literal["api", "page", "collector", "planning", "graph", "tools", "hosts"]
"""A role of a serving process, for `serve.only`."""
_OWNER_AND_NAME = re.compile(
    r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*"
)


UNKNOWN_WINDOW = 8192
"""The window in tokens of the local model, and of a model if neither its server nor a setting names
its window.
"""
NATIVE_WINDOW = 131_072
"""The same for a model that calls tools natively. Such models have large windows. If the window is
smaller, a refusal of the server corrects it.
"""
LOCAL_REPLY, LONGEST_REPLY = 1024, 32_768


class LlmSettings(Section):
    """The model server. Without a base URL, the small local model runs on this machine's CPU.
    `models.NAME` adds a model; unset fields are inherited from `llm`.
    """

    base_url: str | None = Field(
        None, description="root of an OpenAI-compatible API, e.g. http://127.0.0.1:8000/v1"
    )
    replicas: tuple[str, ...] = Field(
        (),
        description="further servers of the same model; each deliberation uses one of them, and "
        "the others replace it if it fails",
    )
    model: str = Field("", description="model name; empty: the first model that the server lists")
    provider: str = Field(
        "",
        description="provider name in the usage of the agent service; empty: openai-compatible, "
        "or llama.cpp",
    )
    tier: Literal["", "small", "medium", "large"] = Field(
        "", description="requests for this tier get the first model that has it"
    )
    fallback: tuple[str, ...] = Field(
        (), description="models that are used while this one is unreachable, in order"
    )
    roles: tuple[Role, ...] = Field(
        (), description="only for models.NAME: roles whose seats use this model by default"
    )
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    model_path: Path | None = Field(None, description="a GGUF file of your own for the local model")
    models_dir: Path | None = Field(
        None,
        description="folder of the fetched local model, for all data directories; empty: the "
        "user's cache folder",
    )
    reply: Literal["auto", "tools", "json", "blocks"] = Field(
        "auto",
        description="how the model calls tools: natively, in a JSON object, or in tagged blocks; "
        "auto: the first that works in a probe",
    )
    api: Literal["auto", "chat", "responses"] = Field(
        "auto",
        description="/v1/chat/completions or /v1/responses; auto: chat, until the server refuses "
        "a request that needs responses",
    )
    reasoning_effort: str = Field(
        "",
        max_length=32,
        description="how long the model reasons (none, minimal, low, medium, high, xhigh); "
        "empty: the server's default",
    )
    reasoning_tokens: int = Field(
        0,
        ge=0,
        description="added to the limit of every reply, because servers count reasoning tokens "
        "in it",
    )
    approaches: Literal["auto", "on", "off"] = Field(
        "auto",
        description="ask the model for distinct approaches first; auto: except for the local "
        "model, which they mislead",
    )
    functions: Literal["auto", "on", "off"] = Field(
        "auto",
        description="if a task names one function, ask only for it, without tools; auto: for the "
        "local model, which handles tools badly",
    )
    seats_in_turn: Literal["auto", "on", "off"] = Field(
        "auto",
        description="fill the seats of a council one after the other until an answer is proven; "
        "auto: for the local model, which is not faster with several at once",
    )
    cache_salt: Literal["auto", "on", "off"] = Field(
        "auto", description="separate the prompt caches of tenants; auto: on vLLM"
    )
    priority: Literal["auto", "on", "off"] = Field(
        "auto",
        description="let the server finish nearly complete work first; auto: on vLLM, if it "
        "accepts the parameter",
    )
    logprobs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="read a reviewer's confidence in its score from the probabilities of other "
        "scores; auto: on vLLM, if it accepts the parameter",
    )
    price_in: float = Field(0.0, ge=0, description="US dollars per million prompt tokens")
    price_out: float = Field(0.0, ge=0, description="US dollars per million completion tokens")
    price_cached: float | None = Field(
        None,
        ge=0,
        description="US dollars per million prompt tokens from the server's cache; empty: price_in",
    )
    price_reasoning: float | None = Field(
        None,
        ge=0,
        description="US dollars per million completion tokens of reasoning; empty: price_out",
    )
    temperature: float = Field(0.8, ge=0, le=2)
    max_tokens: int = Field(
        0,
        ge=0,
        description="completion tokens of a call; 0: a quarter of the window, at most 32,768; "
        "for the local model 1,024",
    )
    function_tokens: int = Field(
        512,
        ge=16,
        description="completion tokens of a call that asks for one function, if its file is not "
        "longer",
    )
    function_turns: int = Field(
        1,
        ge=1,
        description="replies of an attempt at one function; further attempts rewrite the "
        "function instead of repairing it",
    )
    function_attempts: int = Field(
        2,
        ge=1,
        description="attempts of a seat at one function, each with another approach, within "
        "limits.attempts; more rarely help",
    )
    context_tokens: int = Field(
        0,
        ge=0,
        description="window of the model, to which history is condensed; 0: as the server "
        "reports, else 8,192; for the local model 8,192",
    )
    concurrency: int = Field(
        256, ge=1, description="concurrent calls to one server, which queues what it cannot start"
    )
    connect_seconds: float = Field(5.0, gt=0)
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the start waits for a model server that does not answer yet",
    )
    call_seconds: float = Field(
        1800.0,
        gt=0,
        description="maximum duration of one call without retries; reasoning models take minutes",
    )
    idle_seconds: float = Field(
        300.0,
        gt=0,
        description="maximum silence on an open stream; some servers send nothing while the "
        "model reasons",
    )
    retries: int = Field(
        8,
        ge=0,
        description="with the delays below about a minute, enough for a restart of the model "
        "server",
    )
    retry_seconds: float = Field(0.5, gt=0, description="first delay; doubles, at most 30")
    max_reply_bytes: int = Field(4_000_000, ge=1024)
    local_threads: int = Field(0, ge=0, description="0: cores - 1, at least 1")
    local_slots: int = Field(3, ge=1, description="concurrent calls of the local model")

    @field_validator("max_tokens", "context_tokens")
    @classmethod
    def _check_tokens(cls, value: int, info: ValidationInfo) -> int:
        minimum = 16 if info.field_name == "max_tokens" else 1024
        if 0 < value < minimum:
            raise ValueError(f"must be 0 (automatic) or at least {minimum}")
        return value

    @property
    def assumed_window(self) -> int:
        """The window to use before the server has been asked for it."""
        return self.context_tokens or UNKNOWN_WINDOW

    def fitted(self, window: int, most_tokens: int = 0) -> Self:
        """Return the settings with a window and a reply length. A setting takes precedence over
        `window`, the window that the server reports, 0 if none. `most_tokens` is the longest reply
        that the server accepts, 0 if unlimited.
        """
        window = self.context_tokens or window or UNKNOWN_WINDOW
        quarter = min(max(window // 4, 256), LONGEST_REPLY)
        tokens = self.max_tokens or (LOCAL_REPLY if self.base_url is None else quarter)
        update = {
            "context_tokens": window,
            "max_tokens": min(tokens, most_tokens) if most_tokens else tokens,
        }
        return self.model_copy(update=update)


class BusSettings(Section):
    """NATS JetStream. Without a URL, an embedded server stores its files in the data directory."""

    url: str | None = None
    token: SecretStr | None = None
    token_file: Path | None = None
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long the start waits for a bus that is unavailable or has no leader",
    )
    credentials: SecretStr | None = Field(
        None, description="token and seed of a NATS user: the text of a .creds file"
    )
    credentials_file: Path | None = None
    replicas: int = Field(1, ge=1, le=5)
    sync_interval: str = Field(
        "2m",
        description="how often the embedded server syncs to disk; a power failure can lose what "
        "was acked since then. 'always': before each ack",
    )
    blob_bytes: int = Field(
        256_000, ge=1024, description="larger payload fields are stored in the object store"
    )
    max_deliver: int = Field(5, ge=1)
    ack_wait_seconds: float = Field(10.0, gt=0)
    max_store_bytes: int = Field(8_000_000_000, ge=10_000_000)
    retry_seconds: float = Field(
        0.5, gt=0, description="first delay of a redelivery; doubles, at most 60"
    )
    in_flight: int = Field(1024, ge=1, description="concurrent publishes; further ones wait")
    batch_seconds: float = Field(
        0.01,
        ge=0,
        le=1,
        description="events of a deliberation within this time form one message, a JSON batch of "
        "CloudEvents; 0: one message per event, for consumers that cannot read batches",
    )
    check_seconds: float = Field(
        3600.0,
        gt=0,
        description="how often `serve` reads the whole log to detect lost messages; also at the "
        "start",
    )
    publish_seconds: float = Field(
        30.0, gt=0, description="how long a publish is retried while the bus is unavailable"
    )


class RaySettings(Section):
    """The hosts. Without an address, Ray runs on this machine as long as the process."""

    mode: Literal["auto", "process", "ray"] = Field(
        "auto",
        description="where hosts run; process: in the started process; ray: on Ray; auto: on Ray "
        "for serve and demo, or if address is set",
    )
    address: str | None = None
    hosts: int = Field(
        1,
        ge=0,
        description="host actors; 0: one on each Ray node that offers a CPU, including nodes "
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
    dashboard: bool = False
    credentials: SecretStr | None = Field(
        None,
        description="bus credentials of hosts on the Ray cluster at address, such as hosts.creds "
        "of `moothall bus keys`; empty: bus.credentials",
    )
    credentials_file: Path | None = None
    allow_no_token: bool = Field(
        default=False,
        description="accept a Ray cluster at address without a token: anyone who can reach its "
        "ports can read Moothall's credentials",
    )

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "process" and self.address is not None:
            raise ValueError(
                "mode 'process' runs no hosts on the Ray cluster at address: leave one of them out"
            )
        return self


class ServeSettings(Section):
    """The roles of a process of `moothall serve`, and its cooperation with others on the bus."""

    only: tuple[Duty, ...] = Field(
        (), description="roles of this process; empty: all roles. A selection needs bus.url"
    )
    lease_seconds: float = Field(
        6.0,
        ge=1,
        description="how long the process that decides, plans or writes the graph may be silent "
        "until another one replaces it; with bus.url",
    )
    leave_seconds: float = Field(
        0.0,
        ge=0,
        description="how long a stopping server still accepts calls, while its health is already "
        "NOT_SERVING",
    )


class GrpcSettings(Section):
    """The gRPC server."""

    host: str = "127.0.0.1"
    port: int = Field(50055, ge=0, le=65535)
    token: SecretStr | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
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

    enabled: bool = True
    host: str = Field(
        "127.0.0.1",
        description="non-loopback addresses require TLS, and grpc.token or grpc.tokens_file",
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
    tls_cert: Path | None = None
    tls_key: Path | None = None
    body_bytes: int = Field(4_000_000, ge=1000, description="maximum size of a request body")
    body_seconds: float = Field(30.0, gt=0, description="maximum time to receive a request body")
    calls: int = Field(
        256,
        ge=1,
        description="concurrent requests, without event streams; further requests are refused",
    )
    readers: int = Field(
        2000, ge=1, description="concurrent streams of server-sent events; further ones are refused"
    )
    connections: int = Field(4096, ge=1, description="open connections; further ones are closed")
    head_seconds: float = Field(
        20.0,
        gt=0,
        description="maximum time from a new connection to its first request; then it is closed",
    )
    keep_seconds: float = Field(75.0, gt=0, description="how long an idle connection stays open")
    stall_seconds: float = Field(
        60.0, gt=0, description="how long a client may stop reading its response"
    )
    grace_seconds: float = Field(
        5.0, ge=0, description="how long running requests may take to finish when the server stops"
    )
    session_seconds: float = Field(43_200.0, gt=0, description="duration of a browser's sign-in")


class OidcSettings(Section):
    """Sign-in to the page with an OpenID provider: docs/doors.md. Without an issuer, users sign in
    by link, token or account.
    """

    issuer: str | None = Field(
        None,
        pattern="^https?://",
        description="the issuer in its tokens, e.g. https://id.example.org/realms/main; http:// "
        "only on loopback",
    )
    client_id: str = ""
    client_secret: SecretStr | None = Field(
        None, description="empty for a public client; PKCE is used in both cases"
    )
    client_secret_file: Path | None = None
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
        "", description="claim with the user's tenant, an id; empty: the tenant below"
    )
    tenant: str = "local"
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
    seconds: float = Field(
        10.0, gt=0, description="maximum duration of one request to the provider"
    )
    sign_in_seconds: float = Field(
        600.0, gt=0, description="maximum time that a user may spend at the provider to sign in"
    )

    @model_validator(mode="after")
    def _check_issuer(self) -> Self:
        if self.issuer is None and (self.client_id or self.roles):
            raise ValueError("oidc.issuer is missing; set it to the URL of the provider")
        if self.issuer is not None and not self.client_id:
            raise ValueError(
                "oidc.client_id is missing; set it to the id of this server at the provider"
            )
        if self.issuer is not None and not any(self.roles.values()):
            raise ValueError(
                "oidc.roles is empty, so nobody could sign in; set the roles of a group, such as "
                '{"product": ["po"]}'
            )
        return self


class ForgeSettings(Section):
    """The forge whose issues `moothall watch` answers with pull requests: docs/doors.md."""

    kind: Literal["github", "gitea"] = Field(
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
    token_file: Path | None = None
    repositories: tuple[str, ...] = Field((), description="repositories to watch, as owner/name")
    label: str = Field(
        "moothall",
        description="open issues with this label are worked on; empty: no label is used",
    )
    mention: str = Field(
        "",
        description="a word, such as @moothall: an issue or comment that contains it is worked "
        "on if its author may write to the repository",
    )
    poll_seconds: float = Field(60.0, gt=0, description="how often the forge is polled for changes")
    at_once: int = Field(2, ge=1, le=100, description="issues that are worked on concurrently")
    call_seconds: float = Field(
        30.0, gt=0, description="maximum duration of one request to the forge"
    )
    webhook_host: str = "127.0.0.1"
    webhook_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port for webhooks of the forge, so that changes need not wait for the next "
        "poll; empty: no webhooks",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="secret that the forge signs webhooks with; unsigned webhooks are refused"
    )
    webhook_secret_file: Path | None = None

    @field_validator("repositories")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if invalid := [name for name in names if not _OWNER_AND_NAME.fullmatch(name)]:
            raise ValueError(f"{invalid[0][:80]!r} must have the form owner/name")
        return names

    @model_validator(mode="after")
    def _hears_whom_it_knows(self) -> Self:
        if self.webhook_port is not None and self.webhook_secret is None:
            raise ValueError(
                "forge.webhook_secret is missing; set it, because unsigned webhooks are refused"
            )
        return self


class WebhookSettings(Section):
    """The webhook for each decision and each transition of a story: docs/doors.md."""

    url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#@\s]+(/[^#@\s]*)?$",
        description="URL that receives the webhooks; http:// only on loopback. Empty: no webhooks",
    )
    secret: SecretStr | None = Field(
        None, description="secret to sign the body with: in a file, or in MOOTHALL_WEBHOOK__SECRET"
    )
    secret_file: Path | None = None
    seconds: float = Field(10.0, gt=0, description="maximum duration of one attempt")
    tries: int = Field(
        8,
        ge=1,
        description="attempts for one webhook, with growing pauses; then it is dropped. Later "
        "webhooks wait for it",
    )

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.url is not None and self.secret is None:
            raise ValueError(
                "webhook.secret is missing; set it, so that the receiver can verify the sender"
            )
        return self


class GraphSettings(Section):
    """The context graph. Without a URL, it is embedded and stored in the data directory."""

    url: str | None = Field(
        None,
        description="URL of a Neo4j 5 server, e.g. neo4j://127.0.0.1:7687; give it a database of "
        "its own",
    )
    user: str = "neo4j"
    password: SecretStr | None = None
    password_file: Path | None = None
    database: str = "neo4j"
    batch: int = Field(2000, ge=1, le=10_000, description="events written in one transaction")
    pace_seconds: float = Field(
        0.5, ge=0, description="pause between two batches, which leaves the CPU to the councils"
    )
    text_chars: int = Field(
        2000,
        ge=100,
        le=100_000,
        description="maximum length of a text in the graph; the log has the complete text",
    )
    keep: int = Field(
        2000,
        ge=0,
        description="decided deliberations in the embedded graph; the oldest are removed. 0: no "
        "limit",
    )
    query_seconds: float = Field(
        30.0, gt=0, description="maximum duration of one question or one batch"
    )
    connect_seconds: float = Field(5.0, gt=0)
    retry_seconds: float = Field(
        15.0, gt=0, description="how long the driver retries after temporary errors"
    )


class LogSettings(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


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
    headers_file: Path | None = None
    service: str = Field("moothall", description="service.name of the spans")
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the traces started here that is recorded; for other traces, the "
        "caller's flag decides",
    )
    content: bool = Field(False, description="record prompts and answers too, without secrets")
    attribute_chars: int = Field(
        2000, ge=100, description="maximum length of an attribute; longer ones are truncated"
    )
    queue_spans: int = Field(
        8192, ge=1, description="spans waiting to be sent; further ones are dropped"
    )
    delay_seconds: float = Field(2.0, gt=0, description="interval between exports")
    timeout_seconds: float = Field(
        3.0,
        gt=0,
        le=8,
        description="maximum duration of one export, and of the last one at the end of a process",
    )


class MetricsSettings(Section):
    """Metrics for Prometheus, at http://host:port/metrics of `moothall serve`."""

    enabled: bool = True
    host: str = Field("127.0.0.1", description="non-loopback addresses require metrics.token")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="empty: 9464, or none if it is in use; a port that is set must be free; 0: "
        "any free port",
    )
    token: SecretStr | None = Field(None, description="bearer token that scrapers must send")
    token_file: Path | None = None
    report_seconds: float = Field(
        5.0, gt=0, description="how often hosts report their metrics to the serving process"
    )
