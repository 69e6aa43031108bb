"""The tasks of a story and the order in which they are done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moothall.domain.budget import Budget
from moothall.domain.task import Constraints, RepositoryRef


@dataclass(frozen=True, slots=True)
class Story:
    """What the product owner asks for, as far as it is known. `budget`: for all its deliberations
    together; zeros are the server's default.
    """

    id: str
    title: str = ""
    brief: str = ""
    ac: tuple[str, ...] = ()
    repository: RepositoryRef | None = None
    budget: Budget = field(default_factory=Budget)

    @property
    def told(self) -> bool:
        """Whether there is anything to derive a task from."""
        return bool(self.title or self.brief)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How tasks are derived. `order` are roles, first things first; roles that it leaves out come
    after.

    `parallel`: tasks of one role are done side by side. `per_role` 0: one.
    """

    parallel: bool = False
    order: tuple[str, ...] = ()
    per_role: int = 0


@dataclass(frozen=True, slots=True)
class LineComment:
    """What somebody says of a line of a candidate's diff: its file, its number there (as it was,
    where the line is removed), and the line as the diff has it, with its sign. `task_id` is the
    deliberation's.
    """

    task_id: str
    path: str
    line: int
    quoted: str
    comment: str
    actor: str = ""


@dataclass(frozen=True, slots=True)
class AtomicTask:
    """The smallest unit that one council handles. `priority` from 1, which goes first. `context` is
    what its council is shown besides: text of others.
    """

    task_id: str
    role: str
    description: str
    dependencies: tuple[str, ...] = ()
    constraints: Constraints = field(default_factory=Constraints)
    case_id: str = ""
    plan_id: str = ""
    priority: int = 1
    repository: RepositoryRef | None = None
    context: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The data of `plan.derived`. With `publish`, councils get the tasks, each once what it depends
    on is completed. `by` whom they are: architects, roles (by rule), repair (of a story that was
    sent back) or people (who changed them, with `actor`, before the story was built); `why` not by
    architects, where those were asked. `design` is the deliberation of the architects whose tasks
    people changed.
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
    """What happened to a story, told from outside. `timestamp_ms` since the epoch, 0 where it isn't
    known.
    """

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
    """What became of a planning event; where nothing was derived, `message` says why."""

    processed: bool
    message: str
    task_ids: tuple[str, ...] = ()
