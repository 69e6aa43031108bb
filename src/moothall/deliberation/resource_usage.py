"""Resource usage of agents: totals, progress, and their own limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moothall.domain.codec import dump, load
from moothall.domain.event import EventType
from moothall.domain.evidence import CheckRun
from moothall.domain.proposal import seat_progress
from moothall.domain.task import Deliberation
from moothall.domain.tool import Bounds, ToolResult, ToolStatus, ToolUsage
from moothall.errors import LimitExceeded

_MB = 10**6


def sum_usage(results: Iterable[ToolResult], runs: Mapping[str, CheckRun]) -> ToolUsage:
    """Return the usage of tools and checks, as measured by the kernel."""
    return sum(
        (*(result.usage for result in results), *(run.usage for run in runs.values())), ToolUsage()
    )


def check_bounds(
    bounds: Bounds, results: Iterable[ToolResult], runs: Mapping[str, CheckRun]
) -> None:
    """Raise `LimitExceeded` if a tool or check was stopped by the agent's own limits."""
    limits: dict[str, str] = {}
    if bounds.memory_bytes:
        limits[ToolStatus.MEMORY] = f"max_memory, {bounds.memory_bytes / _MB:g} MB"
    if bounds.cpu_share:
        limits[ToolStatus.CPU] = (
            f"max_cpu, {bounds.cpu_share:.0%} of a processor over the time that it may take"
        )
    for name, status in (
        *((result.tool, result.status) for result in results),
        *((name, run.status) for name, run in runs.items()),
    ):
        if limit := limits.get(status):
            raise LimitExceeded(
                f"{name} hit the agent's own limit ({limit}), and the agent was stopped"
            )


@dataclass(slots=True)
class ProgressEstimate:
    """The progress of a deliberation's agent, event by event.

    `progress` never falls, not even over a restart: it starts with the recorded value.
    """

    deliberation: Deliberation
    progress: float = 0.0
    _seat_progress: dict[str, float] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _calls: int = 0
    _spent: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _tools: dict[str, ToolUsage] = field(default_factory=dict)
    _checks: Mapping[str, str] = field(default_factory=dict)

    def update(self, kind: EventType, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the data of `agent.progress` after an event; None if the event changes nothing."""
        seat = str(data.get("seat") or "")
        if (
            self.deliberation.agent is None
            or seat not in self.deliberation.seats
            or kind not in _CURRENT_TASKS
        ):
            return None
        if kind is EventType.SEAT_TURN:
            self._add_turn(seat, data)
        done = seat_progress(
            self._turns.get(seat, 0),
            self.deliberation.max_turns,
            proposed=kind in _PROPOSED,
            ended=kind is EventType.SEAT_FINISHED,
        )
        self._seat_progress[seat] = max(done, self._seat_progress.get(seat, 0.0))
        self.progress = max(
            self.progress,
            round(sum(self._seat_progress.values()) / len(self.deliberation.seats), 3),
        )
        return {
            "agent_id": self.deliberation.task_id,
            "agent": self.deliberation.agent.name,
            "seat": seat,
            "workstream": self.deliberation.agent.workstream,
            "progress": self.progress,
            "current_task": _CURRENT_TASKS[kind],
            "metrics": self._metrics(),
        }

    def _add_turn(self, seat: str, data: Mapping[str, Any]) -> None:
        self._turns[seat] = self._turns.get(seat, 0) + 1
        self._calls += len(data["operations"])
        self._spent[seat], self._tools[seat] = data["usage"], load(ToolUsage, data["tools"])
        self._checks = data["checks"] or self._checks

    def _metrics(self) -> Mapping[str, float]:
        spent = self._spent.values()
        tools = sum(self._tools.values(), ToolUsage())
        return {
            "turns": sum(self._turns.values()),
            "tool_calls": self._calls,
            "tokens": sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in spent),
            "cost_usd": sum(usage["cost_usd"] for usage in spent),
            "checks": len(self._checks),
            "checks_passed": sum(verdict == "passed" for verdict in self._checks.values()),
            **dump(tools),
        }


_CURRENT_TASKS: Mapping[EventType, str] = {
    EventType.SEAT_STARTED: "begun",
    EventType.SEAT_TURN: "at work",
    EventType.SEAT_PROPOSED: "proposed, being re-checked",
    EventType.SEAT_REVISED: "revised, being re-checked",
    EventType.SEAT_FINISHED: "ended",
}
_PROPOSED = {EventType.SEAT_PROPOSED, EventType.SEAT_REVISED}
