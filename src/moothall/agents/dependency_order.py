"""The order of agents and tasks: by dependency, and by priority among those that are ready."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter

from moothall.agents.specs import PRIORITIES, Priority, Spec, Task
from moothall.errors import InvalidRequest

_MAX_SHOWN_CHARS = 500  # of names in an error


class DependencyOrder:
    """Names in the order in which they may start. `needs` maps each name to those that must end
    before it.

    Raises `InvalidRequest` that names the missing dependency, or the cycle.
    """

    def __init__(
        self, needs: Mapping[str, AbstractSet[str]], priorities: Mapping[str, Priority]
    ) -> None:
        for name, dependencies in needs.items():
            if missing := sorted(dependencies - needs.keys()):
                raise InvalidRequest(
                    f"{name} needs {missing[0][:80]}, and there is none of that name; there are "
                    f"{', '.join(sorted(needs))[:_MAX_SHOWN_CHARS]}"
                )
        self._sorter = TopologicalSorter(
            {name: sorted(dependencies) for name, dependencies in needs.items()}
        )
        try:
            self._sorter.prepare()
        except CycleError as error:
            raise InvalidRequest(
                f"these need each other: {' → '.join(reversed(error.args[1]))[:_MAX_SHOWN_CHARS]}"
            ) from error
        self._ranks = {name: PRIORITIES.index(priority) for name, priority in priorities.items()}
        self._ready: list[tuple[int, str]] = []

    def next(self) -> str | None:
        """Return the most urgent name that is ready, each once. Return None if all ready names were
        returned.
        """
        for name in self._sorter.get_ready():
            heapq.heappush(self._ready, (self._ranks[name], name))
        return heapq.heappop(self._ready)[1] if self._ready else None

    def finish(self, name: str) -> None:
        """Mark a name as finished, which may make others ready."""
        self._sorter.done(name)

    def __iter__(self) -> Iterator[str]:
        """Yield all names, finishing each before the next."""
        while (name := self.next()) is not None:
            yield name
            self.finish(name)


def of_specs(specs: Iterable[Spec]) -> DependencyOrder:
    """Return the order of agents. Raises as `DependencyOrder` does."""
    by_name = {spec.name: spec for spec in specs}
    needs = {
        name: {
            dependency.name
            for dependency in spec.dependencies
            if not dependency.optional or dependency.name in by_name
        }
        for name, spec in by_name.items()
    }
    return DependencyOrder(needs, {name: spec.spec.priority for name, spec in by_name.items()})


def of_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return an agent's tasks in their order. A task without a name keeps its place among those of
    its priority. Raises as `DependencyOrder` does.
    """
    by_name = {task.name or f"task {number:03}": task for number, task in enumerate(tasks, 1)}
    if len(by_name) < len(tasks):
        raise InvalidRequest("two tasks have one name")
    order = DependencyOrder(
        {name: set(task.dependencies) for name, task in by_name.items()},
        {name: task.priority for name, task in by_name.items()},
    )
    return tuple(by_name[name] for name in order)
