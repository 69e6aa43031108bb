"""The state of a tool session between calls: its workspace, which survives its executor and can be
leased to a workflow, and the results of requests by id, so that a repeated request runs once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from moothall.authorization.checks import CallContext
from moothall.domain.evidence import CheckRun
from moothall.domain.repository import Base, Patch, Prepared
from moothall.domain.tool import Ask, BlockRun, CodeBlock, ToolCall, ToolResult, ToolStatus
from moothall.errors import AlreadyExists, MoothallError, PatchRefused, WorkspaceFailed
from moothall.ports import HandleLines, Repositories, Workspace, Workspaces
from moothall.telemetry import get_logger
from moothall.tools.spec import Danger, ToolSpec

log = get_logger(__name__)

_MAX_TRIES = 3


@dataclass(slots=True)
class PersistentWorkspace:
    """An implementation of `ports.Workspace` that starts with `diff` applied. `keep` holds it open.
    An executor that dies is replaced, with its files preserved.

    The executor runs one call at a time, so it is known which call a dead one was running. A
    read-only call is repeated; any other call has the status outcome_unknown.
    """

    id: str
    workspaces: Workspaces
    prepared: Prepared
    catalogue: Mapping[str, ToolSpec]
    diff: str = ""
    _next_diff: str | None = None
    _opened: asyncio.Future[Workspace] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    _lost: asyncio.Event = field(default_factory=asyncio.Event)
    _call_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def hold_open(self, until: asyncio.Event) -> None:
        """Hold the workspace open until the event is set. `wait_until_open` and the calls raise
        the errors of opening.
        """
        diff, ending = self.diff, asyncio.ensure_future(until.wait())
        try:
            while not until.is_set():
                async with self.workspaces.open(self.prepared, self.id, patch=diff) as workspace:
                    self._opened.set_result(workspace)
                    lost = asyncio.ensure_future(self._lost.wait())
                    try:
                        await asyncio.wait({lost, ending}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        lost.cancel()
                    if self._opened.done():  # else `_reopen` has replaced it already
                        self._opened = asyncio.get_running_loop().create_future()
                    self._lost.clear()
                    if not until.is_set():
                        diff = (
                            await _save_files(workspace, diff)
                            if self._next_diff is None
                            else self._next_diff
                        )
                        self._next_diff = None
        except (MoothallError, OSError) as error:
            failure = (
                error
                if isinstance(error, MoothallError)
                else WorkspaceFailed(f"the workspace cannot be opened: {error}")
            )
            self._opened.set_exception(failure)
            self._opened.exception()  # nobody may be waiting
        finally:
            ending.cancel()
            if not self._opened.done():
                self._opened.set_exception(WorkspaceFailed("the workspace was closed"))
                self._opened.exception()

    async def wait_until_open(self) -> None:
        """Wait until the workspace can be used. Raises the error of its opening."""
        await asyncio.shield(self._opened)

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool. The class describes what happens if the executor dies."""
        async with self._call_lock:
            for _ in range(_MAX_TRIES):
                try:
                    workspace = await asyncio.shield(self._opened)
                except MoothallError as error:
                    return ToolResult(
                        call.request_id, call.tool, ToolStatus.ERROR, error=error.message
                    )
                try:
                    return await workspace.call(call)
                except WorkspaceFailed as error:
                    log.warning(
                        "executor lost; the workspace is opened again",
                        workspace=self.id,
                        reason=error.message,
                    )
                    self._reopen(workspace)
                    spec = self.catalogue.get(call.tool)
                    if spec is None or spec.danger is not Danger.READ:
                        reason = (
                            "the executor died during this call, so its outcome is unknown; check "
                            "it before you repeat it"
                        )
                        return ToolResult(
                            call.request_id, call.tool, ToolStatus.OUTCOME_UNKNOWN, error=reason
                        )
        return ToolResult(
            call.request_id,
            call.tool,
            ToolStatus.ERROR,
            error=f"the executor died {_MAX_TRIES} times over this call",
        )

    async def check(
        self,
        name: str,
        paths: Sequence[str] = (),
        deadline: datetime | None = None,
        cases: Sequence[str] = (),
        *,
        alone: bool = False,
    ) -> CheckRun:
        """Run one of the profile's checks."""
        async with self._call_lock:
            workspace = await asyncio.shield(self._opened)
            return await workspace.check(name, paths, deadline, cases, alone=alone)

    async def patch(self, message: str) -> Patch:
        """Commit all changes so far."""
        async with self._call_lock:
            return await (await asyncio.shield(self._opened)).patch(message)

    async def rewind(self, diff: str) -> None:
        """Reopen the workspace with only `diff` applied, discarding its files. Sessions inside it
        start again.
        """
        async with self._call_lock:
            try:
                workspace = await asyncio.shield(self._opened)
            except MoothallError:
                return  # it is closed; the next call reports that
            self._next_diff = diff
            self._reopen(workspace)

    async def run_code(self, block: CodeBlock, call_tool: Ask) -> BlockRun:
        """Run a block in CPython. The block makes tool calls itself, so the call lock is not
        taken.
        """
        return await (await asyncio.shield(self._opened)).run_code(block, call_tool)

    async def converse(
        self,
        argv: Sequence[str],
        handle_lines: HandleLines,
        *,
        seconds: float,
        max_bytes: int,
        keep_changes: bool,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run an interactive program. It is not repeated if the executor dies."""
        async with self._call_lock:
            return await (await asyncio.shield(self._opened)).converse(
                argv,
                handle_lines,
                seconds=seconds,
                max_bytes=max_bytes,
                keep_changes=keep_changes,
                variables=variables,
            )

    def _reopen(self, lost: Workspace) -> None:
        """Wake `keep`. Callers wait for the next opening from now on."""
        if self._opened.done() and not self._opened.exception() and self._opened.result() is lost:
            self._opened = asyncio.get_running_loop().create_future()
        self._lost.set()


async def _save_files(workspace: Workspace, before: str) -> str:
    """Return the files of a workspace whose executor is dead as a diff. The trusted side has the
    files.
    """
    try:
        return (await workspace.patch("files as they were")).diff
    except PatchRefused as error:
        log.warning(
            "the files of a lost workspace cannot be restored",
            workspace=workspace.id,
            reason=error.message,
        )
        return before


@dataclass(frozen=True, slots=True)
class ReopenState:
    """The data for reopening a workspace: its owner, the base, and a commit with its last saved
    files.
    """

    workspace: str
    principal: str
    tenant: str
    role: str
    persona: str
    deadline: datetime
    repository: str
    base_sha: str
    commit_sha: str = ""


@dataclass(frozen=True, slots=True)
class WorkspaceLease:
    """An open workspace in use by a workflow. `closing` is set when its caller closes it or its
    time ends.
    """

    seat: CallContext
    workspace: PersistentWorkspace
    closing: asyncio.Event
    repositories: Repositories

    @property
    def base(self) -> Base:
        """The base that the workspace was opened on."""
        return self.workspace.prepared.base

    async def commit(self) -> str:
        """Commit the current files and return the commit. Raises `PatchRefused`,
        `WorkspaceFailed`.
        """
        return (await self.workspace.patch("files as a workflow left them")).commit_sha

    async def rewind(self, commit: str) -> None:
        """Reset the files to those of a commit."""
        await self.workspace.rewind(
            await self.repositories.diff(self.base, commit) if commit else ""
        )


# Results of requests by their ids, so that a repeated request runs once.


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

OUTPUT_DROPPED = "this was answered before, and its output is no longer kept"


class Answers(Generic[K, T]):
    """A store of results. Above `max_bytes` in total (by `size`), the oldest results are reduced
    with `slim`. Above `max_answers`, the oldest are forgotten.

    Belongs to one event loop.
    """

    def __init__(
        self, max_bytes: int, max_answers: int, *, size: Callable[[T], int], slim: Callable[[T], T]
    ) -> None:
        self._max_bytes, self._max_answers = max_bytes, max_answers
        self._size, self._slim = size, slim
        self._answers: OrderedDict[K, tuple[str, asyncio.Future[T]]] = OrderedDict()
        self._sizes: OrderedDict[K, int] = OrderedDict()
        self._bytes = 0

    async def find(self, key: K, digest: str, check: Callable[[], None] = lambda: None) -> T | None:
        """Return the result of this request, after waiting for it if it is running. Return None if
        the caller has to run it now. `check` raises if the caller may not see the result. Raises
        `AlreadyExists` if the key was used for a request with another digest.
        """
        while (stored := self._answers.get(key)) is not None:
            if stored[0] != digest:
                raise AlreadyExists("the id was used for another request")
            check()
            await asyncio.wait({stored[1]})
            # A request that was cancelled with its first caller runs again.
            if not stored[1].cancelled():
                return stored[1].result()
        return None

    def begin(self, key: K, digest: str) -> asyncio.Future[T]:
        """Note that a request runs. Pass its result to `settle` or its error to `fail`."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers[key] = (digest, answer)
        return answer

    def settle(self, key: K, answer: asyncio.Future[T], result: T) -> None:
        """Store the result of a request."""
        answer.set_result(result)
        self._drop_size(key)
        self._sizes[key] = self._size(result)
        self._bytes += self._sizes[key]
        while self._bytes > self._max_bytes and len(self._sizes) > 1:
            self._reduce(next(iter(self._sizes)))
        while (
            len(self._answers) > self._max_answers and next(iter(self._answers.values()))[1].done()
        ):
            oldest, _ = self._answers.popitem(last=False)
            self._drop_size(oldest)

    def fail(self, key: K, answer: asyncio.Future[T], error: BaseException) -> None:
        """Forget a request that failed, and raise its error in all who wait for it."""
        self.forget(key)
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
            answer.exception()  # nobody may be waiting

    def forget(self, key: K) -> None:
        """Forget a request, so that it can run again."""
        self._answers.pop(key, None)
        self._drop_size(key)

    def _reduce(self, key: K) -> None:
        self._drop_size(key)
        stored = self._answers.get(key)
        if stored is None:
            return
        slim: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        slim.set_result(self._slim(stored[1].result()))
        self._answers[key] = (stored[0], slim)

    def _drop_size(self, key: K) -> None:
        self._bytes -= self._sizes.pop(key, 0)
