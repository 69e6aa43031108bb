"""The tasks of a story and their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moothall.domain.budget import Budget
from moothall.domain.ids import TaskId
from moothall.domain.task import Constraints, RepositoryRef


@dataclass(frozen=True, slots=True)
class Story:
    """A product owner's request, as far as it is known. `budget` is for all its deliberations
    together; zeros mean the server's default.
    """

    id: str
    title: str = ""
    brief: str = ""
    ac: tuple[str, ...] = ()
    repository: RepositoryRef | None = None
    budget: Budget = field(default_factory=Budget)

    @property
    def repository_name(self) -> str:
        """The id, path or URL of the repository, '' without one."""
        return (self.repository.id or self.repository.url) if self.repository else ""

    @property
    def has_content(self) -> bool:
        """Whether there is anything to derive tasks from."""
        return bool(self.title or self.brief)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How tasks are derived. `order` are roles, first ones first; missing roles come last.

    `parallel`: tasks of one role run in parallel. `per_role` 0: one.
    """

    parallel: bool = False
    order: tuple[str, ...] = ()
    per_role: int = 0


@dataclass(frozen=True, slots=True)
class LineComment:
    """A comment on a line of a candidate's diff: the file, the line number (for a removed line, the
    old one), and the line as in the diff, with its sign. `task_id` is the deliberation's.
    """

    task_id: TaskId
    path: str
    line: int
    quoted: str
    comment: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class AtomicTask:
    """The smallest unit of work for one council. `priority` counts from 1, which comes first.
    `context` is additional text of others for the council.
    """

    task_id: TaskId
    role: str
    description: str
    dependencies: tuple[TaskId, ...] = ()
    constraints: Constraints = field(default_factory=Constraints)
    case_id: str = ""
    plan_id: str = ""
    priority: int = 1
    repository: RepositoryRef | None = None
    context: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The data of `plan.derived`. With `publish`, councils get the tasks, each after its
    dependencies are completed. `by` tells who made the plan: architects, roles (by rule), repair
    (of a story that was sent back), people (who changed it, with `actor`, before the story was
    built) or retry (of the tasks without a winner, which start again). `why` tells why
    architects did not, if they were asked. `design` is the deliberation of the architects whose
    tasks people changed.
    """

    story_id: str
    plan_id: str
    tasks: tuple[AtomicTask, ...]
    publish: bool = False
    actor: str = "local"
    by: str = ""
    why: str = ""
    design: str = ""


@dataclass(frozen=True, slots=True)
class PlanningEvent:
    """An external event about a story. `timestamp_ms` since the epoch, 0 if it is unknown."""

    event_type: str
    case_id: str
    plan_id: str = ""
    from_state: str = ""
    to_state: str = ""
    timestamp_ms: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Derivation:
    """Tasks, and the id of the event that records or would record them."""

    id: str
    tasks: tuple[AtomicTask, ...]


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of a planning event; if nothing was derived, `message` tells why."""

    processed: bool
    message: str
    task_ids: tuple[TaskId, ...] = ()
