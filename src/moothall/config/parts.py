"""The parts that Moothall stands on and the doors that it has: servers, their addresses, and what
is said of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from moothall.config.section import Section

Role = Literal["dev", "qa", "architect", "devops", "data", "po"]
Duty = Literal["api", "page", "collector", "planning", "graph", "tools", "hosts"]
"""What a serving process may do, `serve.only`."""
_OWNED = re.compile(
    r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*"
)


UNKNOWN_WINDOW = 8192
"""The window, in tokens, of the local model, and of a model whose window neither its server nor a
setting gives.
"""
NATIVE_WINDOW = 131_072
"""The same for a model that calls tools natively. Such models have large windows; a refusal
corrects the guess.
"""
LOCAL_REPLY, LONGEST_REPLY = 1024, 32_768


class LlmSettings(Section):
    """The model server. No base URL: the small local model on this machine's CPU. Under
    `models.NAME` stand further ones, each as this one but for what it says itself.
    """

    base_url: str | None = Field(
        None, description="OpenAI-compatible root, e.g. http://127.0.0.1:8000/v1"
    )
    replicas: tuple[str, ...] = Field(
        (),
        description="further servers of the same model; all calls of a deliberation go to one, the "
        "others stand in for it",
    )
    model: str = Field("", description="model name; empty: the first one that the server lists")
    provider: str = Field(
        "",
        description="name of the provider in usage of the agent service; empty: openai-compatible, "
        "or llama.cpp",
    )
    tier: Literal["", "small", "medium", "large"] = Field(
        "", description="who asks for this tier gets the first model that has it"
    )
    fallback: tuple[str, ...] = Field(
        (), description="models that stand in while this one cannot be reached, in order"
    )
    roles: tuple[Role, ...] = Field(
        (), description="of models.NAME: whose seats use it where nobody chose another"
    )
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    model_path: Path | None = Field(None, description="your own GGUF file for the local model")
    models_dir: Path | None = Field(
        None,
        description="where the fetched local model lies, for all data directories; empty: the "
        "user's cache folder",
    )
    reply: Literal["auto", "tools", "json", "blocks"] = Field(
        "auto",
        description="how tools are called: natively, in a JSON object, in tagged blocks; auto: the "
        "first that a probe shows to work",
    )
    api: Literal["auto", "chat", "responses"] = Field(
        "auto",
        description="/v1/chat/completions or /v1/responses; auto: chat, until the server says that "
        "it takes a call only there",
    )
    reasoning_effort: str = Field(
        "",
        max_length=32,
        description="how long the model reasons (none, minimal, low, medium, high, xhigh); empty: "
        "the server's default",
    )
    reasoning_tokens: int = Field(
        0,
        ge=0,
        description="added to the limit of every reply, because servers count reasoning in it",
    )
    approaches: Literal["auto", "on", "off"] = Field(
        "auto",
        description="ask for distinct approaches first; auto: not the local model, which they lead "
        "astray",
    )
    functions: Literal["auto", "on", "off"] = Field(
        "auto",
        description="where a task names one function, ask for just that, without tools; auto: the "
        "local model, which is lost among them",
    )
    seats_in_turn: Literal["auto", "on", "off"] = Field(
        "auto",
        description="fill a council's seats one after the other until an answer is proven; auto: "
        "with the local model, which is no faster for several at once",
    )
    cache_salt: Literal["auto", "on", "off"] = Field(
        "auto", description="keep tenants' prompt caches apart; auto: on vLLM"
    )
    priority: Literal["auto", "on", "off"] = Field(
        "auto",
        description="let the server finish what is nearly done first; auto: on vLLM, where it "
        "takes it",
    )
    logprobs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="read how sure a reviewer is of its score from the likelihood of others; auto: "
        "on vLLM, where it takes it",
    )
    price_in: float = Field(0.0, ge=0, description="US dollars per million prompt tokens")
    price_out: float = Field(0.0, ge=0, description="US dollars per million completion tokens")
    price_cached: float | None = Field(
        None,
        ge=0,
        description="US dollars per million prompt tokens that come from the server's cache; "
        "empty: price_in",
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
        description="completion tokens a call; 0: a quarter of the window, at most 32,768; of the "
        "local model 1,024",
    )
    function_tokens: int = Field(
        512,
        ge=16,
        description="completion tokens of a call that asks for one function, where its file is no "
        "longer than that",
    )
    function_turns: int = Field(
        1,
        ge=1,
        description="replies of an attempt at one function; what is red then is written anew and "
        "not mended",
    )
    function_attempts: int = Field(
        2,
        ge=1,
        description="attempts of a seat at one function, each in another way, within "
        "limits.attempts: more of them rarely help",
    )
    context_tokens: int = Field(
        0,
        ge=0,
        description="window of the model; history is condensed to fit; 0: what the server says, "
        "else 8,192; of the local model 8,192",
    )
    concurrency: int = Field(
        256, ge=1, description="calls in flight to one server, which queues what it cannot begin"
    )
    connect_seconds: float = Field(5.0, gt=0)
    wait_seconds: float = Field(
        0.0, ge=0, description="how long a start waits for a model server that does not answer yet"
    )
    call_seconds: float = Field(
        1800.0, gt=0, description="one call, retries not counted; reasoning models take minutes"
    )
    idle_seconds: float = Field(
        300.0,
        gt=0,
        description="silence on an open stream; some servers send nothing while the model reasons",
    )
    retries: int = Field(
        8,
        ge=0,
        description="about a minute with the delays below: a model server that starts again",
    )
    retry_seconds: float = Field(0.5, gt=0, description="first delay; doubles, capped at 30")
    max_reply_bytes: int = Field(4_000_000, ge=1024)
    local_threads: int = Field(0, ge=0, description="0: cores - 1, at least 1")
    local_slots: int = Field(
        3, ge=1, description="calls that the local model works on side by side"
    )

    @field_validator("max_tokens", "context_tokens")
    @classmethod
    def _check_tokens(cls, value: int, info: ValidationInfo) -> int:
        least = 16 if info.field_name == "max_tokens" else 1024
        if 0 < value < least:
            raise ValueError(f"0 (automatic), or {least} and more")
        return value

    @property
    def assumed_window(self) -> int:
        """The window where the server has not been asked for it."""
        return self.context_tokens or UNKNOWN_WINDOW

    def fitted(self, window: int, most_tokens: int = 0) -> Self:
        """Return the settings with a window and a length of replies. `window` is what the server
        says of it, 0 for nothing; a setting comes first.
        `most_tokens`: the longest reply that the server takes, 0 for any.
        """
        window = self.context_tokens or window or UNKNOWN_WINDOW
        quarter = min(max(window // 4, 256), LONGEST_REPLY)
        tokens = self.max_tokens or (LOCAL_REPLY if self.base_url is None else quarter)
        fits = {
            "context_tokens": window,
            "max_tokens": min(tokens, most_tokens) if most_tokens else tokens,
        }
        return self.model_copy(update=fits)


class BusSettings(Section):
    """NATS JetStream. No URL: an embedded server with its files in the data directory."""

    url: str | None = None
    token: SecretStr | None = None
    token_file: Path | None = None
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long a start waits for a bus that is not there yet, or has no leader",
    )
    credentials: SecretStr | None = Field(
        None, description="a NATS user's token and seed, the text of a .creds file"
    )
    credentials_file: Path | None = None
    replicas: int = Field(1, ge=1, le=5)
    sync_interval: str = Field(
        "2m",
        description="how often the embedded server syncs to disk; a power loss can take what was "
        "acked since. 'always': before each ack",
    )
    blob_bytes: int = Field(
        256_000, ge=1024, description="larger payload fields go to the object store"
    )
    max_deliver: int = Field(5, ge=1)
    ack_wait_seconds: float = Field(10.0, gt=0)
    max_store_bytes: int = Field(8_000_000_000, ge=10_000_000)
    retry_seconds: float = Field(
        0.5, gt=0, description="first delay of a redelivery; doubles, capped at 60"
    )
    in_flight: int = Field(
        1024, ge=1, description="writes on their way at a time; more wait before they are sent"
    )
    batch_seconds: float = Field(
        0.01,
        ge=0,
        le=1,
        description="what a deliberation says within it is one message, a JSON batch of "
        "CloudEvents; 0: a message an event, for readers of the bus that know no batches",
    )
    check_seconds: float = Field(
        3600.0,
        gt=0,
        description="how often `serve` reads the whole log to see whether it lost something, also "
        "at the start",
    )
    publish_seconds: float = Field(
        30.0, gt=0, description="how long a publish is retried while the bus is away"
    )


class RaySettings(Section):
    """The fleet. No address: Ray on this machine, started and stopped with the process."""

    mode: Literal["auto", "process", "ray"] = Field(
        "auto",
        description="where hosts run: process, in the process that was started; auto: on Ray where "
        "address is set, in serve and in demo",
    )
    address: str | None = None
    hosts: int = Field(
        1,
        ge=0,
        description="host actors; 0: one on each node of Ray that offers a processor, also on "
        "nodes that join later",
    )
    wait_seconds: float = Field(
        0.0,
        ge=0,
        description="how long a start waits for as many nodes of Ray as hosts (0: for one), which "
        "are spread over those that are there",
    )
    seats_per_host: int = Field(
        64,
        ge=1,
        description="deliberations that one host works on at a time, of all roles together",
    )
    dashboard: bool = False
    credentials: SecretStr | None = Field(
        None,
        description="what hosts on the Ray at address come to the bus with, such as hosts.creds of "
        "`moothall bus keys`; without, bus.credentials",
    )
    credentials_file: Path | None = None
    allow_no_token: bool = Field(
        default=False,
        description="accept a Ray at address without a token: anyone who reaches its ports can "
        "read our credentials",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.mode == "process" and self.address is not None:
            raise ValueError(
                "mode 'process' runs no hosts on the Ray at address: leave one of them out"
            )
        return self


class ServeSettings(Section):
    """What a process of `moothall serve` does, and how it does so beside others on the same bus."""

    only: tuple[Duty, ...] = Field(
        (), description="the roles of this process; empty: all. Any but all need bus.url"
    )
    lease_seconds: float = Field(
        6.0,
        ge=1,
        description="how long nobody hears of who decides, plans or writes the graph, until "
        "another does it; with bus.url",
    )
    leave_seconds: float = Field(
        0.0,
        ge=0,
        description="how long a server that is told to stop still takes calls, while its health "
        "says NOT_SERVING already",
    )


class GrpcSettings(Section):
    """The callers' door."""

    host: str = "127.0.0.1"
    port: int = Field(50055, ge=0, le=65535)
    token: SecretStr | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = Field(
        None, description="PEM; with it, clients need a certificate that it signed, too"
    )
    tokens_file: Path | None = Field(
        None,
        description="TOML: [[principals]] with token, name, tenant, operator (false) and roles (of "
        "po, qa, architect) each; only its owner may read it, and of root's (a Secret's, with "
        "defaultMode 0440) the group",
    )
    calls: int = Field(
        1000, ge=1, description="calls in flight, streams included; more are refused"
    )
    grace_seconds: float = Field(
        5.0, ge=0, description="what calls in flight get to end when the server stops"
    )
    more_ports: tuple[int, ...] = Field(
        (),
        description="listen there too, such as 50052 for the story coach, 50056 for the agent "
        "service, 50057 for the kernel, 50058 for the runner and 50059 for tools alone",
    )


