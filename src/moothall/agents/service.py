"""The agent service: runs one query from start to end. Tools run at once if the context asks for
them; otherwise the deliberation service runs an agent or a council.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from moothall.agents.admission import (
    MAX_QUERY_SECONDS,
    AgentSessions,
    CallAdmission,
    written_paths,
)
from moothall.agents.queries import Mode, Query, SessionContext, ToolRun, ToolSequenceRunner
from moothall.concurrency import merge
from moothall.config import AgentSettings
from moothall.domain.budget import Budget, Usage
from moothall.domain.chat import Writing
from moothall.domain.event import EventType, Recorded
from moothall.domain.ids import Principal, TaskId, check_task_id, digest, is_id
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.domain.tool import Action, ToolResult, ToolStatus
from moothall.errors import InvalidRequest, MoothallError
from moothall.ports import Deliberations
from moothall.telemetry import get_logger
from moothall.tool_sessions.manager import ToolSessions
from moothall.tools.catalogue import is_granted
from moothall.tools.spec import ToolSpec

log = get_logger(__name__)

_CANCEL_SECONDS = 10.0
_DEFAULT_SEATS = 3
_STREAM_BUFFER = 64
"""Updates of a stream that wait for a slow caller; later ones are fetched when it has caught up."""
_RESERVE_FACTOR, _RESERVE_SECONDS = 1.5, 125.0
"""Upper bounds of the time that a deliberation reserves for the steps after the work
(deliberation/context.py): it reserves less than a third of its time, and less than these seconds.
"""
ANSWER_RESTARTED = "the answer begins anew"
"""The message of a piece of an answer that replaces all pieces before."""
_STATUSES = frozenset(map(str, ToolStatus))
_LIMIT_STATUSES = {
    status: status.value
    for status in (ToolStatus.TIMEOUT, ToolStatus.RATE_LIMITED, ToolStatus.BUDGET_EXCEEDED)
}


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a query.

    `status` is ok, error, timeout, rate_limited or budget_exceeded. `agents` is 0 if no model was
    asked; otherwise `model` is the (first) agent's model in the settings, `served` its name at the
    server. `is_fault` is true if the service failed, and not a limit that the caller chose.
    """

    task_id: str
    status: str
    mode: Mode
    result: str = ""
    error: str = ""
    ran: tuple[ToolRun, ...] = ()
    usage: Usage = Usage()
    agents: int = 0
    latency_ms: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    served: str = ""
    is_fault: bool = False

    @property
    def ok(self) -> bool:
        """True if the query succeeded."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class QueryUpdate:
    """An update on a running query: a message, a tool that is called, its result, or the next piece
    of the answer.
    """

    message: str = ""
    progress: float = 0.0
    action: Action | None = None
    ran: ToolRun | None = None
    delta: str = ""
    tool_id: str = ""
    """The id of the call of `action`; '' if it is not known yet."""


class _PartialAnswer:
    """The part of an answer that its caller has received while it is written."""

    def __init__(self) -> None:
        self._sent = ""

    def next_piece(
        self, answer: str, progress: float, *, is_complete: bool = False
    ) -> QueryUpdate | None:
        """Return the next piece. If the model starts another answer, its first piece says so."""
        sent_text, continues = self._sent, answer.startswith(self._sent)
        if answer == sent_text or (sent_text.startswith(answer) and not is_complete):
            return None
        self._sent = answer
        return QueryUpdate(
            "" if continues else ANSWER_RESTARTED,
            progress,
            delta=answer[len(sent_text) :] if continues else answer,
        )


class AgentTasks:
    """The agent service.

    `parallelism` is how many calls of a sequence run side by side, `memory_mb` the memory limit of
    a tool, `deliberation_seconds` the time limit of a deliberation.
    """

    def __init__(
        self,
        deliberations: Deliberations,
        tool_sessions: ToolSessions,
        sessions: AgentSessions,
        settings: AgentSettings,
        *,
        parallelism: int = 1,
        memory_mb: int = 0,
        deliberation_seconds: float = math.inf,
    ) -> None:
        self._deliberations = deliberations
        self._tool_sessions = tool_sessions
        self._sessions = sessions
        self._settings = settings
        self._sequence_runner = ToolSequenceRunner(tool_sessions, parallelism)
        self._deliberation_seconds = deliberation_seconds
        self.memory_mb = memory_mb
        self._admission = CallAdmission(settings)

    def count_active(self, principal: Principal) -> int:
        """Return how many queries of the caller's tenant are running."""
        return self._admission.count_active(principal.tenant)

    @property
    def max_tasks(self) -> int:
        """The maximum number of concurrent queries of one tenant."""
        return self._settings.tasks

    def list_tools(self, principal: Principal) -> tuple[ToolSpec, ...]:
        """Return the tools of the caller's tenant."""
        return self._tool_sessions.list_tools(principal)

    async def execute(self, query: Query, principal: Principal) -> Report:
        """Run a query to its end. Raises what admission, the deliberation service and the tool
        sessions raise.
        """
        report: Report | None = None
        async with aclosing(self.steps(query, principal)) as steps:
            async for step in steps:
                if isinstance(step, Report):
                    report = step
        if report is None:
            raise AssertionError("the last step is the report")
        return report

    async def steps(
        self, query: Query, principal: Principal
    ) -> AsyncGenerator[QueryUpdate | Report]:
        """Yield updates, the first once the query is admitted, and at last the report. Closing the
        generator ends the query.
        """
        began = time.monotonic()
        query = query.with_known_tools(self._tool_sessions.gateway.catalogue)
        actions = query.direct()
        if actions is None:  # tools do not use the session
            query = await self._sessions.with_session(query, principal)
        admitted_call = self._admission.admit(
            principal, query.length, query.timeout_seconds, uses_model=actions is None
        )
        async with admitted_call as mark_failed:
            yield QueryUpdate("begins")
            stream = (
                self._run_tools(query, principal, actions)
                if actions is not None
                else self._run_deliberation(query, principal)
            )
            async with aclosing(stream) as updates:
                async for update in updates:
                    if isinstance(update, Report):
                        report = replace(
                            update, latency_ms=round((time.monotonic() - began) * 1000)
                        )
                        if report.is_fault:
                            mark_failed()
                        await self._save_session(query, principal, report)
                        yield report
                    else:
                        yield update

    async def _run_tools(
        self, query: Query, principal: Principal, actions: tuple[Action, ...]
    ) -> AsyncGenerator[QueryUpdate | Report]:
        specs_by_name = {spec.name: spec for spec in self.list_tools(principal)}
        for action in actions:
            if action.tool not in specs_by_name:
                raise InvalidRequest(
                    f"there is no tool {action.tool[:80]!r}; DiscoverTools lists all tools"
                )
            yield QueryUpdate(f"runs {action.tool}", action=action)
        async with self._sessions.workspace(query, principal) as opened_session:
            try:
                runs = await self._sequence_runner.run_tools(
                    principal, opened_session, actions, query.task_id
                )
            except* MoothallError as group:
                raise _first_error(group) from None
        for run in runs:
            yield QueryUpdate(f"{run.action.tool}: {run.result.status}", ran=run)
        errors = "; ".join(
            f"{run.action.tool}: {run.result.error or run.result.status}"
            for run in runs
            if not run.ok
        )
        outputs = [run.result.output for run in runs]
        result = json.dumps(
            outputs if query.is_sequence() else outputs[0], ensure_ascii=False, default=str
        )
        status = (
            "ok"
            if not errors
            else "error"
            if query.is_sequence()
            else _LIMIT_STATUSES.get(runs[0].result.status, "error")
        )
        yield Report(query.task_id, status, Mode.SIMPLE, "" if errors else result, errors, runs)

    async def _run_deliberation(
        self, query: Query, principal: Principal
    ) -> AsyncGenerator[QueryUpdate | Report]:
        request = await self._request_for(query, principal)
        task_id = check_task_id(request.task_id)
        is_submitted = is_ended = False
        answer, progress, served = _PartialAnswer(), 0.0, ""
        runs: list[ToolRun] = []
        try:
            submitted_request = await self._deliberations.submit(request, principal)
            is_submitted = True
            events: AsyncGenerator[Recorded | Writing, None] = self._deliberations.watch(
                task_id, 0, principal
            )
            # With several seats, the text of none of them is the answer.
            texts = (
                [self._deliberations.watch_text(task_id, principal)]
                if request.num_agents == 1
                else []
            )
            async with aclosing(merge(events, *texts, max_queued=_STREAM_BUFFER)) as updates:
                async for item in updates:
                    served = served or _served_model(item)
                    for call in _recorded_calls(item):
                        runs.append(call)
                        yield QueryUpdate(
                            progress=progress, action=call.action, tool_id=call.tool_id
                        )
                        yield QueryUpdate(progress=progress, ran=call)
                    update = (
                        answer.next_piece(item.answer, progress)
                        if isinstance(item, Writing)
                        else _update_of(item)
                    )
                    if update is not None:
                        progress = max(progress, update.progress)
                        yield update
            outcome = await self._deliberations.wait(task_id, principal)
            is_ended = True
        finally:
            if is_submitted and not is_ended:
                await asyncio.shield(self._cancel_deliberation(task_id, principal))
        report = _report_of(outcome, query)
        if report.status == "timeout" and query.timeout_seconds:
            # Admission raises the timeout once the caller's time is over.
            await asyncio.Event().wait()
        if (
            report.ok
            and (last_piece := answer.next_piece(report.result, progress, is_complete=True))
            is not None
        ):
            yield last_piece
        yield replace(
            report,
            ran=tuple(runs),
            model=submitted_request.model_of(submitted_request.seats[0]),
            served=served,
        )

    async def _request_for(self, query: Query, principal: Principal) -> DeliberationRequest:
        """Return the deliberation that answers a query. Raises `InvalidRequest`."""
        if not query.query.strip():
            raise InvalidRequest(
                "the query is empty, and context names no tools to run (tool_parameters, "
                "tool_calls)"
            )
        request = _deliberation_request(
            query, self._seconds_for(query), await self._repository_for(query, principal)
        )
        return replace(
            request, tools=() if request.about_text else self._tools_for(query, principal)
        )

    async def _repository_for(self, query: Query, principal: Principal) -> RepositoryRef | None:
        """Return the repository that the query names, else an empty one, or None to work on text.

        A council without a repository has no tests to judge by and works on text. A single agent in
        the mode simple has tools only if the query names some.
        """
        repository = query.repository()
        has_tools = query.mode is Mode.STANDARD or (
            query.mode is Mode.SIMPLE and query.tools() is not None
        )
        return (
            repository
            if repository is not None or not has_tools
            else await self._sessions.blank(principal.tenant)
        )

    def _seconds_for(self, query: Query) -> int:
        """Return the seconds that a query's deliberation may take, 0 for the default.

        A council judges within the caller's time. A single agent may work for all of it: since a
        deliberation reserves a share of its time for the steps after the work, it gets more than
        the caller asked for, and admission ends it.
        """
        if not query.timeout_seconds:
            return 0
        seconds = min(query.timeout_seconds, MAX_QUERY_SECONDS)
        if query.mode is not Mode.COMPLEX:
            seconds = min(seconds * _RESERVE_FACTOR + 1, seconds + _RESERVE_SECONDS)
        return max(1, int(min(math.ceil(seconds), self._deliberation_seconds)))

    def _tools_for(self, query: Query, principal: Principal) -> tuple[str, ...]:
        """Return the tools of its role that an agent may use, () for all.

        Raises `InvalidRequest` if none is left.
        """
        allowed = query.tools()
        if allowed is None:
            return ()
        grant = self._tool_sessions.gateway.grant_for(query.role)
        granted = [spec.name for spec in self.list_tools(principal) if is_granted(grant, spec.name)]
        if tools := tuple(name for name in granted if name in allowed):
            return tools
        raise InvalidRequest(
            f"none of the allowed tools is granted to the role {query.role}, which has for "
            f"example {', '.join(granted[:5])}; DiscoverTools lists all tools"
        )

    async def _cancel_deliberation(self, task_id: TaskId, principal: Principal) -> None:
        with suppress(MoothallError, TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self._deliberations.cancel(
                    task_id, "the caller went away, or the time limit was reached", principal
                )

    async def _save_session(self, query: Query, principal: Principal, report: Report) -> None:
        calls = [run.action for run in report.ran if run.ok]
        new_context = SessionContext(
            files_created=written_paths(
                {spec.name: spec for spec in self.list_tools(principal)}, calls
            ),
            tools_used=tuple(dict.fromkeys(run.action.tool for run in report.ran)),
            total_tokens_used=report.usage.tokens,
            total_cost_usd=report.usage.cost_usd,
        )
        turn = (query.query, report.result or report.error) if report.agents else ()
        await self._sessions.record_turn(query, principal, turn, new_context)


def _first_error(group: BaseExceptionGroup[MoothallError]) -> MoothallError:
    error = group.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error


def _deliberation_request(
    query: Query, seconds: int, repository: RepositoryRef | None
) -> DeliberationRequest:
    """Return the request for a deliberation of `seconds` on `repository`; None: about text.

    A task id of the caller's that is not a valid id here is replaced by its digest.
    """
    task_id = query.task_id
    council = query.mode is Mode.COMPLEX
    if council:
        protocol, seats = "", query.max_agents or _DEFAULT_SEATS
    else:
        protocol, seats = (
            ("single" if query.mode is Mode.SIMPLE and repository is None else "ask"),
            1,
        )
    return DeliberationRequest(
        description=query.instructions(),
        role=query.role,
        task_id=task_id if is_id(task_id) else f"task-{digest(task_id)[:24]}",
        constraints=Constraints(max_iterations=query.max_iterations, timeout_seconds=seconds),
        num_agents=seats,
        repository=repository,
        protocol=protocol,
        budget=Budget(tokens=query.token_budget),
        about_text=repository is None,
        model=query.model,
        records_calls=repository is not None,
    )


def _recorded_calls(item: Recorded | Writing) -> Iterator[ToolRun]:
    """Yield the tool calls that a turn records. Fields of the wrong type are treated as missing."""
    if isinstance(item, Writing) or item.event.type is not EventType.SEAT_TURN:
        return
    calls = item.event.data.get("calls")
    for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
        if not isinstance(call, Mapping):
            continue
        arguments, output = (
            value if isinstance(value := call.get(name), Mapping) else {}
            for name in ("arguments", "output")
        )
        status, milliseconds = str(call.get("status")), call.get("duration_ms")
        result = ToolResult(
            request_id=str(call.get("id") or ""),
            tool=str(call.get("tool") or ""),
            status=ToolStatus(status) if status in _STATUSES else ToolStatus.ERROR,
            output=output,
            error=str(call.get("error") or ""),
            duration_ms=milliseconds if isinstance(milliseconds, int) else 0,
        )
        yield ToolRun(Action(result.tool, arguments), result.request_id, result)


def _served_model(item: Recorded | Writing) -> str:
    """Return the model of a recorded call, as its server names it; '' for other events."""
    if isinstance(item, Writing) or item.event.type is not EventType.MODEL_CALLED:
        return ""
    name = item.event.data.get("model")
    return name if isinstance(name, str) else ""


def _update_of(recorded: Recorded) -> QueryUpdate | None:
    """Return the update for an event of a deliberation, None for most events."""
    event = recorded.event
    seat = str(event.data.get("seat") or "")
    match event.type:
        case EventType.DELIBERATION_STARTED:
            return QueryUpdate("an agent is at work", 0.05)
        case EventType.SEAT_TURN:
            thought = event.data.get("thought")
            return QueryUpdate(f"{seat}: {thought}" if thought else f"{seat} has taken a turn", 0.3)
        case EventType.SEAT_PROPOSED:
            return QueryUpdate(f"{seat} has an answer", 0.6)
        case EventType.SEAT_REVISED:
            return QueryUpdate(f"{seat} has a better answer", 0.8)
    return None


def _report_of(outcome: Outcome, query: Query) -> Report:
    """Return the report on a deliberation."""
    best = next((result for result in outcome.results if result.seat == outcome.winner_id), None)
    attributes = {
        "branch": outcome.branch,
        "commit_sha": outcome.commit_sha,
        "winner_id": outcome.winner_id,
    }
    details: dict[str, Any] = {name: value for name, value in attributes.items() if value}
    if best is not None and best.diff:
        details |= {
            "proven": outcome.proven,
            "evidence_level": outcome.level.value,
            "diff": best.diff,
        }
    failed = best is None or outcome.status is not DeliberationStatus.COMPLETED
    status = "ok"
    codes = {seat.error_code for seat in outcome.seats if seat.error_code}
    if failed:
        timed_out = outcome.status is DeliberationStatus.FAILED and "DEADLINE_EXCEEDED" in codes
        over_budget = "BUDGET_EXCEEDED" in codes
        status = (
            "timeout"
            if timed_out or outcome.status is DeliberationStatus.TIMEOUT
            else "budget_exceeded"
            if over_budget
            else "error"
        )
    ended_by_caller = outcome.status is DeliberationStatus.CANCELLED or (
        query.max_iterations and codes == {"OUT_OF_TURNS"}
    )
    return Report(
        query.task_id,
        status,
        query.mode,
        result=best.content if best is not None and not failed else "",
        error=(
            outcome.error_message
            or f"no answer was good enough: {outcome.final_state or outcome.status}"
        )
        if failed
        else "",
        usage=outcome.usage,
        agents=outcome.agent_count,
        about=details,
        is_fault=status in {"error", "timeout"} and not ended_by_caller,
    )
