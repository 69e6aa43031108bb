"""The tasks of a story and their order. The order in which things that depend on each other may
start: the agents of a file, the steps of a workflow, the tasks of a plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from moothall.domain.budget import Budget
from moothall.domain.ids import TaskId
from moothall.domain.task import Constraints, RepositoryRef
from moothall.errors import InvalidRequest

# The order in which things that depend on each other may start: the agents of a file, the steps of
# a workflow, the tasks of a plan.


_MAX_SHOWN_CHARS = 500  # of names in an error


class DependencyOrder:
    """Names in the order in which they may start: a name after those that it needs.

    Raises `InvalidRequest` that names the missing dependency, or the cycle.
    """

    def __init__(
        self,
        needs: Mapping[str, Collection[str]],
        ranks: Mapping[str, Any] | None = None,
        *,
        label: str,
        verb: str = "needs",
    ) -> None:
        """Check the dependencies.

        needs: the names that must finish before each name.
        ranks: by name a value that orders those that are ready, lowest first; without it they come
        as they became ready.
        label, verb: what a name is and what it does to another one, for errors.
        """
        for name, dependencies in needs.items():
            missing = next((need for need in dependencies if need not in needs), None)
            if missing is not None:
                raise InvalidRequest(
                    f"{label} {name[:80]} {verb} {missing[:80]!r}, which does not exist; known are "
                    f"{', '.join(sorted(needs))[:_MAX_SHOWN_CHARS]}"
                )
        self._sorter = TopologicalSorter(needs)
        try:
            self._sorter.prepare()
        except CycleError as error:
            cycle = " → ".join(reversed(error.args[1]))[:_MAX_SHOWN_CHARS]
            raise InvalidRequest(f"these {label}s depend on each other: {cycle}") from error
        self._ranks = ranks or {}
        self._pushed = 0
        self._ready: list[tuple[Any, int, str]] = []

    def next(self) -> str | None:
        """Return the first name that is ready, each once. Return None if all ready names were
        returned.
        """
        for name in self._sorter.get_ready():
            heapq.heappush(self._ready, (self._ranks.get(name, 0), self._pushed, name))
            self._pushed += 1
        return heapq.heappop(self._ready)[2] if self._ready else None

    def finish(self, name: str) -> None:
        """Mark a name as finished, which may make others ready."""
        self._sorter.done(name)

    def __iter__(self) -> Iterator[str]:
        """Yield all names, finishing each before the next."""
        while (name := self.next()) is not None:
            yield name
            self.finish(name)


# The tasks of a story and their order.


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