class WebSettings(Section):
    """The HTTP door of `moothall serve`. Who may call is said by the tokens of `grpc`."""

    enabled: bool = True
    host: str = Field(
        "127.0.0.1",
        description="anything but loopback needs TLS, and grpc.token or grpc.tokens_file",
    )
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="empty: 8080, and none where that is taken; a port named here must be free; 0: "
        "any",
    )
    hosts: tuple[str, ...] = Field(
        (), description="further names that a request may call this server by (its Host header)"
    )
    tls_cert: Path | None = None
    tls_key: Path | None = None
    body_bytes: int = Field(4_000_000, ge=1000, description="one request's body; more is refused")
    body_seconds: float = Field(
        30.0, gt=0, description="one request's body, from its head to its end"
    )
    calls: int = Field(
        256,
        ge=1,
        description="requests in flight, but for those who listen to events; more are refused",
    )
    readers: int = Field(
        2000, ge=1, description="who listens to server-sent events; more are refused"
    )
    connections: int = Field(4096, ge=1, description="open connections; what is more is closed")
    head_seconds: float = Field(
        20.0,
        gt=0,
        description="from a connection's beginning to its first request; then it is closed",
    )
    keep_seconds: float = Field(
        75.0, gt=0, description="how long a connection is kept that asks for nothing more"
    )
    stall_seconds: float = Field(
        60.0, gt=0, description="how long a client may take nothing of its answer"
    )
    grace_seconds: float = Field(
        5.0, ge=0, description="what requests in flight get to end when the server stops"
    )
    session_seconds: float = Field(43_200.0, gt=0, description="how long a browser stays signed in")


