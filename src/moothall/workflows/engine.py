"""The engine that runs a plan's steps, in order or in parallel, and records each change of state
before it continues.

Only one step that may change files runs at a time, and its files are stored with the event of its
end. A resumed run therefore begins with exactly the files of the recorded steps. An interrupted
step that acts within the workspace is undone with its files and runs again. A step that acts
outside and whose outcome is unknown is never repeated.

Tool calls run in a workspace that a caller opened, under the caller's token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.concurrency import seconds_until
from moothall.domain.codec import load
from moothall.domain.event import Channel, EventType
from moothall.domain.tool import Action, ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, PatchRefused, Permanent, Refused, WorkspaceFailed
from moothall.ports import Log
from moothall.tool_sessions.manager import ToolSessions
from moothall.tool_sessions.session_state import WorkspaceLease
from moothall.tools.spec import Danger, ToolSpec
from moothall.workflows.plan import Reference, Step, Workflow, fill_in, find_in, references
from moothall.workflows.record import Act, End, Record, StepState

_MAX_CRASHES = 3
_CHANGING_DANGERS = {Danger.WRITE, Danger.EXECUTE}
_FINAL_STATUSES = {
    ToolStatus.INVALID,
    ToolStatus.BLOCKED,
    ToolStatus.PARKED,
    ToolStatus.BUDGET_EXCEEDED,
    ToolStatus.CANCELLED,
    ToolStatus.OUTCOME_UNKNOWN,
}
# A call that timed out may have had its effect, so it is not repeated outside the workspace.
_FINAL_STATUSES_OUTSIDE = {*_FINAL_STATUSES, ToolStatus.TIMEOUT}
RecordStep = Callable[..., Awaitable[None]]
"""Records the state of a step, as `WorkflowLog.step` does. Returns once it is durable and in the
record.
"""


@dataclass(frozen=True, slots=True)
class StepExecutor:
    """An executor of steps in one workspace, under its caller's token, and the log of its calls."""

    sessions: ToolSessions
    lease: WorkspaceLease
    token: str
    flow: str
    log: Log

    @property
    def deadline(self) -> datetime:
        """The time when the workspace closes."""
        return self.lease.seat.deadline

    @property
    def _workspace(self) -> str:
        return self.lease.seat.workspace_id

    async def call(self, call: ToolCall) -> ToolResult:
        """Call a tool through the gateway."""
        return await self.sessions.call(None, self._workspace, self.token, call, flow=self.flow)

    async def wait_until_resolved(self, call: ToolCall) -> ToolResult:
        """Wait for an operator's decision while the workspace is open, then call again."""
        try:
            async with asyncio.timeout(max(0.0, seconds_until(self.deadline))):
                await self.sessions.wait_until_resolved(self._workspace, call.request_id)
        except TimeoutError:
            pass
        time_left = call.deadline - datetime.now(UTC)
        return await self.call(
            replace(call, deadline=datetime.now(UTC) + max(time_left, timedelta(seconds=60)))
        )

    async def find_result(self, request_id: str) -> ToolResult | bool:
        """Return the last result of a call in the log, or True if it only began, False if it did
        not.
        """
        result: ToolResult | bool = False
        async for recorded in self.log.replay((Channel.TOOLS.of(self._workspace),)):
            event = recorded.event
            if event.data.get("request_id") != request_id:
                continue
            if event.type == EventType.TOOL_STARTED:
                result = True
            elif event.type == EventType.TOOL_FINISHED:
                names = ToolResult.__dataclass_fields__
                logged_result = load(
                    ToolResult, {name: value for name, value in event.data.items() if name in names}
                )
                result = (
                    result
                    if result is True and logged_result.status is ToolStatus.PARKED
                    else logged_result
                )
        return result

    async def commit(self) -> str:
        """Commit the current files and return the commit."""
        return await self.lease.commit()

    async def rewind(self, commit: str) -> None:
        """Reset the files to a commit."""
        await self.lease.rewind(commit)


@dataclass(frozen=True, slots=True)
class _StepRun:
    """A run of a step or of its compensation."""

    step: Step
    call: Action
    spec: ToolSpec
    compensation: bool = False

    @property
    def changes(self) -> bool:
        """True if the run may change the workspace's files."""
        return self.spec.danger in _CHANGING_DANGERS or bool(self.spec.writes)


