"""Extensions of the common protocol, and vLLM's metrics. No I/O.

vLLM lists its models as `owned_by: vllm`. Under `auto`, only vLLM is sent these fields:

- `cache_salt`, one for each tenant: a tenant cannot learn by timing how the prompts of another
  tenant begin.
- `priority`: lower is served first, so that nearly finished work comes before new work.
- `logprobs`, for calls that end in a number: the probabilities of the other numbers.

vLLM's metrics show its load and the share of prompt tokens from its cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from moothall import telemetry
from moothall.config import LlmSettings
from moothall.domain.chat import ChatRequest
from moothall.domain.ids import digest

log = telemetry.get_logger(__name__)

_VLLM_OWNER = "vllm"
_TOP_LOGPROBS = 11  # scores are numbers from 0 to 10
# A person waits for the coach. Reviews and revisions end deliberations, proposals start them.
_PHASE_PRIORITIES = {
    "coach": 0,
    "verify": 1,
    "critique": 2,
    "revise": 3,
    "propose": 4,
    "plan": 5,
    "derive": 5,
}
_LOWEST_PRIORITY = 5


class Dialect:
    """The extra fields for one server. `Capabilities` removes those that the server refuses."""

    def __init__(self, settings: LlmSettings, owners: Iterable[str] = ()) -> None:
        self.is_vllm = _VLLM_OWNER in owners
        self._sent = {"priority", "logprobs"} if self.is_vllm else set[str]()
        if settings.cache_salt == "on" or (settings.cache_salt == "auto" and self.is_vllm):
            self._sent.add("cache_salt")
        self._secret = settings.api_key.get_secret_value() if settings.api_key else ""
        self._logged: set[str] = set()

    def additions(self, request: ChatRequest) -> dict[str, Any]:
        """Return the extra fields for this request."""
        fields: dict[str, Any] = {}
        if "cache_salt" in self._sent:
            fields["cache_salt"] = digest("cache", request.tenant, self._secret)[:32]
        if "priority" in self._sent:
            fields["priority"] = priority_of(request.call_id)
        if "logprobs" in self._sent and request.scored:
            fields |= {"logprobs": True, "top_logprobs": _TOP_LOGPROBS}
        return fields

    def check_usage(self, usage: Mapping[str, Any]) -> None:
        """Warn once if vLLM does not report cached tokens, since every number about caching would
        be 0.
        """
        if self.is_vllm and usage and not isinstance(usage.get("prompt_tokens_details"), dict):
            self._warn_once(
                "the model server does not report cached tokens; they are counted as 0",
                "--enable-prompt-tokens-details",
            )

    def check_metrics(self, metrics: ServerMetrics) -> None:
        """Warn once about metrics that vLLM does not report. Their names differ between its
        versions.
        """
        if metrics.missing:
            self._warn_once(
                "the model server does not report " + ", ".join(metrics.missing),
                "a version of vLLM near 0.32",
            )

    def check_whitespace(self, text: str) -> None:
        """Warn once if a truncated reply within a schema is mostly white space, as small models
        produce it.
        """
        if self.is_vllm and len(text) > 2 * len("".join(text.split())):
            backend = '{"backend": "xgrammar", "disable_any_whitespace": true}'
            needs = f"--structured-outputs-config '{backend}'"
            self._warn_once(
                "a reply within a schema was truncated, and most of it was white space", needs
            )

    def _warn_once(self, message: str, needs: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.warning(message, needs=needs)


def priority_of(call_id: str) -> int:
    """Return a call's priority in the server's queue, from its phase; 0 is served first."""
    phase = (call_id.split("/") + [""] * 3)[2]
    return _PHASE_PRIORITIES.get(phase, _LOWEST_PRIORITY)


# The names are those of vLLM 0.32; they differ between versions. A missing metric is None and
# listed in `missing`, never read as 0.
_METRIC_NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_used": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prompt_tokens_cached_total",
}


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """Metrics of a vLLM server. `running` and `waiting` are current requests, `cache_used` is a
    share from 0 to 1, and tokens are counted since the server's start.
    """

    running: float | None = None
    waiting: float | None = None
    cache_used: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the metrics that the server did not report."""
        return tuple(name for field, name in _METRIC_NAMES.items() if getattr(self, field) is None)


def read_metrics(text: str) -> ServerMetrics:
    """Read metrics in the Prometheus text format. Values of several engines are added; of shares
    the largest is used.
    """
    samples: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, value = _read_sample(line)
        if value is not None:
            samples.setdefault(name, []).append(value)
    return ServerMetrics(
        **{field: _aggregate(field, samples.get(name)) for field, name in _METRIC_NAMES.items()}
    )


def _aggregate(field: str, values: list[float] | None) -> float | None:
    if not values:
        return None
    return max(values) if field == "cache_used" else sum(values)


def _read_sample(line: str) -> tuple[str, float | None]:
    """Return name and value of a line. The value is None for a comment, and for anything but a
    finite number of at least 0.
    """
    if line.startswith("#"):
        return "", None
    name = line.partition("{")[0].partition(" ")[0]
    _, _, rest = line.rpartition("}") if "{" in line else line.partition(" ")
    try:
        value = float(rest.split()[0])
    except (IndexError, ValueError):
        return name, None
    return name, value if isfinite(value) and value >= 0 else None
