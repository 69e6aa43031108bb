"""What a server understands beyond the common protocol. No I/O.

vLLM lists its models as `owned_by: vllm`. Under `auto` it alone is sent

- `cache_salt`: one a tenant, so that nobody can find out by timing what another tenant's prompts
  begin with;
- `priority`: lower is served first, so that what is nearly done is finished before something new is
  begun;
- `logprobs`, of a call that ends in a number: how likely others were.

vLLM's own figures say how busy it is and how much of its prompts came from its cache.
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

_OURS = "vllm"
_NUMBERS = 11  # from 0 to 10, which is what a score is
# A person waits for the coach; reviews and revisions end deliberations that proposals only begin.
_FIRST_SERVED = {
    "coach": 0,
    "verify": 1,
    "critique": 2,
    "revise": 3,
    "propose": 4,
    "plan": 5,
    "derive": 5,
}
_LAST_SERVED = 5


class Dialect:
    """The additions that one server is sent. `Capabilities` takes out those that it refuses."""

    def __init__(self, settings: LlmSettings, owners: Iterable[str] = ()) -> None:
        self.is_vllm = _OURS in owners
        asked = {
            "cache_salt": settings.cache_salt,
            "priority": settings.priority,
            "logprobs": settings.logprobs,
        }
        self._sent = {
            name
            for name, wish in asked.items()
            if wish == "on" or (wish == "auto" and self.is_vllm)
        }
        self._secret = settings.api_key.get_secret_value() if settings.api_key else ""
        self._told: set[str] = set()

    def additions(self, request: ChatRequest) -> dict[str, Any]:
        """Return the fields that this call has beyond the common ones."""
        made: dict[str, Any] = {}
        if "cache_salt" in self._sent:
            made["cache_salt"] = digest("cache", request.tenant, self._secret)[:32]
        if "priority" in self._sent:
            made["priority"] = priority_of(request.call_id)
        if "logprobs" in self._sent and request.scored:
            made |= {"logprobs": True, "top_logprobs": _NUMBERS}
        return made

    def notice(self, usage: Mapping[str, Any]) -> None:
        """Warn once where vLLM does not tell what came from its cache: every figure about caching
        would be 0.
        """
        if self.is_vllm and usage and not isinstance(usage.get("prompt_tokens_details"), dict):
            self._warn(
                "the model server does not tell cached tokens; they are counted as 0",
                "--enable-prompt-tokens-details",
            )

    def notice_missing(self, figures: ServerFigures) -> None:
        """Warn once about figures that vLLM does not tell: their names move between its
        versions.
        """
        if figures.missing:
            self._warn(
                "the model server does not tell " + ", ".join(figures.missing),
                "a version of vLLM near 0.32",
            )

    def notice_blanks(self, text: str) -> None:
        """Warn once where a reply within a schema ran into its limit in white space: small models
        do that.
        """
        if self.is_vllm and len(text) > 2 * len("".join(text.split())):
            backend = '{"backend": "xgrammar", "disable_any_whitespace": true}'
            needs = f"--structured-outputs-config '{backend}'"
            self._warn("a reply within a schema was cut, and most of it was white space", needs)

    def _warn(self, what: str, needs: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning(what, needs=needs)


def priority_of(call_id: str) -> int:
    """Return a call's place in the server's queue, from its phase: 0 first."""
    phase = (call_id.split("/") + [""] * 3)[2]
    return _FIRST_SERVED.get(phase, _LAST_SERVED)


# The names are vLLM 0.32's; they have moved between versions. What is not there is None and named
# in `missing`, never taken for 0.
_NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_used": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prompt_tokens_cached_total",
}


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """`running` and `waiting` are calls now, `cache_used` a share from 0 to 1, tokens are counted
    from the server's start.
    """

    running: float | None = None
    waiting: float | None = None
    cache_used: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names that the server did not tell."""
        return tuple(name for field, name in _NAMES.items() if getattr(self, field) is None)


def read_figures(text: str) -> ServerFigures:
    """Read the Prometheus text format. Values of several engines are added up; shares are the
    largest.
    """
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, value = _sample(line)
        if value is not None:
            found.setdefault(name, []).append(value)
    return ServerFigures(**{field: _together(field, found, name) for field, name in _NAMES.items()})


def _together(field: str, found: Mapping[str, list[float]], name: str) -> float | None:
    values = found.get(name)
    if not values:
        return None
    return max(values) if field == "cache_used" else sum(values)


def _sample(line: str) -> tuple[str, float | None]:
    """Return name and value of one line; no value for a comment or what is no finite number from 0
    up.
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
