"""AgentService: agents for other orchestrators, on the wire that they speak (docs/doors.md)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import psutil

import moothall
from moothall.agents.queries import Mode, Query, SessionContext
from moothall.agents.service import AgentTasks, QueryUpdate, Report
from moothall.agents.tool_sequence import ToolRun
from moothall.api import protobuf
from moothall.api.agent_usage import MOST_TOKENS, USAGE, token_usage, usage_metrics
from moothall.api.health import HealthCheck
from moothall.api.identity import caller
from moothall.config import Models
from moothall.domain.ids import new_task_id
from moothall.domain.status import Condition
from moothall.domain.tool import Action, ToolStatus
from moothall.errors import InvalidRequest, NotFound
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common
from moothall.tools.discovery import Filters, discover
from moothall.tools.spec import Cost, ToolSpec

_MODES = {
    common.EXECUTION_MODE_UNSPECIFIED: Mode.STANDARD,
    common.EXECUTION_MODE_SIMPLE: Mode.SIMPLE,
    common.EXECUTION_MODE_STANDARD: Mode.STANDARD,
    common.EXECUTION_MODE_COMPLEX: Mode.COMPLEX,
}
_STATUSES = {
    "ok": common.STATUS_CODE_OK,
    "error": common.STATUS_CODE_ERROR,
    "timeout": common.STATUS_CODE_TIMEOUT,
    "rate_limited": common.STATUS_CODE_RATE_LIMITED,
    "budget_exceeded": common.STATUS_CODE_BUDGET_EXCEEDED,
}
_OF_TOOLS = {
    ToolStatus.SUCCESS: common.STATUS_CODE_OK,
    ToolStatus.TIMEOUT: common.STATUS_CODE_TIMEOUT,
    ToolStatus.RATE_LIMITED: common.STATUS_CODE_RATE_LIMITED,
    ToolStatus.BUDGET_EXCEEDED: common.STATUS_CODE_BUDGET_EXCEEDED,
}
_ALMOST = 0.99
_CALLS_BYTES = 1_000_000
"""Arguments and outputs of an agent's tool calls in one response; clients take messages of 4 MB."""
_USUAL_MS = {Cost.NONE: 5, Cost.LOW: 500, Cost.MONEY: 2_000, Cost.HIGH: 30_000}


