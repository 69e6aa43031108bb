"""A model of capacity: what a server can take, from what one deliberation asks of each of its
parts.

Two ways to the same figure. `bound` is arithmetic: the busiest part, or the callers. `simulate`
runs callers through queues, event by event, and so knows what waiting costs between the two bounds.
A part is a process with one event loop: it does one thing at a time.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

PHASES = 3
_FIRST, _FOLDING = 0.25, 0.35
"""Of serve's work: what lies before the first model call, and what it does beside the council; the
rest is after it.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """CPU milliseconds that one deliberation asks of each part, and how long its `PHASES` model
    calls in a row take each.
    """

    serve_ms: float
    host_ms: float
    bus_ms: float
    model_ms: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parts there are, each with the cores that it may use: one loop uses one at most."""

    hosts: tuple[float, ...]
    serve: float = 1.0
    bus: float = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """What came of callers: deliberations a second, and the median seconds of one."""

    rate: float
    wait: float


def bound(demand: Demand, fleet: Fleet, at_once: int) -> float:
    """Return the deliberations a second that can't be passed: the busiest part, or callers who
    never wait for anybody else.
    """
    alone = alone_ms(demand, fleet)
    return min(
        1000 * fleet.serve / demand.serve_ms,
        1000 * sum(fleet.hosts) / demand.host_ms,
        1000 * fleet.bus / demand.bus_ms,
        1000 * at_once / alone,
    )


def alone_ms(demand: Demand, fleet: Fleet) -> float:
    """Return how long one takes that nobody is in the way of, on the fastest host; serve's folding
    is beside it.
    """
    serve = demand.serve_ms * (1 - _FOLDING) / fleet.serve
    return (
        PHASES * demand.model_ms
        + serve
        + demand.host_ms / max(fleet.hosts)
        + demand.bus_ms / fleet.bus
    )


def simulate(
    demand: Demand, fleet: Fleet, at_once: int, *, seconds: float = 60.0, seed: int = 1
) -> Load:
    """Run `at_once` callers, each of whom asks again once answered, for `seconds` of the
    simulation's time; the first tenth is not counted.
    """
    env = simpy.Environment()
    chance = random.Random(seed)  # noqa: S311 - a simulation
    ended: list[tuple[float, float]] = []
    serve, bus = (simpy.Resource(env) for _ in range(2))
    hosts = [simpy.Resource(env) for _ in fleet.hosts]

    def work(part: simpy.Resource, mean_ms: float, cores: float) -> Generator[Any, Any, None]:
        """Wait for the part and keep it: as long as a job of this kind takes, give or take a
        half.
        """
        with part.request() as turn:
            yield turn
            yield env.timeout(mean_ms / cores * chance.uniform(0.5, 1.5))

    def council(place: int) -> Generator[Any, Any, None]:
        step = demand.host_ms / (PHASES + 1)
        yield from work(hosts[place], step, fleet.hosts[place])
        for _ in range(PHASES):
            yield env.timeout(demand.model_ms)
            yield from work(hosts[place], step, fleet.hosts[place])
            yield from work(bus, demand.bus_ms / (PHASES + 2), fleet.bus)
            env.process(work(serve, demand.serve_ms * _FOLDING / PHASES, fleet.serve))

    def caller() -> Generator[Any, Any, None]:
        while True:
            began = env.now
            yield from work(serve, demand.serve_ms * _FIRST, fleet.serve)
            yield from work(bus, demand.bus_ms / (PHASES + 2), fleet.bus)
            # Whoever has least to do takes the next: hosts pull their work.
            place = min(
                range(len(hosts)),
                key=lambda one: (hosts[one].count + len(hosts[one].queue)) / fleet.hosts[one],
            )
            yield from council(place)
            yield from work(serve, demand.serve_ms * (1 - _FIRST - _FOLDING), fleet.serve)
            yield from work(bus, demand.bus_ms / (PHASES + 2), fleet.bus)
            ended.append((env.now, env.now - began))

    for _ in range(at_once):
        env.process(caller())
    env.run(until=seconds * 1000)
    counted = [wait for when, wait in ended if when >= seconds * 100]
    return Load(len(counted) / (seconds * 0.9), statistics.median(counted) / 1000)


def hosts_for(demand: Demand, rate: float, *, busy: float = 0.7) -> float:
    """Return how many hosts of a whole core each `rate` deliberations a second take, none busier
    than `busy` of its time.
    """
    return rate * demand.host_ms / 1000 / busy
