"""The record of a workflow: its state folded from its events, and the log that reads and writes
them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moothall.domain.codec import dump
from moothall.domain.event import Channel, EventType, Recorded
from moothall.domain.tool import ToolResult
from moothall.errors import AlreadyExists
from moothall.ports import Log
from moothall.telemetry.tracing import write
from moothall.workflows.plan import Workflow

KINDS = (EventType.WORKFLOW_STARTED, EventType.WORKFLOW_STEP, EventType.WORKFLOW_FINISHED)


class StepState(StrEnum):
    """The state of a step or of its compensation, as on the wire. The last four are final."""

    STARTED = "started"
    PARKED = "parked"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        """True if no other state follows."""
        return self in {StepState.SUCCEEDED, StepState.FAILED, StepState.UNKNOWN, StepState.SKIPPED}


class End(StrEnum):
    """How a workflow ended, as on the wire. `partial`: some steps failed whose failure does not
    stop the workflow.
    """

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Act:
    """The state of a step or of its compensation. `attempt` is the last one that began; `failures`
    counts those that were retried.
    """

    state: StepState | None = None
    attempt: int = 0
    failures: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if no other state follows."""
        return self.state is not None and self.state.is_final


@dataclass(slots=True)
class Record:
    """The state of a workflow. `commit` has the workspace's files when the last step ended; `done`
    are the steps that succeeded, in that order. `document` is the plan's document, None before the
    start is on the log.
    """

    document: Mapping[str, Any] | None = None
    plan_digest: str = ""
    commit: str = ""
    end: End | None = None
    completed_steps: list[str] = field(default_factory=list)
    acts: dict[tuple[str, bool], Act] = field(default_factory=dict)

    def act(self, step: str, *, compensation: bool = False) -> Act:
        """Return the state of a step or of its compensation."""
        return self.acts.setdefault((step, compensation), Act())

    def state(self, step: str) -> StepState | None:
        """Return the state of a step, None before it began."""
        return self.act(step).state

    @property
    def ended(self) -> int:
        """The number of steps that have ended."""
        return sum(act.ended for (_, compensation), act in self.acts.items() if not compensation)

    def apply(self, kind: EventType, data: Mapping[str, Any]) -> None:
        """Apply an event. A repeated event changes nothing."""
        if kind == EventType.WORKFLOW_STARTED:
            self.document, self.plan_digest = data["plan"], data["digest"]
            self.commit = self.commit or data["commit_sha"]
        elif kind == EventType.WORKFLOW_FINISHED:
            self.end = End(data["state"])
        elif kind == EventType.WORKFLOW_STEP:
            self._apply_step(data)

    def _apply_step(self, data: Mapping[str, Any]) -> None:
        name, compensation = data["step"], bool(data["compensation"])
        act = self.act(name, compensation=compensation)
        if act.ended:
            return
        state = StepState(data["state"])
        act.state, act.attempt = state, int(data["attempt"])
        act.failures += state is StepState.RETRYING
        if state.is_final:
            act.result = data.get("result") or {}
        if state is StepState.SUCCEEDED and not compensation:
            self.completed_steps.append(name)
        self.commit = data.get("commit_sha") or self.commit


@dataclass(frozen=True, slots=True)
class WorkflowLog:
    """The events of one workflow. An event that is written again has the same id and changes
    nothing.
    """

    bus: Log
    workspace: str
    tenant: str
    name: str

    async def read(self) -> Record:
        """Return the state of the workflow."""
        record = Record()
        async for recorded in self.bus.replay((Channel.TOOLS.of(self.workspace),)):
            if self._is_own(recorded):
                record.apply(recorded.event.type, recorded.event.data)
        return record

    async def follow(self, digest: str, after_seq: int) -> AsyncGenerator[Recorded, None]:
        """Yield the events after a seq up to the end of the workflow, waiting for new ones. Raises
        `AlreadyExists` if the plan is a different one.
        """
        async with aclosing(self.bus.follow((Channel.TOOLS.of(self.workspace),))) as events:
            async for recorded in events:
                if not self._is_own(recorded):
                    continue
                event = recorded.event
                if event.type == EventType.WORKFLOW_STARTED and event.data.get("digest") != digest:
                    raise AlreadyExists(
                        f"the workflow id {self.name} was used for another workflow in this "
                        "workspace"
                    )
                if recorded.comes_after(after_seq):
                    yield recorded
                if event.type == EventType.WORKFLOW_FINISHED:
                    return

    async def begin(self, plan: Workflow, document: Mapping[str, Any], commit: str) -> None:
        """Record the start of the workflow, with the current files."""
        data = {
            "name": plan.name,
            "plan": {**document, "id": plan.id},
            "digest": plan.digest,
            "commit_sha": commit,
        }
        await self._publish(
            EventType.WORKFLOW_STARTED, {**data, "steps": len(plan.steps)}, "started"
        )

    async def step(
        self,
        plan: Workflow,
        record: Record,
        name: str,
        state: StepState,
        attempt: int,
        *,
        compensation: bool = False,
        result: ToolResult | None = None,
        error: str = "",
        commit: str = "",
    ) -> None:
        """Record the state of a step, and apply it to the record."""
        data = {
            "step": name,
            "state": state.value,
            "compensation": compensation,
            "attempt": attempt,
            "result": dump(result) if result is not None else {},
            "error": error,
            "commit_sha": commit,
        }
        ended_steps = record.ended + (
            not compensation and state.is_final and not record.act(name).ended
        )
        ordinal = f"{name}/{'undo/' if compensation else ''}{attempt}/{state}"
        await self._publish(
            EventType.WORKFLOW_STEP,
            {**data, "done": ended_steps, "steps": len(plan.steps)},
            ordinal,
        )
        record.apply(EventType.WORKFLOW_STEP, data)

    async def finish(self, end: End, reason: str, *, done: int, steps: int) -> None:
        """Record the end of the workflow."""
        await self._publish(
            EventType.WORKFLOW_FINISHED,
            {"state": end.value, "error": reason, "done": done, "steps": steps},
            "finished",
        )

    def _is_own(self, recorded: Recorded) -> bool:
        return recorded.event.type in KINDS and recorded.event.data.get("workflow_id") == self.name

    async def _publish(self, kind: EventType, data: Mapping[str, Any], ordinal: str) -> None:
        event = write(
            kind,
            self.workspace,
            {**data, "workflow_id": self.name, "workspace": self.workspace},
            ordinal=f"{self.name}/{ordinal}",
            source="executor",
            correlationid=self.workspace,
            tenant=self.tenant,
        )
        await self.bus.publish(event)