class AgentService(pb_grpc.AgentServiceServicer):
    """The gRPC door of the agent service."""

    def __init__(self, tasks: AgentTasks, checkup: HealthCheck, models: Models) -> None:
        self._tasks = tasks
        self._checkup = checkup
        self._models = models

    async def ExecuteTask(
        self, request: pb.ExecuteTaskRequest, context: Any
    ) -> pb.ExecuteTaskResponse:
        """Answer a query, or run tools; it stops when the call does."""
        report = await self._tasks.execute(_query(request), caller())
        ran = _fit(report.ran) if report.agents else report.ran
        return pb.ExecuteTaskResponse(
            task_id=report.task_id,
            status=_STATUSES[report.status],
            result=report.result,
            tool_calls=[_call(one.action, one.tool_id) for one in ran],
            tool_results=[_result(one) for one in ran],
            metrics=self._metrics(report),
            error_message=report.error,
            final_state=_end(report),
            metadata=protobuf.struct(report.about),
        )

    async def StreamExecuteTask(
        self, request: pb.ExecuteTaskRequest, context: Any
    ) -> AsyncIterator[pb.TaskUpdate]:
        """Tell it as it happens; it stops when the call does."""
        query = _query(request)
        state = pb.AGENT_STATE_PLANNING
        async with aclosing(self._tasks.steps(query, caller())) as steps:
            async for step in steps:
                if isinstance(step, QueryUpdate):
                    yield _update(query, step, state)
                    state = pb.AGENT_STATE_EXECUTING
                    continue
                about: dict[str, Any] = {
                    "task_id": query.task_id,
                    "state": pb.AGENT_STATE_EXECUTING,
                    "progress": _ALMOST,
                }
                if not step.agents:  # an agent's text is given while it is written
                    yield pb.TaskUpdate(**about, delta=step.result)
                yield pb.TaskUpdate(**about, tool_result=self._usage(step))
                yield pb.TaskUpdate(
                    **about | {"state": _end(step), "progress": 1.0},
                    message=step.result or step.error,
                )

    async def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, context: Any
    ) -> pb.GetCapabilitiesResponse:
        """Say what can be asked."""
        return pb.GetCapabilitiesResponse(
            supported_tools=[spec.name for spec in self._tasks.list_tools(caller())],
            supported_modes=sorted(set(_MODES) - {common.EXECUTION_MODE_UNSPECIFIED}),
            max_memory_mb=self._tasks.memory_mb,
            max_concurrent_tasks=self._tasks.most,
            version=moothall.__version__,
        )

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Any
    ) -> pb.HealthCheckResponse:
        """Say how the server is: healthy, degraded (healthy, with the reason) or not."""
        health = await self._checkup.look()
        wrong = [
            f"{part.name}: {part.detail}"
            for part in health.parts
            if part.status is not Condition.HEALTHY
        ]
        return pb.HealthCheckResponse(
            healthy=health.status is not Condition.DOWN,
            message="; ".join((str(health.status), *wrong)),
            uptime_seconds=health.uptime_seconds,
            active_tasks=self._tasks.count_active(caller()),
            memory_usage_percent=psutil.virtual_memory().percent,
        )

    async def DiscoverTools(
        self, request: pb.DiscoverToolsRequest, context: Any
    ) -> pb.DiscoverToolsResponse:
        """List tools."""
        if request.max_results < 0:
            raise InvalidRequest(
                f"max_results is {request.max_results}; give how many at most, or 0 for all"
            )
        wanted = protobuf.from_message(Filters, request, most=request.max_results)
        return pb.DiscoverToolsResponse(
            tools=[_capability(spec) for spec in discover(self._tasks.list_tools(caller()), wanted)]
        )

    async def GetToolCapability(
        self, request: pb.GetToolCapabilityRequest, context: Any
    ) -> pb.GetToolCapabilityResponse:
        """Describe a tool."""
        for spec in self._tasks.list_tools(caller()):
            if spec.id == request.tool_id:
                return pb.GetToolCapabilityResponse(tool=_capability(spec))
        raise NotFound(
            f"there is no tool {request.tool_id[:80]!r}; DiscoverTools lists those that there are"
        )

    def _metrics(self, report: Report) -> common.ExecutionMetrics:
        return common.ExecutionMetrics(
            latency_ms=report.latency_ms,
            token_usage=self._tokens(report),
            cache_hit=bool(report.ran) and all(one.result.cached for one in report.ran),
            agents_used=report.agents,
            mode=next(wire for wire, mode in reversed(_MODES.items()) if mode is report.mode),
        )

    def _tokens(self, report: Report) -> common.TokenUsage:
        return token_usage(report.usage, self._models.get(report.model), report.served)

    def _usage(self, report: Report) -> common.ToolResult:
        metrics = usage_metrics(self._tokens(report)) | {"agents_used": report.agents}
        return common.ToolResult(
            tool_id=USAGE,
            output=protobuf.value(metrics),
            status=_STATUSES[report.status],
            execution_time_ms=report.latency_ms,
        )


