"""Every setting, with a default that works on a laptop and protects.

`MOOTHALL_` environment variables (`__` between levels) override a TOML file (`--config`), which
overrides the defaults. An unset URL means the embedded part. A secret may name a file that holds
it, with `_file` after its name: `MOOTHALL_LLM__API_KEY_FILE`. No other module reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from moothall.errors import ConfigurationError
from moothall.misspelt import wrong_variables


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, data: Any) -> Any:
        """A secret that is not given itself is what its `<name>_file` holds. A secret without such a field is a bug."""
        if not isinstance(data, dict):
            return data
        return data | {
            name: _read_secret(f"{name}_file", Path(data[f"{name}_file"]))
            for name in cls.model_fields
            if data.get(f"{name}_file") and f"{name}_file" in cls.model_fields and not data.get(name)
        }


def _read_secret(name: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{name} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} {path} is not text") from error
    if not secret:
        raise ValueError(f"{name} {path} is empty")
    return secret


class Llm(_Section):
    """The model server. No base URL: the small local model on this machine's CPU."""

    base_url: str | None = Field(None, description="OpenAI-compatible root, e.g. http://127.0.0.1:8000/v1")
    replicas: tuple[str, ...] = Field(
        (), description="further servers of the same model; all calls of a deliberation go to one, the others stand in for it"
    )
    model: str = Field("", description="model name; empty: the first one that the server lists")
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    model_path: Path | None = Field(None, description="your own GGUF file for the local model")
    reply: Literal["auto", "json", "blocks"] = "auto"
    approaches: Literal["auto", "on", "off"] = Field(
        "auto", description="ask for distinct approaches first; auto: not the local model, which they lead astray"
    )
    cache_salt: Literal["auto", "on", "off"] = Field("auto", description="keep tenants' prompt caches apart; auto: on vLLM")
    priority: Literal["auto", "on", "off"] = Field(
        "auto", description="let the server finish what is nearly done first; auto: on vLLM, where it takes it"
    )
    price_in: float = Field(0.0, ge=0, description="US dollars per million prompt tokens")
    price_out: float = Field(0.0, ge=0, description="US dollars per million completion tokens")
    temperature: float = Field(0.8, ge=0, le=2)
    max_tokens: int = Field(1024, ge=16, description="completion tokens a call")
    context_tokens: int = Field(8192, ge=1024, description="window of the model; history is condensed to fit")
    concurrency: int = Field(256, ge=1, description="calls in flight to one server, which queues what it cannot begin")
    connect_seconds: float = Field(5.0, gt=0)
    call_seconds: float = Field(300.0, gt=0, description="one call, retries not counted")
    idle_seconds: float = Field(60.0, gt=0, description="silence on an open stream")
    retries: int = Field(8, ge=0, description="about a minute with the delays below: a model server that starts again")
    retry_seconds: float = Field(0.5, gt=0, description="first delay; doubles, capped at 30")
    max_reply_bytes: int = Field(4_000_000, ge=1024)
    local_threads: int = Field(0, ge=0, description="0: cores - 1, at least 1")
    local_slots: int = Field(3, ge=1, description="calls that the local model works on side by side")


class Bus(_Section):
    """NATS JetStream. No URL: an embedded server with its files in the data directory."""

    url: str | None = None
    token: SecretStr | None = None
    token_file: Path | None = None
    credentials_file: Path | None = None
    replicas: int = Field(1, ge=1, le=5)
    sync_interval: str = Field("2m", description="how often the embedded server syncs to disk; 'always' costs 0.6 ms a write")
    blob_bytes: int = Field(256_000, ge=1024, description="larger payload fields go to the object store")
    max_deliver: int = Field(5, ge=1)
    ack_wait_seconds: float = Field(10.0, gt=0)
    max_store_bytes: int = Field(8_000_000_000, ge=10_000_000)
    retry_seconds: float = Field(0.5, gt=0, description="first delay of a redelivery; doubles, capped at 60")
    in_flight: int = Field(1024, ge=1, description="writes on their way at a time; more wait before they are sent")
    publish_seconds: float = Field(30.0, gt=0, description="how long a publish is retried while the bus is away")


class Ray(_Section):
    """The fleet. No address: Ray on this machine, started and stopped with the process."""

    address: str | None = None
    hosts: int = Field(1, ge=1, description="host actors")
    seats_per_host: int = Field(64, ge=1, description="deliberations that one host works on at a time")
    dashboard: bool = False


