"""The workflows of a process: started by their callers, followed on the log, and resumed after a
crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from moothall.authorization.gateway import ToolGateway
from moothall.domain.codec import dump, load
from moothall.domain.event import Recorded
from moothall.domain.ids import Principal
from moothall.domain.tool import Grant
from moothall.errors import InvalidRequest, MoothallError, NotFound, Permanent, Temporary
from moothall.ports import Bucket, Log
from moothall.telemetry import get_logger
from moothall.tool_sessions.manager import ToolSessions
from moothall.tool_sessions.session_state import ReopenState, WorkspaceLease
from moothall.workflows.engine import Engine, StepExecutor
from moothall.workflows.plan import PlanLimits, Workflow, read_plan
from moothall.workflows.record import End, Record, WorkflowLog

log = get_logger(__name__)

BUCKET = "workflows"
_ALL_TOOLS = Grant(("*",))
_MAX_STEPS = 100
_MAX_ATTEMPTS = 10
"""Attempts that a workflow may request for one step."""
_MAX_PARALLEL = 4
"""Steps of one workflow side by side; steps that change files run one at a time."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0
_BUG_MESSAGE = "it failed because of a bug; see the server's log"


@dataclass(frozen=True, slots=True)
class WorkflowEntry:
    """An entry of the bucket `workflows`: what is needed to resume a workflow. `token` is its
    caller's.
    """

    workflow_id: str
    session: ReopenState
    token: str
    running: bool = True

    @property
    def key(self) -> str:
        """The key of the entry in the bucket."""
        return f"{self.session.tenant}.{self.session.workspace}.{self.workflow_id}"

    def document(self) -> dict[str, Any]:
        """Return the entry as the bucket stores it."""
        # The token is stored in parts: the bus scrubs whole tokens, and this one is needed.
        fields = {
            "workflow_id": self.workflow_id,
            "visit": dump(self.session),
            "token": self.token.split("."),
        }
        return {**fields, "state": "running" if self.running else "ended"}


async def entries(index: Bucket) -> Sequence[WorkflowEntry]:
    """Return the entries of the bucket. Raises `BusUnavailable`."""
    workflow_entries = []
    for key, document in (await index.entries()).items():
        try:
            token = ".".join(map(str, document["token"]))
            reopen_state = load(ReopenState, document["visit"])
            workflow_entries.append(
                WorkflowEntry(
                    str(document["workflow_id"]),
                    reopen_state,
                    token,
                    running=document["state"] == "running",
                )
            )
        except (InvalidRequest, KeyError, TypeError) as error:
            log.warning("a workflow's entry cannot be read", key=key, reason=str(error)[:300])
    return workflow_entries


@dataclass(frozen=True, slots=True)
class _Start:
    """A workflow that is to start."""

    workflow_log: WorkflowLog
    principal: Principal
    token: str
    plan: Workflow
    document: Mapping[str, Any]


