"""One query from its beginning to its end: tools at once where the context asks for them, else an
agent or a council at the deliberation service.
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

from moothall.agents.admission import CallAdmission
from moothall.agents.queries import Mode, Query, SessionContext
from moothall.agents.sessions import AgentSessions, written_paths
from moothall.agents.tool_sequence import ToolRun, ToolSequenceRunner
from moothall.concurrency import merge
from moothall.config import AgentSettings
from moothall.domain.budget import Budget, Usage
from moothall.domain.chat import Writing
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import Principal
from moothall.domain.ids import digest, is_id
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
_COUNCIL = 3
_MORE, _MORE_SECONDS = 1.5, 125.0
"""Bounds of the time that a deliberation reserves for what follows the work
(deliberation/context.py): less than a third of the whole, and less than these seconds.
"""
ANEW = "the answer begins anew"
"""Said with a piece of it that follows none of those before."""
_STATUSES = frozenset(map(str, ToolStatus))
_KINDS = {
    status: status.value
    for status in (ToolStatus.TIMEOUT, ToolStatus.RATE_LIMITED, ToolStatus.BUDGET_EXCEEDED)
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a query came to. `status` is ok, error, timeout, rate_limited or budget_exceeded;
    `agents` 0 where no model was asked, else `model` is the name of the (first) agent's in the
    settings. `served`: the model's name at
    its server. `is_fault`: the service failed, and no limit that the caller chose ended the query.
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
        """Whether it came to what was asked."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class QueryUpdate:
    """Something that happens on the way: what is done, a tool that is called, what came of it, or
    the next piece of the answer.
    """

    message: str = ""
    progress: float = 0.0
    wanted: Action | None = None
    ran: ToolRun | None = None
    delta: str = ""
    tool_id: str = ""
    """The id of the `wanted` call; '' if it is not known yet."""


class _Answer:
    """What of an answer its caller has been given while it is written."""

    def __init__(self) -> None:
        self._given = ""

    def more(self, answer: str, progress: float, *, whole: bool = False) -> QueryUpdate | None:
        """Return the piece that comes next. A model that could not be understood writes another
        answer: its first piece says so.
        """
        given, goes_on = self._given, answer.startswith(self._given)
        if answer == given or (given.startswith(answer) and not whole):
            return None
        self._given = answer
        return QueryUpdate(
            "" if goes_on else ANEW, progress, delta=answer[len(given) :] if goes_on else answer
        )


