"""A workspace that stays open while callers come and go, and that outlives its executor; and what
it takes to lend it to a workflow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from moothall.authorization.call_context import CallContext
from moothall.domain.code import Ask, BlockRun, CodeBlock
from moothall.domain.evidence import CheckRun
from moothall.domain.repository import Base, Patch, Prepared
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import MoothallError, PatchRefused, WorkspaceFailed
from moothall.ports import Hear, Repositories, Workspace, Workspaces
from moothall.telemetry import get_logger
from moothall.tools.spec import Danger, ToolSpec

log = get_logger(__name__)

_TRIES = 3


@dataclass(slots=True)
class PersistentWorkspace:
    """Implements `ports.Workspace`. It begins with `diff` applied. `keep` holds it open; an
    executor that dies is replaced, with the files as they are.

    One call at a time is in the executor, so that of a dead one it is known which call may have
    been half done: one that only looks is made again, any other has the status outcome_unknown.
    """

    id: str
    workspaces: Workspaces
    prepared: Prepared
    catalogue: Mapping[str, ToolSpec]
    diff: str = ""
    _wanted: str | None = None
    _opened: asyncio.Future[Workspace] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    _lost: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def keep(self, until: asyncio.Event) -> None:
        """Hold it open until the event is set. What goes wrong at an opening is what `ready` and
        the calls raise.
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
                    if self._opened.done():  # else whoever noticed has made way already
                        self._opened = asyncio.get_running_loop().create_future()
                    self._lost.clear()
                    if not until.is_set():
                        diff = (
                            await _files(workspace, diff) if self._wanted is None else self._wanted
                        )
                        self._wanted = None
        except (MoothallError, OSError) as error:
            known = (
                error
                if isinstance(error, MoothallError)
                else WorkspaceFailed(f"the workspace cannot be opened: {error}")
            )
            self._opened.set_exception(known)
            self._opened.exception()  # nobody may be waiting
        finally:
            ending.cancel()
            if not self._opened.done():
                self._opened.set_exception(WorkspaceFailed("the workspace was closed"))
                self._opened.exception()

    async def ready(self) -> None:
        """Wait until it can be used. Raises what its opening raised."""
        await asyncio.shield(self._opened)

    async def call(self, call: ToolCall) -> ToolResult:
        """Run a tool; see above for what becomes of it when the executor dies."""
        async with self._turn:
            for _ in range(_TRIES):
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
                        words = (
                            "the executor died while this ran: whether it was done is not known; "
                            "look before doing it again"
                        )
                        return ToolResult(
                            call.request_id, call.tool, ToolStatus.OUTCOME_UNKNOWN, error=words
                        )
        return ToolResult(
            call.request_id,
            call.tool,
            ToolStatus.ERROR,
            error=f"the executor died {_TRIES} times over this call",
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
        async with self._turn:
            workspace = await asyncio.shield(self._opened)
            return await workspace.check(name, paths, deadline, cases, alone=alone)

    async def patch(self, message: str) -> Patch:
        """Commit all changes so far."""
        async with self._turn:
            return await (await asyncio.shield(self._opened)).patch(message)

    async def rewind(self, diff: str) -> None:
        """Open it again with just `diff` applied, whatever its files are now. Sessions in it begin
        anew.
        """
        async with self._turn:
            try:
                workspace = await asyncio.shield(self._opened)
            except MoothallError:
                return  # it is closed, as the next call will say
            self._wanted = diff
            self._reopen(workspace)

    async def run_code(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Run a block in CPython. It asks for calls meanwhile, so that it takes no turn of its
        own.
        """
        return await (await asyncio.shield(self._opened)).run_code(block, ask)

    async def converse(
        self, argv: Sequence[str], hear: Hear, *, seconds: float, most: int, keeps: bool
    ) -> str:
        """Run a program that is talked to. It is not run again where the executor dies."""
        async with self._turn:
            return await (await asyncio.shield(self._opened)).converse(
                argv, hear, seconds=seconds, most=most, keeps=keeps
            )

    def _reopen(self, lost: Workspace) -> None:
        """Wake the keeper; callers wait from now on for the next one."""
        if self._opened.done() and not self._opened.exception() and self._opened.result() is lost:
            self._opened = asyncio.get_running_loop().create_future()
        self._lost.set()


async def _files(workspace: Workspace, before: str) -> str:
    """Return the files of a workspace whose executor is dead as a diff: they lie on our side."""
    try:
        return (await workspace.patch("files as they were")).diff
    except PatchRefused as error:
        log.warning(
            "the files of a lost workspace cannot be taken over",
            workspace=workspace.id,
            reason=error.message,
        )
        return before


@dataclass(frozen=True, slots=True)
class ReopenState:
    """What it takes to open a workspace again: whose it is, the base, and a commit with its files
    as they were last kept.
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
    """An open workspace in the hands of a workflow. `closing` is set when its caller or its time
    ends it.
    """

    seat: CallContext
    workspace: PersistentWorkspace
    closing: asyncio.Event
    repositories: Repositories

    @property
    def base(self) -> Base:
        """What it was opened on."""
        return self.workspace.prepared.base

    async def commit(self) -> str:
        """Keep the files as they are now and return the commit. Raises `PatchRefused`,
        `WorkspaceFailed`.
        """
        return (await self.workspace.patch("files as a workflow left them")).commit_sha

    async def rewind(self, commit: str) -> None:
        """Make the files as a commit has them."""
        await self.workspace.rewind(
            await self.repositories.diff(self.base, commit) if commit else ""
        )