class OidcSettings(Section):
    """Signing in at the page by an OpenID provider: docs/doors.md. No issuer: by link, token and
    account alone.
    """

    issuer: str | None = Field(
        None,
        pattern="^https?://",
        description="as its tokens name it, e.g. https://id.example.org/realms/main; http:// only "
        "on loopback",
    )
    client_id: str = ""
    client_secret: SecretStr | None = Field(
        None, description="none for a public client; PKCE is used with and without"
    )
    client_secret_file: Path | None = None
    url: str = Field(
        "",
        pattern="^(https?://[^/?#]+)?$",
        description="where browsers find the page, e.g. https://moothall.example.org; empty: as "
        "they call it, on loopback. With /sign-in/oidc/done it is the address that the provider "
        "has to allow",
    )
    scopes: tuple[str, ...] = Field(
        ("profile",),
        description="asked for beside openid, so that the ID token has the claims below",
    )
    name_claim: str = Field(
        "sub",
        min_length=1,
        description="who it is, in the log and on the page; one that people cannot choose",
    )
    tenant_claim: str = Field(
        "", description="whose data somebody sees, an id; empty: the tenant below"
    )
    tenant: str = "local"
    roles_claim: str = Field(
        "groups",
        min_length=1,
        description="what somebody belongs to; a dot leads inside, as in realm_access.roles",
    )
    roles: Mapping[str, tuple[Literal["po", "qa", "architect", "operator", "reader"], ...]] = Field(
        {},
        description="what each of these may do here; reader: look, write stories and comment. Who "
        "has none is not let in",
    )
    seconds: float = Field(10.0, gt=0, description="one question put to the provider")
    sign_in_seconds: float = Field(
        600.0, gt=0, description="from leaving for the provider to coming back"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.issuer is None and (self.client_id or self.roles):
            raise ValueError("oidc.issuer is missing: without it nobody signs in by a provider")
        if self.issuer is not None and not self.client_id:
            raise ValueError("oidc.client_id is missing: it is what the provider calls this server")
        if self.issuer is not None and not any(self.roles.values()):
            raise ValueError(
                "oidc.roles is empty, so nobody could sign in; say what a group may do, such as "
                '{"product": ["po"]}'
            )
        return self


class ForgeSettings(Section):
    """A forge whose issues `moothall watch` answers with pull requests: docs/doors.md."""

    kind: Literal["github", "gitea"] = Field(
        "github", description="whose REST API it speaks; Forgejo is a gitea"
    )
    url: str = Field(
        "https://github.com",
        pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$",
        description="where people find it; http:// only on loopback",
    )
    token: SecretStr | None = Field(
        None,
        description="of the account that pushes, opens pull requests and comments: in a file, or "
        "in MOOTHALL_FORGE__TOKEN",
    )
    token_file: Path | None = None
    repositories: tuple[str, ...] = Field((), description="those that are watched, as owner/name")
    label: str = Field(
        "moothall",
        description="an open issue that carries it is worked on; empty: none is for a label",
    )
    mention: str = Field(
        "",
        description="a word, such as @moothall: an issue or comment with it, of somebody who may "
        "write to the repository, is worked on",
    )
    poll_seconds: float = Field(60.0, gt=0, description="how often the forge is asked what is new")
    at_once: int = Field(2, ge=1, le=100, description="issues that are worked on side by side")
    call_seconds: float = Field(30.0, gt=0, description="one call of the forge")
    webhook_host: str = "127.0.0.1"
    webhook_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="hear the forge's webhooks there, so that nobody waits for the next look; "
        "empty: none are heard",
    )
    webhook_secret: SecretStr | None = Field(
        None, description="what the forge signs them with; unsigned ones are refused"
    )
    webhook_secret_file: Path | None = None

    @field_validator("repositories")
    @classmethod
    def _are_named(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [name for name in given if not _OWNED.fullmatch(name)]:
            raise ValueError(f"{wrong[0][:80]!r} is no owner/name")
        return given

    @model_validator(mode="after")
    def _hears_whom_it_knows(self) -> Self:
        if self.webhook_port is not None and self.webhook_secret is None:
            raise ValueError(
                "forge.webhook_secret is missing: webhooks that nobody signed are not heard"
            )
        return self


class WebhookSettings(Section):
    """A server of the operator's that is told of each decision and each move of a story:
    docs/doors.md.
    """

    url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#@\s]+(/[^#@\s]*)?$",
        description="what is posted to; http:// only on loopback. Empty: nobody is told",
    )
    secret: SecretStr | None = Field(
        None, description="what the body is signed with: in a file, or in MOOTHALL_WEBHOOK__SECRET"
    )
    secret_file: Path | None = None
    seconds: float = Field(10.0, gt=0, description="one try")
    tries: int = Field(
        8,
        ge=1,
        description="of one webhook, with growing pauses; then it is left out. Later ones wait for "
        "it",
    )

    @model_validator(mode="after")
    def _signs(self) -> Self:
        if self.url is not None and self.secret is None:
            raise ValueError(
                "webhook.secret is missing: whoever is told could not know who tells it"
            )
        return self


