"""How a workflow stands: folded from its facts on the log, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moothall.domain.event import EventType

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
    """How a workflow ended; the wire's words. `partial`: steps failed that others may go on without."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    COMPENSATED = "compensated"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Act:
    """A step, or its compensation, so far. `attempt` is the last one that began; `failures` those that were tried again."""

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
    """One workflow so far. `commit` holds the workspace's files as they were when the last step ended; `done` are the steps that
    succeeded, in that order. `told` is the plan's document, None before the start is on the log.
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
