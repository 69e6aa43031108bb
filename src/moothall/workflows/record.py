"""A workflow's facts on the log: how it stands by them, in their order, and telling and reading
them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moothall.domain.codec import dump
from moothall.domain.event import EventType, Recorded
from moothall.domain.tool import ToolResult
from moothall.domain.topic import Channel
from moothall.errors import AlreadyExists
from moothall.ports import Log
from moothall.telemetry.events import write
from moothall.workflows.plan import Workflow

KINDS = (EventType.WORKFLOW_STARTED, EventType.WORKFLOW_STEP, EventType.WORKFLOW_FINISHED)


class StepState(StrEnum):
    """How a step, or the compensation of one, stands; the wire's words. The last four are ends."""

    STARTED = "started"
    PARKED = "parked"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"

    @property
    def ends(self) -> bool:
        """Whether nothing more comes after it."""
        return self in {StepState.SUCCEEDED, StepState.FAILED, StepState.UNKNOWN, StepState.SKIPPED}


class End(StrEnum):
    """How a workflow ended; the wire's words. `partial`: steps failed that others may go on
    without.
    """

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Act:
    """A step, or its compensation, so far. `attempt` is the last one that began; `failures` those
    that were tried again.
    """

    state: StepState | None = None
    attempt: int = 0
    failures: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.state is not None and self.state.ends


@dataclass(slots=True)
class Record:
    """One workflow so far. `commit` holds the workspace's files as they were when the last step
    ended; `done` are the steps that succeeded, in that order. `told` is the plan's document, None
    before the start is on the log.
    """

    told: Mapping[str, Any] | None = None
    plan_digest: str = ""
    commit: str = ""
    end: End | None = None
    done: list[str] = field(default_factory=list)
    acts: dict[tuple[str, bool], Act] = field(default_factory=dict)

    def act(self, step: str, *, compensation: bool = False) -> Act:
        """Return how a step or its compensation stands."""
        return self.acts.setdefault((step, compensation), Act())

    def state(self, step: str) -> StepState | None:
        """Return the state of a step, None before it began."""
        return self.act(step).state

    @property
    def ended(self) -> int:
        """How many steps are over."""
        return sum(act.ended for (_, compensation), act in self.acts.items() if not compensation)

    def apply(self, kind: EventType, data: Mapping[str, Any]) -> None:
        """Take a fact in. One that was told before changes nothing."""
        if kind == EventType.WORKFLOW_STARTED:
            self.told, self.plan_digest = data["plan"], data["digest"]
            self.commit = self.commit or data["commit_sha"]
        elif kind == EventType.WORKFLOW_FINISHED:
            self.end = End(data["state"])
        elif kind == EventType.WORKFLOW_STEP:
            self._step(data)

    def _step(self, data: Mapping[str, Any]) -> None:
        name, compensation = data["step"], bool(data["compensation"])
        act = self.act(name, compensation=compensation)
        if act.ended:
            return
        state = StepState(data["state"])
        act.state, act.attempt = state, int(data["attempt"])
        act.failures += state is StepState.RETRYING
        if state.ends:
            act.result = data.get("result") or {}
        if state is StepState.SUCCEEDED and not compensation:
            self.done.append(name)
        self.commit = data.get("commit_sha") or self.commit


@dataclass(frozen=True, slots=True)
class WorkflowLog:
    """The facts of one workflow. A fact that is told again has the same id and changes nothing."""

    bus: Log
    workspace: str
    tenant: str
    name: str

    async def read(self) -> Record:
        """Return how it stands."""
        record = Record()
        async for recorded in self.bus.replay((Channel.TOOLS.of(self.workspace),)):
            if self._ours(recorded):
                record.apply(recorded.event.type, recorded.event.data)
        return record

    async def follow(self, digest: str, after_seq: int) -> AsyncGenerator[Recorded, None]:
        """Yield its facts after a seq to its end, also those to come. Raises `AlreadyExists` where
        its plan is another one.
        """
        async with aclosing(self.bus.follow((Channel.TOOLS.of(self.workspace),))) as facts:
            async for recorded in facts:
                if not self._ours(recorded):
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
        """Tell that it began, with the files as they are."""
        told = {
            "name": plan.name,
            "plan": {**document, "id": plan.id},
            "digest": plan.digest,
            "commit_sha": commit,
        }
        await self._say(EventType.WORKFLOW_STARTED, {**told, "steps": len(plan.steps)}, "started")

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
        """Tell how a step stands, and take it into the record."""
        data = {
            "step": name,
            "state": state.value,
            "compensation": compensation,
            "attempt": attempt,
            "result": dump(result) if result is not None else {},
            "error": error,
            "commit_sha": commit,
        }
        over = record.ended + (not compensation and state.ends and not record.act(name).ended)
        ordinal = f"{name}/{'undo/' if compensation else ''}{attempt}/{state}"
        await self._say(
            EventType.WORKFLOW_STEP, {**data, "done": over, "steps": len(plan.steps)}, ordinal
        )
        record.apply(EventType.WORKFLOW_STEP, data)

    async def finish(self, end: End, reason: str, *, done: int, steps: int) -> None:
        """Tell how it ended."""
        await self._say(
            EventType.WORKFLOW_FINISHED,
            {"state": end.value, "error": reason, "done": done, "steps": steps},
            "finished",
        )

    def _ours(self, recorded: Recorded) -> bool:
        return recorded.event.type in KINDS and recorded.event.data.get("workflow_id") == self.name

    async def _say(self, kind: EventType, data: Mapping[str, Any], ordinal: str) -> None:
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
