"""All metrics of the server. Attributes of model servers in OpenTelemetry's conventions for
generative AI (v1.41). Counters, gauges and histograms as numbers in dictionaries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from time import perf_counter
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

# Attributes of model servers in OpenTelemetry's conventions for generative AI (v1.41).


_PROVIDERS = (
    ("-aiplatform.googleapis.com", "gcp.vertex_ai"),
    (".aiplatform.googleapis.com", "gcp.vertex_ai"),
    (".amazonaws.com", "aws.bedrock"),
    (".anthropic.com", "anthropic"),
    (".cohere.ai", "cohere"),
    (".cohere.com", "cohere"),
    (".deepseek.com", "deepseek"),
    (".generativelanguage.googleapis.com", "gcp.gemini"),
    (".groq.com", "groq"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"),
    (".mistral.ai", "mistral_ai"),
    (".models.ai.azure.com", "azure.ai.inference"),
    (".openai.azure.com", "azure.ai.openai"),
    (".perplexity.ai", "perplexity"),
    (".services.ai.azure.com", "azure.ai.inference"),
    (".x.ai", "x_ai"),
)
"""Suffixes of host names, and the conventions' names of their providers."""
_API = "openai"
"""The name for all other servers, such as vLLM, because they speak OpenAI's API."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_SERVERS = 64


@lru_cache(maxsize=_MAX_SERVERS)
def provider_name(base_url: str) -> str:
    """Return `gen_ai.provider.name` for a server."""
    host = f".{urlsplit(base_url).hostname or ''}"
    return next((name for suffix, name in _PROVIDERS if host.endswith(suffix)), _API)


@lru_cache(maxsize=_MAX_SERVERS)
def server_attributes(base_url: str) -> Mapping[str, str | int]:
    """Return the attributes of a server. An empty URL means the local model."""
    address = urlsplit(base_url)
    attributes: dict[str, str | int] = {"gen_ai.provider.name": provider_name(base_url)}
    if address.hostname:
        attributes["server.address"] = address.hostname
        attributes["server.port"] = address.port or _DEFAULT_PORTS.get(address.scheme, 0)
    return attributes


# Counters, gauges and histograms as numbers in dictionaries. An addition takes less than a
# microsecond.
#
# They belong to one event loop. Labels are bounded: after `MAX_LABEL_SETS` combinations of one
# metric, further ones count as `other`, so that hostile names cannot fill the memory of the process
# and its scraper.


Labels = tuple[str, ...]
MetricKind = Literal["counter", "gauge", "histogram"]

MAX_LABEL_SETS = 256
LABEL_CHARS = 100
OTHER = "other"

TOKENS = tuple(4.0**power for power in range(14))
SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0)
BYTES = (1e6, 4e6, 16e6, 64e6, 256e6, 1e9, 4e9)


@dataclass(slots=True)
class Metric:
    """The base of all kinds. name: as for Prometheus; that of a counter ends with `_total`."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = "gauge"

    def _bound_labels(self, key: Labels, existing: Mapping[Labels, Any]) -> Labels:
        """Return the labels to count under, for labels that are new."""
        if len(key) != len(self.labels):
            raise TypeError(f"{self.name} has the labels {self.labels}, not {key}")
        if len(existing) >= MAX_LABEL_SETS and key:
            return (OTHER,) * len(key)
        return tuple(label[:LABEL_CHARS] for label in key)


@dataclass(slots=True)
class Counter(Metric):
    """A metric that only grows."""

    values: dict[Labels, float] = field(default_factory=dict)
    kind: MetricKind = "counter"

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Add to the counter."""
        values = self.values
        if labels not in values:
            labels = self._bound_labels(labels, values)
        values[labels] = values.get(labels, 0.0) + amount


@dataclass(slots=True)
class Gauge(Metric):
    """A metric that goes up and down."""

    values: dict[Labels, float] = field(default_factory=dict)
    kind: MetricKind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Set the value."""
        if labels not in self.values:
            labels = self._bound_labels(labels, self.values)
        self.values[labels] = value

    def track_inprogress(self, *labels: str) -> _InProgress:
        """Return a context manager that counts one while its body runs."""
        if labels not in self.values:
            labels = self._bound_labels(labels, self.values)
        return _InProgress(self.values, labels)


