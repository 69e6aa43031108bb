"""A workflow's facts on the log: told in order, and read again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from moothall.domain.codec import dump
from moothall.domain.event import EventType, Recorded
from moothall.domain.tool import ToolResult
from moothall.domain.topic import Channel
from moothall.errors import AlreadyExists
from moothall.ports import Log
from moothall.telemetry.events import write
from moothall.workflows.plan import Plan
from moothall.workflows.record import KINDS, End, Record, StepState


@dataclass(frozen=True, slots=True)
class Chronicle:
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
        """Yield its facts after a seq to its end, also those to come. Raises `AlreadyExists` where its plan is another one."""
        async with aclosing(self.bus.follow((Channel.TOOLS.of(self.workspace),))) as facts:
            async for recorded in facts:
                if not self._ours(recorded):
                    continue
                event = recorded.event
                if event.type == EventType.WORKFLOW_STARTED and event.data.get("digest") != digest:
                    raise AlreadyExists(f"the workflow id {self.name} was used for another workflow in this workspace")
                if recorded.comes_after(after_seq):
                    yield recorded
                if event.type == EventType.WORKFLOW_FINISHED:
                    return

    async def begin(self, plan: Plan, document: Mapping[str, Any], commit: str) -> None:
        """Tell that it began, with the files as they are."""
        told = {"name": plan.name, "plan": {**document, "id": plan.id}, "digest": plan.digest, "commit_sha": commit}
        await self._say(EventType.WORKFLOW_STARTED, {**told, "steps": len(plan.steps)}, "started")

    async def step(
        self,
        plan: Plan,
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
        await self._say(EventType.WORKFLOW_STEP, {**data, "done": over, "steps": len(plan.steps)}, ordinal)
        record.apply(EventType.WORKFLOW_STEP, data)

    async def finish(self, end: End, reason: str, *, done: int, steps: int) -> None:
        """Tell how it ended."""
        await self._say(
            EventType.WORKFLOW_FINISHED, {"state": end.value, "error": reason, "done": done, "steps": steps}, "finished"
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
