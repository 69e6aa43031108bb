"""Host actors on a Ray cluster. They start with the server, restart after a crash, and stop with
the server.
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
# Ray's default of 30 seconds is too short for a loaded machine.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
# Each idle worker costs a process, and two seconds of a core at the start. Hosts are the only
# actors, so that few workers are needed.
os.environ.setdefault("RAY_enable_worker_prestart", "0")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# With Ray's default of 15, its workers would starve on a busy machine.
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
"""Settings that keep Ray's processes from serving metrics, which they serve without the token. Ray
has no switch for the last two. With an impossible port they do not listen, and Ray logs an error.
"""
log = get_logger(__name__)

HostMain = Callable[..., Coroutine[Any, Any, None]]
"""Runs a host with the given name until cancelled. It calls its second argument when the host is
ready. `node`: the address of the host's machine.
"""


class HostActor:
    """A Ray actor that runs a host. Hosts do not depend on Ray."""

    def __init__(self, name: str, main: HostMain) -> None:
        self._name = name
        self._main = main
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run the host until `stop` is called. Ray calls this again in a restarted actor."""
        end_with_raylet()
        async with asyncio.TaskGroup() as group:
            node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray leaves it untyped
            hosting = group.create_task(self._main(self._name, self._ready.set, node=node))
            await self._stop.wait()
            hosting.cancel()

    async def ready(self) -> int:
        """Wait until the host pulls work, and return its process id."""
        await self._ready.wait()
        return os.getpid()

    async def stop(self) -> None:
        """End `run`: running deliberations are cancelled, and their workspaces are closed."""
        self._stop.set()


def end_with_raylet() -> None:
    """End this worker process when its raylet ends.

    Ray's own check does not notice that a raylet is a zombie, and Ray restarts the actor on another
    node.
    """
    if raylet := os.environ.get("RAY_RAYLET_PID"):
        end_with(process_of(int(raylet)))


_ANSWER_SECONDS, _STOP_SECONDS, _RETRY_SECONDS, _WATCH_SECONDS = 2.0, 10.0, 0.5, 5.0
_ALIVE = 0  # GcsNodeInfo.ALIVE


