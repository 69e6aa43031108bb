"""The executor of a workspace in a pod: files are uploaded, and requests are sent over the bus."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import shutil
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall.config import WorkspaceSections
from moothall.errors import PatchRefused, SandboxUnavailable, WorkspaceFailed
from moothall.network.proxy import Proxy
from moothall.repositories.changes import (
    AskIgnored,
    ChangeCaps,
    NewPaths,
    WorkspaceChanges,
    is_unchanged,
)
from moothall.repositories.git_objects import Change
from moothall.repositories.history import NAME as HISTORY_NAME
from moothall.repositories.patch_rules import MODES
from moothall.sandbox.bubblewrap import interpreter
from moothall.sandbox.spawn import sandbox_uid
from moothall.sandbox_runtime.protocol import pack_path, unpack_path
from moothall.workspace import archive
from moothall.workspace.executor_client import (
    Answer,
    ExecutorClient,
    ExecutorSetup,
    QuestionHandler,
)
from moothall.workspace.executor_connection import ExecutorConnection
from moothall.workspace.kubernetes import manifest
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.link import (
    CODE_EXECUTOR,
    CONTROL,
    EXECUTOR,
    TREES,
    Multiplexer,
    Streams,
    Transport,
)

_CONTROL_SECONDS = 300.0  # enough for a whole tree
_FAILURE_SECONDS = 5.0
_CONFIG = Path("/opt/config")
_MAX_QUESTIONS = 1_000
_START_SECONDS = 120.0
"""The maximum time until a workspace answers, including the pull of its image."""
"""How many questions a link asks during one scan: one for each level of folders at most."""


@dataclass(frozen=True, slots=True)
class Pods:
    """The access to pods: the cluster, the transport of bytes, and the function that returns the
    environment with which the link of a Job reaches the bus.
    """

    cluster: Cluster
    carrier: Transport
    bus: Callable[[str], Mapping[str, str]]


class JobExecutor(ExecutorClient):
    """A running executor in the pod of a Job."""

    copies_beside = False

    def __init__(
        self, setup: ExecutorSetup, folder: Path, settings: WorkspaceSections, pods: Pods
    ) -> None:
        super().__init__(setup, folder, settings)
        self._cluster, self._bus = pods.cluster, pods.bus
        self.job, self._created = f"moothall-{folder.name}", time.monotonic()
        self._trunk = Multiplexer(
            pods.carrier, f"{self.job}-in", f"{self.job}-out", self._serve_proxy
        )
        self._trunk_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._control: ExecutorConnection | None = None
        self._files: socket.socket
        self._code: ExecutorConnection | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._failure = ""
        self._history_lock, self._history_uploaded = asyncio.Lock(), False

    def assign_owner(self, owner: Mapping[str, str]) -> None:
        """Set the owner, and update the labels of a Job that exists already."""
        super().assign_owner(owner)
        if self._trunk_task is not None and (labels := manifest.owner_labels(owner)):
            self._run_in_background(self._cluster.label(self.job, labels), "labels")

    @property
    def alive(self) -> bool:
        """Whether the connection to its link is open."""
        return self._trunk_task is not None and not self._trunk_task.done() and not self._failure

    @property
    def is_expired(self) -> bool:
        """Whether half of the lifetime of its Job and credentials is over."""
        return time.monotonic() - self._created > self._settings.jobs.seconds / 2

    @property
    def python(self) -> str:
        """The Python of the image."""
        return self._settings.jobs.python

    async def start(self) -> None:
        """Create the Job, upload its files, and wait for its executor."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._start_job()
        except (TimeoutError, ConnectionError, WorkspaceFailed) as error:
            reason = (
                self._failure
                or self._cluster.waiting_reason(self.job)
                or str(error)
                or "it did not answer in time"
            )
            await self.close()
            raise SandboxUnavailable(
                f"the workspace's pod does not start: {reason} (Job {self.job}; the "
                f"limit is {_START_SECONDS:g} s)"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def _start_job(self) -> None:
        for folder in (self.folder, self.upper):
            await asyncio.to_thread(folder.mkdir, mode=0o755)
        self._trunk_task = asyncio.create_task(
            self._trunk.run(_START_SECONDS), name=f"trunk {self.job}"
        )
        labels, bus = (
            {**self._cluster.labels, **manifest.owner_labels(self.owner)},
            self._bus(self.job),
        )
        await self._cluster.create(manifest.job(self.job, labels, self.setup, self._settings, bus))
        await self._wait_connected()
        self._control = await ExecutorConnection.create(await self._trunk.open(CONTROL))
        await self._control.ready
        self._files = self._proxies.enter_context(await self._trunk.open(TREES))
        self._files.setblocking(False)
        tools_link = await ExecutorConnection.create(await self._trunk.open(EXECUTOR))
        for layer in reversed(self.setup.tree):
            await self._upload(layer, "tree")
        if self.setup.env:
            await self._upload(self.setup.env, "env")
        await self._upload_configuration()
        await self._call_link("begin")
        self._link = tools_link
        await tools_link.ready
        if self.setup.network_access:
            reply = await self._call_link("port")
            with _checked_parsing():
                self._port = int(reply["port"])

    async def _wait_connected(self) -> None:
        """Wait until the link connects. Raises `WorkspaceFailed` if the pod is lost before."""
        connected, pod_lost = (
            asyncio.create_task(self._trunk.connected.wait()),
            asyncio.create_task(self._watch_pod(), name=f"pod of {self.job}"),
        )
        self._tasks |= {pod_lost}
        self._watch_task = pod_lost
        try:
            await asyncio.wait({connected, pod_lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connected.cancel()
        if pod_lost.done():
            raise WorkspaceFailed(self._failure)

    async def _watch_pod(self) -> None:
        """End everything as soon as the cluster reports that the pod is lost."""
        self._failure = await self._cluster.wait_for_failure(self.job)
        self._write_log(f"{self._failure}\n")
        self.kill()

    async def _call_link(self, op: str, **fields: Any) -> Answer:
        """Send a request to the link. Raises `WorkspaceFailed`, `PatchRefused`."""
        if self._control is None:
            raise WorkspaceFailed(self._failure or "the workspace is not open")
        try:
            async with asyncio.timeout(_CONTROL_SECONDS):
                _, answer = self._control.send({"op": op, **fields})
                reply = await answer
        except TimeoutError as error:
            raise WorkspaceFailed(
                f"the link of {self.job} gave no answer within {_CONTROL_SECONDS:g} s"
            ) from error
        except WorkspaceFailed as error:
            raise WorkspaceFailed(self._failure or error.message) from error
        if reply.get("status") == "refused":
            raise PatchRefused(str(reply.get("error"))[:1000])
        if reply.get("status") != "success":
            raise WorkspaceFailed(f"the link of {self.job}: {str(reply.get('error'))[:1000]}")
        return reply

    async def _upload(self, tree: Path, volume: str) -> None:
        async with archive.piped(lambda target: archive.pack(tree, target), reads=False) as pipe:
            sending = asyncio.create_task(
                archive.send(pipe, self._files), name=f"tree for {self.job}"
            )
            try:
                await self._call_link(
                    "unpack", where=volume, most=manifest.disk_bytes(self._settings)
                )
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _upload_configuration(self) -> None:
        """Upload the operator's configuration for set-up: each folder under its number, and all
        files in one folder, under their numbers.
        """
        if self.setup.network_access is None or not self.setup.network_access.ro:
            return
        folder = self.folder / "config"
        await asyncio.to_thread(folder.mkdir)
        for number, (path, _) in enumerate(self.setup.network_access.ro):
            if await asyncio.to_thread(path.is_dir):
                await self._upload(path, str(number))
            else:
                await asyncio.to_thread(shutil.copyfile, path, folder / str(number))
        await self._upload(folder, "config")

    def variables(self) -> dict[str, str]:
        """Return the environment of a command. Paths of uploaded configuration files are replaced
        by their paths in the pod.
        """
        variables, ro = (
            super().variables(),
            self.setup.network_access.ro if self.setup.network_access else (),
        )
        files = {
            inside: f"{_CONFIG}/{number}"
            for number, (path, inside) in enumerate(ro)
            if not path.is_dir()
        }
        return {name: files.get(value, value) for name, value in variables.items()}

    def _serve_proxy(self, _stream: int, streams: Streams) -> None:
        """Serve a connection of a set-up with the same proxy as on this machine."""
        access = self.setup.network_access
        if access is None:
            streams[1].transport.abort()
            return
        if self._proxy is None:
            self._proxy = Proxy(access.destinations, access.max_bytes, access.credentials)
        self._run_in_background(self._proxy.serve(*streams), "way out")

    def _run_in_background(self, work: Coroutine[Any, Any, None], purpose: str) -> None:
        """Run something in the background until the executor ends at the latest."""
        task = asyncio.create_task(work, name=f"{purpose} of {self.job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def request(
        self,
        op: str,
        *,
        wall_seconds: float,
        answer_question: QuestionHandler | None = None,
        **fields: Any,
    ) -> Answer:
        """Send a request to the executor. Our own Python is replaced by that of the image."""
        if (argv := fields.get("argv")) and argv[0] == str(interpreter()):
            fields["argv"] = (self.python, *argv[1:])
        return await super().request(
            op, wall_seconds=wall_seconds, answer_question=answer_question, **fields
        )

    async def show_history(self) -> str:
        """Upload the history for the first command that may read it, and return its path inside.
        Most pods run no such command.
        """
        if self.setup.history is None:
            return ""
        async with self._history_lock:
            if not self._history_uploaded:
                await self._upload(self.setup.history, "config")
                self._history_uploaded = True
        return f"{_CONFIG}/{HISTORY_NAME}"

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Ask the link for the changes, which it reads in the pod. Unchanged files are left out.

        The link has no git: it asks which new paths are ignored.
        """
        reply = await self._call_link(
            "changes",
            files=[*map(pack_path, base_files)],
            caps=[caps.file_bytes, caps.total_bytes, caps.entries],
        )
        rules: dict[str, str] = {}
        for _ in range(_MAX_QUESTIONS):
            if "new" not in reply:
                break
            with _checked_parsing():
                new = _new_paths(reply["new"])
            answer = await ignored(new)
            rules |= answer
            reply = await self._call_link(
                "ignored", rules={pack_path(path): rule for path, rule in answer.items()}
            )
        with _checked_parsing():
            changes = [_change(document) for document in reply["changes"]]
            ignored_paths = [unpack_path(path) for path in reply["ignored"]]
            ignored_rules = {path: rules[path.removesuffix("/")] for path in ignored_paths}
        base = self.setup.tree[-1]
        return WorkspaceChanges(
            await asyncio.to_thread(
                lambda: [change for change in changes if not is_unchanged(base, change)]
            ),
            ignored_rules,
        )

    async def fetch_setup_output(self) -> None:
        """Fetch the environment and the changed files of the tree."""
        if self.setup.env is not None and self.setup.env_writable:
            await self._fetch("env", self.setup.env)
        if self.setup.tree:
            await self._fetch("tree", self.upper)

    async def _fetch(self, volume: str, target: Path) -> None:
        owner, max_bytes = sandbox_uid(), manifest.disk_bytes(self._settings)
        unpack = functools.partial(archive.unpack, root=target, owner=owner, max_bytes=max_bytes)
        async with archive.piped(unpack, reads=True) as pipe:
            while True:
                reply = await self._call_link("pack", where=volume)
                with _checked_parsing():
                    piece = base64.b64decode(reply["data"])
                if not piece or not await asyncio.to_thread(pipe.write, piece):
                    return

    async def code(self) -> ExecutorConnection:
        """Return the connection to the container for blocks of Python."""
        if self._code is None:
            self._code = await ExecutorConnection.create(await self._trunk.open(CODE_EXECUTOR))
            await self._code.ready
        return self._code

    def kill(self) -> None:
        """Close the connection, so that the link ends; `close` deletes the Job too."""
        self._trunk.close()
        if self._trunk_task:
            self._trunk_task.cancel()

    async def _end_sandbox(self) -> None:
        for link in (self._control, self._code):
            if link:
                link.close()
        for task in (*((self._trunk_task,) if self._trunk_task else ()), *self._tasks):
            task.cancel()
            await asyncio.wait({task})
        await self._cluster.remove(self.job)

    async def _read_log_tail(self) -> str:
        # The connection to an ended container is lost at once; the cluster reports the reason a
        # moment later.
        if self._trunk_task and self._watch_task:
            await asyncio.wait(
                {self._trunk_task, self._watch_task},
                timeout=_FAILURE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return self._failure or (
            f"pod of {self.job}: {self._trunk.end_reason}" if self._trunk.end_reason else ""
        )

    def _write_log(self, text: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(text)

    def _count_memory_kills(self) -> int:
        return 0  # the cluster reports that as a lost pod

    async def _disk_is_full(self) -> bool:
        with contextlib.suppress(WorkspaceFailed):  # it is lost; the next request gets the reason
            return bool((await self._call_link("measure", most=self._limits.disk_bytes))["full"])
        return False


@contextlib.contextmanager
def _checked_parsing() -> Iterator[None]:
    """Raise `WorkspaceFailed` for malformed messages of a link. They are hostile, because its pod
    may have been taken over.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, WorkspaceFailed) as error:
        raise WorkspaceFailed(f"the link broke its protocol: {error!r}"[:1000]) from error


def _change(document: Answer) -> Change:
    path, mode, content = unpack_path(document["path"]), document["mode"], document["content"]
    archive.split_path(path)
    if mode not in MODES:
        raise ValueError(mode)
    return Change(path, mode, None if content is None else base64.b64decode(content))


def _new_paths(document: Answer) -> NewPaths:
    folders, files = (
        [unpack_path(path) for path in document[kind]] for kind in ("folders", "files")
    )
    lists = {
        unpack_path(path): None if text is None else base64.b64decode(text)
        for path, text in dict(document["lists"]).items()
    }
    for path in (*folders, *files, *lists):
        archive.split_path(path)
    if any(path.rpartition("/")[2] != ".gitignore" for path in lists):
        raise ValueError("a list of another name")
    return NewPaths(folders, files, lists)


class CodeExecutor(ExecutorClient):
    """The executor for blocks of Python, in the pod and on the files of another executor."""

    def __init__(
        self,
        setup: ExecutorSetup,
        folder: Path,
        settings: WorkspaceSections,
        neighbour: JobExecutor,
    ) -> None:
        super().__init__(setup, folder, settings)
        self._neighbour = neighbour

    @property
    def alive(self) -> bool:
        """Whether its pod is alive."""
        return self._neighbour.alive

    @property
    def python(self) -> str:
        """The Python of the image."""
        return self._neighbour.python

    async def start(self) -> None:
        """Wait until the executor, which is running already, answers."""
        await asyncio.to_thread(self.folder.mkdir)
        try:
            self._link = await self._neighbour.code()
        except (ConnectionError, WorkspaceFailed) as error:
            raise SandboxUnavailable(
                f"blocks of Python cannot be run in {self._neighbour.job}: {error}"
            ) from error

    async def show_history(self) -> str:
        """Return '': blocks run no shell."""
        return ""

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Return the changes in the pod."""
        return await self._neighbour.changes(base_files, caps, ignored)

    async def fetch_setup_output(self) -> None:
        """Do nothing: there is no set-up here."""

    def kill(self) -> None:
        """Do nothing: `request` has stopped the request itself."""

    async def _end_sandbox(self) -> None:
        return

    async def close(self, *, keep_folder: bool = False) -> None:
        """Keep the connection open for the next block."""
        self._link = None
        await super().close(keep_folder=keep_folder)

    async def _read_log_tail(self) -> str:
        return await self._neighbour._read_log_tail()  # noqa: SLF001 - two ends of one pod

    def _write_log(self, text: str) -> None:
        self._neighbour._write_log(text)  # noqa: SLF001 - as above

    def _count_memory_kills(self) -> int:
        return 0

    async def _disk_is_full(self) -> bool:
        return await self._neighbour._disk_is_full()  # noqa: SLF001 - as above
