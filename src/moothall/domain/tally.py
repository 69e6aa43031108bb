"""How much was asked, how it ended and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Totals:
    """Of a tenant, as far as the log reaches. Times in milliseconds. `by_role` counts deliberations."""

    deliberations: int = 0
    orchestrations: int = 0
    average_ms: float = 0.0
    active_councils: int = 0
    by_role: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Milliseconds from a request to its decision; percentiles by nearest rank. 0 where nothing ended."""

    deliberation_ms: float = 0.0
    orchestration_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """A council now. `status` is busy, idle, or empty where nobody sits; `success_rate` is winners among what ended, 0..1."""

    status: str
    available: int
    busy: int
    success_rate: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of a tenant, within a time range. `councils` by council id; an agent is active while it has a seat."""

    latencies: Latencies
    agents_by_role: Mapping[str, int]
    active_agents: int
    response_ms: float
    councils: Mapping[str, Health]