async def _count_answering(hosts: Sequence[Any]) -> tuple[int, int]:
    """Return how many hosts report that they pull work, and how many there should be. A restarting
    host does not answer for a while.
    """
    try:
        answers = {asyncio.ensure_future(_is_ready(host)) for host in hosts}
        done, silent = await asyncio.wait(answers, timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError:  # Ray itself has ended
        return 0, len(hosts)
    for task in silent:
        task.cancel()
    return sum(task.result() for task in done), len(hosts)


async def _is_ready(host: Any) -> bool:
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

    The hosts end with the context. A `cluster` must be open. With `ray.hosts` = 0, each node that
    offers a CPU gets a host, including nodes that join later.
    """
    nodes = await _find_host_nodes(settings)
    if not settings.hosts:
        async with _host_on_each_node(nodes, main, ready_seconds) as alive:
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
        # A host that ends by itself has a bug. Its error is raised here and ends the process.
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(_until_stopped(run)) for run in runs]
            watching.append(group.create_task(_watch_membership()))
            await _all_ready(hosts, ready_seconds)
            yield functools.partial(_count_answering, hosts)
            for task in watching:
                task.cancel()
    finally:
        await asyncio.shield(_stop_all(hosts, runs))


@asynccontextmanager
async def _host_on_each_node(
    nodes: Sequence[str], main: HostMain, ready_seconds: float
) -> AsyncIterator[Alive]:
    hosts = NodeHosts(functools.partial(_make_host, main=main, pinned=True))
    try:
        async with asyncio.TaskGroup() as group:
            hosts.update(nodes, group)
            watching = [group.create_task(_watch_membership())]
            await _all_ready(hosts.actors, ready_seconds, return_errors=True)
            watching.append(group.create_task(hosts.follow(list_nodes, group), name="nodes"))
            yield hosts.count_answering
            for task in (*watching, *hosts.watching):
                task.cancel()
    finally:
        await asyncio.shield(_stop_all(hosts.actors, hosts.runs))


class NodeHosts:
    """One host on each node that offers a CPU. `make` starts a host from its name and node.

    A node whose host ends with an error gets no other host. If no host is left, that error ends the
    process.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._hosts: dict[str, tuple[Any, Any]] = {}
        self._failed_nodes: set[str] = set()
        self._started_count = 0
        self.watching: set[asyncio.Task[None]] = set()

    @property
    def actors(self) -> list[Any]:
        """The actors of the hosts."""
        return [host for host, _ in self._hosts.values()]

    @property
    def runs(self) -> list[Any]:
        """The `run` calls of the hosts."""
        return [run for _, run in self._hosts.values()]

    async def count_answering(self) -> tuple[int, int]:
        """Return how many hosts pull work, and how many there should be: at least one."""
        answering, total = await _count_answering(self.actors) if self._hosts else (0, 0)
        return answering, max(1, total)

    async def follow(
        self, list_nodes: Callable[[str], Collection[str]], group: asyncio.TaskGroup
    ) -> None:
        """Follow which nodes join and leave the cluster, until cancelled."""
        address = str(ray.get_runtime_context().gcs_address)
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with contextlib.suppress(ray.exceptions.RayError):  # the head does not answer now
                self.update(await asyncio.to_thread(list_nodes, address), group)

    def update(self, nodes: Collection[str], group: asyncio.TaskGroup) -> None:
        """Start a host on each of `nodes` that has none, and remove the hosts of other nodes."""
        for node in [node for node in self._hosts if node not in nodes]:
            log.warning("a node has left the cluster; its host has ended", node=node)
            ray.kill(self._hosts.pop(node)[0])
        for node in sorted(set(nodes) - self._hosts.keys() - self._failed_nodes):
            self._started_count += 1
            host = self._make(f"host-{self._started_count}", node=node)
            run = host.run.remote()
            self._hosts[node] = (host, run)
            task = group.create_task(self._watch_host(node, host, run), name=f"host on {node}")
            self.watching.add(task)
            task.add_done_callback(self.watching.discard)
            log.info("started a host on a node", node=node, host=f"host-{self._started_count}")

    async def _watch_host(self, node: str, host: Any, run: Any) -> None:
        try:
            await _until_stopped(run)
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
            cause: Exception = error  # it was killed, or its node has left
        except Exception as error:  # noqa: BLE001 - hosts on other nodes continue after any error
            cause = error
            self._failed_nodes.add(node)
            log.warning(
                "a host failed; its node gets no other one", node=node, reason=str(error)[:500]
            )
        else:
            return
        if self._hosts.get(node, (None, None))[0] is host:
            del self._hosts[node]
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(host)
        if not self._hosts and node in self._failed_nodes:
            raise cause


def list_nodes(address: str) -> Collection[str]:
    """Return the ids of the live nodes that offer a CPU.

    Open a new connection, for the reason given in `_watch_membership`.
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


async def _watch_membership() -> None:
    """Raise `Temporary` when the node of this process no longer belongs to the cluster.

    A restarted head does not know the earlier hosts and nodes, and Ray would retry calls to them
    for ever.
    """
    context = ray.get_runtime_context()
    address, node_ids = context.gcs_address, [NodeID.from_hex(context.get_node_id())]
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        # If the head does not answer now, the next head is asked.
        with contextlib.suppress(ray.exceptions.RayError):
            # A new connection each time, because an old one belongs to the earlier cluster.
            # `ray.nodes` would abort the process there.
            (alive,) = await asyncio.to_thread(
                lambda: GcsClient(address=address).check_alive(node_ids, _ANSWER_SECONDS)
            )
            if not alive:
                raise Temporary(
                    "the Ray cluster of this process has ended: another head answers at its address"
                )


async def _all_ready(hosts: list[Any], seconds: float, *, return_errors: bool = False) -> None:
    """Wait until hosts pull work. `some`: ignore hosts that end while starting."""
    try:
        async with asyncio.timeout(seconds):
            ready_calls = (host.ready.options(max_task_retries=0).remote() for host in hosts)
            await asyncio.gather(*ready_calls, return_exceptions=return_errors)
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


async def _find_host_nodes(settings: RaySettings) -> list[str]:
    """Return the ids of the live nodes that offer a CPU, in a fixed order; all live nodes if none
    does. A head often offers none.

    Nodes join one by one, and running hosts are not moved. Wait up to `ray.wait_seconds` for as
    many nodes as there are hosts.
    """
    deadline = time.monotonic() + settings.wait_seconds
    while True:
        nodes = await asyncio.to_thread(ray.nodes)
        alive = {
            str(node["NodeID"]): node["Resources"].get("CPU") for node in nodes if node["Alive"]
        }
        offering = [name for name, cpus in alive.items() if cpus]
        if len(offering) >= max(1, settings.hosts) or time.monotonic() > deadline:
            return sorted(offering or alive)
        await asyncio.sleep(_RETRY_SECONDS)


def _make_host(name: str, main: HostMain, node: str, *, pinned: bool = False) -> Any:
    """Start a host on a node. `pinned`: Ray never moves it to another node."""
    actor = ray.remote(HostActor).options(
        # A host waits more than it computes, so it reserves almost nothing. The amount is not 0,
        # because Ray does not count actors without resources.
        num_cpus=0.001,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=64,
        # Ray distributes actors by resources, and a host reserves almost none. Soft: if the node
        # has left, any other node will do.
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=not pinned),
    )
    return actor.remote(name, main)


@asynccontextmanager
async def cluster(settings: RaySettings) -> AsyncIterator[None]:
    """Connect to the configured cluster, or start a private one on loopback that ends with the
    context.

    Raises `ConfigurationError` if the configured cluster cannot be reached, and `FleetUnavailable`
    if the private one does not start.
    """
    if settings.address is not None:
        async with _connect_ray(f"at {settings.address}", {"address": settings.address}):
            await check_access(settings, str(ray.get_runtime_context().gcs_address))
            yield
        return
    # Ray's default token is in ~/.ray, where other users can read it.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_MODE", None)  # if unset, Ray starts a private cluster with a token
    os.environ.update(_WITHOUT_METRICS)
    async with ray_folder() as directory:
        options = {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": str(directory),
            "num_cpus": 1,
            "object_store_memory": 80_000_000,  # hosts do not use the object store
        }
        async with _connect_ray("on this machine", options):
            yield


def _restore_sigterm_handler() -> None:
    """Replace the C++ handler of SIGTERM that Ray installs in front of Python's.

    Ray's handler writes a C++ stack trace to the terminal, and aborts the process after three
    seconds, although SIGTERM is no error. Setting Python's handler again replaces it.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
        signal.siginterrupt(signal.SIGTERM, False)


@asynccontextmanager
async def _connect_ray(location: str, options: dict[str, Any]) -> AsyncIterator[None]:
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
        # A thread cannot be cancelled, so Ray must have started before it can be shut down.
        await asyncio.wait({starting})
        await asyncio.to_thread(ray.shutdown)
        raise
    except Exception as error:
        if options["address"] == "local":  # Ray raises any class; `Exception` for a late node
            await asyncio.to_thread(ray.shutdown)  # stop the parts that have started
            raise FleetUnavailable(
                f"Ray did not start {location}: {one_line(str(error))}"
            ) from error
        is_start_failure = isinstance(
            error, ConnectionError | ray.exceptions.RayError | RuntimeError | ValueError
        )
        if not is_start_failure and type(error) is not Exception:
            raise
        next_step = await explain_refusal(str(options["address"]))
        raise ConfigurationError(
            f"Ray could not be started or reached {location}: {error}{next_step}"
        ) from error
    _restore_sigterm_handler()
    try:
        # Ray reports the death of a worker on stdout, where callers expect only our JSON document.
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        await asyncio.to_thread(ray.shutdown)
