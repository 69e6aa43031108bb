"""Sandboxes on the nodes of a Ray cluster: one actor on each node that offers a CPU.

The server starts the actors, and hosts find them by name. Each source tree and environment is sent
to a node once, as an archive in Ray's object store.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.util
from ray.autoscaler.sdk import request_resources
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from moothall.concurrency import run_in_background
from moothall.config import WorkspaceSections
from moothall.domain.text import one_line
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.telemetry import get_logger
from moothall.workers.ray_fleet import end_with_raylet, list_nodes
from moothall.workspace import archive
from moothall.workspace.node_executor import Nodes, refusal_of
from moothall.workspace.node_sandboxes import NodeSandboxes, NodeState

_PREFIX = "sandboxes"
_PART_BYTES = 32_000_000  # because an object store may be small
_RETENTION_SECONDS = 60.0
"""How long an archive stays in the object store after its last use."""
_FOLLOW_SECONDS, _DEMAND_SECONDS, _ANSWER_SECONDS = 5.0, 10.0, 3.0
_READY_SECONDS, _STOP_SECONDS = 120.0, 10.0
log = get_logger(__name__)


class SandboxNode:
    """The Ray actor of a node. Its process calls `prepare` once."""

    def __init__(self, settings: WorkspaceSections, prepare: Callable[[], None]) -> None:
        prepare()
        end_with_raylet()
        self._sandboxes = NodeSandboxes(settings, _fetch_part)
        self._serving: asyncio.Task[None] | None = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `NodeSandboxes`."""
        if self._serving is None:
            self._serving = asyncio.create_task(self._sandboxes.serve(), name="sandboxes")
            self._serving.add_done_callback(_end_if_failed)
        return await getattr(self._sandboxes, method)(*arguments)

    async def stop(self) -> None:
        """End all sandboxes."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})


def _end_if_failed(serving: asyncio.Task[None]) -> None:
    """End this process if sandboxes cannot be served any longer. Ray starts another process."""
    if not serving.cancelled() and (error := serving.exception()):
        log.error("sandboxes cannot be served", reason=repr(error))
        os._exit(1)


async def _fetch_part(part: Any) -> bytes:
    return bytes(await part)


def _name_of(node: str) -> str:
    """Return the name of a node's actor. It contains the job id, which is unique to this server."""
    return f"{_PREFIX}-{ray.get_runtime_context().get_job_id()}-{node[:12]}"


# On the server: one actor for each node, and the demand that is reported to an autoscaler.


