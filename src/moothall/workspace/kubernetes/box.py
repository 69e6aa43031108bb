"""A workspace in a pod: its files are brought there, its executor is asked over the bus."""

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
from moothall.repositories.objects import Change
from moothall.repositories.patch_rules import MODES
from moothall.repositories.workspace_history import NAME as HISTORY_NAME
from moothall.sandbox.bubblewrap import interpreter
from moothall.sandbox.spawn import drop_uid
from moothall.sandbox_runtime.protocol import pack_path, unpack_path
from moothall.workspace.executor_client import Answer, Asked, ExecutorClient, ExecutorSetup
from moothall.workspace.executor_connection import ExecutorConnection
from moothall.workspace.kubernetes import archive, manifest
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.multiplexer import (
    CODE,
    CONTROL,
    FILES,
    HANDS,
    Multiplexer,
    Streams,
    Transport,
)

_CONTROL_SECONDS = 300.0  # a tree, or all that was written
_WORDS_SECONDS = 5.0
_CONFIG = Path("/opt/config")
_QUESTIONS = 1_000  # of a link, while it looks through folders: one for each level at most


@dataclass(frozen=True, slots=True)
class Pods:
    """Where pods run, how bytes get there, and the environment by which the link of a Job reaches
    the bus.
    """

    cluster: Cluster
    carrier: Transport
    bus: Callable[[str], Mapping[str, str]]


