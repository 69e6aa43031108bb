"""The services for agents. AgentService: agents for other orchestrators, over the protocol those
orchestrators use (docs/api.md). AgentKernel: one agent works on a task from a prompt.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import psutil
from google.protobuf import json_format, struct_pb2, timestamp_pb2

import moothall
from moothall.agents.queries import Mode, Query, SessionContext, ToolRun
from moothall.agents.service import AgentTasks, QueryUpdate, Report
from moothall.api import protobuf
from moothall.api.dependencies import HealthCheck
from moothall.api.identity import caller
from moothall.api.tools import external_call
from moothall.config import LlmSettings, Models
from moothall.domain.budget import Budget, Usage
from moothall.domain.event import Recorded
from moothall.domain.ids import check_task_id, new_task_id
from moothall.domain.status import Condition
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.domain.tool import Action, ToolStatus
from moothall.errors import InvalidRequest, NotFound
from moothall.pb.kernel.v1 import kernel_pb2 as kernel_pb
from moothall.pb.kernel.v1 import kernel_pb2_grpc as kernel_pb_grpc
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common
from moothall.ports import Deliberations
from moothall.tool_sessions.manager import ToolSessions
from moothall.tools.spec import Cost, Filters, ToolSpec, discover

# The usage of a query in AgentService: `TokenUsage`, and `usage_metrics` on a stream.


USAGE = "usage_metrics"
"""The id of the tool result that reports usage on a stream."""
MAX_INT32 = 2**31 - 1
"""The largest value of an int32 field."""
_TIERS = {
    "": common.MODEL_TIER_UNSPECIFIED,
    "small": common.MODEL_TIER_SMALL,
    "medium": common.MODEL_TIER_MEDIUM,
    "large": common.MODEL_TIER_LARGE,
}
_INPUT, _OUTPUT = ("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")
"""Spellings, the preferred one first."""


def token_usage(usage: Usage, llm: LlmSettings, served: str) -> common.TokenUsage:
    """Return usage as a message, which names no model if none was called.

    `served`: the model's name at its server.
    """
    message = common.TokenUsage(
        prompt_tokens=min(usage.prompt_tokens, MAX_INT32),
        completion_tokens=min(usage.completion_tokens, MAX_INT32),
        total_tokens=min(usage.tokens, MAX_INT32),
        cost_usd=usage.cost_usd,
    )
    if usage.calls:
        message.model, message.tier, message.provider = (
            llm.model or served,
            _TIERS[llm.tier],
            provider_name(llm),
        )
    return message


def usage_metrics(usage: common.TokenUsage) -> dict[str, Any]:
    """Return the output of the tool result `usage_metrics`, with both spellings of the tokens."""
    metrics: dict[str, Any] = dict.fromkeys(_INPUT, usage.prompt_tokens) | dict.fromkeys(
        _OUTPUT, usage.completion_tokens
    )
    totals = {
        "total_tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd,
        "model": usage.model,
        "provider": usage.provider,
    }
    return metrics | totals


def read_usage(output: struct_pb2.Value) -> common.TokenUsage:
    """Read the usage that a remote agent reports, in either spelling.

    Implausible fields are treated as missing.
    """
    metrics = dict(output.struct_value.fields)
    return common.TokenUsage(
        prompt_tokens=_first_positive(metrics, _INPUT),
        completion_tokens=_first_positive(metrics, _OUTPUT),
        total_tokens=_first_positive(metrics, ("total_tokens",)),
        cost_usd=max(0.0, _number(metrics.get("cost_usd"))),
        model=_text(metrics.get("model")),
        provider=_text(metrics.get("provider")),
    )


def provider_name(llm: LlmSettings) -> str:
    """Return the name of a model's provider by the kind of its server."""
    return "openai-compatible" if llm.base_url else "llama.cpp"


def _first_positive(metrics: Mapping[str, struct_pb2.Value], names: tuple[str, ...]) -> int:
    """Return the first of these fields that is a count above 0; 0 if none is."""
    numbers = (_number(metrics.get(name)) for name in names)
    return next((int(number) for number in numbers if 1 <= number <= MAX_INT32), 0)


def _number(value: struct_pb2.Value | None) -> float:
    """Return a number, which some servers write as text; 0 for anything else."""
    if value is None or value.WhichOneof("kind") not in {"number_value", "string_value"}:
        return 0.0
    try:
        number = value.number_value or float(value.string_value or 0)
    except ValueError:
        return 0.0
    return number if isfinite(number) else 0.0