def _query(request: pb.ExecuteTaskRequest) -> Query:
    """Return what is asked. Raises `InvalidRequest`."""
    if request.mode not in _MODES:
        raise InvalidRequest(
            f"mode is {request.mode}; there are 1 (simple), 2 (standard) and 3 (complex)"
        )
    meta, config, session = request.metadata, request.config, request.session_context
    budget = meta.token_budget
    numbers = {
        "max_agents": meta.max_agents,
        "max_iterations": config.max_iterations,
        "timeout_seconds": config.timeout_seconds,
    }
    if wrong := [f"{name} is {value}" for name, value in numbers.items() if value < 0]:
        raise InvalidRequest(f"{', '.join(wrong)}; give a number from 0, which means the default")
    if not 0 <= budget < MOST_TOKENS:
        raise InvalidRequest(
            f"token_budget is {budget:g}; give the tokens that may be used, or 0 for the default"
        )
    return Query(
        **numbers,
        task_id=meta.task_id or new_task_id(),
        query=request.query,
        context=protobuf.struct_data(request.context, "context"),
        mode=_MODES[request.mode],
        available_tools=tuple(request.available_tools),
        token_budget=int(budget),
        session=SessionContext(
            session_id=session.session_id or meta.session_id,
            history=tuple(session.history),
            persistent_context=protobuf.struct_data(
                session.persistent_context, "session_context.persistent_context"
            ),
            files_created=tuple(session.files_created),
            tools_used=tuple(session.tools_used),
            total_tokens_used=session.total_tokens_used,
            total_cost_usd=session.total_cost_usd,
        ),
    )


def _update(query: Query, step: QueryUpdate, state: pb.AgentState.ValueType) -> pb.TaskUpdate:
    return pb.TaskUpdate(
        task_id=query.task_id,
        state=state,
        message=step.message,
        delta=step.delta,
        progress=step.progress,
        tool_call=_call(step.action, step.tool_id) if step.action else None,
        tool_result=_result(step.ran) if step.ran else None,
    )


def _fit(ran: Sequence[ToolRun]) -> list[ToolRun]:
    """Return tool calls for one message: without arguments and outputs beyond `_CALLS_BYTES`."""
    fitting, left = [], _CALLS_BYTES
    for one in ran:
        left -= len(json.dumps([one.action.arguments, one.result.output], default=str))
        bare = replace(
            one, action=replace(one.action, arguments={}), result=replace(one.result, output={})
        )
        fitting.append(one if left >= 0 else bare)
    return fitting


def _call(wanted: Action, tool_id: str) -> common.ToolCall:
    return common.ToolCall(
        name=wanted.tool, parameters=protobuf.struct(wanted.arguments), tool_id=tool_id
    )


def _result(ran: ToolRun) -> common.ToolResult:
    result = ran.result
    return common.ToolResult(
        tool_id=ran.tool_id,
        output=protobuf.value(result.output),
        status=_OF_TOOLS.get(result.status, common.STATUS_CODE_ERROR),
        error_message="" if ran.ok else result.error or result.status.value,
        execution_time_ms=result.duration_ms,
    )


def _end(report: Report) -> pb.AgentState.ValueType:
    return pb.AGENT_STATE_COMPLETED if report.ok else pb.AGENT_STATE_FAILED


def _capability(spec: ToolSpec) -> pb.ToolCapability:
    needs = spec.requirements
    wanted = {
        "os": needs.os_access,
        "network": needs.network_access,
        f"files:{needs.file_system}": needs.file_system != "none",
    }
    return pb.ToolCapability(
        id=spec.id,
        name=spec.name,
        description=spec.summary,
        category=spec.category,
        input_schema=protobuf.struct(spec.schema(None)),
        output_schema=protobuf.struct(spec.output_schema()),
        required_permissions=[name for name, is_wanted in wanted.items() if is_wanted],
        estimated_duration_ms=_USUAL_MS[spec.cost],
        is_dangerous=spec.dangerous,
        version=spec.version,
        author="moothall",
        tags=spec.tags,
        examples=[
            pb.ToolExample(
                description=example.about,
                input=protobuf.struct(example.arguments),
                output=protobuf.struct(example.output),
            )
            for example in spec.examples
        ],
        rate_limit=pb.RateLimit(
            requests_per_minute=spec.rate.per_minute, requests_per_hour=spec.rate.per_hour
        ),
        cache_ttl_ms=int(spec.cache_seconds * 1000),
    )
