"""Host actors on a Ray cluster: made at the start, restarted when they die, told to stop at the
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from moothall.config import RaySettings
from moothall.domain.text import one_line
from moothall.errors import ConfigurationError, FleetUnavailable, Temporary
from moothall.telemetry import get_logger
from moothall.workers.owner import end_with, process_of
from moothall.workers.ray_setup import check_access, explain_refusal, ray_folder
from moothall.workers.subprocesses import Alive

# Read by Ray when it is imported and by the processes that it starts.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault(
    "RAY_raylet_start_wait_time_s", "120"
)  # a loaded machine needs more than its 30
# Idle workers cost a process each, and two seconds of a core at the start; our hosts are the only
# actors.
os.environ.setdefault("RAY_enable_worker_prestart", "0")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# Ray's default is 15: its workers would wait for everything else on a busy machine.
os.environ.setdefault("RAY_worker_niceness", "0")
if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # without it, Ray sends no token

import ray
import ray.exceptions
import ray.util
from ray._raylet import GcsClient, NodeID  # type: ignore[attr-defined]  # made by Cython
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_WITHOUT_METRICS = {
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
"""Keeps Ray's processes from serving metrics, which they do without the token. Ray has no switch
for the last two; with an impossible port nothing listens, and Ray logs an error.
"""
log = get_logger(__name__)

HostMain = Callable[..., Coroutine[Any, Any, None]]
"""Runs a host of this name until cancelled; calls its second argument once it is ready. `node`: the
address of its machine.
"""


class HostActor:
    """The thin Ray shell round a host, which knows nothing of Ray."""

    def __init__(self, name: str, main: HostMain) -> None:
        self._name = name
        self._main = main
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Host until `stop`. Ray calls this again in a restarted actor."""
        end_with_raylet()
        async with asyncio.TaskGroup() as group:
            node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray leaves it untyped
            hosting = group.create_task(self._main(self._name, self._ready.set, node=node))
            await self._stop.wait()
            hosting.cancel()

    async def ready(self) -> int:
        """Return the process id once work is being pulled."""
        await self._ready.wait()
        return os.getpid()

    async def stop(self) -> None:
        """Let `run` end: what is in flight is cancelled and its workspaces are closed."""
        self._stop.set()


def end_with_raylet() -> None:
    """End this worker with its raylet.

    Ray's own check misses a raylet that is a zombie, and Ray restarts the actor on another node.
    """
    if raylet := os.environ.get("RAY_RAYLET_PID"):
        end_with(process_of(int(raylet)))


_ANSWER_SECONDS, _STOP_SECONDS, _AGAIN_SECONDS, _WATCH_SECONDS = 2.0, 10.0, 0.5, 5.0
_ALIVE = 0  # GcsNodeInfo.ALIVE


async def _count_answering(hosts: Sequence[Any]) -> tuple[int, int]:
    """Return how many hosts answer that they are pulling work, and how many there should be. One
    that is being started again does not answer for a while.
    """
    try:
        answers = {asyncio.ensure_future(_answers(host)) for host in hosts}
        done, silent = await asyncio.wait(answers, timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError:  # Ray itself is gone
        return 0, len(hosts)
    for waiting in silent:
        waiting.cancel()
    return sum(task.result() for task in done), len(hosts)


async def _answers(host: Any) -> bool:
    try:
        await host.ready.options(max_task_retries=0).remote()
    except ray.exceptions.RayError:
        return False
    return True


@asynccontextmanager
async def hosting(
    settings: RaySettings, main: HostMain, ready_seconds: float = 120.0
) -> AsyncIterator[Alive]:
    """Start the hosts, wait until all pull work, and yield a function that counts them.

    They end with the context. Needs `cluster`. With `ray.hosts` = 0 each node that offers a
    processor gets a host, nodes that join later included.
    """
    nodes = await _spread(settings)
    if not settings.hosts:
        async with _one_on_each(nodes, main, ready_seconds) as alive:
            yield alive
        return
    if settings.address is not None and len(nodes) > settings.hosts:
        log.warning(
            "some nodes of Ray have no host; ray.hosts = 0 gives each one",
            nodes=len(nodes),
            hosts=settings.hosts,
        )
    hosts = [
        _make_host(f"host-{number}", main, nodes[number % len(nodes)])
        for number in range(1, settings.hosts + 1)
    ]
    runs = [host.run.remote() for host in hosts]
    try:
        # A host that ends by itself has a bug: its error is heard here and ends the whole process.
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(_until_stopped(run)) for run in runs]
            watching.append(group.create_task(_while_joined()))
            await _all_ready(hosts, ready_seconds)
            yield functools.partial(_count_answering, hosts)
            for task in watching:
                task.cancel()
    finally:
        await asyncio.shield(_stop_all(hosts, runs))


