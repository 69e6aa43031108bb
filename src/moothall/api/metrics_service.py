"""OrchestratorService, the part about itself: how it is, and how much it did."""

from __future__ import annotations

import time
from typing import Any

from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.domain.status import Condition
from moothall.errors import InvalidRequest
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

METRICS = ("performance", "agents", "councils")


class MetricsService:
    """Figures of the caller's tenant."""

    _dependencies: ApiDependencies
    _since: float

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        """Say how it is and why, since when it serves, and how much was asked."""
        health = await self._dependencies.checkup.look()
        down = health.status is Condition.DOWN
        totals = (
            await self._dependencies.tallies.get_totals(caller())
            if request.include_stats and not down
            else None
        )
        return pb.GetStatusResponse(
            status="unhealthy" if down else health.status.value,
            reasons=[
                f"{part.name}: {part.detail}"
                for part in health.parts
                if part.status is not Condition.HEALTHY
            ],
            uptime_seconds=int(time.monotonic() - self._since),
            stats=None
            if totals is None
            else pb.OrchestratorStats(
                total_deliberations=totals.deliberations,
                total_orchestrations=totals.orchestrations,
                avg_deliberation_time_ms=totals.average_ms,
                active_councils=totals.active_councils,
                role_counts=totals.by_role,
            ),
        )

    async def GetMetrics(
        self, request: pb.GetMetricsRequest, context: Any
    ) -> pb.GetMetricsResponse:
        """Give the figures of a time range: one kind, or all."""
        kind = request.metric_type.strip().lower() or "all"
        if kind not in {"all", *METRICS}:
            raise InvalidRequest(
                f"unknown metric_type {request.metric_type[:40]!r}; there are "
                f"{', '.join(METRICS)}, and all"
            )
        if request.time_range_ms < 0:
            raise InvalidRequest(
                f"time_range_ms is {request.time_range_ms}; milliseconds back from now, 0 for all"
            )
        found = await self._dependencies.tallies.get_metrics(caller(), request.time_range_ms)
        answer = pb.GetMetricsResponse()
        if kind in {"all", "performance"}:
            took = found.latencies
            answer.performance.CopyFrom(
                pb.PerformanceMetrics(
                    avg_deliberation_ms=took.deliberation_ms,
                    avg_orchestration_ms=took.orchestration_ms,
                    p50_latency_ms=took.p50_ms,
                    p95_latency_ms=took.p95_ms,
                    p99_latency_ms=took.p99_ms,
                )
            )
        if kind in {"all", "agents"}:
            answer.agents.CopyFrom(
                pb.AgentMetrics(
                    total_agents=sum(found.agents_by_role.values()),
                    active_agents=found.active_agents,
                    agents_per_role=found.agents_by_role,
                    avg_agent_response_time_ms=found.response_ms,
                )
            )
        if kind in {"all", "councils"}:
            answer.councils.CopyFrom(
                pb.CouncilMetrics(
                    total_councils=len(found.councils),
                    active_councils=sum(health.busy > 0 for health in found.councils.values()),
                    health_per_council={
                        name: pb.CouncilHealth(
                            status=health.status,
                            available_agents=health.available,
                            busy_agents=health.busy,
                            success_rate=health.success_rate,
                        )
                        for name, health in found.councils.items()
                    },
                )
            )
        return answer