def _text(value: struct_pb2.Value | None) -> str:
    return "" if value is None else value.string_value


# AgentService: agents for other orchestrators, over the protocol those orchestrators use
# (docs/api.md).


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
_TOOL_STATUSES = {
    ToolStatus.SUCCESS: common.STATUS_CODE_OK,
    ToolStatus.TIMEOUT: common.STATUS_CODE_TIMEOUT,
    ToolStatus.RATE_LIMITED: common.STATUS_CODE_RATE_LIMITED,
    ToolStatus.BUDGET_EXCEEDED: common.STATUS_CODE_BUDGET_EXCEEDED,
}
_ALMOST_DONE = 0.99
_TOOL_CALLS_BYTES = 1_000_000
"""Limit for arguments and outputs of tool calls in one response; clients accept 4 MB."""
_ESTIMATED_MS = {Cost.NONE: 5, Cost.LOW: 500, Cost.MONEY: 2_000, Cost.HIGH: 30_000}


class AgentService(pb_grpc.AgentServiceServicer):
    """The gRPC servicer of AgentService."""

    def __init__(self, tasks: AgentTasks, health_check: HealthCheck, models: Models) -> None:
        self._tasks = tasks
        self._health_check = health_check
        self._models = models

    async def ExecuteTask(
        self, request: pb.ExecuteTaskRequest, context: Any
    ) -> pb.ExecuteTaskResponse:
        """Answer a query or run tools. Stops when the call is cancelled."""
        report = await self._tasks.execute(_query(request), caller())
        tool_runs = _fit(report.ran) if report.agents else report.ran
        return pb.ExecuteTaskResponse(
            task_id=report.task_id,
            status=_STATUSES[report.status],
            result=report.result,
            tool_calls=[_call(tool_run.action, tool_run.tool_id) for tool_run in tool_runs],
            tool_results=[_result(tool_run) for tool_run in tool_runs],
            metrics=self._metrics(report),
            error_message=report.error,
            final_state=_final_state(report),
            metadata=protobuf.struct(report.about),
        )

    async def StreamExecuteTask(
        self, request: pb.ExecuteTaskRequest, context: Any
    ) -> AsyncIterator[pb.TaskUpdate]:
        """Stream the progress of a query. Stops when the call is cancelled."""
        query = _query(request)
        state = pb.AGENT_STATE_PLANNING
        async with aclosing(self._tasks.steps(query, caller())) as steps:
            async for step in steps:
                if isinstance(step, QueryUpdate):
                    yield _update(query, step, state)
                    state = pb.AGENT_STATE_EXECUTING
                    continue
                common_fields: dict[str, Any] = {
                    "task_id": query.task_id,
                    "state": pb.AGENT_STATE_EXECUTING,
                    "progress": _ALMOST_DONE,
                }
                if not step.agents:  # an agent's text is streamed as it is written
                    yield pb.TaskUpdate(**common_fields, delta=step.result)
                yield pb.TaskUpdate(**common_fields, tool_result=self._usage(step))
                yield pb.TaskUpdate(
                    **common_fields | {"state": _final_state(step), "progress": 1.0},
                    message=step.result or step.error,
                )

    async def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, context: Any
    ) -> pb.GetCapabilitiesResponse:
        """Return tools, modes and limits."""
        return pb.GetCapabilitiesResponse(
            supported_tools=[spec.name for spec in self._tasks.list_tools(caller())],
            supported_modes=sorted(set(_MODES) - {common.EXECUTION_MODE_UNSPECIFIED}),
            max_memory_mb=self._tasks.memory_mb,
            max_concurrent_tasks=self._tasks.max_tasks,
            version=moothall.__version__,
        )

    async def HealthCheck(
        self, request: pb.HealthCheckRequest, context: Any
    ) -> pb.HealthCheckResponse:
        """Return the server's health: healthy, degraded (healthy, with the reason) or not."""
        health = await self._health_check.check()
        problems = [
            f"{part.name}: {part.detail}"
            for part in health.parts
            if part.status is not Condition.HEALTHY
        ]
        return pb.HealthCheckResponse(
            healthy=health.status is not Condition.DOWN,
            message="; ".join((str(health.status), *problems)),
            uptime_seconds=health.uptime_seconds,
            active_tasks=self._tasks.count_active(caller()),
            memory_usage_percent=psutil.virtual_memory().percent,
        )

    async def DiscoverTools(
        self, request: pb.DiscoverToolsRequest, context: Any
    ) -> pb.DiscoverToolsResponse:
        """List the tools that match the filters."""
        if request.max_results < 0:
            raise InvalidRequest(
                f"max_results is {request.max_results}; give a maximum, or 0 for all"
            )
        filters = protobuf.from_message(Filters, request, limit=request.max_results)
        return pb.DiscoverToolsResponse(
            tools=[
                _capability(spec) for spec in discover(self._tasks.list_tools(caller()), filters)
            ]
        )

    async def GetToolCapability(
        self, request: pb.GetToolCapabilityRequest, context: Any
    ) -> pb.GetToolCapabilityResponse:
        """Describe a tool."""
        for spec in self._tasks.list_tools(caller()):
            if spec.id == request.tool_id:
                return pb.GetToolCapabilityResponse(tool=_capability(spec))
        raise NotFound(f"there is no tool {request.tool_id[:80]!r}; DiscoverTools lists all tools")

    def _metrics(self, report: Report) -> common.ExecutionMetrics:
        return common.ExecutionMetrics(
            latency_ms=report.latency_ms,
            token_usage=self._tokens(report),
            cache_hit=bool(report.ran) and all(tool_run.result.cached for tool_run in report.ran),
            agents_used=report.agents,
            mode=next(
                wire_mode for wire_mode, mode in reversed(_MODES.items()) if mode is report.mode
            ),
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
    """Read a query from its request. Raises `InvalidRequest`."""
    if request.mode not in _MODES:
        raise InvalidRequest(
            f"mode is {request.mode}; allowed are 1 (simple), 2 (standard) and 3 (complex)"
        )
    metadata, config, session = request.metadata, request.config, request.session_context
    budget = metadata.token_budget
    numbers = {
        "max_agents": metadata.max_agents,
        "max_iterations": config.max_iterations,
        "timeout_seconds": config.timeout_seconds,
    }
    if negative := [f"{name} is {value}" for name, value in numbers.items() if value < 0]:
        raise InvalidRequest(
            f"{', '.join(negative)}; give a number from 0, which means the default"
        )
    if not 0 <= budget < MAX_INT32:
        raise InvalidRequest(
            f"token_budget is {budget:g}; give a number of tokens, or 0 for the default"
        )
    return Query(
        **numbers,
        task_id=metadata.task_id or new_task_id(),
        query=request.query,
        context=protobuf.struct_data(request.context, "context"),
        mode=_MODES[request.mode],
        available_tools=tuple(request.available_tools),
        token_budget=int(budget),
        session=SessionContext(
            session_id=session.session_id or metadata.session_id,
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


def _fit(tool_runs: Sequence[ToolRun]) -> list[ToolRun]:
    """Return the tool calls for one message; beyond `_TOOL_CALLS_BYTES` without arguments and
    outputs.
    """
    fitting, remaining_bytes = [], _TOOL_CALLS_BYTES
    for tool_run in tool_runs:
        remaining_bytes -= len(
            json.dumps([tool_run.action.arguments, tool_run.result.output], default=str)
        )
        bare = replace(
            tool_run,
            action=replace(tool_run.action, arguments={}),
            result=replace(tool_run.result, output={}),
        )
        fitting.append(tool_run if remaining_bytes >= 0 else bare)
    return fitting


def _call(action: Action, tool_id: str) -> common.ToolCall:
    return common.ToolCall(
        name=action.tool, parameters=protobuf.struct(action.arguments), tool_id=tool_id
    )


def _result(tool_run: ToolRun) -> common.ToolResult:
    result = tool_run.result
    return common.ToolResult(
        tool_id=tool_run.tool_id,
        output=protobuf.value(result.output),
        status=_TOOL_STATUSES.get(result.status, common.STATUS_CODE_ERROR),
        error_message="" if tool_run.ok else result.error or result.status.value,
        execution_time_ms=result.duration_ms,
    )


def _final_state(report: Report) -> pb.AgentState.ValueType:
    return pb.AGENT_STATE_COMPLETED if report.ok else pb.AGENT_STATE_FAILED


def _capability(spec: ToolSpec) -> pb.ToolCapability:
    requirements = spec.requirements
    permissions = {
        "os": requirements.os_access,
        "network": requirements.network_access,
        f"files:{requirements.file_system}": requirements.file_system != "none",
    }
    return pb.ToolCapability(
        id=spec.id,
        name=spec.name,
        description=spec.summary,
        category=spec.category,
        input_schema=protobuf.struct(spec.schema(None)),
        output_schema=protobuf.struct(spec.output_schema()),
        required_permissions=[name for name, is_needed in permissions.items() if is_needed],
        estimated_duration_ms=_ESTIMATED_MS[spec.cost],
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


# AgentKernel: one agent works on a task from a prompt. A task is a deliberation with one seat, and
# as durable as any other.


_ROLE, _PROTOCOL = "dev", "ask"
_EXECUTION_ID_CHARS = 200


class AgentKernel(kernel_pb_grpc.AgentKernelServicer):
    """The gRPC servicer of AgentKernel."""

    def __init__(self, deliberations: Deliberations, tool_sessions: ToolSessions) -> None:
        self._deliberations = deliberations
        self._tool_sessions = tool_sessions

    async def CreateTask(
        self, request: kernel_pb.CreateTaskRequest, context: Any
    ) -> kernel_pb.CreateTaskResponse:
        """Submit a task and return the capability token of its workspace."""
        principal = caller()
        deliberation_request = DeliberationRequest(
            description=request.prompt,
            role=request.agent or _ROLE,
            task_id=request.task_id,
            num_agents=1,
            repository=_repository(request.workspace, request.ref),
            protocol=_PROTOCOL,
            budget=protobuf.from_message(Budget, request.budget),
            follows=request.follows,
        )
        deliberation = await self._deliberations.submit(deliberation_request, principal)
        token = ""
        if deliberation.base_sha is not None:
            seconds = (deliberation.deadline - datetime.now(UTC)).total_seconds()
            token = self._tool_sessions.token(
                principal, deliberation.task_id, deliberation.role, seconds
            )
        return kernel_pb.CreateTaskResponse(task_id=deliberation.own_id, capability_token=token)

    async def StreamTaskEvents(
        self, request: kernel_pb.StreamTaskEventsRequest, context: Any
    ) -> AsyncIterator[kernel_pb.TaskEvent]:
        """Stream the task's events after a seq. A caller that disconnects only detaches."""
        if request.after_seq < 0:
            raise InvalidRequest(
                f"after_seq is {request.after_seq}; give the last seq that you saw, or 0 for all"
            )
        async for recorded in self._deliberations.watch(
            check_task_id(request.task_id), request.after_seq, caller()
        ):
            yield _event(recorded)

    async def ExecuteTool(
        self, request: kernel_pb.ExecuteToolRequest, context: Any
    ) -> kernel_pb.ExecuteToolResponse:
        """Run one tool in the task's workspace. It stops when the call is cancelled."""
        if not 0 < len(request.execution_id) <= _EXECUTION_ID_CHARS:
            raise InvalidRequest(
                f"execution_id has {len(request.execution_id)} characters; allowed are 1 to "
                f"{_EXECUTION_ID_CHARS}"
            )
        task_id = check_task_id(request.task_id)
        call = external_call(
            request.execution_id, request.tool, protobuf.struct_data(request.arguments, "arguments")
        )
        result = await self._tool_sessions.call(caller(), task_id, request.capability_token, call)
        output = struct_pb2.Value(struct_value=protobuf.struct(result.output))
        return kernel_pb.ExecuteToolResponse(
            status=result.status.value, output=output, error=result.error
        )

    async def CancelTask(
        self, request: kernel_pb.CancelTaskRequest, context: Any
    ) -> kernel_pb.CancelTaskResponse:
        """Cancel a task and close its workspace."""
        principal = caller()
        task_id = check_task_id(request.task_id)
        status = await self._deliberations.cancel(
            task_id, request.reason or "cancelled by its caller", principal
        )
        with suppress(NotFound):  # no tool was ever called
            await self._tool_sessions.close(principal, task_id)
        return kernel_pb.CancelTaskResponse(status=status.value)


def _repository(workspace: str, ref: str) -> RepositoryRef | None:
    """Return the repository to work on; None if the call names none."""
    if not workspace:
        if ref:
            raise InvalidRequest("ref needs a workspace, but none is given")
        return None
    return RepositoryRef.from_name(workspace, ref)


def _event(recorded: Recorded) -> kernel_pb.TaskEvent:
    event = recorded.event
    message = kernel_pb.TaskEvent(
        seq=recorded.position, type=event.type.value, payload=protobuf.struct(event.data)
    )
    timestamp = timestamp_pb2.Timestamp()
    with suppress(ValueError, json_format.Error):  # an event without a time
        timestamp.FromJsonString(event.time or recorded.extra.get("time", ""))
        message.time.CopyFrom(timestamp)
    return message