class AgentTasks:
    """What the agent service answers.

    `parallelism` is how many calls of a sequence run side by side, `memory_mb` the memory limit of
    a tool, `deliberation_seconds` the time limit of a deliberation.
    """

    def __init__(
        self,
        deliberations: Deliberations,
        visits: ToolSessions,
        sessions: AgentSessions,
        settings: AgentSettings,
        *,
        parallelism: int = 1,
        memory_mb: int = 0,
        deliberation_seconds: float = math.inf,
    ) -> None:
        self._deliberations = deliberations
        self._visits = visits
        self._sessions = sessions
        self._settings = settings
        self._direct = ToolSequenceRunner(visits, parallelism)
        self._deliberation_seconds = deliberation_seconds
        self.memory_mb = memory_mb
        self._enforcer = CallAdmission(settings)

    def count_active(self, who: Principal) -> int:
        """Return how many queries of the caller's tenant are running."""
        return self._enforcer.count_active(who.tenant)

    @property
    def most(self) -> int:
        """Queries of one tenant that may run at a time."""
        return self._settings.tasks

    def list_tools(self, who: Principal) -> tuple[ToolSpec, ...]:
        """Return the tools that the caller's tenant has."""
        return self._visits.list_tools(who)

    async def execute(self, query: Query, who: Principal) -> Report:
        """Run a query to its end. Raises what the enforcer, the deliberation service and the
        visits raise.
        """
        report: Report | None = None
        async with aclosing(self.steps(query, who)) as steps:
            async for step in steps:
                if isinstance(step, Report):
                    report = step
        if report is None:
            raise AssertionError("the last step is the report")
        return report

    async def steps(self, query: Query, who: Principal) -> AsyncGenerator[QueryUpdate | Report]:
        """Yield what happens, first that it was let through, and last the report. A caller that
        goes ends the query.
        """
        began = time.monotonic()
        query = query.with_known_tools(self._visits.gate.catalogue)
        wanted = query.direct()
        if wanted is None:  # tools are told nothing of it
            query = await self._sessions.with_session(query, who)
        admitted = self._enforcer.admit(
            who, query.length, query.timeout_seconds, uses_model=wanted is None
        )
        async with admitted as failed:
            yield QueryUpdate("begins")
            found = (
                self._tools(query, who, wanted) if wanted is not None else self._agent(query, who)
            )
            async with aclosing(found) as steps:
                async for step in steps:
                    if isinstance(step, Report):
                        report = replace(step, latency_ms=round((time.monotonic() - began) * 1000))
                        if report.is_fault:
                            failed()
                        await self._keep(query, who, report)
                        yield report
                    else:
                        yield step

    async def _tools(
        self, query: Query, who: Principal, wanted: tuple[Action, ...]
    ) -> AsyncGenerator[QueryUpdate | Report]:
        known = {spec.name: spec for spec in self.list_tools(who)}
        for item in wanted:
            if item.tool not in known:
                raise InvalidRequest(
                    f"there is no tool {item.tool[:80]!r}; DiscoverTools lists those that there are"
                )
            yield QueryUpdate(f"runs {item.tool}", wanted=item)
        async with self._sessions.workspace(query, who) as opened:
            try:
                ran = await self._direct.run(who, opened, wanted, query.task_id)
            except* MoothallError as group:
                raise _first(group) from None
        for one in ran:
            yield QueryUpdate(f"{one.wanted.tool}: {one.result.status}", ran=one)
        wrong = "; ".join(
            f"{one.wanted.tool}: {one.result.error or one.result.status}"
            for one in ran
            if not one.ok
        )
        outputs = [one.result.output for one in ran]
        said = json.dumps(
            outputs if query.is_sequence() else outputs[0], ensure_ascii=False, default=str
        )
        status = (
            "ok"
            if not wrong
            else "error"
            if query.is_sequence()
            else _KINDS.get(ran[0].result.status, "error")
        )
        yield Report(query.task_id, status, Mode.SIMPLE, "" if wrong else said, wrong, ran)

    async def _agent(self, query: Query, who: Principal) -> AsyncGenerator[QueryUpdate | Report]:
        if not query.query.strip():
            raise InvalidRequest(
                "the query is empty, and context names no tools to run (tool_parameters, "
                "tool_calls)"
            )
        request = _request(query, self._seconds_of(query), await self._repository_of(query, who))
        request = replace(request, tools=() if request.about_text else self._tools_of(query, who))
        task_id = request.task_id
        submitted = ended = False
        answer, progress, served = _Answer(), 0.0, ""
        ran: list[ToolRun] = []
        try:
            asked = await self._deliberations.submit(request, who)
            submitted = True
            facts: AsyncGenerator[Recorded | Writing, None] = self._deliberations.watch(
                task_id, 0, who
            )
            # Where several seats write, none of them writes the answer.
            texts = (
                [self._deliberations.watch_text(task_id, who)] if request.num_agents == 1 else []
            )
            async with aclosing(merge(facts, *texts, most=self._settings.stream_buffer)) as told:
                async for one in told:
                    served = served or _model_of(one)
                    for call in _calls(one):
                        ran.append(call)
                        yield QueryUpdate(
                            progress=progress, wanted=call.wanted, tool_id=call.tool_id
                        )
                        yield QueryUpdate(progress=progress, ran=call)
                    step = (
                        answer.more(one.answer, progress)
                        if isinstance(one, Writing)
                        else _step(one)
                    )
                    if step is not None:
                        progress = max(progress, step.progress)
                        yield step
            outcome = await self._deliberations.wait(task_id, who)
            ended = True
        finally:
            if submitted and not ended:
                await asyncio.shield(self._abandon(task_id, who))
        report = _report(outcome, query)
        if report.status == "timeout" and query.timeout_seconds:
            await asyncio.Event().wait()  # the enforcer answers once the caller's time is over
        if report.ok and (rest := answer.more(report.result, progress, whole=True)) is not None:
            yield rest
        yield replace(report, ran=tuple(ran), model=asked.model_of(asked.seats[0]), served=served)

    async def _repository_of(self, query: Query, who: Principal) -> RepositoryRef | None:
        """Return the repository that the query names, else an empty one, or None to work on text.

        A council without a repository has no tests to judge by and works on text. A single agent in
        the mode simple has tools only if the query names some.
        """
        named = query.repository()
        has_tools = query.mode is Mode.STANDARD or (
            query.mode is Mode.SIMPLE and query.tools() is not None
        )
        return (
            named if named is not None or not has_tools else await self._sessions.blank(who.tenant)
        )

    def _seconds_of(self, query: Query) -> int:
        """Return the seconds that a query's deliberation may take, 0 for the default.

        A council judges within the caller's time. A single agent may work for all of it: since a
        deliberation reserves a share of its time for what follows the work, it is given more than
        the caller asked for, and the enforcer ends it.
        """
        if not query.timeout_seconds:
            return 0
        given = min(query.timeout_seconds, self._settings.timeout_seconds)
        if query.mode is not Mode.COMPLEX:
            given = min(given * _MORE + 1, given + _MORE_SECONDS)
        return max(1, int(min(math.ceil(given), self._deliberation_seconds)))

    def _tools_of(self, query: Query, who: Principal) -> tuple[str, ...]:
        """Return the tools of its role that an agent may use, () for all.

        Raises `InvalidRequest` if none is left.
        """
        allowed = query.tools()
        if allowed is None:
            return ()
        grant = self._visits.gate.grant_for(query.role)
        granted = [spec.name for spec in self.list_tools(who) if is_granted(grant, spec.name)]
        if tools := tuple(name for name in granted if name in allowed):
            return tools
        raise InvalidRequest(
            f"none of the tools that are allowed is one of the role {query.role}, such as "
            f"{', '.join(granted[:5])}; DiscoverTools lists all"
        )

    async def _abandon(self, task_id: str, who: Principal) -> None:
        with suppress(MoothallError, TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self._deliberations.cancel(
                    task_id, "its caller went away, or its time was over", who
                )

    async def _keep(self, query: Query, who: Principal, report: Report) -> None:
        calls = [one.wanted for one in report.ran if one.ok]
        used = SessionContext(
            files_created=written_paths({spec.name: spec for spec in self.list_tools(who)}, calls),
            tools_used=tuple(dict.fromkeys(one.wanted.tool for one in report.ran)),
            total_tokens_used=report.usage.tokens,
            total_cost_usd=report.usage.cost_usd,
        )
        asked = (query.query, report.result or report.error) if report.agents else ()
        await self._sessions.keep(query, who, asked, used)


def _first(group: BaseExceptionGroup[MoothallError]) -> MoothallError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _request(query: Query, seconds: int, repository: RepositoryRef | None) -> DeliberationRequest:
    """Return the request for a deliberation of `seconds` on `repository`; None: about text.

    A task id of the caller's that is not a valid id here is replaced by its digest.
    """
    named = query.task_id
    council = query.mode is Mode.COMPLEX
    if council:
        protocol, seats = "", query.max_agents or _COUNCIL
    else:
        protocol, seats = (
            ("single" if query.mode is Mode.SIMPLE and repository is None else "ask"),
            1,
        )
    return DeliberationRequest(
        description=query.instructions(),
        role=query.role,
        task_id=named if is_id(named) else f"task-{digest(named)[:24]}",
        constraints=Constraints(max_iterations=query.max_iterations, timeout_seconds=seconds),
        num_agents=seats,
        repository=repository,
        protocol=protocol,
        budget=Budget(tokens=query.token_budget),
        about_text=repository is None,
        model=query.model,
        records_calls=repository is not None,
    )


def _calls(one: Recorded | Writing) -> Iterator[ToolRun]:
    """Yield the tool calls that a turn records. Fields of the wrong type are treated as missing."""
    if isinstance(one, Writing) or one.event.type is not EventType.SEAT_TURN:
        return
    recorded = one.event.data.get("calls")
    for call in (
        recorded if isinstance(recorded, Sequence) and not isinstance(recorded, str) else ()
    ):
        if not isinstance(call, Mapping):
            continue
        arguments, output = (
            given if isinstance(given := call.get(name), Mapping) else {}
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


def _model_of(one: Recorded | Writing) -> str:
    """Return the model of a recorded call, as its server names it; '' for other events."""
    if isinstance(one, Writing) or one.event.type is not EventType.MODEL_CALLED:
        return ""
    name = one.event.data.get("model")
    return name if isinstance(name, str) else ""


def _step(recorded: Recorded) -> QueryUpdate | None:
    """Return what a fact of a deliberation says to a caller who waits."""
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


def _report(outcome: Outcome, query: Query) -> Report:
    """Return what a deliberation came to."""
    best = next((result for result in outcome.results if result.seat == outcome.winner_id), None)
    about = {
        "branch": outcome.branch,
        "commit_sha": outcome.commit_sha,
        "winner_id": outcome.winner_id,
    }
    told: dict[str, Any] = {name: value for name, value in about.items() if value}
    if best is not None and best.diff:
        told |= {"proven": outcome.proven, "evidence_level": outcome.level.value, "diff": best.diff}
    failed = best is None or outcome.status is not DeliberationStatus.COMPLETED
    status = "ok"
    codes = {seat.error_code for seat in outcome.seats if seat.error_code}
    if failed:
        late = outcome.status is DeliberationStatus.FAILED and "DEADLINE_EXCEEDED" in codes
        over = "BUDGET_EXCEEDED" in codes
        status = (
            "timeout"
            if late or outcome.status is DeliberationStatus.TIMEOUT
            else "budget_exceeded"
            if over
            else "error"
        )
    chosen = outcome.status is DeliberationStatus.CANCELLED or (
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
        about=told,
        is_fault=status in {"error", "timeout"} and not chosen,
    )
