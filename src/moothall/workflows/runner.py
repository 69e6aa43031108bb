"""The workflows of a process: begun by their callers, followed on the log, and taken up again after
a crash.
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
from moothall.config import GuardSettings
from moothall.domain.codec import dump, load
from moothall.domain.event import Recorded
from moothall.domain.identity import Principal
from moothall.domain.tool import Grant
from moothall.errors import InvalidRequest, MoothallError, NotFound, Permanent, Temporary
from moothall.ports import Bucket, Log
from moothall.telemetry import get_logger
from moothall.tool_sessions.manager import ToolSessions
from moothall.tool_sessions.persistent_workspace import ReopenState, WorkspaceLease
from moothall.workflows.engine import Engine
from moothall.workflows.plan import Allowed, Workflow, read_plan
from moothall.workflows.record import End, Record, WorkflowLog
from moothall.workflows.tool_steps import StepExecutor

log = get_logger(__name__)

BUCKET = "workflows"
_ALL_TOOLS = Grant(("*",))
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_BUG = "it was ended by a bug of ours; the log of the server says more"


@dataclass(frozen=True, slots=True)
class WorkflowEntry:
    """An entry of the bucket `workflows`: what it takes to go on with one. `token` is its
    caller's.
    """

    workflow_id: str
    visit: ReopenState
    token: str
    running: bool = True

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return f"{self.visit.tenant}.{self.visit.workspace}.{self.workflow_id}"

    def document(self) -> dict[str, Any]:
        """Return it as the bucket holds it."""
        # In parts: what looks like a token is scrubbed on its way to the bus, and this one is meant
        # to arrive.
        told = {
            "workflow_id": self.workflow_id,
            "visit": dump(self.visit),
            "token": self.token.split("."),
        }
        return {**told, "state": "running" if self.running else "ended"}


async def entries(index: Bucket) -> Sequence[WorkflowEntry]:
    """Return what the bucket holds. Raises `BusUnavailable`."""
    found = []
    for key, document in (await index.entries()).items():
        try:
            token = ".".join(map(str, document["token"]))
            visit = load(ReopenState, document["visit"])
            found.append(
                WorkflowEntry(
                    str(document["workflow_id"]),
                    visit,
                    token,
                    running=document["state"] == "running",
                )
            )
        except (InvalidRequest, KeyError, TypeError) as error:
            log.warning("a workflow's entry cannot be read", key=key, reason=str(error)[:300])
    return found


@dataclass(frozen=True, slots=True)
class _Start:
    """A workflow that is to begin."""

    chronicle: WorkflowLog
    who: Principal
    token: str
    plan: Workflow
    document: Mapping[str, Any]


class Workflows:
    """An async context manager; those under way at its end are left for the next process. Belongs
    to one event loop.

    The bucket says which are under way and how their workspaces are opened again; all else is read
    from the log.
    """

    def __init__(
        self,
        visits: ToolSessions,
        gate: ToolGateway,
        bus: Log,
        index: Bucket,
        settings: GuardSettings,
    ) -> None:
        self._visits = visits
        self._gate = gate
        self._bus = bus
        self._index = index
        self._settings = settings
        self._held: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._returning: dict[str, asyncio.Event] = {}
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
        """Take up, beside what follows, what a process left that is gone, and return it; with
        `only`, the workflows of that id.

        Raises `BusUnavailable`.
        """
        found = [
            begun
            for begun in await entries(self._index)
            if begun.running and only in {"", begun.workflow_id}
        ]
        places: dict[str, list[WorkflowEntry]] = {}
        for begun in found:
            places.setdefault(begun.visit.workspace, []).append(begun)
            there = self._held[begun.visit.workspace, begun.workflow_id] = (
                asyncio.get_running_loop().create_future()
            )
            there.set_result(None)
        for workspace, left in places.items():
            self._returning[workspace] = asyncio.Event()
            self._spawn(self._return_all(left), workspace)
        return found

    async def _return_all(self, left: Sequence[WorkflowEntry]) -> None:
        """Go on with what was left in one workspace: more than one only where a kill came between
        an end and its record.
        """
        for begun in left:
            await self._return(begun)

    async def run(
        self,
        who: Principal,
        workspace: str,
        token: str,
        document: Mapping[str, Any],
        after_seq: int = 0,
    ) -> AsyncGenerator[Recorded, None]:
        """Begin a workflow, or join it where it was begun, and yield its facts to its end. It goes
        on if nobody listens.

        Raises what `ToolSessions.ready` raises, `InvalidRequest` for what cannot be run as it is,
        `Refused` where another workflow has the workspace, `AlreadyExists` where the id was used
        for another one.
        """
        workspace = self._visits.name_of(workspace, token)
        if workspace in self._returning:
            await self._returning[workspace].wait()
        capability = await self._visits.ready(who, workspace, token)
        plan = read_plan(document, self._limits(self._refusal(who.tenant, capability.grant)))
        chronicle = WorkflowLog(self._bus, workspace, who.tenant, plan.id)
        await self._begin(chronicle, who, token, plan, document)
        async with aclosing(chronicle.follow(plan.digest, after_seq)) as facts:
            async for recorded in facts:
                yield recorded

    def _refusal(self, tenant: str, grant: Grant) -> Callable[[str], str]:
        there = {spec.name for spec in self._gate.list_tools(tenant, _ALL_TOOLS)}
        granted = {spec.name for spec in self._gate.list_tools(tenant, grant)}

        def refusal(tool: str) -> str:
            if tool not in there:
                return f"there is no tool {tool[:60]!r}"
            return "" if tool in granted else f"{tool} is not granted by this capability token"

        return refusal

    def _limits(self, refusal: Callable[[str], str]) -> Allowed:
        limits = self._settings
        return Allowed(
            self._gate.catalogue,
            refusal,
            limits.workflow_steps,
            limits.workflow_parallelism,
            limits.workflow_attempts,
        )

    async def _begin(
        self,
        chronicle: WorkflowLog,
        who: Principal,
        token: str,
        plan: Workflow,
        document: Mapping[str, Any],
    ) -> None:
        """Have it begun, unless it was."""
        key = (chronicle.workspace, plan.id)
        begun = self._held.get(key)
        if begun is None:
            begun = self._held[key] = asyncio.get_running_loop().create_future()
            start = _Start(chronicle, who, token, plan, document)
            self._spawn(self._hold(start, begun), plan.id)
        await asyncio.shield(begun)

    async def _hold(self, start: _Start, begun: asyncio.Future[None]) -> None:
        """Run one from its start. `begun` is done when that is on the log, or cannot be."""
        plan, chronicle = start.plan, start.chronicle
        try:
            record = await chronicle.read()
            if record.told is None:
                with self._visits.lend(chronicle.workspace, plan.id) as loan:
                    entry = WorkflowEntry(plan.id, _returning(loan, start.who), start.token)
                    # How to take it up first, then that it began: in between it is nothing.
                    await self._index.put(entry.key, entry.document())
                    await chronicle.begin(plan, start.document, await loan.commit())
                    begun.set_result(None)
                    await self._carry_out(chronicle, plan, entry, loan)
            elif record.end is None and record.plan_digest == plan.digest:
                begun.set_exception(
                    NotFound(
                        f"workflow {plan.id} was left by a process that is gone; a start takes it "
                        "up"
                    )
                )
            else:
                begun.set_result(None)  # told in full, or another one of this id: its facts say so
        except MoothallError as error:
            if begun.done():
                raise
            begun.set_exception(error)
        finally:
            if not begun.done():
                begun.cancel()
            elif not begun.cancelled() and begun.exception():
                del self._held[chronicle.workspace, plan.id]  # it may be tried again

    async def _return(self, entry: WorkflowEntry) -> None:
        """Open the workspace of a workflow again and go on with it."""
        visit = entry.visit
        chronicle = WorkflowLog(self._bus, visit.workspace, visit.tenant, entry.workflow_id)
        try:
            record = await chronicle.read()
            if record.told is None or record.end is not None:
                await self._over(entry)
                return
            try:
                plan = read_plan(record.told, self._limits(lambda _: ""))
                if fresh := not self._visits.is_open(visit.workspace):
                    await self._visits.reopen(replace(visit, commit_sha=record.commit))
            except Permanent as error:
                steps = record.told.get("steps", ())
                await chronicle.finish(
                    End.FAILED, error.message, done=record.ended, steps=len(steps)
                )
                await self._over(entry)
                return
            with self._visits.lend(visit.workspace, entry.workflow_id) as loan:
                self._give_back(visit.workspace)
                log.info(
                    "a workflow is taken up again", workflow=entry.workflow_id, done=record.ended
                )
                if not fresh:
                    await loan.rewind(record.commit)
                await self._carry_out(chronicle, plan, entry, loan)
        except MoothallError as error:
            log.warning(
                "a workflow waits for the next start",
                workflow=entry.workflow_id,
                reason=error.message,
            )
        finally:
            self._give_back(visit.workspace)

    def _give_back(self, workspace: str) -> None:
        if waiting := self._returning.pop(workspace, None):
            waiting.set()

    async def _carry_out(
        self, chronicle: WorkflowLog, plan: Workflow, entry: WorkflowEntry, loan: WorkspaceLease
    ) -> None:
        """Run to the end and tell it; again from the log where the bus was away."""
        pause, over = _FIRST_PAUSE, False
        while not over:
            try:
                record = await chronicle.read()
                end, reason = await self._until_closed(chronicle, plan, entry, loan, record)
                self._visits.give_back(chronicle.workspace, plan.id)
                await chronicle.finish(end, reason, done=record.ended, steps=len(plan.steps))
                await self._over(entry)
                over = True
            except* Temporary as group:
                log.warning(
                    "a workflow waits for the bus",
                    workflow=plan.id,
                    reason=str(group.exceptions[0]),
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            # a bug over one plan must neither end the server nor come again at each of its starts
            except* Exception:
                log.exception("a workflow ended by a bug", workflow=plan.id)
                await chronicle.finish(End.FAILED, _BUG, done=0, steps=len(plan.steps))
                await self._over(entry)
                over = True

    async def _until_closed(
        self,
        chronicle: WorkflowLog,
        plan: Workflow,
        entry: WorkflowEntry,
        loan: WorkspaceLease,
        record: Record,
    ) -> tuple[End, str]:
        hands = StepExecutor(self._visits, loan, entry.token, plan.id, self._bus)
        engine = Engine(
            plan, record, hands, partial(chronicle.step, plan, record), self._gate.catalogue
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run(), name=f"engine {plan.id}")
            closing = group.create_task(loan.closing.wait(), name=f"closing {plan.id}")
            await asyncio.wait({running, closing}, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            closing.cancel()
        if running.cancelled():
            return End.CANCELLED, "its workspace was closed, or its time was over"
        return running.result()

    async def _over(self, entry: WorkflowEntry) -> None:
        await self._index.put(entry.key, replace(entry, token="", running=False).document())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._group.create_task(contain(work, name), name=f"workflow {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def contain(work: Coroutine[Any, Any, None], name: str) -> None:
    """One workflow: what goes wrong in it is its own."""
    try:
        await work
    except Exception:  # the group holds all workflows of the process, and with them the server
        log.exception("a workflow was given up by a bug", workflow=name)


def _returning(loan: WorkspaceLease, who: Principal) -> ReopenState:
    seat = loan.seat
    return ReopenState(
        workspace=seat.workspace_id,
        principal=who.name,
        tenant=who.tenant,
        role=seat.role,
        persona=seat.persona,
        deadline=seat.deadline,
        repository=loan.base.repository,
        base_sha=loan.base.sha,
    )
