"""Which node gets a workspace, and which partner of a heartbeat is silent for too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Heartbeats of hosts to nodes, in seconds.

    beat: the time between two of them.
    node_silent: a host gives up a node that has not answered for so long. Ray needs a minute.
    host_silent: a node ends the sandboxes of a host that it has not heard for so long.
    """

    beat: float = 2.0
    node_silent: float = 10.0
    host_silent: float = 30.0


USUAL = Pace()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could take a workspace.

    cores: how many commands it runs at a time.
    waiting: commands that wait for a core.
    open: its open workspaces.
    seats: those of them that belong to the same deliberation.
    has_folders: whether it has the checkout and the environment already.
    """

    name: str
    cores: int
    waiting: int
    open: int
    seats: int
    has_folders: bool

    @property
    def load(self) -> float:
        """Waiting commands and open workspaces for each core."""
        return (self.waiting + self.open) / self.cores

    @property
    def is_free(self) -> bool:
        """Whether a command of one more workspace would find a core at once."""
        return not self.waiting and self.open < self.cores


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Return the node for a workspace; there must be one.

    While a free node has no workspace of the same deliberation, such a node is chosen, preferably
    one that has the folders. Otherwise it is the node with the least load.
    """
    apart = [node for node in candidates if node.is_free and not node.seats]
    if apart:
        return min(apart, key=lambda node: (not node.has_folders, node.load, node.name))
    return min(
        candidates, key=lambda node: (node.load, node.seats, not node.has_folders, node.name)
    )


class Heartbeats:
    """When each partner was heard last. `max_seconds`: how long one may be silent."""

    def __init__(self, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_seconds, self._clock = max_seconds, clock
        self._heard: dict[str, float] = {}

    def record(self, name: str) -> None:
        """Record a sign of life."""
        self._heard[name] = self._clock()

    def remaining(self, name: str) -> float:
        """Return how many seconds a partner may still be silent."""
        return self._heard[name] + self._max_seconds - self._clock()

    def forget_silent(self) -> list[str]:
        """Return the partners that were silent for too long, and forget them."""
        silent = [name for name in self._heard if self.remaining(name) < 0]
        for name in silent:
            del self._heard[name]
        return silent
