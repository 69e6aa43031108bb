"""A host's view of the nodes of a cluster, and the executors of its workspaces on them, whatever
carries the calls to the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Self

from moothall.concurrency import off_the_clock, seconds_until
from moothall.config import WorkspaceSections
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.repositories.changes import AskIgnored, ChangeCaps, WorkspaceChanges
from moothall.repositories.history import NAME as HISTORY_NAME
from moothall.telemetry import get_logger
from moothall.workspace.executor_client import (
    Answer,
    ExecutorClient,
    ExecutorSetup,
    QuestionHandler,
)
from moothall.workspace.node_sandboxes import (
    USUAL,
    Candidate,
    Heartbeats,
    Kind,
    NodeState,
    Order,
    Pace,
    Request,
    Step,
    choose,
    installation,
)
from moothall.workspace.pool import HISTORY, CreateExecutor
from moothall.workspace.slots import queue_place

_START_SECONDS = 120.0
_NO_NODE_SECONDS = 60.0
"""How long a workspace waits while no node can take it: one that was lost starts again."""
_REFUSED_PAUSE_SECONDS = 60.0
log = get_logger(__name__)


class Carrier(Protocol):
    """Carries calls to the `NodeSandboxes` of each node. It never repeats one."""

    async def list_nodes(self) -> Mapping[str, Any]:
        """Return the nodes by name, each as `call` needs it."""

    async def call(self, node: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a node. Raises `WorkspaceFailed` if the node is lost."""

    def archive(self, name: str, path: Path) -> AbstractAsyncContextManager[Sequence[Any]]:
        """Provide references to the parts of a folder's archive, for `NodeSandboxes.open`."""