class Workspace(_Section):
    """Where tools act."""

    kind: Literal["local", "kubernetes"] = "local"
    namespace: str = "moothall"
    image: str = ""
    setup_network: Literal["on", "allowlist", "off"] = "on"
    setup_seconds: float = Field(600.0, gt=0)
    warm: int = Field(1, ge=0, description="executors kept ready for each prepared repository")
    allowed_schemes: tuple[str, ...] = ("https", "ssh", "file")
    allowed_roots: tuple[Path, ...] = Field(
        (), description="local repositories that the API may name; the CLI adds its own argument"
    )
    keep_days: float = Field(
        14.0, ge=1, description="`moothall log prune` removes checkouts and environments that were not used for so long"
    )
    max_file_bytes: int = Field(5_000_000, ge=1024, description="one file of a patch, or read by a tool")
    max_patch_bytes: int = Field(2_000_000, ge=1024)
    max_repository_bytes: int = Field(4_000_000_000, ge=1_000_000)
    max_patch_files: int = Field(1000, ge=1)
    git_seconds: float = Field(120.0, gt=0, description="one git command; a fetch or checkout has setup_seconds")


class Sandbox(_Section):
    """Walls and limits for what a model wrote. A missing wall stops the start unless named here."""

    allow_degraded: tuple[str, ...] = ()
    cpu_seconds: float = Field(120.0, gt=0, description="one command")
    wall_seconds: float = Field(120.0, gt=0, description="one command")
    memory_bytes: int = Field(2_000_000_000, ge=64_000_000)
    processes: int = Field(256, ge=8)
    open_files: int = Field(1024, ge=64)
    output_bytes: int = Field(200_000, ge=1000, description="of a command; more is cut and counted")
    disk_bytes: int = Field(1_000_000_000, ge=1_000_000)
    uid: int = Field(64_817, ge=1, description="whom a sandbox runs as where Moothall itself runs as root")
    toolchains: tuple[Path, ...] = Field((), description="folders outside /usr to show read-only; their bin is put on PATH")


class Limits(_Section):
    """What a caller may ask for."""

    agents: int = Field(16, ge=1)
    rounds: int = Field(8, ge=0)
    turns: int = Field(12, ge=1, description="turns of a seat; the wire's max_iterations lowers it")
    task_chars: int = Field(20_000, ge=100)
    deliberation_seconds: float = Field(1800.0, gt=0)
    tokens: int = Field(1_000_000, ge=0, description="of a deliberation; 0: no limit")
    calls: int = Field(500, ge=0)
    cost_usd: float = Field(0.0, ge=0)
    malformed_replies: int = Field(3, ge=0, description="corrective messages before a seat fails")
    patience: float = Field(
        1.0, ge=0, description="after a proven answer the other seats get its time again, times this; 0: all the time"
    )
    patience_seconds: float = Field(10.0, ge=0, description="and at least this long")
    quorum: float = Field(0.5, gt=0, le=1, description="share of seats that decides at the deadline")
    grace_seconds: float = Field(10.0, ge=0, description="after its deadline a deliberation is decided with what there is")
    message_bytes: int = Field(4_000_000, ge=10_000, description="one gRPC message")
    agent_chars: int = Field(4000, ge=100, description="capabilities and metadata of a registered agent, together")
    context_tokens: int = Field(2000, ge=100, description="excerpt of the graph that a seat or a caller is given")
    plan_tasks: int = Field(64, ge=1, description="tasks of one plan")
    plans: int = Field(32, ge=1, description="plans whose tasks are handed out side by side; more wait")


