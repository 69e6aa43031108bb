"""Running the agents of specs: each is an ordinary deliberation, begun when what it needs has
completed, on what that came to.

Whether one succeeded is decided by its validation commands, which the server runs on a clean
checkout of the winner, and by nothing that anybody says. The ids of a run's deliberations are made
from the run's name, so that a run that is begun again under its name goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from moothall.agents.capabilities import tools_of
from moothall.agents.dependency_order import of_specs, of_tasks
from moothall.agents.specs import Spec
from moothall.domain.identity import Principal
from moothall.domain.ids import digest
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

_LONGEST_BACKOFF, _CANCEL_SECONDS = 300.0, 5.0


class State(StrEnum):
    """How an agent ended. `skipped`: what it needs did not complete."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Ended:
    """How an agent ended, and what came of it: its last task, the delivered commit and branch.
    `runs`: how often it was tried; `wall_ms` and `tools` are what its last run took.
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
        """What its last run took, in words."""
        return (
            f"{self.wall_ms / 1000:.1f} s, {self.tools.cpu_ms / 1000:.1f} s of CPU, "
            f"{self.tools.max_rss_bytes / 10**6:.0f} MB"
        )


@dataclass
class AgentRun:
    """One run of several agents on a repository. `report_progress` hears a line for each step;
    `at_once` run
    side by side at most.
    """

    deliberations: Deliberations
    who: Principal
    repository: RepositoryRef
    name: str
    at_once: int
    report_progress: Callable[[str], None] = lambda _line: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    longest: float = math.inf
    """Seconds that one run may take, whatever its spec says."""
    ended: dict[str, Ended] = field(default_factory=dict)

    async def all(self, specs: Sequence[Spec]) -> Mapping[str, Ended]:
        """Run them to their ends and return how each ended, in their order. Raises `InvalidRequest`
        for a cycle, or where one is missing.
        """
        order, named = of_specs(specs), {spec.name: spec for spec in specs}
        running: set[asyncio.Task[Ended]] = set()
        async with asyncio.TaskGroup() as group:
            while len(self.ended) < len(named):
                while len(running) < self.at_once and (name := order.next()) is not None:
                    running.add(group.create_task(self._one(named[name]), name=name))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for end in (task.result() for task in done):
                    self.ended[end.name] = end
                    said = [first_line(end.reason)] if end.reason else []
                    self.report_progress(
                        ", ".join(
                            [f"{end.name}: {end.state}", *said, *([end.used] if end.runs else [])]
                        )
                    )
                    order.finish(end.name)
        return {name: self.ended[name] for name in of_specs(specs)}

    async def _one(self, spec: Spec) -> Ended:
        needed = [one.name for one in spec.dependencies if not one.optional]
        if missing := [name for name in needed if self.ended[name].state is not State.COMPLETED]:
            return Ended(spec.name, State.SKIPPED, f"{missing[0]} did not complete")
        base, why = await self._base(spec)
        if base is None:
            return Ended(spec.name, State.FAILED, why)
        end, most = Ended(spec.name, State.FAILED), spec.restart.max_restarts
        for number in range(1, most + 2):
            self.report_progress(
                f"{spec.name}: "
                + ("begins" if number == 1 else f"begins again, {number - 1} of {most}")
            )
            request = request_of(
                spec, base, self._task_id(spec.name, f"{number}"), number, self.longest
            )
            outcome = await self._ask(request)
            used = sum((seat.tools for seat in outcome.seats), ToolUsage())
            end = replace(_end(spec, outcome), runs=number, wall_ms=outcome.duration_ms, tools=used)
            # One that a person stopped is not made again.
            if (
                end.state is State.COMPLETED
                or number > most
                or outcome.status is DeliberationStatus.CANCELLED
            ):
                break
            wait = min(spec.restart.backoff_seconds * 2 ** (number - 1), _LONGEST_BACKOFF)
            self.report_progress(f"{spec.name}: {first_line(end.reason)}; again in {wait:g} s")
            await self.sleep(wait)
        return end

    async def _ask(self, request: DeliberationRequest) -> Outcome:
        """Return how it ended. Interrupted, it is cancelled."""
        try:
            return await run_deliberation(self.deliberations, request, self.who)
        except asyncio.CancelledError:
            with suppress(MoothallError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self.deliberations.cancel(request.task_id, "interrupted", self.who)
            raise

    async def _base(self, spec: Spec) -> tuple[RepositoryRef | None, str]:
        """Return where it begins: what all that it needs came to, brought together; None, and why,
        where that cannot be.
        """
        before = [
            end
            for one in spec.dependencies
            if (end := self.ended.get(one.name)) and end.state is State.COMPLETED
        ]
        commits = tuple(dict.fromkeys(end.commit_sha for end in before))
        if len(commits) < 2:  # noqa: PLR2004 - one needs no bringing together
            return replace(self.repository, ref=commits[0]) if commits else self.repository, ""
        aim = IntegrationTarget(
            self.repository,
            "",
            "",
            f"What {', '.join(end.name for end in before)} did.",
            Constraints(),
        )
        whole = await merge_commits(
            self.deliberations, self._task_id(spec.name, "base"), commits, aim, self.who
        )
        if not whole.commit_sha:
            return None, f"what it needs could not be brought together: {failure_reason(whole)}"
        return replace(self.repository, ref=whole.commit_sha), ""

    def _task_id(self, name: str, part: str) -> str:
        return f"{self.name[:20]}-{name[:20]}-{digest(self.name, name)[:8]}-{part}"


def first_line(reason: str) -> str:
    """Return what of a reason fits a line."""
    return reason.partition("\n")[0]


def request_of(
    spec: Spec, base: RepositoryRef, task_id: str = "", number: int = 1, longest: float = math.inf
) -> DeliberationRequest:
    """Return what the deliberation service is asked for the `number`-th run of an agent, which may
    take `longest`
    seconds at most.
    """
    limits = spec.security.resource_limits
    return DeliberationRequest(
        description=spec.instructions(of_tasks(spec.tasks)),
        role=spec.spec.role,
        task_id=task_id,
        constraints=Constraints(timeout_seconds=math.ceil(min(limits.timeout or 0, longest))),
        num_agents=spec.spec.seats,
        repository=base,
        protocol=spec.spec.protocol,
        seed=(spec.model.seed or 0) + number - 1,  # the same seed would go the same way again
        model=spec.model.profile,
        checks=spec.validations,
        tools=tools_of(spec.security.capabilities_required),
        agent=AgentRef(
            spec.name,
            spec.metadata.workstream,
            Bounds(int(limits.max_memory or 0), (limits.max_cpu or 0) / 100),
        ),
    )


def _end(spec: Spec, outcome: Outcome) -> Ended:
    """Return how an agent ended: it completed where its winner passed every validation."""
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
