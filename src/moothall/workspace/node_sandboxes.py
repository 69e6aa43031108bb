"""The sandboxes of a node, which hosts on any node open and use by calls; the folders of
repositories on a node: checkouts, environments and histories, unpacked once; and the choice of a
node.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moothall.concurrency import linked_clock
from moothall.config import WorkspaceSections
from moothall.errors import MoothallError, PatchRefused, SandboxUnavailable, WorkspaceFailed
from moothall.repositories.changes import ChangeCaps
from moothall.sandbox.bubblewrap import interpreter
from moothall.sandbox.probe import check_layers
from moothall.sandbox.spawn import sandbox_uid, set_owner
from moothall.telemetry import get_logger
from moothall.workspace import archive
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup, remove_tree
from moothall.workspace.executor_connection import grammars
from moothall.workspace.pool import ExecutorPool
from moothall.workspace.slots import queued_since
from moothall.workspace.wasm import ModuleFolder

# Which node gets a workspace, and which partner of a heartbeat is silent for too long.


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
    free_nodes = [node for node in candidates if node.is_free and not node.seats]
    if free_nodes:
        return min(free_nodes, key=lambda node: (not node.has_folders, node.load, node.name))
    return min(
        candidates, key=lambda node: (node.load, node.seats, not node.has_folders, node.name)
    )


class Heartbeats:
    """When each partner was heard last. `max_seconds`: how long one may be silent."""

    def __init__(self, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_seconds, self._clock = max_seconds, clock
        self._last_times: dict[str, float] = {}

    def record(self, name: str) -> None:
        """Record a sign of life."""
        self._last_times[name] = self._clock()

    def remaining(self, name: str) -> float:
        """Return how many seconds a partner may still be silent."""
        return self._last_times[name] + self._max_seconds - self._clock()

    def forget_silent(self) -> list[str]:
        """Return the partners that were silent for too long, and forget them."""
        silent = [name for name in self._last_times if self.remaining(name) < 0]
        for name in silent:
            del self._last_times[name]
        return silent


# The folders and the sandboxes of a node.


MAX_UNUSED = 32
"""How many folders are kept that no workspace uses."""

Fetch = Callable[[Any], Awaitable[bytes]]
"""Returns a part of an archive by its reference."""


class FolderCache:
    """The unpacked folders below `top`, by name. A name stands for the same contents forever."""

    def __init__(self, top: Path, fetch: Fetch, max_unused: int = MAX_UNUSED) -> None:
        self._top, self._fetch, self._max_unused = top, fetch, max_unused
        self._users: Counter[str] = Counter()
        self._names: dict[str, None] = {}  # least recently used first
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def names(self) -> frozenset[str]:
        """The folders that are there."""
        return frozenset(self._names)

    def missing(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names without a folder."""
        return frozenset(names) - self._names.keys()

    async def hold(self, name: str, parts: Sequence[Any]) -> Path:
        """Return a folder that stays until `release`. It is unpacked first if it is missing.

        Raises `WorkspaceFailed` if that fails.
        """
        self._users[name] += 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                if name not in self._names:
                    await self._unpack(name, parts)
        except BaseException:
            self._users[name] -= 1
            raise
        self._names[name] = self._names.pop(name, None)
        return self._top / name

    async def release(self, names: Iterable[str]) -> None:
        """Stop using folders, and remove those that nobody has used for the longest time."""
        self._users.subtract(names)
        unused = [name for name in self._names if self._users[name] <= 0]
        for name in unused[: max(0, len(unused) - self._max_unused)]:
            removed_path = self._top / f".gone-{secrets.token_hex(8)}"
            async with self._locks[name]:
                if self._users[name] > 0 or name not in self._names:
                    continue
                del self._names[name]
                await asyncio.to_thread((self._top / name).rename, removed_path)
            await remove_tree(removed_path)

    async def _unpack(self, name: str, parts: Sequence[Any]) -> None:
        if not parts:
            raise WorkspaceFailed(f"the node no longer has {name}")
        final = self._top.joinpath(*archive.split_path(name))
        temporary = self._top / f".new-{secrets.token_hex(8)}"
        try:
            await asyncio.to_thread(temporary.mkdir, parents=True)
            await asyncio.to_thread(set_owner, temporary, sandbox_uid())
            unpack = functools.partial(
                archive.unpack,
                root=temporary,
                owner=sandbox_uid(),
                max_bytes=(await asyncio.to_thread(shutil.disk_usage, temporary)).free,
            )
            async with archive.piped(unpack, reads=True) as pipe:
                for part in parts:
                    if not await asyncio.to_thread(pipe.write, await self._fetch(part)):
                        break
            await asyncio.to_thread(final.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(temporary.rename, final)
        except OSError as error:
            raise WorkspaceFailed(
                f"{name} cannot be unpacked on the node: {error.strerror or error}; is its disk "
                "full?"
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                await remove_tree(temporary)
        self._names[name] = None


_LOG_BYTES = 64_000
_WAIT_SECONDS = 0.02  # a shorter wait for a core is not reported
_RAISED = (PatchRefused, SandboxUnavailable, WorkspaceFailed)
log = get_logger(__name__)


def installation() -> tuple[str, ...]:
    """Return what must be the same on a host and a node, because environments refer to it."""
    return (
        f"moothall {version('moothall')}",
        f"Python {sys.version.split()[0]}",
        f"{interpreter()}",
    )


@dataclass(frozen=True, slots=True)
class NodeState:
    """The answer to a heartbeat.

    generation: another one after a restart, which ends all sandboxes.
    refusal: why the node can run no sandboxes, or ''.
    cores: how many commands it runs at a time; `waiting` wait for a core, `running` have one.
    open: its open sandboxes by host.
    folders: the names of the folders that it has.
    """

    generation: str
    installation: tuple[str, ...] = field(default_factory=installation)
    refusal: str = ""
    cores: int = 1
    waiting: int = 0
    running: int = 0
    open: Mapping[str, int] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Order:
    """A sandbox that a host wants.

    setup: its paths are those on the host.
    folders: the names of those folders that the node unpacks, by their paths.
    upper: the host's path of the changes of the sandbox `neighbour`, on whose files it works.
    """

    host: str
    sandbox: str
    setup: ExecutorSetup
    owner: Mapping[str, str]
    folders: Mapping[Path, str]
    neighbour: str = ""
    upper: Path | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request for an executor, or for the changes in its workspace if `caps` is set.

    queued_at: since when it counts as waiting for a core (Unix time); 0: since the sandbox is open.
    seconds_left: until its deadline; None: it has none. Clocks of machines differ.
    options: the arguments of `ExecutorClient.request`.
    answers_questions: whether the host answers questions.
    """

    sandbox: str
    number: int
    op: str = ""
    queued_at: float = 0.0
    seconds_left: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    base_files: Sequence[str] = ()
    caps: ChangeCaps | None = None
    answers_questions: bool = True


class Kind(StrEnum):
    """The kinds of steps of a request."""

    ANSWER = "answer"
    QUESTION = "question"
    WAITING = "waits"  # for a core; until it runs, its time limits pause
    RUNNING = "runs"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """The next thing that a host hears of its request, or the result of another call."""

    kind: Kind
    value: Any = None

    def result(self) -> Any:
        """Return the value. Raises what the call raised on the node."""
        if self.kind is Kind.FAILED:
            raise self.value
        return self.value


class _Conversation:
    """A running request with its questions."""

    def __init__(self, work: Callable[[_Conversation], Coroutine[Any, Any, Any]]) -> None:
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._wait_report: asyncio.TimerHandle | None = None
        self._reply: asyncio.Future[Any] | None = None
        self._task = asyncio.create_task(self._run_work(work))

    async def _run_work(self, work: Callable[[_Conversation], Coroutine[Any, Any, Any]]) -> None:
        try:
            with linked_clock(self):
                step = Step(Kind.ANSWER, await work(self))
        except _RAISED as error:
            step = Step(Kind.FAILED, type(error)(error.message))
        except Exception as error:
            log.exception("a request failed on the node")
            step = Step(Kind.FAILED, WorkspaceFailed(f"the node failed: {error!r}"[:1000]))
        self._steps.put_nowait(step)

    def pause(self) -> None:
        """Tell the host soon that the request waits for a core."""
        self._wait_report = asyncio.get_running_loop().call_later(_WAIT_SECONDS, self._report_wait)

    def _report_wait(self) -> None:
        self._wait_report = None
        self._steps.put_nowait(Step(Kind.WAITING))

    def resume(self) -> None:
        """Notify the host that the request is running, if it knows that the request waited."""
        if self._wait_report is None:
            self._steps.put_nowait(Step(Kind.RUNNING))
        else:
            self._wait_report.cancel()

    async def ask(self, question: Any) -> Any:
        """Ask the host and return its reply."""
        self._reply = asyncio.get_running_loop().create_future()
        self._steps.put_nowait(Step(Kind.QUESTION, question))
        return await self._reply

    async def next_step(self, reply: Any = None) -> Step:
        """Return the next step. `reply` answers the last question."""
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)
        return await self._steps.get()

    def cancel(self) -> None:
        """Stop the request, and tell its host if that still waits."""
        self._task.cancel()
        self._steps.put_nowait(Step(Kind.FAILED, WorkspaceFailed("the workspace was closed")))


@dataclass(slots=True)
class _Sandbox:
    """An open sandbox of a host, and the folders that it uses."""

    host: str
    executor: ExecutorClient
    folders: tuple[str, ...]
    conversations: dict[int, _Conversation] = field(default_factory=dict)


class NodeSandboxes:
    """The sandboxes of one node. `fetch` returns a part of an archive that a host sent.

    `serve` must run meanwhile. Each call of a host names the generation that it knows, because
    after a restart its sandboxes are gone.
    """

    def __init__(self, settings: WorkspaceSections, fetch: Fetch, pace: Pace = USUAL) -> None:
        self._settings, self._fetch, self._pace = settings, fetch, pace
        self.generation = secrets.token_hex(8)
        self._refusal = ""
        self._pool: ExecutorPool
        self._folders: FolderCache
        self._sandboxes: dict[str, _Sandbox] = {}
        self._opening: set[str] = set()
        self._hosts = Heartbeats(pace.host_silent)
        self._ready = asyncio.Event()

    async def serve(self) -> None:
        """Open sandboxes until cancelled; then end all of them."""
        try:
            self._settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            await check_layers(self._settings.sandbox)
            modules = ModuleFolder(self._settings)
            await modules.compile_all()
        except (MoothallError, OSError) as error:
            self._refusal = str(error)
            self._ready.set()
            await asyncio.Event().wait()
        async with ExecutorPool(self._settings, (*modules.binds, *grammars())) as self._pool:
            self._folders = FolderCache(self._pool.folder / "folders", self._fetch)
            self._ready.set()
            while True:
                await asyncio.sleep(self._pace.beat)
                await self._end_sandboxes_of_silent_hosts()

    @property
    def open_count(self) -> int:
        """How many sandboxes are open."""
        return len(self._sandboxes)

    async def beat(self, host: str) -> NodeState:
        """Record that a host lives, and return the state. Waits until the node has started."""
        await self._ready.wait()
        if host:
            self._hosts.record(host)
        if self._refusal:
            return NodeState(self.generation, refusal=self._refusal)
        slots = self._pool.slots
        return NodeState(
            self.generation,
            cores=slots.count,
            waiting=slots.waiting,
            running=slots.running,
            open=Counter(sandbox.host for sandbox in self._sandboxes.values()),
            folders=self._folders.names,
        )

    async def open(self, generation: str, order: Order, parts: Mapping[str, Sequence[Any]]) -> Step:
        """Open a sandbox. `parts`: references to the archives of folders, by name.

        The answer is the set of folders whose archives are missing, empty if it is open.
        """
        try:
            self._check_generation(generation)
            return Step(Kind.ANSWER, await self._open_sandbox(order, parts))
        except _RAISED as error:
            return Step(Kind.FAILED, type(error)(error.message))

    async def _open_sandbox(
        self, order: Order, parts: Mapping[str, Sequence[Any]]
    ) -> frozenset[str]:
        missing = self._folders.missing(order.folders.values()) - parts.keys()
        if missing:
            return missing
        folder_names: list[str] = []
        self._opening.add(order.sandbox)
        try:
            places = {}
            for path, name in order.folders.items():
                places[path] = await self._folders.hold(name, parts.get(name, ()))
                folder_names.append(name)
            if order.neighbour and order.upper:
                places[order.upper] = self._sandbox(order.neighbour).executor.upper
            setup = _on_this_node(order.setup, places)
            executor = await self._pool.acquire(setup, owner=order.owner)
        except BaseException:
            self._opening.discard(order.sandbox)
            await asyncio.shield(self._folders.release(folder_names))
            raise
        sandbox = _Sandbox(order.host, executor, tuple(folder_names))
        if order.sandbox not in self._opening:
            await self._end_sandbox(sandbox)
            raise WorkspaceFailed("the workspace was closed while it was opened")
        self._opening.discard(order.sandbox)
        self._sandboxes[order.sandbox] = sandbox
        return frozenset()

    async def request(self, generation: str, request: Request) -> Step:
        """Start a request and return its first step."""
        try:
            self._check_generation(generation)
            sandbox = self._sandbox(request.sandbox)
        except WorkspaceFailed as error:
            return Step(Kind.FAILED, error)
        conversation = _Conversation(lambda talk: _answer(sandbox.executor, request, talk))
        sandbox.conversations[request.number] = conversation
        return await self._step(sandbox, request.number, None)

    async def continue_request(self, generation: str, name: str, number: int, reply: Any) -> Step:
        """Return the next step of a request. `reply` answers its question, if it was one."""
        try:
            self._check_generation(generation)
            return await self._step(self._sandbox(name), number, reply)
        except WorkspaceFailed as error:
            return Step(Kind.FAILED, error)

    async def _step(self, sandbox: _Sandbox, number: int, reply: Any) -> Step:
        if (conversation := sandbox.conversations.get(number)) is None:
            raise WorkspaceFailed("the request is not running any more")
        step = await conversation.next_step(reply)
        if step.kind in {Kind.ANSWER, Kind.FAILED}:
            sandbox.conversations.pop(number, None)
        return step

    async def cancel(self, generation: str, name: str, number: int) -> None:
        """Stop a request whose host does not wait any more."""
        sandbox = self._sandboxes.get(name) if generation == self.generation else None
        if sandbox and (conversation := sandbox.conversations.pop(number, None)):
            conversation.cancel()

    async def close(self, generation: str, name: str) -> str:
        """End a sandbox and return its log; '' if there is none of this name."""
        self._opening.discard(name)  # its host may not wait for it any more
        sandbox = self._sandboxes.pop(name, None) if generation == self.generation else None
        if sandbox is None:
            return ""
        text = await asyncio.to_thread(_read_log, sandbox.executor.folder / "sandbox.log")
        await self._end_sandbox(sandbox)
        return text

    async def _end_sandbox(self, sandbox: _Sandbox) -> None:
        for conversation in sandbox.conversations.values():
            conversation.cancel()
        self._pool.release(sandbox.executor)
        await self._folders.release(sandbox.folders)

    async def _end_sandboxes_of_silent_hosts(self) -> None:
        for host in self._hosts.forget_silent():
            names = [name for name, sandbox in self._sandboxes.items() if sandbox.host == host]
            log.warning("a host is silent; its sandboxes are ended", host=host, count=len(names))
            for name in names:
                await self._end_sandbox(self._sandboxes.pop(name))

    def _check_generation(self, generation: str) -> None:
        if generation != self.generation:
            raise WorkspaceFailed("the node's sandboxes were started again, and this one is gone")
        if self._refusal:
            raise SandboxUnavailable(self._refusal)

    def _sandbox(self, name: str) -> _Sandbox:
        if (sandbox := self._sandboxes.get(name)) is None:
            raise WorkspaceFailed("the node has no such workspace: it was ended")
        return sandbox


async def _answer(executor: ExecutorClient, request: Request, talk: _Conversation) -> Any:
    if request.caps is not None:
        return await executor.changes(request.base_files, request.caps, talk.ask)
    seconds = request.seconds_left
    with queued_since(request.queued_at):
        return await executor.request(
            request.op,
            answer_question=talk.ask if request.answers_questions else None,
            deadline=None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds),
            **request.options,
        )


def _on_this_node(setup: ExecutorSetup, places: Mapping[Path, Path]) -> ExecutorSetup:
    """Return a setup with this node's paths. Raises `SandboxUnavailable` for a path that the host
    and the node do not share.
    """
    shared = (*(path for path, _ in setup.ro), *setup.toolchains, setup.python)
    for path in shared:
        if path is not None and not path.exists():
            raise SandboxUnavailable(
                f"{path} is missing on the node; install the same programs on every node"
            )
    return replace(
        setup,
        tree=tuple(places[path] for path in setup.tree),
        env=None if setup.env is None else places[setup.env],
        history=None if setup.history is None else places[setup.history],
    )


def _read_log(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    return ""