@asynccontextmanager
async def _one_on_each(
    nodes: Sequence[str], main: HostMain, ready_seconds: float
) -> AsyncIterator[Alive]:
    hosts = NodeHosts(functools.partial(_make_host, main=main, stays=True))
    try:
        async with asyncio.TaskGroup() as group:
            hosts.update(nodes, group)
            watching = [group.create_task(_while_joined())]
            await _all_ready(hosts.actors, ready_seconds, some=True)
            watching.append(group.create_task(hosts.follow(list_nodes, group), name="nodes"))
            yield hosts.count_answering
            for task in (*watching, *hosts.watching):
                task.cancel()
    finally:
        await asyncio.shield(_stop_all(hosts.actors, hosts.runs))


class NodeHosts:
    """One host on each node that offers a processor. `make` starts one by its name and node.

    A node whose host ends with an error gets no further one; if no host is left, that error ends
    the process.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._hosts: dict[str, tuple[Any, Any]] = {}
        self._refused: set[str] = set()
        self._made = 0
        self.watching: set[asyncio.Task[None]] = set()

    @property
    def actors(self) -> list[Any]:
        """The hosts."""
        return [host for host, _ in self._hosts.values()]

    @property
    def runs(self) -> list[Any]:
        """Their `run` calls."""
        return [run for _, run in self._hosts.values()]

    async def count_answering(self) -> tuple[int, int]:
        """Return how many pull work, and how many there should be: at least one."""
        answering, total = await _count_answering(self.actors) if self._hosts else (0, 0)
        return answering, max(1, total)

    async def follow(
        self, list_nodes: Callable[[str], Collection[str]], group: asyncio.TaskGroup
    ) -> None:
        """Look for nodes that join and nodes that are gone, until cancelled."""
        address = str(ray.get_runtime_context().gcs_address)
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with contextlib.suppress(ray.exceptions.RayError):  # no head answers now
                self.update(await asyncio.to_thread(list_nodes, address), group)

    def update(self, nodes: Collection[str], group: asyncio.TaskGroup) -> None:
        """Give each of `nodes` a host, and forget the hosts of nodes that are gone."""
        for node in [node for node in self._hosts if node not in nodes]:
            log.warning("a node is gone, and its host with it", node=node)
            ray.kill(self._hosts.pop(node)[0])
        for node in sorted(set(nodes) - self._hosts.keys() - self._refused):
            self._made += 1
            host = self._make(f"host-{self._made}", node=node)
            run = host.run.remote()
            self._hosts[node] = (host, run)
            task = group.create_task(self._watch(node, host, run), name=f"host on {node}")
            self.watching.add(task)
            task.add_done_callback(self.watching.discard)
            log.info("a node has a host", node=node, host=f"host-{self._made}")

    async def _watch(self, node: str, host: Any, run: Any) -> None:
        try:
            await _until_stopped(run)
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
            why: Exception = error  # it was killed, or its node is gone
        except Exception as error:  # noqa: BLE001 - whatever it is, the other nodes go on
            why = error
            self._refused.add(node)
            log.warning("a node can have no host", node=node, reason=str(error)[:500])
        else:
            return
        if self._hosts.get(node, (None, None))[0] is host:
            del self._hosts[node]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(host)
        if not self._hosts and node in self._refused:
            raise why


def list_nodes(address: str) -> Collection[str]:
    """Return the ids of the nodes that live and offer a processor.

    It opens a new connection for the reason in `_while_joined`.
    """
    nodes = GcsClient(address=address).get_all_node_info(timeout=_ANSWER_SECONDS)
    return {
        name.hex()
        for name, node in nodes.items()
        if node.state == _ALIVE and node.resources_total.get("CPU")
    }


async def _until_stopped(run: Any) -> None:
    try:
        await run
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error


async def _while_joined() -> None:
    """Watch that the node of this process is one of Ray's: a head that was started anew knows no
    host and no node of before, and what is asked of them is tried again for ever. Raises
    `Temporary`.
    """
    context = ray.get_runtime_context()
    address, ours = context.gcs_address, [NodeID.from_hex(context.get_node_id())]
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        with contextlib.suppress(
            ray.exceptions.RayError
        ):  # no head answers now: whoever comes next is asked
            # A new connection each time, as an old one is another cluster's; `ray.nodes` ends the
            # process there by an abort.
            (alive,) = await asyncio.to_thread(
                lambda: GcsClient(address=address).check_alive(ours, _ANSWER_SECONDS)
            )
            if not alive:
                raise Temporary(
                    "the Ray that this process joined is gone: another head answers at its address"
                )


async def _all_ready(hosts: list[Any], seconds: float, *, some: bool = False) -> None:
    """Wait until hosts pull work. `some`: ignore those that end meanwhile."""
    try:
        async with asyncio.timeout(seconds):
            started = (host.ready.options(max_task_retries=0).remote() for host in hosts)
            await asyncio.gather(*started, return_exceptions=some)
    except TimeoutError as error:
        raise FleetUnavailable(f"the hosts on Ray were not ready within {seconds:.0f} s") from error


async def _stop_all(hosts: list[Any], runs: list[Any]) -> None:
    for host in hosts:
        host.stop.options(max_task_retries=0).remote()
    with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
        async with asyncio.timeout(_STOP_SECONDS):
            await asyncio.gather(*runs)
    for host in hosts:
        ray.kill(host)


async def _spread(settings: RaySettings) -> list[str]:
    """Return the ids of the nodes that live, in a fixed order: of those that offer a processor,
    which a head often does not.

    A cluster's nodes come one by one, and a host stays where it was put: one node a host is waited
    for, `ray.wait_seconds` long.
    """
    until = time.monotonic() + settings.wait_seconds
    while True:
        nodes = await asyncio.to_thread(ray.nodes)
        alive = {
            str(node["NodeID"]): node["Resources"].get("CPU") for node in nodes if node["Alive"]
        }
        offering = [name for name, processors in alive.items() if processors]
        if len(offering) >= max(1, settings.hosts) or time.monotonic() > until:
            return sorted(offering or alive)
        await asyncio.sleep(_AGAIN_SECONDS)


def _make_host(name: str, main: HostMain, node: str, *, stays: bool = False) -> Any:
    """Start a host on a node. `stays`: Ray never moves it to another one."""
    actor = ray.remote(HostActor).options(
        # A host waits more than it computes, and takes no core from anybody's plan; of what asks
        # for nothing, Ray counts nothing.
        num_cpus=0.001,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=64,
        # Ray spreads by resources, and a host asks for next to none. Soft: where the node is gone,
        # any other will do.
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=not stays),
    )
    return actor.remote(name, main)


@asynccontextmanager
async def cluster(settings: RaySettings) -> AsyncIterator[None]:
    """A connection to the configured cluster, or a Ray of our own on loopback that ends with it.

    Raises `ConfigurationError` for a cluster that cannot be reached, `FleetUnavailable` if our own
    does not start.
    """
    if settings.address is not None:
        async with _connection(f"at {settings.address}", {"address": settings.address}):
            await check_access(settings, str(ray.get_runtime_context().gcs_address))
            yield
        return
    os.environ.setdefault(
        "RAY_AUTH_TOKEN", secrets.token_hex(32)
    )  # Ray's own lies in ~/.ray, where others can read it
    os.environ.pop("RAY_AUTH_MODE", None)  # unset: Ray starts a cluster of its own with a token
    os.environ.update(_WITHOUT_METRICS)
    async with ray_folder() as directory:
        options = {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": str(directory),
            "num_cpus": 1,
            "object_store_memory": 80_000_000,  # nothing of ours travels through the object store
        }
        async with _connection("on this machine", options):
            yield


def _take_back_sigterm() -> None:
    """Ray puts a handler before ours that writes a stack of its C++ to the terminal and aborts us
    after three seconds, though a SIGTERM is no fault. Python does not see it; setting our own anew
    replaces it.
    """
    ours = signal.getsignal(signal.SIGTERM)
    if ours is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)
        signal.siginterrupt(signal.SIGTERM, False)


@asynccontextmanager
async def _connection(where: str, options: dict[str, Any]) -> AsyncIterator[None]:
    starting = asyncio.ensure_future(
        asyncio.to_thread(
            ray.init,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="moothall",
            ignore_reinit_error=False,
            **options,
        )
    )
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A thread cannot be stopped: what it starts has to be there before it can be shut down.
        await asyncio.wait({starting})
        await asyncio.to_thread(ray.shutdown)
        raise
    except Exception as error:
        if options["address"] == "local":  # Ray raises any class, `Exception` for a late node
            await asyncio.to_thread(ray.shutdown)  # stop the parts that have started
            raise FleetUnavailable(f"Ray did not start {where}: {one_line(str(error))}") from error
        known = isinstance(
            error, ConnectionError | ray.exceptions.RayError | RuntimeError | ValueError
        )
        if not known and type(error) is not Exception:
            raise
        why = await explain_refusal(str(options["address"]))
        raise ConfigurationError(
            f"Ray could not be started or reached {where}: {error}{why}"
        ) from error
    _take_back_sigterm()
    try:
        # Ray tells of a worker's death on stdout, where callers expect our own document only.
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        await asyncio.to_thread(ray.shutdown)
