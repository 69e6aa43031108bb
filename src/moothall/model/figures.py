"""vLLM's own figures: how busy it is and how much of what it was asked came from its cache. No I/O.

The names are vLLM 0.32's; they have moved between versions. What is not there is None and named in `missing`,
never taken for 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

_NAMES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "cache_used": "vllm:kv_cache_usage_perc",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prompt_tokens_cached_total",
}


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """`running` and `waiting` are calls now, `cache_used` a share from 0 to 1, tokens are counted from the server's start."""

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
    """Read the Prometheus text format. Values of several engines are added up; shares are the largest."""
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
    """Return name and value of one line; no value for a comment or what is no finite number from 0 up."""
    if line.startswith("#"):
        return "", None
    name = line.partition("{")[0].partition(" ")[0]
    _, _, rest = line.rpartition("}") if "{" in line else line.partition(" ")
    try:
        value = float(rest.split()[0])
    except (IndexError, ValueError):
        return name, None
    return name, value if isfinite(value) and value >= 0 else None
