"""The health of the server and the state of its tasks, for people and monitors. Hosts and their
state, as they report it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moothall.domain.event import Channel
from moothall.domain.ids import TaskId, TaskKey

# Hosts and their state, as they report it.


FLEET = Channel.HOSTS.of("fleet")
"""The topic on which hosts report their state."""


@dataclass(frozen=True, slots=True)
class RunningDeliberation:
    """A deliberation that a host works on, by its key; `since` in seconds since 1970."""

    task_id: TaskKey
    since: float


@dataclass(frozen=True, slots=True)
class HostState:
    """A host: its name, the machine it runs on, its process there, its start (seconds since 1970),
    and the deliberations that it works on.
    """

    name: str
    node: str
    pid: int
    since: float
    holds: tuple[RunningDeliberation, ...] = ()


# The health of the server and the state of its tasks, for people and monitors.


class Condition(StrEnum):
    """The condition of a part, or of all parts together."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the server. `needed`: nothing works without it. `detail` is for operators."""

    name: str
    status: Condition
    detail: str = ""
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Health:
    """The health of all parts. `status` is down if a needed part is, degraded if another part is
    not healthy.
    """

    status: Condition
    parts: tuple[Part, ...]
    version: str
    uptime_seconds: int


class DeliberationStatus(StrEnum):
    """The state of a deliberation, as on the wire."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether the deliberation has ended."""
        return self not in {DeliberationStatus.PENDING, DeliberationStatus.IN_PROGRESS}


@dataclass(frozen=True, slots=True)
class TaskSeat:
    """A seat: waiting, working, or its `SeatStatus`."""

    seat: str
    status: str
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class TaskView:
    """A summary of a deliberation. `progress` in percent; `error` is the reason for a failure.
    Times are RFC 3339 in UTC, empty if unknown. `follows` is the previous task of a conversation,
    `forked` the task of which it is another run. `agent`: the agent file of which it is a run.
    """

    task_id: TaskId
    status: DeliberationStatus
    role: str = ""
    description: str = ""
    protocol: str = ""
    repository: str = ""
    base_sha: str = ""
    principal: str = ""
    seats: tuple[TaskSeat, ...] = ()
    progress: int = 0
    error: str = ""
    final_state: str = ""
    winner_id: str = ""
    proven: bool = False
    branch: str = ""
    requested: str = ""
    ended: str = ""
    duration_ms: int = 0
    follows: TaskId = TaskId("")
    forked: TaskId = TaskId("")
    agent: str = ""
    paused: bool = False
    evidence_level: str = ""

    @property
    def level(self) -> str:
        """The winner's level of evidence, as text."""
        return self.evidence_level.replace("_", "-") or ("proven" if self.proven else "unproven")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of examining a part: whether it works, details, and how to fix it."""

    part: str
    ok: bool
    detail: str
    mend: str = ""