class GraphSettings(Section):
    """The context graph. No URL: an embedded one in the data directory."""

    url: str | None = Field(
        None,
        description="of a Neo4j 5 server, e.g. neo4j://127.0.0.1:7687; give it a database of its "
        "own",
    )
    user: str = "neo4j"
    password: SecretStr | None = None
    password_file: Path | None = None
    database: str = "neo4j"
    batch: int = Field(2000, ge=1, le=10_000, description="events written in one transaction")
    pace_seconds: float = Field(
        0.5, ge=0, description="rest between two batches, which leaves the machine to the councils"
    )
    text_chars: int = Field(
        2000, ge=100, le=100_000, description="of one text in the graph; all of it is in the log"
    )
    keep: int = Field(
        2000,
        ge=0,
        description="decided deliberations in the embedded graph; the oldest leave it. 0: all stay",
    )
    query_seconds: float = Field(30.0, gt=0, description="one question, or one batch")
    connect_seconds: float = Field(5.0, gt=0)
    retry_seconds: float = Field(
        15.0, gt=0, description="how long the driver repeats what failed in passing"
    )


class LogSettings(Section):
    """What the process says on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class TraceSettings(Section):
    """Where OpenTelemetry spans go: nowhere, until an exporter is chosen. See docs/telemetry.md."""

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
        description="share of traces begun here that is recorded; a caller's own flag decides for "
        "its",
    )
    content: bool = Field(False, description="record prompts and answers too, scrubbed of secrets")
    attribute_chars: int = Field(2000, ge=100, description="of one attribute; more is cut")
    queue_spans: int = Field(
        8192, ge=1, description="spans that wait to be sent; what is more is dropped"
    )
    delay_seconds: float = Field(2.0, gt=0, description="spans are sent together, this often")
    timeout_seconds: float = Field(
        3.0, gt=0, le=8, description="one export, and what the end of a process waits for the last"
    )


class MetricsSettings(Section):
    """Figures for Prometheus, at http://host:port/metrics of `moothall serve`."""

    enabled: bool = True
    host: str = Field("127.0.0.1", description="anything but loopback needs metrics.token")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="empty: 9464, and none where that is taken; a port named here must be free; 0: "
        "any",
    )
    token: SecretStr | None = Field(None, description="bearer token that a scraper must show")
    token_file: Path | None = None
    report_seconds: float = Field(
        5.0, gt=0, description="how often hosts report theirs to the serving process"
    )