class JobExecutor(ExecutorClient):
    """A running executor in a Job."""

    def __init__(
        self, place: ExecutorSetup, folder: Path, settings: WorkspaceSections, pods: Pods
    ) -> None:
        super().__init__(place, folder, settings)
        self._cluster, self._bus = pods.cluster, pods.bus
        self.job, self._made = f"moothall-{folder.name}", time.monotonic()
        self._trunk = Multiplexer(pods.carrier, f"{self.job}-in", f"{self.job}-out", self._way_out)
        self._carrying: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._control: ExecutorConnection | None = None
        self._files: socket.socket
        self._code: ExecutorConnection | None = None
        self._lost: asyncio.Task[None] | None = None
        self._why = ""
        self._showing, self._shown = asyncio.Lock(), False

    def belong_to(self, whose: Mapping[str, str]) -> None:
        """Put it into the labels of the Job; one that was kept ready has them a moment later."""
        super().belong_to(whose)
        if self._carrying is not None and (labels := manifest.labels_of(whose)):
            self._beside(self._cluster.label(self.job, labels), "labels")

    @property
    def alive(self) -> bool:
        """Whether its link is heard."""
        return self._carrying is not None and not self._carrying.done() and not self._why

    @property
    def spent(self) -> bool:
        """Whether half of the time that its Job and its credentials last is over."""
        return time.monotonic() - self._made > self._settings.jobs.seconds / 2

    @property
    def python(self) -> str:
        """The Python of the image."""
        return self._settings.jobs.python

    async def start(self) -> None:
        """Make the Job, bring it its files, wait for its executor."""
        try:
            async with asyncio.timeout(self._settings.jobs.start_seconds):
                await self._start()
        except (TimeoutError, ConnectionError, WorkspaceFailed) as error:
            why = (
                self._why
                or self._cluster.waits(self.job)
                or str(error)
                or "it did not answer in time"
            )
            await self.close()
            raise SandboxUnavailable(
                f"the workspace's pod does not start: {why} (Job {self.job}; jobs.start_seconds is "
                f"{self._settings.jobs.start_seconds:g})"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        for folder in (self.folder, self.upper):
            await asyncio.to_thread(folder.mkdir, mode=0o755)
        self._carrying = asyncio.create_task(
            self._trunk.run(self._settings.jobs.start_seconds), name=f"trunk {self.job}"
        )
        labels, bus = (
            {**self._cluster.labels, **manifest.labels_of(self.whose)},
            self._bus(self.job),
        )
        await self._cluster.create(manifest.job(self.job, labels, self.place, self._settings, bus))
        await self._wait_connected()
        self._control = await ExecutorConnection.over(await self._trunk.open(CONTROL))
        await self._control.ready
        self._files = self._outside.enter_context(await self._trunk.open(FILES))
        self._files.setblocking(False)
        hands = await ExecutorConnection.over(await self._trunk.open(HANDS))
        for layer in reversed(self.place.tree):
            await self._bring(layer, "tree")
        if self.place.env:
            await self._bring(self.place.env, "env")
        await self._bring_configuration()
        await self._tell("begin")
        self._link = hands
        await hands.ready
        if self.place.reach:
            said = await self._tell("port")
            with _reading():
                self._port = int(said["port"])

    async def _wait_connected(self) -> None:
        """Wait until the link is heard. Raises `WorkspaceFailed` once that will never be."""
        coming, lost = (
            asyncio.create_task(self._trunk.connected.wait()),
            asyncio.create_task(self._heed(), name=f"pod of {self.job}"),
        )
        self._tasks |= {lost}
        self._lost = lost
        try:
            await asyncio.wait({coming, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            coming.cancel()
        if lost.done():
            raise WorkspaceFailed(self._why)

    async def _heed(self) -> None:
        """End everything as soon as the cluster says that the pod is lost."""
        self._why = await self._cluster.wrong(self.job)
        self._note(f"{self._why}\n")
        self.kill()

    async def _tell(self, op: str, **fields: Any) -> Answer:
        """Ask the link. Raises `WorkspaceFailed`, `PatchRefused`."""
        if self._control is None:
            raise WorkspaceFailed(self._why or "the workspace is not open")
        try:
            async with asyncio.timeout(_CONTROL_SECONDS):
                _, answer = self._control.ask({"op": op, **fields})
                said = await answer
        except TimeoutError as error:
            raise WorkspaceFailed(
                f"the link of {self.job} gave no answer within {_CONTROL_SECONDS:g} s"
            ) from error
        except WorkspaceFailed as error:
            raise WorkspaceFailed(self._why or error.message) from error
        if said.get("status") == "refused":
            raise PatchRefused(str(said.get("error"))[:1000])
        if said.get("status") != "success":
            raise WorkspaceFailed(f"the link of {self.job}: {str(said.get('error'))[:1000]}")
        return said

    async def _bring(self, tree: Path, where: str) -> None:
        async with archive.piped(lambda target: archive.pack(tree, target), reads=False) as pipe:
            sending = asyncio.create_task(
                archive.send(pipe, self._files), name=f"tree for {self.job}"
            )
            try:
                await self._tell("unpack", where=where, most=self._settings.jobs.disk_bytes)
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _bring_configuration(self) -> None:
        """What set-up is shown of the operator's: folders lie where they lie here; files all in one
        folder, under their number.
        """
        if self.place.reach is None or not self.place.reach.ro:
            return
        folder = self.folder / "config"
        await asyncio.to_thread(folder.mkdir)
        for number, (path, _) in enumerate(self.place.reach.ro):
            if await asyncio.to_thread(path.is_dir):
                await self._bring(path, str(number))
            else:
                await asyncio.to_thread(shutil.copyfile, path, folder / str(number))
        await self._bring(folder, "config")

    def variables(self) -> dict[str, str]:
        """Return the environment of a command; where it names a file that it is shown, as that is
        found inside.
        """
        variables, ro = super().variables(), self.place.reach.ro if self.place.reach else ()
        files = {
            inside: f"{_CONFIG}/{number}"
            for number, (path, inside) in enumerate(ro)
            if not path.is_dir()
        }
        return {name: files.get(value, value) for name, value in variables.items()}

    def _way_out(self, _stream: int, streams: Streams) -> None:
        """Serve one connection of a set-up, by the same proxy as on this machine."""
        reach = self.place.reach
        if reach is None:
            streams[1].transport.abort()
            return
        if self._proxy is None:
            self._proxy = Proxy(reach.destinations, reach.most, reach.credentials)
        self._beside(self._proxy.serve(*streams), "way out")

    def _beside(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Do something that ends with the box at the latest."""
        task = asyncio.create_task(work, name=f"{what} of {self.job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def request(
        self, op: str, *, wall_seconds: float, asked: Asked | None = None, **fields: Any
    ) -> Answer:
        """Ask the executor; our own Python is that of the image."""
        if (argv := fields.get("argv")) and argv[0] == str(interpreter()):
            fields["argv"] = (self.python, *argv[1:])
        return await super().request(op, wall_seconds=wall_seconds, asked=asked, **fields)

    async def show_history(self) -> str:
        """Bring it with the first command that may read it: most pods run none."""
        if self.place.history is None:
            return ""
        async with self._showing:
            if not self._shown:
                await self._bring(self.place.history, "config")
                self._shown = True
        return f"{_CONFIG}/{HISTORY_NAME}"

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Ask the link, which reads them where they were written; what is as in the checkout is
        left out.

        The link has no git: it asks which new paths are ignored, and is answered.
        """
        said = await self._tell(
            "changes",
            files=[*map(pack_path, base_files)],
            caps=[caps.file_bytes, caps.total_bytes, caps.entries],
        )
        rules: dict[str, str] = {}
        for _ in range(_QUESTIONS):
            if "new" not in said:
                break
            with _reading():
                new = _new_paths(said["new"])
            answer = await ignored(new)
            rules |= answer
            said = await self._tell(
                "ignored", rules={pack_path(path): rule for path, rule in answer.items()}
            )
        with _reading():
            found = [_change(one) for one in said["changes"]]
            left_out = [unpack_path(path) for path in said["ignored"]]
            known = {path: rules[path.removesuffix("/")] for path in left_out}
        base = self.place.tree[-1]
        return WorkspaceChanges(
            await asyncio.to_thread(
                lambda: [change for change in found if not is_unchanged(base, change)]
            ),
            known,
        )

    async def take_back(self) -> None:
        """Fetch what set-up wrote."""
        if self.place.env is not None and self.place.env_writable:
            await self._fetch("env", self.place.env)
        if self.place.tree:
            await self._fetch("tree", self.upper)

    async def _fetch(self, where: str, target: Path) -> None:
        owner, most = drop_uid(self._limits), self._settings.jobs.disk_bytes
        unpack = functools.partial(archive.unpack, root=target, owner=owner, most=most)
        async with archive.piped(unpack, reads=True) as pipe:
            while True:
                said = await self._tell("pack", where=where)
                with _reading():
                    piece = base64.b64decode(said["data"])
                if not piece or not await asyncio.to_thread(pipe.write, piece):
                    return

    async def code(self) -> ExecutorConnection:
        """Return the way to the container for blocks of Python."""
        if self._code is None:
            self._code = await ExecutorConnection.over(await self._trunk.open(CODE))
            await self._code.ready
        return self._code

    def kill(self) -> None:
        """Cut the trunk: the link ends when it hears nobody; `close` deletes the Job at once."""
        self._trunk.close()
        if self._carrying:
            self._carrying.cancel()

    async def _end(self) -> None:
        for link in (self._control, self._code):
            if link:
                link.close()
        for task in (*((self._carrying,) if self._carrying else ()), *self._tasks):
            task.cancel()
            await asyncio.wait({task})
        await self._cluster.remove(self.job)

    async def _last_words(self) -> str:
        if (
            self._carrying and self._lost
        ):  # a container that ended is gone at once, and the cluster says why a moment later
            await asyncio.wait(
                {self._carrying, self._lost},
                timeout=_WORDS_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return self._why or (f"pod of {self.job}: {self._trunk.why}" if self._trunk.why else "")

    def _note(self, text: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(text)

    def _count_memory_kills(self) -> int:
        return 0  # the kernel tells the cluster: its pod is lost, and says so

    async def _disk_is_full(self) -> bool:
        with contextlib.suppress(WorkspaceFailed):  # it is lost: whoever asks it hears why
            return bool((await self._tell("measure", most=self._limits.disk_bytes))["full"])
        return False


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What a link says is hostile where its pod was taken over: what is not as ours say it ends
    with `WorkspaceFailed`.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, WorkspaceFailed) as error:
        raise WorkspaceFailed(f"the link broke its protocol: {error!r}"[:1000]) from error


def _change(said: Answer) -> Change:
    path, mode, content = unpack_path(said["path"]), said["mode"], said["content"]
    archive.split_path(path)
    if mode not in MODES:
        raise ValueError(mode)
    return Change(path, mode, None if content is None else base64.b64decode(content))


def _new_paths(said: Answer) -> NewPaths:
    folders, files = ([unpack_path(path) for path in said[kind]] for kind in ("folders", "files"))
    lists = {
        unpack_path(path): None if text is None else base64.b64decode(text)
        for path, text in dict(said["lists"]).items()
    }
    for path in (*folders, *files, *lists):
        archive.split_path(path)
    if any(path.rpartition("/")[2] != ".gitignore" for path in lists):
        raise ValueError("a list of another name")
    return NewPaths(folders, files, lists)


class CodeExecutor(ExecutorClient):
    """The executor beside another in its pod, on the same files, for blocks of Python."""

    def __init__(
        self, place: ExecutorSetup, folder: Path, settings: WorkspaceSections, beside: JobExecutor
    ) -> None:
        super().__init__(place, folder, settings)
        self._beside = beside

    @property
    def alive(self) -> bool:
        """As long as its pod."""
        return self._beside.alive

    @property
    def python(self) -> str:
        """The Python of the image."""
        return self._beside.python

    async def start(self) -> None:
        """It runs already; wait until it answers."""
        await asyncio.to_thread(self.folder.mkdir)
        try:
            self._link = await self._beside.code()
        except (ConnectionError, WorkspaceFailed) as error:
            raise SandboxUnavailable(
                f"blocks of Python cannot be run in {self._beside.job}: {error}"
            ) from error

    async def show_history(self) -> str:
        """Blocks run no shell."""
        return ""

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Those of the pod."""
        return await self._beside.changes(base_files, caps, ignored)

    async def take_back(self) -> None:
        """Nothing is set up here."""

    def kill(self) -> None:
        """What ends is the request: `request` has stopped it."""

    async def _end(self) -> None:
        return

    async def close(self, *, keep: bool = False) -> None:
        """Leave the way to it open for the next block."""
        self._link = None
        await super().close(keep=keep)

    async def _last_words(self) -> str:
        return await self._beside._last_words()  # noqa: SLF001 - two ends of one pod

    def _note(self, text: str) -> None:
        self._beside._note(text)  # noqa: SLF001 - as above

    def _count_memory_kills(self) -> int:
        return 0

    async def _disk_is_full(self) -> bool:
        return await self._beside._disk_is_full()  # noqa: SLF001 - as above