class Node:
    """A node that can run sandboxes, as one host sees it."""

    def __init__(self, name: str, host: str, state: NodeState, call: Callable[..., Any]) -> None:
        self.name, self.host, self.state, self._call = name, host, state, call
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.opened: Counter[str] = Counter()
        """Open workspaces of this host by deliberation."""
        self.folders: frozenset[str] = frozenset()
        """Folders that it has, as far as this host knows by itself."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method. Raises `WorkspaceFailed` as soon as the node is lost."""
        calling = asyncio.ensure_future(self._call(method, self.state.generation, *arguments))
        try:
            await asyncio.wait({calling, self.lost}, return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                return calling.result()
        except WorkspaceFailed as error:
            self.mark_lost(error.message)
            raise
        finally:
            calling.cancel()
        raise WorkspaceFailed(self.lost.result())

    def mark_lost(self, reason: str) -> None:
        """Fail the calls that are running."""
        if not self.lost.done():
            self.lost.set_result(f"the node {self.name} is lost: {reason}")

    async def watch(self, pace: Pace) -> None:
        """Send heartbeats until the node is lost."""
        beats = Heartbeats(pace.node_silent)
        beats.record(self.name)
        while not self.lost.done():
            try:
                async with asyncio.timeout(max(0.0, beats.remaining(self.name))):
                    state = await self._call("beat", self.host)
            except TimeoutError:
                self.mark_lost(f"it gave no answer for {pace.node_silent:g} s")
            except WorkspaceFailed as error:
                self.mark_lost(error.message)
            else:
                if state.generation != self.state.generation:
                    self.mark_lost("its sandboxes were started again")
                    return
                self.state = state
                beats.record(self.name)
                await asyncio.wait({self.lost}, timeout=pace.beat)

    def candidate(self, deliberation: str, folders: frozenset[str]) -> Candidate:
        """Return what `choose` needs of it."""
        by_others = sum(self.state.open.values()) - self.state.open.get(self.host, 0)
        return Candidate(
            self.name,
            self.state.cores,
            self.state.waiting,
            by_others + self.opened.total(),
            self.opened[deliberation] if deliberation else 0,
            folders <= self.state.folders | self.folders,
        )


class Nodes:
    """The nodes that can run sandboxes. As an async context manager, it follows which there are."""

    def __init__(self, carrier: Carrier, host: str, pace: Pace = USUAL) -> None:
        self._carrier, self.host, self._pace = carrier, host, pace
        self._nodes: dict[str, Node] = {}
        self._joining: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._joined = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def count(self) -> int:
        """How many nodes can be used now."""
        return len(self._nodes)

    async def __aenter__(self) -> Self:
        self.run_in_background(self._follow_nodes(), "nodes")
        return self

    async def __aexit__(self, *details: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run_in_background(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something until the end of the context at the latest. Its errors are logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("a call to a node failed", call=task.get_name(), reason=str(error)[:500])

    async def _follow_nodes(self) -> None:
        while True:
            try:
                for name, node in (await self._carrier.list_nodes()).items():
                    if name not in self._joining:
                        self._joining.add(name)
                        self.run_in_background(self._join(name, node), f"node {name}")
            except WorkspaceFailed as error:  # nobody answers now
                log.warning("the nodes cannot be listed", reason=error.message)
            await asyncio.sleep(self._pace.beat)

    async def _join(self, name: str, handle: Any) -> None:
        """Use a node until it is lost."""

        async def call(method: str, *arguments: Any) -> Any:
            return await self._carrier.call(handle, method, *arguments)

        try:
            async with asyncio.timeout(_START_SECONDS):
                state = await call("beat", self.host)
            if refusal := refusal_of(state):
                log.warning("a node runs no sandboxes", node=name, reason=refusal)
                self._refusals[name] = refusal
                await asyncio.sleep(_REFUSED_PAUSE_SECONDS)
                return
            self._refusals.pop(name, None)
            node = self._nodes[name] = Node(name, self.host, state, call)
            self._joined.set()
            log.info("a node runs sandboxes", node=name, cores=state.cores)
            await node.watch(self._pace)
            log.warning("a node is given up", node=name, reason=node.lost.result())
        except (TimeoutError, WorkspaceFailed) as error:
            self._refusals[name] = str(error) or "it does not answer"
        finally:
            self._nodes.pop(name, None)
            self._joining.discard(name)

    async def open(self, order: Order, neighbour: Node | None = None) -> Node:
        """Open a sandbox on the best node, or on that of another one. If it cannot be opened there,
        nothing has run yet, and another node is tried.

        Raises `SandboxUnavailable`, `WorkspaceFailed`.
        """
        deliberation = "" if neighbour else order.owner.get("task_id", "")
        tried_names: set[str] = set()
        while True:
            node = neighbour or await self._choose(
                deliberation, frozenset(order.folders.values()), tried_names
            )
            node.opened[deliberation] += 1
            try:
                await self._open_on(node, order)
            except BaseException as error:
                node.opened[deliberation] -= 1
                self.close(node, order.sandbox)
                tried_names.add(node.name)
                if neighbour or not isinstance(error, SandboxUnavailable | WorkspaceFailed):
                    raise
                if not self._nodes.keys() - tried_names:
                    raise
                log.warning("a workspace is opened on another node", reason=error.message)
            else:
                return node

    async def _choose(
        self, deliberation: str, folders: frozenset[str], tried_names: set[str]
    ) -> Node:
        try:
            async with asyncio.timeout(_NO_NODE_SECONDS):
                while not (names := self._nodes.keys() - tried_names):
                    self._joined.clear()
                    await self._joined.wait()
        except TimeoutError as error:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self._refusals.items())
            raise SandboxUnavailable(
                "no node of the Ray cluster can run workspaces: "
                f"{reasons or 'there is none'}; see `moothall doctor`"
            ) from error
        candidates = [self._nodes[name].candidate(deliberation, folders) for name in names]
        return self._nodes[choose(candidates).name]

    async def _open_on(self, node: Node, order: Order) -> None:
        present = node.state.folders | node.folders
        names = frozenset(order.folders.values()) - present
        paths = {name: path for path, name in order.folders.items()}
        while True:
            async with AsyncExitStack() as stack:
                parts = {
                    name: await stack.enter_async_context(self._carrier.archive(name, paths[name]))
                    for name in sorted(names)
                }
                step: Step = await node.call("open", order, parts)
            missing = step.result()
            if not missing:
                node.folders |= frozenset(order.folders.values())
                return
            node.folders -= missing
            names |= missing

    def close(self, node: Node, sandbox: str) -> asyncio.Task[Any]:
        """End a sandbox, and return the task of which the result is its log."""
        return self.run_in_background(_close_sandbox(node, sandbox), f"close {sandbox}")


async def _close_sandbox(node: Node, sandbox: str) -> str:
    with contextlib.suppress(WorkspaceFailed):  # then it has ended already
        return str(await node.call("close", sandbox))
    return ""


def refusal_of(state: NodeState) -> str:
    """Return why a node cannot be used, or ''."""
    if state.refusal or state.installation == installation():
        return state.refusal
    return (
        f"it has {', '.join(state.installation)}, and this host {', '.join(installation())}: "
        "install the same on every node, in the same place"
    )


class NodeExecutor(ExecutorClient):
    """A running executor on a node. Requests run there as they would on this machine: the node's
    cores, memory and disk bound them.
    """

    def __init__(
        self,
        setup: ExecutorSetup,
        folder: Path,
        settings: WorkspaceSections,
        nodes: Nodes,
        neighbour: NodeExecutor | None = None,
    ) -> None:
        super().__init__(setup, folder, settings)
        self._nodes, self._neighbour = nodes, neighbour
        self._sandbox = f"{folder.name}-{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._node: Node | None = None
        self._closing: asyncio.Task[Any] | None = None
        self._failed = False

    @property
    def alive(self) -> bool:
        """Whether its node is there and no request has failed."""
        node = self._node
        return bool(node and not node.lost.done() and not self._closing and not self._failed)

    async def start(self) -> None:
        """Open the sandbox on a node. Raises `SandboxUnavailable`, `WorkspaceFailed`."""
        await asyncio.to_thread(self.folder.mkdir, mode=0o755)
        neighbour = self._neighbour
        paths = [*self.setup.tree, self.setup.env, self.setup.history]
        data_dir = self._settings.data_dir
        order = Order(
            self._nodes.host,
            self._sandbox,
            self.setup,
            dict(self.owner),
            {
                path: str(path.relative_to(data_dir))
                for path in paths
                if path and not (neighbour and path == neighbour.upper)
            },
            *((neighbour._sandbox, neighbour.upper) if neighbour else ()),  # noqa: SLF001 - one of the same kind
        )
        try:
            self._node = await self._nodes.open(order, neighbour._node if neighbour else None)  # noqa: SLF001 - as above
        except BaseException:
            await self.close()
            raise

    async def request(
        self,
        op: str,
        *,
        wall_seconds: float,
        answer_question: QuestionHandler | None = None,
        deadline: datetime | None = None,
        **options: Any,
    ) -> Answer:
        """Send a request. See `ExecutorClient.request`."""
        request = Request(
            self._sandbox,
            next(self._numbers),
            op,
            queue_place().queued_at,
            None if deadline is None else seconds_until(deadline),
            {"wall_seconds": wall_seconds, **options},
        )
        answer: Answer = await self._converse(request, answer_question)
        return answer

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Read the changes on the node."""
        request = Request(
            self._sandbox, next(self._numbers), base_files=list(base_files), caps=caps
        )
        changes: WorkspaceChanges = await self._converse(request, ignored)
        return changes

    async def _converse(self, request: Request, answer_question: Callable[..., Any] | None) -> Any:
        node = self._node
        if node is None:
            raise WorkspaceFailed("the workspace is not open")
        ended = False
        try:
            with contextlib.ExitStack() as waiting:
                request = replace(request, answers_questions=answer_question is not None)
                step: Step = await node.call("request", request)
                while step.kind not in {Kind.ANSWER, Kind.FAILED}:
                    reply = None
                    if step.kind is Kind.WAITING:
                        waiting.enter_context(off_the_clock())
                        waiting.enter_context(queue_place().wait())
                    elif step.kind is Kind.RUNNING:
                        waiting.close()
                    elif answer_question is not None:
                        reply = await answer_question(step.value)
                    step = await node.call("continue_request", self._sandbox, request.number, reply)
            ended = True
            return step.result()
        except WorkspaceFailed:
            self._failed = True
            raise
        finally:
            if not ended:
                self._nodes.run_in_background(
                    self._cancel(node, request.number), f"cancel {self._sandbox}"
                )

    async def _cancel(self, node: Node, number: int) -> None:
        with contextlib.suppress(WorkspaceFailed):
            await node.call("cancel", self._sandbox, number)

    async def show_history(self) -> str:
        """Return the path of the read-only history."""
        return f"{HISTORY}/{HISTORY_NAME}" if self.setup.history else ""

    async def fetch_setup_output(self) -> None:
        """Do nothing: set-up runs on the host's machine."""

    def kill(self) -> None:
        """End the sandbox; `close` waits for that."""
        if self._node is not None and self._closing is None:
            deliberation = "" if self._neighbour else self.owner.get("task_id", "")
            self._node.opened[deliberation] -= 1
            self._closing = self._nodes.close(self._node, self._sandbox)

    async def _end_sandbox(self) -> None:
        if self._closing is not None:
            await asyncio.wait({self._closing})
            if not self._closing.cancelled() and (text := self._closing.result()):
                self._write_log(text)

    async def _read_log_tail(self) -> str:
        return ""  # the node adds it to its errors

    def _write_log(self, text: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log_file:
            log_file.write(text)

    def _count_memory_kills(self) -> int:
        return 0  # the node watches it

    async def _disk_is_full(self) -> bool:
        return False  # as above


def executors_on(nodes: Nodes, settings: WorkspaceSections) -> CreateExecutor:
    """Return a function that creates executors on nodes. Set-up needs the host's network access and
    stays on this machine.
    """

    def create_executor(
        setup: ExecutorSetup, folder: Path, neighbour: ExecutorClient | None
    ) -> ExecutorClient | None:
        if setup.env_writable or setup.network_access:
            return None
        node_neighbour = neighbour if isinstance(neighbour, NodeExecutor) else None
        return NodeExecutor(setup, folder, settings, nodes, node_neighbour)

    return create_executor
