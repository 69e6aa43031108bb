"""A capacity model: the throughput of a server, computed from the demand of one deliberation.

`bound` is arithmetic: the busiest component or the number of callers limits the throughput.
`simulate` is a discrete-event simulation of the queues, which also yields the waiting times. A
component is a process with one event loop: it handles one thing at a time.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

PHASES = 3
_BEFORE, _PARALLEL = 0.25, 0.35
"""Shares of the work of `serve`: before the first model call, and in parallel with the council. The
rest is done after the council.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """CPU milliseconds of one deliberation in each component.

    model_ms: milliseconds of each of its `PHASES` consecutive model calls.
    """

    serve_ms: float
    host_ms: float
    bus_ms: float
    model_ms: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The components, each with its cores; an event loop uses one core at most."""

    hosts: tuple[float, ...]
    serve: float = 1.0
    bus: float = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """The simulated result: deliberations a second, and the median seconds of one."""

    rate: float
    wait: float


def bound(demand: Demand, fleet: Fleet, at_once: int) -> float:
    """Return the maximum of deliberations a second: that of the busiest component, or that of
    callers who never wait in a queue.
    """
    single = single_ms(demand, fleet)
    return min(
        1000 * fleet.serve / demand.serve_ms,
        1000 * sum(fleet.hosts) / demand.host_ms,
        1000 * fleet.bus / demand.bus_ms,
        1000 * at_once / single,
    )


def single_ms(demand: Demand, fleet: Fleet) -> float:
    """Return the milliseconds of a single deliberation on the fastest host, without the parallel
    work of `serve`.
    """
    serve = demand.serve_ms * (1 - _PARALLEL) / fleet.serve
    return (
        PHASES * demand.model_ms
        + serve
        + demand.host_ms / max(fleet.hosts)
        + demand.bus_ms / fleet.bus
    )


def simulate(
    demand: Demand, fleet: Fleet, at_once: int, *, seconds: float = 60.0, seed: int = 1
) -> Load:
    """Simulate `at_once` callers, each of whom sends its next request after the reply, for
    `seconds` of simulated time. The first tenth is not counted. The wait is infinite if no
    deliberation ends in the counted time.
    """
    env = simpy.Environment()
    generator = random.Random(seed)  # noqa: S311 - a simulation
    ended: list[tuple[float, float]] = []
    serve, bus = (simpy.Resource(env) for _ in range(2))
    hosts = [simpy.Resource(env) for _ in fleet.hosts]

    def work(component: simpy.Resource, mean_ms: float, cores: float) -> Generator[Any, Any, None]:
        """Wait for the component, and occupy it for the mean time of the job, varied by a half."""
        with component.request() as request:
            yield request
            yield env.timeout(mean_ms / cores * generator.uniform(0.5, 1.5))

    def council(host: int) -> Generator[Any, Any, None]:
        step = demand.host_ms / (PHASES + 1)
        yield from work(hosts[host], step, fleet.hosts[host])
        for _ in range(PHASES):
            yield env.timeout(demand.model_ms)
            yield from work(hosts[host], step, fleet.hosts[host])
            yield from work(bus, demand.bus_ms / (PHASES + 2), fleet.bus)
            env.process(work(serve, demand.serve_ms * _PARALLEL / PHASES, fleet.serve))

    def caller() -> Generator[Any, Any, None]:
        while True:
            start = env.now
            yield from work(serve, demand.serve_ms * _BEFORE, fleet.serve)
            yield from work(bus, demand.bus_ms / (PHASES + 2), fleet.bus)
            # Hosts pull work, so the one with the shortest queue takes the next deliberation.
            host = min(
                range(len(hosts)),
                key=lambda i: (hosts[i].count + len(hosts[i].queue)) / fleet.hosts[i],
            )
            yield from council(host)
            yield from work(serve, demand.serve_ms * (1 - _BEFORE - _PARALLEL), fleet.serve)
            yield from work(bus, demand.bus_ms / (PHASES + 2), fleet.bus)
            ended.append((env.now, env.now - start))

    for _ in range(at_once):
        env.process(caller())
    env.run(until=seconds * 1000)
    waits = [wait for end_time, wait in ended if end_time >= seconds * 100]
    wait = statistics.median(waits) / 1000 if waits else math.inf
    return Load(len(waits) / (seconds * 0.9), wait)


def hosts_for(demand: Demand, rate: float, *, busy: float = 0.7) -> float:
    """Return the number of hosts, with a core each, for `rate` deliberations a second.

    busy: the highest share of its time that a host works.
    """
    return rate * demand.host_ms / 1000 / busy
