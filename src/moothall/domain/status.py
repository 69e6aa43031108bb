"""How the server and what is under way in it stand, for people and monitors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moothall.domain.outcome import DeliberationStatus


class Condition(StrEnum):
    """How a part stands, or all of them together."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Part:
    """One part; `needed`: nothing works without it. `detail` is for operators."""

    name: str
    status: Condition
    detail: str = ""
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Health:
    """All parts. `status` is down where a needed part is, degraded where any other is less than
    healthy.
    """

    status: Condition
    parts: tuple[Part, ...]
    version: str
    uptime_seconds: int


@dataclass(frozen=True, slots=True)
class TaskSeat:
    """A seat: waiting, working, or how it ended in the words of `SeatStatus`."""

    seat: str
    status: str
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class TaskView:
    """A deliberation at a glance. `progress` in percent; `error` says why it came to nothing. Times
    are RFC 3339 in UTC, empty where they are not known. `follows` is the task before it in a
    conversation, `forked` the one that it is another run of.
    `agent`: of a file, of which it is a run.
    """

    task_id: str
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
    follows: str = ""
    forked: str = ""
    agent: str = ""
    paused: bool = False
    evidence_level: str = ""

    @property
    def level(self) -> str:
        """The winner's level of evidence, for people."""
        return self.evidence_level.replace("_", "-") or ("proven" if self.proven else "unproven")


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: whether it works, what was seen, and what would mend it."""

    part: str
    ok: bool
    detail: str
    mend: str = ""
