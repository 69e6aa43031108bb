"""Runs the agents of specs. Each is an ordinary deliberation that starts when its dependencies have
completed, on their merged results.

The validation commands alone decide whether an agent succeeded; the server runs them on a clean
checkout of the winner. The ids of a run's deliberations derive from the name of the run, so a run
that is started again under its name continues.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from moothall.agents.specs import Spec, order_specs, order_tasks, tools_of
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId, check_task_id, digest
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import (
    VALIDATION,
    AgentRef,
    Constraints,
    DeliberationRequest,
    RepositoryRef,
)
from moothall.domain.tool import Bounds, ToolUsage
from moothall.errors import MoothallError
from moothall.ports import Deliberations
from moothall.stories.integration import (
    IntegrationTarget,
    failure_reason,
    merge_commits,
    run_deliberation,
)

_MAX_BACKOFF_SECONDS, _CANCEL_SECONDS = 300.0, 5.0


class State(StrEnum):
    """How an agent ended. `skipped`: a dependency did not complete."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an agent, with its last task and the delivered commit and branch. `runs` counts
    its attempts; `wall_ms` and `tools` are the usage of the last one.
    """

    name: str
    state: State
    reason: str = ""
    task_id: str = ""
    branch: str = ""
    commit_sha: str = ""
    runs: int = 0
    wall_ms: int = 0
    tools: ToolUsage = ToolUsage()

    @property
    def used(self) -> str:
        """The usage of the last run, as text."""
        return (
            f"{self.wall_ms / 1000:.1f} s, {self.tools.cpu_ms / 1000:.1f} s of CPU, "
            f"{self.tools.max_rss_bytes / 10**6:.0f} MB"
        )


@dataclass
class AgentRun:
    """One run of several agents on a repository. `report_progress` gets a line for each step; at
    most `at_once` agents run side by side.
    """

    deliberations: Deliberations
    principal: Principal
    repository: RepositoryRef
    name: str
    at_once: int
    report_progress: Callable[[str], None] = lambda _line: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    longest: float = math.inf
    """The most seconds of one run, whatever its spec says."""
    ended: dict[str, Ended] = field(default_factory=dict)

    async def all(self, specs: Sequence[Spec]) -> Mapping[str, Ended]:
        """Run the agents and return how each ended, in their order. Raises `InvalidRequest` for a
        cycle or a missing dependency.
        """
        order, by_name = order_specs(specs), {spec.name: spec for spec in specs}
        running: set[asyncio.Task[Ended]] = set()
        async with asyncio.TaskGroup() as group:
            while len(self.ended) < len(by_name):
                while len(running) < self.at_once and (name := order.next()) is not None:
                    running.add(group.create_task(self._run_agent(by_name[name]), name=name))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for end in (task.result() for task in done):
                    self.ended[end.name] = end
                    reasons = [first_line(end.reason)] if end.reason else []
                    self.report_progress(
                        ", ".join(
                            [
                                f"{end.name}: {end.state}",
                                *reasons,
                                *([end.used] if end.runs else []),
                            ]
                        )
                    )
                    order.finish(end.name)
        return {name: self.ended[name] for name in order_specs(specs)}

    async def _run_agent(self, spec: Spec) -> Ended:
        required = [dependency.name for dependency in spec.dependencies if not dependency.optional]
        if missing := [name for name in required if self.ended[name].state is not State.COMPLETED]:
            return Ended(spec.name, State.SKIPPED, f"{missing[0]} did not complete")
        base, why = await self._merge_dependencies(spec)
        if base is None:
            return Ended(spec.name, State.FAILED, why)
        end, max_restarts = Ended(spec.name, State.FAILED), spec.restart.max_restarts
        for number in range(1, max_restarts + 2):
            self.report_progress(
                f"{spec.name}: "
                + ("begins" if number == 1 else f"begins again, {number - 1} of {max_restarts}")
            )
            request = request_of(
                spec, base, self._task_id(spec.name, f"{number}"), number, self.longest
            )
            outcome = await self._run_deliberation(request)
            tool_usage = sum((seat.tools for seat in outcome.seats), ToolUsage())
            end = replace(
                _ended_of(spec, outcome), runs=number, wall_ms=outcome.duration_ms, tools=tool_usage
            )
            # A run that a person stopped is not restarted.
            if (
                end.state is State.COMPLETED
                or number > max_restarts
                or outcome.status is DeliberationStatus.CANCELLED
            ):
                break
            wait_seconds = min(
                spec.restart.backoff_seconds * 2 ** (number - 1), _MAX_BACKOFF_SECONDS
            )
            self.report_progress(
                f"{spec.name}: {first_line(end.reason)}; again in {wait_seconds:g} s"
            )
            await self.sleep(wait_seconds)
        return end

    async def _run_deliberation(self, request: DeliberationRequest) -> Outcome:
        """Run a deliberation and return its outcome. Cancel it if the run is interrupted."""
        try:
            return await run_deliberation(self.deliberations, request, self.principal)
        except asyncio.CancelledError:
            with suppress(MoothallError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self.deliberations.cancel(
                        check_task_id(request.task_id), "interrupted", self.principal
                    )
            raise

    async def _merge_dependencies(self, spec: Spec) -> tuple[RepositoryRef | None, str]:
        """Return the repository to start from: the merged results of all dependencies. Return None
        and the reason if they cannot be merged.
        """
        completed = [
            end
            for dependency in spec.dependencies
            if (end := self.ended.get(dependency.name)) and end.state is State.COMPLETED
        ]
        commits = tuple(dict.fromkeys(end.commit_sha for end in completed))
        if len(commits) < 2:  # noqa: PLR2004 - a merge needs two
            return replace(self.repository, ref=commits[0]) if commits else self.repository, ""
        target = IntegrationTarget(
            self.repository,
            "",
            "",
            f"What {', '.join(end.name for end in completed)} did.",
            Constraints(),
        )
        merged = await merge_commits(
            self.deliberations, self._task_id(spec.name, "base"), commits, target, self.principal
        )
        if not merged.commit_sha:
            return None, f"what it needs could not be brought together: {failure_reason(merged)}"
        return replace(self.repository, ref=merged.commit_sha), ""

    def _task_id(self, name: str, part: str) -> TaskId:
        return TaskId(f"{self.name[:20]}-{name[:20]}-{digest(self.name, name)[:8]}-{part}")


def first_line(reason: str) -> str:
    """Return the first line of a reason."""
    return reason.partition("\n")[0]


def request_of(
    spec: Spec, base: RepositoryRef, task_id: str = "", number: int = 1, longest: float = math.inf
) -> DeliberationRequest:
    """Return the request to the deliberation service for the `number`-th run of an agent. It may
    take at most `longest` seconds.
    """
    limits = spec.security.resource_limits
    return DeliberationRequest(
        description=spec.instructions(order_tasks(spec.tasks)),
        role=spec.spec.role,
        task_id=task_id,
        constraints=Constraints(timeout_seconds=math.ceil(min(limits.timeout or 0, longest))),
        num_agents=spec.spec.seats,
        repository=base,
        protocol=spec.spec.protocol,
        seed=(spec.model.seed or 0) + number - 1,  # the same seed would repeat the same run
        model=spec.model.profile,
        checks=spec.validations,
        tools=tools_of(spec.security.capabilities_required),
        agent=AgentRef(
            spec.name,
            spec.metadata.workstream,
            Bounds(int(limits.max_memory or 0), (limits.max_cpu or 0) / 100),
        ),
    )


def _ended_of(spec: Spec, outcome: Outcome) -> Ended:
    """Return how an agent ended: it completed if its winner passed every validation."""
    end = Ended(
        spec.name,
        State.FAILED,
        task_id=outcome.task_id,
        branch=outcome.branch,
        commit_sha=outcome.commit_sha,
    )
    winner = next((result for result in outcome.results if result.seat == outcome.winner_id), None)
    if winner is None or outcome.status is not DeliberationStatus.COMPLETED:
        return replace(
            end,
            reason=next(
                (seat.error_message for seat in outcome.seats if seat.error_message),
                failure_reason(outcome),
            ),
        )
    for number, command in enumerate(spec.validations, 1):
        if (verdict := winner.checks.get(f"{VALIDATION}-{number}", "missing")) != "passed":
            return replace(end, reason=f"the validation {command!r} is {verdict}")
    return replace(end, state=State.COMPLETED)