@dataclass(slots=True)
class Histogram(Metric):
    """A distribution of values in seconds, bytes or tokens. buckets: upper bounds."""

    buckets: tuple[float, ...] = SECONDS
    counts: dict[Labels, list[float]] = field(default_factory=dict)
    """By labels: the count of each bucket, the last one without a bound, and then the sum."""
    kind: MetricKind = "histogram"

    def observe(self, value: float, *labels: str) -> None:
        """Count a value."""
        row = self.counts.get(labels)
        if row is None:
            labels = self._bound_labels(labels, self.counts)
            row = self.counts.setdefault(labels, [0.0] * (len(self.buckets) + 2))
        row[bisect_left(self.buckets, value)] += 1
        row[-1] += value

    def time(self, *labels: str) -> _Timed:
        """Return a context manager that observes the seconds of its body, however it ends."""
        return _Timed(self, labels)


class _InProgress:
    """A class, like `_Timed`, since `contextmanager` takes ten times as long."""

    __slots__ = ("_labels", "_values")

    def __init__(self, values: dict[Labels, float], labels: Labels) -> None:
        self._values = values
        self._labels = labels

    def __enter__(self) -> None:
        self._values[self._labels] = self._values.get(self._labels, 0.0) + 1

    def __exit__(self, *_: object) -> None:
        self._values[self._labels] -= 1


class _Timed:
    __slots__ = ("_histogram", "_labels", "_started")

    def __init__(self, histogram: Histogram, labels: Labels) -> None:
        self._histogram = histogram
        self._labels = labels

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._histogram.observe(perf_counter() - self._started, *self._labels)


AnyMetric = Counter | Gauge | Histogram
F = TypeVar("F", Counter, Gauge, Histogram)
Snapshot = dict[str, list[list[Any]]]
"""By name of the metric: rows of [labels, value]; for a histogram [labels, counts and sum]."""