class Guard(_Section):
    """What the gate lets through."""

    calls_in_flight: int = Field(32, ge=1, description="tool calls that one gate runs side by side; more wait")
    seat_in_flight: int = Field(4, ge=1, description="tool calls of one seat side by side; more are refused")
    seat_calls: int = Field(400, ge=1, description="tool calls of one seat")
    seat_seconds: float = Field(1200.0, gt=0, description="seconds that one seat's tools may run, together")
    call_seconds: float = Field(300.0, gt=0, description="one tool call; a tool's own limit may be lower")
    grace_seconds: float = Field(8.0, ge=0, description="what a workspace gets to end a call by itself after its deadline")
    argument_bytes: int = Field(1_000_000, ge=1000, description="arguments of one call, as JSON")
    result_bytes: int = Field(60_000, ge=1000, description="output of a call that the seat sees; more is cut")
    event_bytes: int = Field(16_000, ge=1000, description="output of a call in its event; more is cut")
    key: SecretStr | None = Field(
        None, description="signs capability tokens, the same on every machine; empty: made in the data directory"
    )
    key_file: Path | None = None
    token_seconds: float = Field(3600.0, ge=10, description="the longest that a capability token lives")
    policies: Path | None = Field(
        None, description="a folder with roles.yaml and *.rego instead of those that come with Moothall; see docs/tools.md"
    )
    policy: Literal["off", "dry-run", "enforce"] = Field(
        "enforce", description="what becomes of the policy's answers; dry-run: they are only logged and counted"
    )
    policy_cache_seconds: float = Field(60.0, ge=0, description="how long a policy's answer to the same question stands")
    visits: int = Field(16, ge=1, description="workspaces that callers from outside have open at a time")
    visit_seconds: float = Field(900.0, gt=0, description="how long such a workspace stays open where its caller does not say")
    approval_seconds: float = Field(900.0, ge=1, description="how long an operator's approval of a parked request is good for")
    breaker_failures: int = Field(5, ge=1, description="failures of a tool in a row that open its circuit")
    breaker_seconds: float = Field(30.0, gt=0, description="how long it then rests; doubles while it keeps failing")
    cache_bytes: int = Field(20_000_000, ge=0, description="results that one gate keeps of tools that may be cached")
    audit_sync_records: int = Field(64, ge=1, description="audit records between two syncs to disk; each is flushed at once")


class Http(_Section):
    """What tools may do on the network: `http.*` and `web.*`. They are granted to no role unless `policies/roles.yaml` says so."""

    allow: tuple[str, ...] = Field(
        (), description="hosts (name or name:port) and networks that tools may call though their addresses are not public"
    )
    only_allowed: bool = Field(default=False, description="tools may call nothing but those")
    seconds: float = Field(30.0, gt=0, description="one call, redirects included")
    redirects: int = Field(5, ge=0, le=20)
    response_bytes: int = Field(1_000_000, ge=1024, description="an answer, unpacked; more is cut")
    download_bytes: int = Field(5_000_000, ge=1024, le=40_000_000, description="a file from or for a workspace; more is refused")
    search_url: str | None = Field(None, description="root of a SearXNG server, for web.search")


class Grpc(_Section):
    """The callers' door."""

    host: str = "127.0.0.1"
    port: int = Field(50055, ge=0, le=65535)
    token: SecretStr | None = None
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = Field(None, description="PEM; with it, clients need a certificate that it signed, too")
    tokens_file: Path | None = Field(
        None, description="TOML: [[principals]] with token, name, tenant and operator (false) each; only its owner may read it"
    )
    calls: int = Field(1000, ge=1, description="calls in flight, streams included; more are refused")
    keepalive_seconds: float = Field(30.0, ge=1, description="a silent connection is asked after this long whether it lives")
    grace_seconds: float = Field(5.0, ge=0, description="what calls in flight get to end when the server stops")


class Graph(_Section):
    """The context graph. No URL: an embedded one in the data directory."""

    url: str | None = Field(None, description="of a Neo4j 5 server, e.g. neo4j://127.0.0.1:7687; give it a database of its own")
    user: str = "neo4j"
    password: SecretStr | None = None
    password_file: Path | None = None
    database: str = "neo4j"
    batch: int = Field(500, ge=1, le=10_000, description="events written in one transaction")
    pace_seconds: float = Field(0.25, ge=0, description="rest between two batches, which leaves the machine to the councils")
    text_chars: int = Field(2000, ge=100, le=100_000, description="of one text in the graph; all of it is in the log")
    query_seconds: float = Field(30.0, gt=0, description="one question, or one batch")
    connect_seconds: float = Field(5.0, gt=0)
    retry_seconds: float = Field(15.0, gt=0, description="how long the driver repeats what failed in passing")
    drain_seconds: float = Field(10.0, ge=0, description="what a command that ends gives the graph to catch up")