class _Actors:
    """The actors of all nodes. `make` starts one from the id of a node."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self.by_node: dict[str, Any] = {}

    def update(self, nodes: Sequence[str]) -> None:
        """Start an actor on each of `nodes` that has none, and remove the actors of other nodes."""
        for node in self.by_node.keys() - set(nodes):
            ray.kill(self.by_node.pop(node))
        for node in sorted(set(nodes) - self.by_node.keys()):
            self.by_node[node] = self._make(node)

    async def follow(self, address: str) -> None:
        """Follow which nodes exist, and report the needed cores to Ray, until cancelled."""
        requested = 0
        for turn in itertools.count():
            with contextlib.suppress(ray.exceptions.RayError):  # the head does not answer now
                self.update(sorted(await asyncio.to_thread(list_nodes, address)))
                if turn * _FOLLOW_SECONDS % _DEMAND_SECONDS == 0:
                    states = [state for state in (await self.states()).values() if state]
                    count = sum(state.waiting + state.running for state in states)
                    if count or requested:
                        await asyncio.to_thread(request_resources, num_cpus=count)
                    requested = count
            await asyncio.sleep(_FOLLOW_SECONDS)

    async def states(self, seconds: float = _ANSWER_SECONDS) -> dict[str, NodeState | None]:
        """Return the states by node; None for a node that does not answer in time."""
        requests = {
            node: asyncio.ensure_future(actor.call.remote("beat", ""))
            for node, actor in self.by_node.items()
        }
        if requests:
            await asyncio.wait(requests.values(), timeout=seconds)
        states: dict[str, NodeState | None] = {}
        for node, task in requests.items():
            answered = task.done() and not task.exception()
            states[node] = task.result() if answered else None
            task.cancel()
        return states

    async def stop(self) -> None:
        """End all actors with their sandboxes."""
        ending = [actor.stop.remote() for actor in self.by_node.values()]
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.gather(*ending, return_exceptions=True)
        for actor in self.by_node.values():
            ray.kill(actor)


def _make_actor(settings: WorkspaceSections, prepare: Callable[[], None], node: str) -> Any:
    actor = ray.remote(SandboxNode).options(
        name=_name_of(node),
        # The actor's own slots limit its commands. The amount is not 0, because Ray does not count
        # actors without resources.
        num_cpus=0.001,
        max_restarts=-1,
        max_task_retries=0,  # a command must not run twice
        max_concurrency=10_000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
    )
    return actor.remote(settings, prepare)


async def _start_actors(actors: _Actors, address: str) -> dict[str, str]:
    """Start the actors. Return the reason by node why it cannot run sandboxes; '' if it can."""
    actors.update(sorted(await asyncio.to_thread(list_nodes, address)))
    states = await actors.states(_READY_SECONDS)
    return {
        node: refusal_of(state) if state else f"it did not answer within {_READY_SECONDS:g} s"
        for node, state in states.items()
    }


@asynccontextmanager
async def serving_sandboxes(
    settings: WorkspaceSections, prepare: Callable[[], None]
) -> AsyncIterator[Mapping[str, str]]:
    """Serve sandboxes on each node, including nodes that join later. `ray_fleet.cluster` must be
    open.

    Yields the reason by node why it cannot; '' if it can. Raises `SandboxUnavailable` if no node
    can.
    """
    actors = _Actors(partial(_make_actor, settings, prepare))
    address = str(ray.get_runtime_context().gcs_address)
    try:
        refusals = await _start_actors(actors, address)
        for node, refusal in refusals.items():
            if refusal:
                log.warning("a node runs no sandboxes", node=node, reason=refusal)
        if all(refusals.values()):
            reasons = "; ".join(f"{node[:12]}: {reason}" for node, reason in refusals.items())
            raise SandboxUnavailable(
                f"no node of the Ray cluster can run sandboxes: {reasons or 'none offers a CPU'}"
            )
        async with run_in_background(actors.follow(address), "sandbox nodes"):
            yield refusals
    finally:
        await asyncio.shield(actors.stop())


# On the hosts.


class _RayCarrier:
    """Carries calls to the actors, and folders through the object store."""

    def __init__(self) -> None:
        self._prefix = _name_of("")
        self._archives: dict[str, list[Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    async def list_nodes(self) -> Mapping[str, Any]:
        """Return the actors by name."""
        try:
            return await asyncio.to_thread(self._list_actors)
        except ray.exceptions.RayError as error:
            raise WorkspaceFailed(one_line(str(error))) from error

    def _list_actors(self) -> dict[str, Any]:
        actors = {}
        for name in ray.util.list_named_actors():
            if name.startswith(self._prefix):
                with contextlib.suppress(ValueError):  # the actor has just ended
                    actors[name.removeprefix(self._prefix)] = ray.get_actor(name)
        return actors

    async def call(self, node: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a node's `NodeSandboxes`."""
        try:
            return await node.call.remote(method, *arguments)
        except ray.exceptions.RayError as error:
            raise WorkspaceFailed(f"Ray: {one_line(str(error))[:500]}") from error

    @asynccontextmanager
    async def archive(self, name: str, path: Path) -> AsyncIterator[Sequence[Any]]:
        """Yield the archive of a folder. Pack the folder first if it is not in the object store."""
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                if name not in self._archives:
                    self._archives[name] = await _store_folder(path)
            yield self._archives[name]
        finally:
            self._users[name] -= 1
            asyncio.get_running_loop().call_later(_RETENTION_SECONDS, self._forget_archive, name)

    def _forget_archive(self, name: str) -> None:
        if not self._users.get(name):
            self._archives.pop(name, None)


async def _store_folder(path: Path) -> list[Any]:
    """Pack a folder into the object store, and return references to the parts of the archive."""
    parts = []
    async with archive.piped(lambda target: archive.pack(path, target), reads=False) as pipe:
        while part := await asyncio.to_thread(pipe.read, _PART_BYTES):
            parts.append(await asyncio.to_thread(ray.put, part))
    return parts


@asynccontextmanager
async def open_nodes() -> AsyncIterator[Nodes]:
    """Yield the nodes of the cluster on which this process is a host."""
    host = f"{socket.gethostname()[:40]}-{secrets.token_hex(4)}"
    async with Nodes(_RayCarrier(), host) as nodes:
        yield nodes