class MetricRegistry:
    """All metrics of a process, by name."""

    def __init__(self) -> None:
        self._figures: dict[str, AnyMetric] = {}
        self._before: list[Callable[[], None]] = []

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        """Create a counter."""
        return self._add(Counter(name, about, labels))

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """Create a gauge."""
        return self._add(Gauge(name, about, labels))

    def histogram(
        self, name: str, about: str, *labels: str, buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        """Create a histogram."""
        return self._add(Histogram(name, about, labels, buckets=buckets))

    @contextmanager
    def before_snapshot(self, update: Callable[[], None]) -> Iterator[None]:
        """Call `update` before each snapshot, until the context ends."""
        self._before.append(update)
        try:
            yield
        finally:
            self._before.remove(update)

    @property
    def figures(self) -> Mapping[str, AnyMetric]:
        """The metrics by name."""
        return self._figures

    def snapshot(self) -> Snapshot:
        """Return all metrics that have a value, as JSON data."""
        for update in self._before:
            update()
        snapshot: Snapshot = {}
        for name, figure in self._figures.items():
            if isinstance(figure, Histogram):
                rows: list[list[Any]] = [
                    [list(labels), list(row)] for labels, row in figure.counts.items()
                ]
            else:
                rows = [[list(labels), value] for labels, value in figure.values.items()]
            if rows:
                snapshot[name] = rows
        return snapshot

    def _add(self, figure: F) -> F:
        if figure.name in self._figures:
            raise ValueError(f"there is a metric {figure.name} already")
        self._figures[figure.name] = figure
        return figure


# All metrics of the server. A test compares `docs/telemetry.md` and the Grafana dashboard with it.
#
# Hosts report their metrics to the serving process over the bus (`telemetry.aggregation`), which
# adds the label `process`.


REGISTRY = MetricRegistry()
_counter, _gauge, _histogram = REGISTRY.counter, REGISTRY.gauge, REGISTRY.histogram

_GENAI_LABELS = (
    "gen_ai_operation_name",
    "gen_ai_provider_name",
    "gen_ai_request_model",
    "gen_ai_response_model",
)
"""Attributes of OpenTelemetry's conventions, named as its exporters do for Prometheus."""

# deliberations
DELIBERATIONS_REQUESTED = _counter(
    "moothall_deliberations_requested_total",
    "Deliberations accepted by a deliberation service.",
    "role",
    "protocol",
)
DELIBERATIONS_DECIDED = _counter(
    "moothall_deliberations_decided_total",
    "Decided deliberations, by outcome.",
    "status",
    "final_state",
    "role",
)
DELIBERATION_SECONDS = _histogram(
    "moothall_deliberation_seconds",
    "Time from the request to the event that led to the decision.",
    "status",
)
HOST = _gauge("moothall_host_info", "Always 1 for a host; the label has its machine.", "node")
HOST_OLDEST = _gauge(
    "moothall_host_oldest_start_time_seconds",
    "Time at which a host took the oldest of its deliberations, in Unix seconds; 0 if it has none.",
    "host",
)
DELIBERATIONS_IN_FLIGHT = _gauge(
    "moothall_deliberations_in_flight", "Deliberations that a host is working on."
)
SEATS_FINISHED = _counter(
    "moothall_seats_finished_total",
    "Seats of decided deliberations, by outcome.",
    "status",
    "role",
)

# models
MODEL_CALLS = _counter(
    "moothall_model_calls_total",
    "Model calls; outcome is ok, cancelled or an error's code.",
    "model",
    "outcome",
)
MODEL_CALL_SECONDS = _histogram(
    "moothall_model_call_seconds", "Duration of a model call, including retries.", "model"
)
MODEL_CALLS_IN_FLIGHT = _gauge(
    "moothall_model_calls_in_flight", "Model calls that wait for an answer."
)
MODEL_UP = _gauge(
    "moothall_model_up",
    "Share of a model's servers that answer, by its name in the settings.",
    "model",
)
MODEL_TOKENS = _counter(
    "moothall_model_tokens_total",
    "Tokens; kind is prompt, cached (a part of prompt) or completion.",
    "model",
    "kind",
)
MODEL_COST = _counter(
    "moothall_model_cost_dollars_total",
    "Cost of model calls in US dollars, by the configured prices.",
    "model",
)
MODEL_RETRIES = _counter("moothall_model_retries_total", "Failed attempts that were retried.")
MODEL_REPLAYED = _counter(
    "moothall_model_calls_replayed_total",
    "Answers taken from the record of an earlier run instead of a new call.",
)
GENAI_TOKENS = _histogram(
    "gen_ai_client_token_usage",
    "Tokens of a model call: OpenTelemetry's gen_ai.client.token.usage.",
    *_GENAI_LABELS,
    "gen_ai_token_type",
    buckets=TOKENS,
)
GENAI_SECONDS = _histogram(
    "gen_ai_client_operation_duration_seconds",
    "Duration of a model call: OpenTelemetry's gen_ai.client.operation.duration.",
    *_GENAI_LABELS,
    "error_type",
    buckets=tuple(0.01 * 2**power for power in range(14)),
)
BUDGET_REFUSALS = _counter(
    "moothall_budget_refusals_total",
    "Calls that a budget refused; of is model, story (its budget is used up), quota (of the "
    "tenant) or tool.",
    "of",
)

# tools and checks
TOOL_CALLS = _counter(
    "moothall_tool_calls_total",
    "Tool calls by their outcome; a name not in the catalogue is unknown.",
    "tool",
    "status",
)
TOOL_CALL_SECONDS = _histogram(
    "moothall_tool_call_seconds",
    "Duration of a tool call, from its arrival at the tool gateway to its result.",
    "tool",
)
TOOL_CALLS_IN_FLIGHT = _gauge(
    "moothall_tool_calls_in_flight", "Tool calls currently in the tool gateway.", "tool"
)
TOOL_CPU_SECONDS = _counter(
    "moothall_tool_cpu_seconds_total", "Processor time of tools, measured by the kernel.", "tool"
)
TOOL_MEMORY_BYTES = _histogram(
    "moothall_tool_memory_bytes",
    "Peak resident memory of a tool call.",
    "tool",
    buckets=BYTES,
)
POLICY_DECISIONS = _counter(
    "moothall_policy_decisions_total",
    "Policy decisions on tool calls; decision is allowed, denied, parked or would_deny (dry-run).",
    "tool",
    "decision",
)
WASM_LIMITS = _counter(
    "moothall_wasm_limits_total", "Runs of WebAssembly tools ended by a limit.", "tool", "limit"
)
GUARD_ALERTS = _counter(
    "moothall_guard_alerts_total",
    "Alerts of the tool gateway; kind is denials or escapes (attempts to escape a sandbox).",
    "kind",
)
CHECKS = _counter(
    "moothall_checks_total", "Checks on clean checkouts, by verdict.", "check", "verdict"
)
CHECK_SECONDS = _histogram(
    "moothall_check_seconds", "Duration of a check on a clean checkout.", "check"
)
SLOT_SECONDS = _histogram(
    "moothall_slot_wait_seconds", "Time that a command waited for one of the machine's slots."
)
SANDBOX_LAYER = _gauge(
    "moothall_sandbox_layer",
    "1 if a layer of the sandbox works, 0 if it is missing and that is allowed.",
    "layer",
)

# bus
BUS_PUBLISH_SECONDS = _histogram(
    "moothall_bus_publish_seconds",
    "Time until a published event is on the bus's disk; to is log or work.",
    "to",
)
BUS_REDELIVERIES = _counter("moothall_bus_redeliveries_total", "Redelivered messages.", "durable")
BUS_DEAD_LETTERS = _counter(
    "moothall_bus_dead_letters_total", "Messages that became dead letters.", "durable"
)
BUS_LAG = _gauge(
    "moothall_bus_lag_messages",
    "Messages that are not yet delivered to a durable consumer.",
    "durable",
)
BUS_UNACKED = _gauge(
    "moothall_bus_unacked_messages",
    "Messages that are delivered to a durable consumer and not yet acknowledged.",
    "durable",
)
BUS_STORED_BYTES = _gauge("moothall_bus_stored_bytes", "Size of a stream.", "stream")

# collector
COLLECTOR_UNDER_WAY = _gauge(
    "moothall_collector_under_way", "Undecided deliberations that the collector has in memory."
)
DECIDE_SECONDS = _histogram(
    "moothall_decide_seconds",
    "Time from a deliberation being ready to its decision in the log, including delivery.",
)
DELIVER_SECONDS = _histogram(
    "moothall_deliver_seconds", "Time to create the winner's commit and branch."
)

# planning
STORY_STEPS = _counter(
    "moothall_story_steps_total",
    "Completed steps of stories; step is design, build, check or deliver.",
    "step",
)

# callers
GRPC_CALLS = _counter("moothall_grpc_calls_total", "Answered gRPC calls.", "method", "code")
GRPC_CALL_SECONDS = _histogram(
    "moothall_grpc_call_seconds", "Duration of a gRPC call; for a stream, until its end.", "method"
)
GRPC_CALLS_IN_FLIGHT = _gauge("moothall_grpc_calls_in_flight", "gRPC calls in progress.")
HTTP_REQUESTS = _counter(
    "moothall_http_requests_total",
    "Answered HTTP requests; route is the pattern of the path.",
    "route",
    "status",
)
HTTP_REQUEST_SECONDS = _histogram(
    "moothall_http_request_seconds", "Duration of an HTTP request, until its handler ends.", "route"
)
HTTP_REQUESTS_IN_FLIGHT = _gauge("moothall_http_requests_in_flight", "HTTP requests in progress.")

# this process
TRACE_COMPLAINTS = _counter(
    "moothall_trace_complaints_total",
    "Warnings and errors of OpenTelemetry, such as an unavailable collector.",
)
BUILD = _gauge(
    "moothall_build_info", "Always 1; the labels have the versions.", "version", "python"
)
PROCESS_CPU_SECONDS = _counter(
    "moothall_process_cpu_seconds_total", "Processor time of the process itself."
)
PROCESS_MEMORY_BYTES = _gauge(
    "moothall_process_resident_memory_bytes", "Resident memory of the process itself."
)
PROCESS_OPEN_FILES = _gauge("moothall_process_open_files", "Open file descriptors of the process.")
PROCESS_START_SECONDS = _gauge(
    "moothall_process_start_time_seconds", "Start time of the process, in Unix seconds."
)

_CHECKS = {"applies", "build", "cross", "lint", "policy", "setup", "tests"}


def check_label(name: str) -> str:
    """Return the label of a check; `other` for a repository's own names."""
    return name if name in _CHECKS else "other"