class Workflows:
    """The workflows of a process, as an async context manager. Those that run at its end continue
    in the next process. Belongs to one event loop.

    The bucket says which workflows are running and how their workspaces are reopened; everything
    else is read from the log.
    """

    def __init__(
        self,
        sessions: ToolSessions,
        gateway: ToolGateway,
        bus: Log,
        index: Bucket,
    ) -> None:
        self._sessions = sessions
        self._gateway = gateway
        self._bus = bus
        self._index = index
        self._started: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._resuming: dict[str, asyncio.Event] = {}
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, traceback)

    async def resume(self, only: str = "") -> Sequence[WorkflowEntry]:
        """Resume the workflows that an ended process left running, and return them. With `only`,
        resume the workflows of that id.

        Raises `BusUnavailable`.
        """
        left_running = [
            entry
            for entry in await entries(self._index)
            if entry.running and only in {"", entry.workflow_id}
        ]
        by_workspace: dict[str, list[WorkflowEntry]] = {}
        for entry in left_running:
            by_workspace.setdefault(entry.session.workspace, []).append(entry)
            started = self._started[entry.session.workspace, entry.workflow_id] = (
                asyncio.get_running_loop().create_future()
            )
            started.set_result(None)
        for workspace, workspace_entries in by_workspace.items():
            self._resuming[workspace] = asyncio.Event()
            self._spawn(self._resume_all(workspace_entries), workspace)
        return left_running

    async def _resume_all(self, workspace_entries: Sequence[WorkflowEntry]) -> None:
        """Resume the workflows of one workspace. There are several only if the process was killed
        between the end of one and its record.
        """
        for entry in workspace_entries:
            await self._resume_entry(entry)

    async def run(
        self,
        principal: Principal,
        workspace: str,
        token: str,
        document: Mapping[str, Any],
        after_seq: int = 0,
    ) -> AsyncGenerator[Recorded, None]:
        """Start a workflow, or join it if it was started, and yield its events to its end. It
        continues if the caller stops reading.

        Raises what `ToolSessions.ensure_open` raises, `InvalidRequest` for a document that cannot
        run, `Refused` if another workflow has the workspace, and `AlreadyExists` if the id was used
        for another workflow.
        """
        workspace = self._sessions.name_of(workspace, token)
        if workspace in self._resuming:
            await self._resuming[workspace].wait()
        capability = await self._sessions.ensure_open(principal, workspace, token)
        plan = read_plan(
            document, self._limits(self._tool_refusal(principal.tenant, capability.grant))
        )
        workflow_log = WorkflowLog(self._bus, workspace, principal.tenant, plan.id)
        await self._ensure_started(workflow_log, principal, token, plan, document)
        async with aclosing(workflow_log.follow(plan.digest, after_seq)) as events:
            async for recorded in events:
                yield recorded

    def _tool_refusal(self, tenant: str, grant: Grant) -> Callable[[str], str]:
        known_names = {spec.name for spec in self._gateway.list_tools(tenant, _ALL_TOOLS)}
        granted = {spec.name for spec in self._gateway.list_tools(tenant, grant)}

        def refusal(tool: str) -> str:
            if tool not in known_names:
                return f"there is no tool {tool[:60]!r}"
            return "" if tool in granted else f"{tool} is not granted by this capability token"

        return refusal

    def _limits(self, refusal: Callable[[str], str]) -> PlanLimits:
        return PlanLimits(
            self._gateway.catalogue,
            refusal,
            _MAX_STEPS,
            _MAX_PARALLEL,
            _MAX_ATTEMPTS,
        )

    async def _ensure_started(
        self,
        workflow_log: WorkflowLog,
        principal: Principal,
        token: str,
        plan: Workflow,
        document: Mapping[str, Any],
    ) -> None:
        """Start a workflow unless it was started, and wait until its start is recorded."""
        key = (workflow_log.workspace, plan.id)
        started = self._started.get(key)
        if started is None:
            started = self._started[key] = asyncio.get_running_loop().create_future()
            start = _Start(workflow_log, principal, token, plan, document)
            self._spawn(self._run_new(start, started), plan.id)
        await asyncio.shield(started)

    async def _run_new(self, start: _Start, started: asyncio.Future[None]) -> None:
        """Run a new workflow. `started` is done once its start is on the log, or cannot be
        recorded.
        """
        plan, workflow_log = start.plan, start.workflow_log
        try:
            record = await workflow_log.read()
            if record.document is None:
                with self._sessions.lease(workflow_log.workspace, plan.id) as lease:
                    entry = WorkflowEntry(
                        plan.id, _reopen_state(lease, start.principal), start.token
                    )
                    # The entry comes first, so that a recorded start can always be resumed.
                    await self._index.put(entry.key, entry.document())
                    await workflow_log.begin(plan, start.document, await lease.commit())
                    started.set_result(None)
                    await self._run_to_end(workflow_log, plan, entry, lease)
            elif record.end is None and record.plan_digest == plan.digest:
                started.set_exception(
                    NotFound(
                        f"workflow {plan.id} was interrupted when its process ended; the next "
                        "start continues it"
                    )
                )
            else:
                # It has ended, or the id is another workflow's: its events tell the caller.
                started.set_result(None)
        except MoothallError as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            if not started.done():
                started.cancel()
            elif not started.cancelled() and started.exception():
                del self._started[workflow_log.workspace, plan.id]  # it may be tried again

    async def _resume_entry(self, entry: WorkflowEntry) -> None:
        """Reopen the workspace of a workflow and resume it."""
        reopen_state = entry.session
        workflow_log = WorkflowLog(
            self._bus, reopen_state.workspace, reopen_state.tenant, entry.workflow_id
        )
        try:
            record = await workflow_log.read()
            if record.document is None or record.end is not None:
                await self._mark_ended(entry)
                return
            try:
                plan = read_plan(record.document, self._limits(lambda _: ""))
                if reopened := not self._sessions.is_open(reopen_state.workspace):
                    await self._sessions.reopen(replace(reopen_state, commit_sha=record.commit))
            except Permanent as error:
                steps = record.document.get("steps", ())
                await workflow_log.finish(
                    End.FAILED, error.message, done=record.ended, steps=len(steps)
                )
                await self._mark_ended(entry)
                return
            with self._sessions.lease(reopen_state.workspace, entry.workflow_id) as lease:
                self._release_workspace(reopen_state.workspace)
                log.info(
                    "an interrupted workflow continues",
                    workflow=entry.workflow_id,
                    done=record.ended,
                )
                if not reopened:
                    await lease.rewind(record.commit)
                await self._run_to_end(workflow_log, plan, entry, lease)
        except MoothallError as error:
            log.warning(
                "a workflow waits for the next start",
                workflow=entry.workflow_id,
                reason=error.message,
            )
        finally:
            self._release_workspace(reopen_state.workspace)

    def _release_workspace(self, workspace: str) -> None:
        if resumed := self._resuming.pop(workspace, None):
            resumed.set()

    async def _run_to_end(
        self, workflow_log: WorkflowLog, plan: Workflow, entry: WorkflowEntry, lease: WorkspaceLease
    ) -> None:
        """Run a workflow to its end and record it. Start again from the log after an outage of the
        bus.
        """
        pause, ended = _FIRST_PAUSE_SECONDS, False
        while not ended:
            try:
                record = await workflow_log.read()
                end, reason = await self._until_closed(workflow_log, plan, entry, lease, record)
                self._sessions.give_back(workflow_log.workspace, plan.id)
                await workflow_log.finish(end, reason, done=record.ended, steps=len(plan.steps))
                await self._mark_ended(entry)
                ended = True
            except* Temporary as group:
                log.warning(
                    "a workflow waits for the bus",
                    workflow=plan.id,
                    reason=str(group.exceptions[0]),
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)
            # a bug in one workflow must neither end the server nor recur at each start
            except* Exception:
                log.exception("a workflow failed because of a bug", workflow=plan.id)
                await workflow_log.finish(End.FAILED, _BUG_MESSAGE, done=0, steps=len(plan.steps))
                await self._mark_ended(entry)
                ended = True

    async def _until_closed(
        self,
        workflow_log: WorkflowLog,
        plan: Workflow,
        entry: WorkflowEntry,
        lease: WorkspaceLease,
        record: Record,
    ) -> tuple[End, str]:
        executor = StepExecutor(self._sessions, lease, entry.token, plan.id, self._bus)
        engine = Engine(
            plan,
            record,
            executor,
            partial(workflow_log.step, plan, record),
            self._gateway.catalogue,
        )
        async with asyncio.TaskGroup() as group:
            engine_task = group.create_task(engine.run(), name=f"engine {plan.id}")
            close_task = group.create_task(lease.closing.wait(), name=f"closing {plan.id}")
            await asyncio.wait({engine_task, close_task}, return_when=asyncio.FIRST_COMPLETED)
            engine_task.cancel()
            close_task.cancel()
        if engine_task.cancelled():
            return End.CANCELLED, "its workspace was closed, or has expired"
        return engine_task.result()

    async def _mark_ended(self, entry: WorkflowEntry) -> None:
        await self._index.put(entry.key, replace(entry, token="", running=False).document())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._group.create_task(log_exceptions(work, name), name=f"workflow {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def log_exceptions(work: Coroutine[Any, Any, None], name: str) -> None:
    """Run one workflow and log any exception instead of raising it."""
    try:
        await work
    except Exception:  # an exception in the task group would end all workflows and the server
        log.exception("a workflow was abandoned because of a bug", workflow=name)


def _reopen_state(lease: WorkspaceLease, principal: Principal) -> ReopenState:
    seat = lease.seat
    return ReopenState(
        workspace=seat.workspace_id,
        principal=principal.name,
        tenant=principal.tenant,
        role=seat.role,
        persona=seat.persona,
        deadline=seat.deadline,
        repository=lease.base.repository,
        base_sha=lease.base.sha,
    )
