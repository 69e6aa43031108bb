"""What comes after what: by dependency, and by priority among what is ready."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter

from moothall.agents.specs import PRIORITIES, Priority, Spec, Task
from moothall.errors import InvalidRequest

_SHOWN = 500  # characters of names that an error lists


class DependencyOrder:
    """Names in the order in which they may begin. `needs` maps each to those before it,
    `priorities` to how soon it is.

    Raises `InvalidRequest` that names what is missing, or the cycle.
    """

    def __init__(
        self, needs: Mapping[str, AbstractSet[str]], priorities: Mapping[str, Priority]
    ) -> None:
        for name, before in needs.items():
            if missing := sorted(before - needs.keys()):
                raise InvalidRequest(
                    f"{name} needs {missing[0][:80]}, and there is none of that name; there are "
                    f"{', '.join(sorted(needs))[:_SHOWN]}"
                )
        self._sorter = TopologicalSorter({name: sorted(before) for name, before in needs.items()})
        try:
            self._sorter.prepare()
        except CycleError as error:
            raise InvalidRequest(
                f"these need each other: {' → '.join(reversed(error.args[1]))[:_SHOWN]}"
            ) from error
        self._ranks = {name: PRIORITIES.index(priority) for name, priority in priorities.items()}
        self._ready: list[tuple[int, str]] = []

    def next(self) -> str | None:
        """Return the most urgent name that is ready, each once; None where all that is ready has
        begun.
        """
        for name in self._sorter.get_ready():
            heapq.heappush(self._ready, (self._ranks[name], name))
        return heapq.heappop(self._ready)[1] if self._ready else None

    def finish(self, name: str) -> None:
        """What needs `name` has one less to wait for."""
        self._sorter.done(name)

    def __iter__(self) -> Iterator[str]:
        """Yield all, one after the other."""
        while (name := self.next()) is not None:
            yield name
            self.finish(name)


def of_specs(specs: Iterable[Spec]) -> DependencyOrder:
    """Return the order of agents. Raises as `DependencyOrder` does."""
    named = {spec.name: spec for spec in specs}
    needs = {
        name: {one.name for one in spec.dependencies if not one.optional or one.name in named}
        for name, spec in named.items()
    }
    return DependencyOrder(needs, {name: spec.spec.priority for name, spec in named.items()})


def of_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return an agent's tasks in their order: one without a name keeps its place among those of its
    priority. Raises as `DependencyOrder` does.
    """
    named = {task.name or f"task {number:03}": task for number, task in enumerate(tasks, 1)}
    if len(named) < len(tasks):
        raise InvalidRequest("two tasks have one name")
    order = DependencyOrder(
        {name: set(task.dependencies) for name, task in named.items()},
        {name: task.priority for name, task in named.items()},
    )
    return tuple(named[name] for name in order)