class Log(_Section):
    """What the process says on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Trace(_Section):
    """Where OpenTelemetry spans go: nowhere, until an exporter is chosen. See docs/telemetry.md."""

    exporter: Literal["off", "otlp", "console"] = Field(
        "off", description="otlp: gRPC to endpoint; console: JSON lines on stderr"
    )
    endpoint: str = Field(
        "http://127.0.0.1:4317", pattern="^https?://", description="OTLP over gRPC; https:// for a collector elsewhere"
    )
    headers: SecretStr | None = Field(None, description="sent with every export: name=value,name=value")
    headers_file: Path | None = None
    service: str = Field("moothall", description="service.name of the spans")
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="share of traces begun here that is recorded; a caller's own flag decides for its"
    )
    content: bool = Field(False, description="record prompts and answers too, scrubbed of secrets")
    attribute_chars: int = Field(2000, ge=100, description="of one attribute; more is cut")
    queue_spans: int = Field(8192, ge=1, description="spans that wait to be sent; what is more is dropped")
    delay_seconds: float = Field(2.0, gt=0, description="spans are sent together, this often")
    timeout_seconds: float = Field(3.0, gt=0, le=8, description="one export, and what the end of a process waits for the last")


class Metrics(_Section):
    """Figures for Prometheus, at http://host:port/metrics of `moothall serve`."""

    enabled: bool = True
    host: str = Field("127.0.0.1", description="anything but loopback needs metrics.token")
    port: int | None = Field(
        None, ge=0, le=65535, description="empty: 9464, and none where that is taken; a port named here must be free; 0: any"
    )
    token: SecretStr | None = Field(None, description="bearer token that a scraper must show")
    token_file: Path | None = None
    report_seconds: float = Field(5.0, gt=0, description="how often hosts report theirs to the serving process")


class Settings(BaseSettings):
    """All of it. Frozen; made once by `load_settings` and handed down."""

    model_config = SettingsConfigDict(
        env_prefix="MOOTHALL_", env_nested_delimiter="__", extra="forbid", frozen=True, nested_model_default_partial_update=True
    )

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("moothall")))
    repository: str = Field("", description="default repository of a deliberation that names none")
    seed: int = Field(0, ge=0, description="base of all sampling seeds")
    llm: Llm = Llm()
    bus: Bus = Bus()
    ray: Ray = Ray()
    workspace: Workspace = Workspace()
    sandbox: Sandbox = Sandbox()
    limits: Limits = Limits()
    guard: Guard = Guard()
    http: Http = Http()
    grpc: Grpc = Grpc()
    graph: Graph = Graph()
    log: Log = Log()
    trace: Trace = Trace()
    metrics: Metrics = Metrics()


def secret_values(settings: BaseModel) -> tuple[str, ...]:
    """Return the operator's own secrets: nothing that leaves may carry them."""
    found: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            found += secret_values(value)
        elif isinstance(value, SecretStr):
            found.append(value.get_secret_value())
    return tuple(found)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from error


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Return the effective settings; raises `ConfigurationError` naming each wrong one."""
    if wrong_names := wrong_variables(Settings, "MOOTHALL_", os.environ):
        raise ConfigurationError("; ".join(wrong_names))
    from_file = _read_toml(config) if config else {}

    class Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del sources
            return named["init_settings"], named["env_settings"], InitSettingsSource(settings_cls, from_file)

    try:
        loaded = Loaded(**overrides)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(f"settings are wrong: {wrong}") from error
    except (OSError, SettingsError) as error:
        raise ConfigurationError(f"settings cannot be read: {error}") from error
    return Settings.model_construct(**{name: getattr(loaded, name) for name in Settings.model_fields})


_PACKAGE_VARIABLES = (
    "PIP_",
    "UV_",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_REGISTRY",
    "GOPROXY",
    "GOSUMDB",
)


def package_environment() -> dict[str, str]:
    """Return the variables that tell package managers where to download from, for set-up commands."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PACKAGE_VARIABLES)}


def package_files() -> dict[str, Path]:
    """Return the configuration files of package managers that exist, by the variable that names one."""
    candidates = {
        "PIP_CONFIG_FILE": ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"),
        "UV_CONFIG_FILE": ("~/.config/uv/uv.toml", "/etc/uv/uv.toml"),
    }
    found = {}
    for variable, paths in candidates.items():
        existing = [
            path for path in (Path(os.environ.get(variable) or ""), *(Path(p).expanduser() for p in paths)) if path.is_file()
        ]
        if existing:
            found[variable] = existing[0]
    return found


def environment() -> Mapping[str, str]:
    """Return the process's environment, for credentials that a registered repository names by variable."""
    return dict(os.environ)
