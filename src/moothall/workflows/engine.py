"""Carries a plan out, one step after the other or side by side, and tells each turn as a fact
before it goes on.

Of the steps that may change files one runs at a time, and its files are kept with the fact of its
end: so a run that is taken up again begins with just the files of the steps that are on record. A
step within the workspace that was cut off is undone with its files and runs again; one that acts
beyond it, and whose end nobody knows, is never repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from moothall.domain.tool import Action, ToolCall, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, PatchRefused, Permanent, Refused, WorkspaceFailed
from moothall.tools.spec import Danger, ToolSpec
from moothall.workflows.plan import Step, Workflow
from moothall.workflows.record import Act, End, Record, StepState
from moothall.workflows.references import Reference, fill_in, find_in, references
from moothall.workflows.tool_steps import StepExecutor

_CRASHES = 3
_CHANGES = {Danger.WRITE, Danger.EXECUTE}
_NEVER_AGAIN = {
    ToolStatus.INVALID,
    ToolStatus.BLOCKED,
    ToolStatus.PARKED,
    ToolStatus.BUDGET_EXCEEDED,
    ToolStatus.CANCELLED,
    ToolStatus.OUTCOME_UNKNOWN,
}
# A call that went out and had no answer in time may have had its effect: repeating it is not ours
# to decide.
_NEVER_AGAIN_OUTSIDE = {*_NEVER_AGAIN, ToolStatus.TIMEOUT}


Tell = Callable[..., Awaitable[None]]
"""Writes what happened to a step down, as `Chronicle.step` does; returns once it is durable and in
the record.
"""


@dataclass(frozen=True, slots=True)
class _Work:
    """A step or its compensation, as it is carried out."""

    step: Step
    call: Action
    spec: ToolSpec
    compensation: bool = False

    @property
    def changes(self) -> bool:
        """Whether the workspace's files may be others after it."""
        return self.spec.danger in _CHANGES or bool(self.spec.writes)


