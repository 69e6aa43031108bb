"""Pods without a cluster: the real link in this process, the real containers as sandboxes of this
machine, and bytes over queues.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from moothall.config import Settings
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter_binds
from moothall.sandbox.spawn import Sandboxed, sandbox_uid, spawn
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup
from moothall.workspace.executor_connection import INSIDE, bundle
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.job_executor import CodeExecutor, JobExecutor, Pods
from moothall.workspace.kubernetes.link import LINK, Folders, PodLink, Transport
from moothall.workspace.pool import CreateExecutor


class Queues:
    """A transport within one process."""

    def __init__(self) -> None:
        self._heard: defaultdict[str, list[asyncio.Queue[bytes]]] = defaultdict(list)

    async def send(self, name: str, data: bytes) -> None:
        """Send to the current listeners."""
        for queue in self._heard[name]:
            queue.put_nowait(data)

    async def listen(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield received messages."""
        queue = asyncio.Queue[bytes]()
        self._heard[name].append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._heard[name].remove(queue)


class _OwnedLink(PodLink):
    """A link that gives unpacked files away: in a pod, link and sandbox runtime have one uid, but
    here the link is root.
    """

    def _execute(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "begin":
            for root in (self.folders.tree, self.folders.env):
                for folder, names, files in os.walk(root):
                    for name in (*names, *files, "."):
                        os.chown(Path(folder, name), *_owner(), follow_symlinks=False)
        return super()._execute(request)


def _owner() -> tuple[int, int]:
    uid = sandbox_uid()
    return (uid, uid) if uid is not None else (-1, -1)


class NearbyPods(Cluster):
    """A cluster whose pods are processes of this machine, and whose status is set by tests."""

    def __init__(self, folder: Path, settings: Settings, carrier: Transport) -> None:
        super().__init__(settings.jobs, "nearby")
        self._folder, self._settings, self._carrier = folder, settings, carrier
        self._running: dict[str, tuple[asyncio.Task[None], list[Sandboxed]]] = {}
        self.refusal = ""
        self.labelled: dict[str, dict[str, str]] = {}
        """The labels of every Job that was created."""
        self.images: dict[str, set[str]] = {}
        """The images in which the commands of each Job ran."""

    async def create(self, manifest: dict[str, Any]) -> None:
        """Start the processes of the Job."""
        name, pod = manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]
        self.images[name] = {container["image"] for container in pod["containers"][1:]}
        self.labelled[name] = dict(manifest["metadata"]["labels"])
        self._failures[name] = asyncio.get_running_loop().create_future()
        if self.refusal:
            self.set_status(name, self.refusal)
            return
        folder = self._folder / name
        if not (code := self._folder / "code").is_dir():
            code.parent.mkdir(exist_ok=True)
            bundle(code)
        folders = Folders(*(folder / part for part in ("tree", "env", "config", "links", "shown")))
        link, *sandboxes = pod["containers"]
        order = json.loads(
            next(variable["value"] for variable in link["env"] if variable["name"] == LINK)
        )
        visible = [
            folders.shown / volume["name"].removeprefix("shown-")
            for volume in pod["volumes"]
            if volume["name"].startswith("shown-")
        ]
        for part in (
            folder,
            folders.tree,
            folders.env,
            folders.config,
            folders.links,
            folders.shown,
            *visible,
        ):
            part.mkdir(mode=0o755)
            os.chown(part, *_owner())
        for container in sandboxes:
            (folders.links / container["name"]).mkdir()
        serving = _OwnedLink(
            folders,
            {int(stream): sandbox for stream, sandbox in order["names"].items()},
            order["proxied"],
        )
        task = asyncio.create_task(serving.run(self._carrier, name), name=f"link {name}")
        self._running[name] = task, []
        for container in sandboxes:
            while not (link_socket := folders.links / container["name"] / "link.sock").exists():
                await asyncio.sleep(0.01)
            link_socket.chmod(0o777)
            self._running[name][1].append(
                await spawn(
                    self._container(f"{name}-{container['name']}", container, folders, code)
                )
            )

    async def label(self, name: str, labels: Mapping[str, str]) -> None:
        """Change its labels."""
        self.labelled[name].update(labels)

    def _container(
        self, name: str, container: dict[str, Any], folders: Folders, code: Path
    ) -> SandboxSpec:
        writable_binds = (
            (folders.links / container["name"], "/link"),
            (folders.tree, "/workspace"),
        )
        writable = (
            next(mount for mount in container["volumeMounts"] if mount["name"] == "env").get(
                "readOnly"
            )
            is False
        )
        env, config = (folders.env, "/env"), (folders.config, "/opt/config")
        visible_binds = tuple(
            (folders.shown / mount["name"].removeprefix("shown-"), mount["mountPath"])
            for mount in container["volumeMounts"]
            if mount["name"].startswith("shown-")
        )
        toolchains = tuple((path, str(path)) for path in self._settings.sandbox.toolchains)
        return SandboxSpec(
            name=name,
            argv=(*container["command"], *container["args"]),
            limits=self._settings.sandbox,
            ro=(
                *interpreter_binds(),
                (code, INSIDE),
                config,
                *toolchains,
                *visible_binds,
                *(() if writable else (env,)),
            ),
            rw=(*writable_binds, *((env,) if writable else ())),
        )

    async def remove(self, name: str) -> None:
        """End the Job."""
        task, boxes = self._running.pop(name, (None, []))
        for box in boxes:
            await box.close()
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if (future := self._failures.pop(name, None)) is not None and not future.done():
            future.cancel()

    def set_status(self, name: str, status: str) -> None:
        """Set the status of a pod."""
        with suppress(KeyError):
            self._failures[name].set_result(status)

    @property
    def pods(self) -> tuple[str, ...]:
        """Return the existing Jobs."""
        return tuple(self._running)


def nearby(folder: Path, settings: Settings) -> tuple[CreateExecutor, NearbyPods]:
    """Return the executors in nearby pods, and the pods."""
    queues = Queues()
    carrier = Transport(queues.send, queues.listen)
    cluster = NearbyPods(folder, settings, carrier)
    pods = Pods(cluster, carrier, lambda _: {})

    def make(
        place: ExecutorSetup, folder: Path, prepared_beside: ExecutorClient | None
    ) -> ExecutorClient:
        return (
            CodeExecutor(place, folder, settings, prepared_beside)
            if isinstance(prepared_beside, JobExecutor)
            else JobExecutor(place, folder, settings, pods)
        )

    return make, cluster