class Engine:
    """One run of a plan, from the state in its record."""

    def __init__(
        self,
        plan: Workflow,
        record: Record,
        executor: StepExecutor,
        record_step: RecordStep,
        catalogue: Mapping[str, ToolSpec],
    ) -> None:
        self._plan = plan
        self._record = record
        self._executor = executor
        self._record_step = record_step
        self._catalogue = catalogue
        self._running: dict[str, _StepRun] = {}
        self._changed = asyncio.Event()

    async def run(self) -> tuple[End, str]:
        """Run the steps that are not done. Return how the workflow ended and why. Raises what the
        log's publisher raises.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                for work in self._ready_steps():
                    self._running[work.step.id] = work
                    group.create_task(self._run_step(work), name=f"step {work.step.id}")
                if not self._running:
                    break
                self._changed.clear()
                await self._changed.wait()
        return await self._finish_workflow()

    def _ready_steps(self) -> Iterator[_StepRun]:
        """Yield the runs that may start now. Each must be started before the next is requested."""
        if self._find_failed() is not None:
            return
        for step in self._plan.steps:
            if len(self._running) >= self._plan.parallelism:
                return
            if step.id in self._running or self._record.act(step.id).ended:
                continue
            if not all(self._record.act(need).ended for need in step.needs):
                continue
            work = _StepRun(step, step.call, self._catalogue[step.call.tool])
            if not (work.changes and any(running.changes for running in self._running.values())):
                yield work

    def _find_failed(self) -> Step | None:
        """Return the step whose failure ends the workflow."""
        failed = (
            step
            for step in self._plan.steps
            if self._record.state(step.id) in {StepState.FAILED, StepState.UNKNOWN}
        )
        return next((step for step in failed if step.on_failure != "continue"), None)

    async def _run_step(self, work: _StepRun) -> None:
        try:
            if missing := self._find_missing_output(work):
                error = f"not run: it refers to {missing}, which did not succeed"
                await self._record_step(work.step.id, StepState.SKIPPED, 0, error=error)
            else:
                await self._run_to_end(work)
        finally:
            del self._running[work.step.id]
            self._changed.set()

    def _find_missing_output(self, work: _StepRun) -> str:
        """Return a step without output that this one refers to, or an empty string."""
        referenced = (
            reference.step
            for reference in references(work.call.arguments)
            if reference.part == "output"
        )
        return next(
            (name for name in referenced if self._record.state(name) is not StepState.SUCCEEDED), ""
        )

    async def _run_to_end(self, work: _StepRun) -> StepState:
        """Run a step until it succeeds or fails for good."""
        act = self._record.act(work.step.id, compensation=work.compensation)
        result = await self._recover_attempt(work, act)
        crashes = 0
        while True:
            if result is None:
                await self._record_state(work, StepState.STARTED, act.attempt + 1)
                result = await self._attempt(work, act.attempt)
            interrupted = result.status is ToolStatus.OUTCOME_UNKNOWN and not work.spec.outside
            if interrupted:
                crashes += 1
                await self._executor.rewind(self._record.commit)
                if crashes < _MAX_CRASHES:
                    result = None
                    continue
            commit, error = await self._commit(work, _failure_reason(work, result))
            if error and self._may_retry(work, act, result):
                await self._record_state(
                    work, StepState.RETRYING, act.attempt, result=result, error=error, commit=commit
                )
                await asyncio.sleep(work.step.pause)
                result = None
                continue
            state = StepState.FAILED if error else StepState.SUCCEEDED
            if result.status is ToolStatus.OUTCOME_UNKNOWN and work.spec.outside:
                state = StepState.UNKNOWN
            await self._record_state(
                work, state, act.attempt, result=result, error=error, commit=commit
            )
            return state

    async def _recover_attempt(self, work: _StepRun, act: Act) -> ToolResult | None:
        """Return the result of an attempt that a crash interrupted, if it can be known. Return None
        if the step is to run again.
        """
        if act.state is StepState.PARKED:
            return await self._attempt(work, act.attempt)
        if act.state is not StepState.STARTED or not work.spec.outside:
            return None
        request_id = _request_id(self._plan, work, act.attempt)
        result = await self._executor.find_result(request_id)
        explanation = (
            "a crash interrupted it, so its outcome is unknown; check it before you repeat it"
        )
        if isinstance(result, ToolResult):
            if result.status is ToolStatus.PARKED:
                return await self._attempt(work, act.attempt)
            if not (work.changes and result.status is ToolStatus.SUCCESS):
                return result
            explanation = (
                "it was done, but a crash took its file before that was kept; it is not done twice"
            )
        return (
            ToolResult(request_id, work.spec.name, ToolStatus.OUTCOME_UNKNOWN, error=explanation)
            if result
            else None
        )

    async def _attempt(self, work: _StepRun, attempt: int) -> ToolResult:
        request_id = _request_id(self._plan, work, attempt)
        try:
            arguments = fill_in(work.call.arguments, self._resolve_reference)
        except InvalidRequest as error:
            return ToolResult(request_id, work.spec.name, ToolStatus.INVALID, error=error.message)
        seconds = work.step.timeout or work.spec.timeout_seconds
        deadline = min(self._executor.deadline, datetime.now(UTC) + timedelta(seconds=seconds))
        call = ToolCall(request_id, work.spec.name, arguments, deadline)
        try:
            result = await self._executor.call(call)
            if result.status is ToolStatus.PARKED:
                await self._record_state(
                    work, StepState.PARKED, attempt, result=result, error=result.error
                )
                result = await self._executor.wait_until_resolved(call)
        except Refused as error:
            return ToolResult(request_id, work.spec.name, ToolStatus.BLOCKED, error=error.message)
        except Permanent as error:
            return ToolResult(request_id, work.spec.name, ToolStatus.ERROR, error=error.message)
        return result

    def _resolve_reference(self, reference: Reference) -> Any:
        result = self._record.act(reference.step).result
        return find_in({"output": {}, "status": "", "error": "", **result}, reference)

    def _may_retry(self, work: _StepRun, act: Act, result: ToolResult) -> bool:
        final_statuses = _FINAL_STATUSES_OUTSIDE if work.spec.outside else _FINAL_STATUSES
        return result.status not in final_statuses and act.failures + 1 < work.step.attempts

    async def _commit(self, work: _StepRun, error: str) -> tuple[str, str]:
        """Return the commit of the current files, and the error."""
        if not work.changes:
            return "", error
        try:
            return await self._executor.commit(), error
        except (PatchRefused, WorkspaceFailed) as commit_error:
            return "", error or f"its files cannot be kept: {commit_error.message}"

    async def _record_state(
        self,
        work: _StepRun,
        state: StepState,
        attempt: int,
        *,
        result: ToolResult | None = None,
        error: str = "",
        commit: str = "",
    ) -> None:
        await self._record_step(
            work.step.id,
            state,
            attempt,
            compensation=work.compensation,
            result=result,
            error=error,
            commit=commit,
        )

    async def _finish_workflow(self) -> tuple[End, str]:
        failed_step = self._find_failed()
        for step in self._plan.steps:
            if not self._record.act(step.id).ended:
                await self._skip_step(
                    step, f"not run: step {failed_step.id} failed" if failed_step else "not run"
                )
        if failed_step is None:
            states = {self._record.state(step.id) for step in self._plan.steps}
            return (End.SUCCEEDED if states == {StepState.SUCCEEDED} else End.PARTIAL), ""
        state = self._record.state(failed_step.id)
        reason = (
            f"step {failed_step.id}: "
            f"{'its outcome is unknown' if state is StepState.UNKNOWN else 'it failed'}"
        )
        if failed_step.on_failure != "compensate":
            return End.FAILED, reason
        not_undone = await self._compensate()
        if not_undone:
            return (
                End.FAILED,
                f"{reason}; the steps before it could not be undone for {', '.join(not_undone)}",
            )
        return End.COMPENSATED, f"{reason}; the steps before it were undone"

    async def _skip_step(self, step: Step, reason: str) -> None:
        """Record a step as skipped. If it acts outside and was interrupted, record its known result
        instead.
        """
        work, act = (
            _StepRun(step, step.call, self._catalogue[step.call.tool]),
            self._record.act(step.id),
        )
        result = await self._recover_attempt(work, act) if act.state is StepState.STARTED else None
        if result is None:
            await self._record_state(work, StepState.SKIPPED, act.attempt, error=reason)
        elif result.status is ToolStatus.OUTCOME_UNKNOWN:
            await self._record_state(
                work, StepState.UNKNOWN, act.attempt, result=result, error=result.error
            )
        else:
            failure = _failure_reason(work, result)
            await self._record_state(
                work,
                StepState.FAILED if failure else StepState.SUCCEEDED,
                act.attempt,
                result=result,
                error=failure,
            )

    async def _compensate(self) -> list[str]:
        """Undo the steps that succeeded, the last first. Return those that could not be undone; the
        others are undone nevertheless.
        """
        not_undone = []
        for name in reversed(self._record.completed_steps):
            step = self._plan.step(name)
            if step.compensate is None:
                continue
            act = self._record.act(name, compensation=True)
            work = _StepRun(
                step, step.compensate, self._catalogue[step.compensate.tool], compensation=True
            )
            state = act.state if act.ended else await self._run_to_end(work)
            if state is not StepState.SUCCEEDED:
                not_undone.append(name)
        return not_undone


def _request_id(plan: Workflow, work: _StepRun, attempt: int) -> str:
    return f"{plan.id}/{work.step.id}/{'undo/' if work.compensation else ''}{attempt}"


def _failure_reason(work: _StepRun, result: ToolResult) -> str:
    """Return why a result is not a success for its step, or an empty string."""
    if result.status is not ToolStatus.SUCCESS:
        return result.error or f"it ended with {result.status}"
    if work.step.accept == "any" or work.compensation:
        return ""
    verdict, code = result.output.get("verdict", "passed"), result.output.get("exit_code", 0)
    if verdict != "passed":
        return f"its verdict is {verdict}"
    return f"it exited with {code}" if code else ""