class Engine:
    """One run of one plan from where its record stands."""

    def __init__(
        self,
        plan: Workflow,
        record: Record,
        hands: StepExecutor,
        tell: Tell,
        catalogue: Mapping[str, ToolSpec],
    ) -> None:
        self._plan = plan
        self._record = record
        self._hands = hands
        self._tell = tell
        self._catalogue = catalogue
        self._running: dict[str, _Work] = {}
        self._changed = asyncio.Event()

    async def run(self) -> tuple[End, str]:
        """Carry out what is not done yet. Return how it ended and why; raises what the log's
        publisher raises.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                for work in self._ready():
                    self._running[work.step.id] = work
                    group.create_task(self._turn(work), name=f"step {work.step.id}")
                if not self._running:
                    break
                self._changed.clear()
                await self._changed.wait()
        return await self._end()

    def _ready(self) -> Iterator[_Work]:
        """Yield what may begin now: each is to be begun before the next is asked for."""
        if self._find_failed() is not None:
            return
        for step in self._plan.steps:
            if len(self._running) >= self._plan.parallelism:
                return
            if step.id in self._running or self._record.act(step.id).ended:
                continue
            if not all(self._record.act(need).ended for need in step.needs):
                continue
            work = _Work(step, step.call, self._catalogue[step.call.tool])
            if not (work.changes and any(other.changes for other in self._running.values())):
                yield work

    def _find_failed(self) -> Step | None:
        """Return the step whose failure ends the workflow."""
        failed = (
            step
            for step in self._plan.steps
            if self._record.state(step.id) in {StepState.FAILED, StepState.UNKNOWN}
        )
        return next((step for step in failed if step.on_failure != "continue"), None)

    async def _turn(self, work: _Work) -> None:
        try:
            if lacking := self._find_lacking(work):
                error = f"not run: it refers to {lacking}, which did not succeed"
                await self._tell(work.step.id, StepState.SKIPPED, 0, error=error)
            else:
                await self._carry_out(work)
        finally:
            del self._running[work.step.id]
            self._changed.set()

    def _find_lacking(self, work: _Work) -> str:
        """Return a step that this one refers to and that has no output."""
        named = (
            reference.step
            for reference in references(work.call.arguments)
            if reference.part == "output"
        )
        return next(
            (name for name in named if self._record.state(name) is not StepState.SUCCEEDED), ""
        )

    async def _carry_out(self, work: _Work) -> StepState:
        """Let it run until it has succeeded, or has failed for good."""
        act = self._record.act(work.step.id, compensation=work.compensation)
        result = await self._take_up(work, act)
        crashes = 0
        while True:
            if result is None:
                await self._say(work, StepState.STARTED, act.attempt + 1)
                result = await self._attempt(work, act.attempt)
            lost = result.status is ToolStatus.OUTCOME_UNKNOWN and not work.spec.outside
            if lost:
                crashes += 1
                await self._hands.rewind(self._record.commit)
                if crashes < _CRASHES:
                    result = None
                    continue
            commit, error = await self._commit(work, _fault(work, result))
            if error and self._again(work, act, result):
                await self._say(
                    work, StepState.RETRYING, act.attempt, result=result, error=error, commit=commit
                )
                await asyncio.sleep(work.step.pause)
                result = None
                continue
            state = StepState.FAILED if error else StepState.SUCCEEDED
            if result.status is ToolStatus.OUTCOME_UNKNOWN and work.spec.outside:
                state = StepState.UNKNOWN
            await self._say(work, state, act.attempt, result=result, error=error, commit=commit)
            return state

    async def _take_up(self, work: _Work, act: Act) -> ToolResult | None:
        """Return the result of an attempt that a crash cut off, where it can be known; None to
        begin a fresh one.
        """
        if act.state is StepState.PARKED:
            return await self._attempt(work, act.attempt)
        if act.state is not StepState.STARTED or not work.spec.outside:
            return None
        name = _request_id(self._plan, work, act.attempt)
        known = await self._hands.find_result(name)
        words = (
            "it had begun when a crash came: whether it was done is not known; look before doing "
            "it again"
        )
        if isinstance(known, ToolResult):
            if known.status is ToolStatus.PARKED:
                return await self._attempt(work, act.attempt)
            if not (work.changes and known.status is ToolStatus.SUCCESS):
                return known
            words = (
                "it was done, but a crash took its file before that was kept; it is not done twice"
            )
        return (
            ToolResult(name, work.spec.name, ToolStatus.OUTCOME_UNKNOWN, error=words)
            if known
            else None
        )

    async def _attempt(self, work: _Work, attempt: int) -> ToolResult:
        name = _request_id(self._plan, work, attempt)
        try:
            arguments = fill_in(work.call.arguments, self._look_up)
        except InvalidRequest as error:
            return ToolResult(name, work.spec.name, ToolStatus.INVALID, error=error.message)
        seconds = work.step.timeout or work.spec.timeout_seconds
        deadline = min(self._hands.deadline, datetime.now(UTC) + timedelta(seconds=seconds))
        call = ToolCall(name, work.spec.name, arguments, deadline)
        try:
            result = await self._hands.call(call)
            if result.status is ToolStatus.PARKED:
                await self._say(work, StepState.PARKED, attempt, result=result, error=result.error)
                result = await self._hands.wait_until_resolved(call)
        except Refused as error:
            return ToolResult(name, work.spec.name, ToolStatus.BLOCKED, error=error.message)
        except Permanent as error:
            return ToolResult(name, work.spec.name, ToolStatus.ERROR, error=error.message)
        return result

    def _look_up(self, reference: Reference) -> Any:
        result = self._record.act(reference.step).result
        return find_in({"output": {}, "status": "", "error": "", **result}, reference)

    def _again(self, work: _Work, act: Act, result: ToolResult) -> bool:
        never = _NEVER_AGAIN_OUTSIDE if work.spec.outside else _NEVER_AGAIN
        return result.status not in never and act.failures + 1 < work.step.attempts

    async def _commit(self, work: _Work, error: str) -> tuple[str, str]:
        """Return the commit with the files as they are now, and what is wrong."""
        if not work.changes:
            return "", error
        try:
            return await self._hands.commit(), error
        except (PatchRefused, WorkspaceFailed) as refused:
            return "", error or f"its files cannot be kept: {refused.message}"

    async def _say(
        self,
        work: _Work,
        state: StepState,
        attempt: int,
        *,
        result: ToolResult | None = None,
        error: str = "",
        commit: str = "",
    ) -> None:
        await self._tell(
            work.step.id,
            state,
            attempt,
            compensation=work.compensation,
            result=result,
            error=error,
            commit=commit,
        )

    async def _end(self) -> tuple[End, str]:
        stopped = self._find_failed()
        for step in self._plan.steps:
            if not self._record.act(step.id).ended:
                await self._leave_out(
                    step, f"not run: step {stopped.id} failed" if stopped else "not run"
                )
        if stopped is None:
            states = {self._record.state(step.id) for step in self._plan.steps}
            return (End.SUCCEEDED if states == {StepState.SUCCEEDED} else End.PARTIAL), ""
        state = self._record.state(stopped.id)
        reason = (
            f"step {stopped.id}: "
            f"{'its outcome is unknown' if state is StepState.UNKNOWN else 'it failed'}"
        )
        if stopped.on_failure != "compensate":
            return End.FAILED, reason
        left = await self._compensate()
        if left:
            return (
                End.FAILED,
                f"{reason}; what was done before could not be undone for {', '.join(left)}",
            )
        return End.COMPENSATED, f"{reason}; what was done before was undone"

    async def _leave_out(self, step: Step, because: str) -> None:
        """Say of a step that it does not run; of one that acts outside and was cut off, what is
        known of it.
        """
        work, act = (
            _Work(step, step.call, self._catalogue[step.call.tool]),
            self._record.act(step.id),
        )
        result = await self._take_up(work, act) if act.state is StepState.STARTED else None
        if result is None:
            await self._say(work, StepState.SKIPPED, act.attempt, error=because)
        elif result.status is ToolStatus.OUTCOME_UNKNOWN:
            await self._say(work, StepState.UNKNOWN, act.attempt, result=result, error=result.error)
        else:
            fault = _fault(work, result)
            await self._say(
                work,
                StepState.FAILED if fault else StepState.SUCCEEDED,
                act.attempt,
                result=result,
                error=fault,
            )

    async def _compensate(self) -> list[str]:
        """Undo what succeeded, the last first. Return the steps for which that failed; the others
        are undone nevertheless.
        """
        left = []
        for name in reversed(self._record.done):
            step = self._plan.step(name)
            if step.compensate is None:
                continue
            act = self._record.act(name, compensation=True)
            work = _Work(
                step, step.compensate, self._catalogue[step.compensate.tool], compensation=True
            )
            state = act.state if act.ended else await self._carry_out(work)
            if state is not StepState.SUCCEEDED:
                left.append(name)
        return left


def _request_id(plan: Workflow, work: _Work, attempt: int) -> str:
    return f"{plan.id}/{work.step.id}/{'undo/' if work.compensation else ''}{attempt}"


def _fault(work: _Work, result: ToolResult) -> str:
    """Return why a result is no success for its step, or nothing."""
    if result.status is not ToolStatus.SUCCESS:
        return result.error or f"it ended with {result.status}"
    if work.step.accept == "any" or work.compensation:
        return ""
    verdict, code = result.output.get("verdict", "passed"), result.output.get("exit_code", 0)
    if verdict != "passed":
        return f"its verdict is {verdict}"
    return f"it exited with {code}" if code else ""
