"""Remote agents: seats filled over AgentService, by the healthy replica with the most free
capacity.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import grpc
import grpc.aio

from moothall.agents.admission import query_breaker
from moothall.api import protobuf
from moothall.api.agent import USAGE, read_usage
from moothall.api.kernel_client import TEMPORARY_CODES, open_channel
from moothall.concurrency import CircuitBreaker, CircuitCall, CircuitOpenError
from moothall.config import AgentSettings
from moothall.domain.budget import Usage
from moothall.domain.chat import ChatReply, ChatRequest, ModelDescription, ReplyMode
from moothall.domain.ids import digest
from moothall.errors import (
    BudgetExceeded,
    ConfigurationError,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.llm.server_errors import delay_before
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common
from moothall.telemetry import get_logger

log = get_logger(__name__)

_HEALTH_TIMEOUT_SECONDS, _HEALTH_INTERVAL_SECONDS = 2.0, 5.0
_BREAKER_CALLS = 2


@dataclass(frozen=True, slots=True)
class RemoteAgentLimits:
    """Limits of calls to remote agents.

    max_chars: the length of one streamed answer. retry_seconds: the delay before the next replica
    is called; it doubles. breaker_seconds: how long a replica with two failures is not called.
    """

    max_chars: int = 1_000_000
    retry_seconds: float = 0.5
    breaker_seconds: float = 30.0


_LIMITS = RemoteAgentLimits()


@dataclass(slots=True)
class _Replica:
    """A replica of an agent. `free_share` is the free share of its task capacity, from its last
    report and our own calls.
    """

    target: str
    stub: Any
    breaker: CircuitBreaker
    max_tasks: int = 1
    active: int = 0
    own_calls: int = 0
    checked_at: float = field(default=float("-inf"))

    @property
    def free_share(self) -> float:
        return 1 - max(self.active, self.own_calls) / max(1, self.max_tasks)


class RemoteAgent:
    """A `ports.ChatModel` for the seat of a remote agent. The first message of a request is the
    agent's context, in JSON, and the last is the query. The reply is JSON with the agent's `result`
    and `diff`. Belongs to one event loop.
    """

    def __init__(
        self,
        endpoint: str,
        stubs: Sequence[tuple[str, Any]],
        token: str,
        limits: RemoteAgentLimits = _LIMITS,
    ) -> None:
        self._endpoint = endpoint
        self._replicas = [
            _Replica(target, stub, query_breaker(_BREAKER_CALLS, limits.breaker_seconds))
            for target, stub in stubs
        ]
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._retry_pause_seconds = limits.retry_seconds
        self._max_chars = limits.max_chars

    async def reply_mode(self) -> ReplyMode:
        """Return "blocks": remote agents need no reply format."""
        return "blocks"

    async def describe(self) -> ModelDescription:
        """Return an empty description: the model behind the agent is unknown."""
        return ModelDescription()

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Ask the agent. Without a repository it has no tools, and `on_text` receives its answer as
        it is written. If a replica is unreachable, each other one is tried once. Raises
        `ModelUnavailable` if none answers, and `BudgetExceeded`, `DeadlineExceeded` or
        `ModelReplyInvalid` depending on the agent's status.
        """
        tried_replicas: list[_Replica] = []
        reason = "none is healthy"
        for attempt in range(len(self._replicas)):
            if attempt:
                await asyncio.sleep(
                    delay_before(attempt, request.call_id, self._retry_pause_seconds)
                )
            if (choice := await self._choose_replica(tried_replicas)) is None:
                break
            replica, call = choice
            if owns_work is not None and not owns_work():
                call.end(failed=None)
                raise asyncio.CancelledError
            tried_replicas.append(replica)
            try:
                return await self._execute_task(replica, call, request, on_text)
            except grpc.aio.AioRpcError as error:
                reason = (
                    f"{replica.target}: {error.code().name}: {str(error.details() or '')[:300]}"
                )
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise DeadlineExceeded(
                        f"the agent at {self._endpoint} did not finish in time"
                    ) from error
                if error.code() not in TEMPORARY_CODES:
                    raise ModelReplyInvalid(
                        f"the agent at {self._endpoint} refused: {reason}"
                    ) from error
                log.warning(
                    "a remote agent is unreachable; trying another replica",
                    endpoint=self._endpoint,
                    reason=reason,
                )
        raise ModelUnavailable(f"no replica of the agent at {self._endpoint} answers; {reason}")

    async def _choose_replica(
        self, excluded: Sequence[_Replica]
    ) -> tuple[_Replica, CircuitCall] | None:
        """Return the healthy replica with the most free capacity that was not tried yet, and the
        call that its circuit breaker let through, or None.
        """
        candidates = [replica for replica in self._replicas if replica not in excluded]
        healthy = await asyncio.gather(*(self._is_healthy(replica) for replica in candidates))
        healthy_replicas = [
            replica for replica, is_healthy in zip(candidates, healthy, strict=True) if is_healthy
        ]
        for replica in sorted(
            healthy_replicas, key=lambda replica: replica.free_share, reverse=True
        ):
            try:
                return replica, replica.breaker.enter()
            except CircuitOpenError:
                continue
        return None

    async def _is_healthy(self, replica: _Replica) -> bool:
        """Check the health and capabilities of a replica, unless both were checked just now."""
        if monotonic() - replica.checked_at < _HEALTH_INTERVAL_SECONDS:
            return True
        try:
            health, capabilities = await asyncio.gather(
                replica.stub.HealthCheck(
                    pb.HealthCheckRequest(),
                    metadata=self._metadata,
                    timeout=_HEALTH_TIMEOUT_SECONDS,
                ),
                replica.stub.GetCapabilities(
                    pb.GetCapabilitiesRequest(),
                    metadata=self._metadata,
                    timeout=_HEALTH_TIMEOUT_SECONDS,
                ),
            )
        except grpc.aio.AioRpcError as error:
            log.info(
                "a remote agent does not answer", target=replica.target, code=error.code().name
            )
            return False
        replica.active, replica.max_tasks, replica.checked_at = (
            health.active_tasks,
            capabilities.max_concurrent_tasks,
            monotonic(),
        )
        modes = capabilities.supported_modes
        return bool(health.healthy) and (not modes or common.EXECUTION_MODE_STANDARD in modes)

    async def _execute_task(
        self,
        replica: _Replica,
        call: CircuitCall,
        request: ChatRequest,
        on_text: Callable[[str], None] | None,
    ) -> ChatReply:
        started_at = monotonic()
        remaining_seconds = (request.deadline - datetime.now(UTC)).total_seconds()
        if remaining_seconds <= 0:
            call.end(failed=None)
            raise DeadlineExceeded("the seat has no time left")
        task_request = pb.ExecuteTaskRequest(
            query=request.messages[-1].content,
            mode=common.EXECUTION_MODE_STANDARD,
            metadata=common.TaskMetadata(
                task_id=f"task-{digest(request.call_id)[:24]}"
            ),  # derived from the call id, so that a repeat is the same task
            config=pb.AgentConfig(
                timeout_seconds=math.ceil(remaining_seconds), enable_sandbox=True
            ),
        )
        task_request.context.update(json.loads(request.messages[0].content))
        failed: bool | None = None
        replica.own_calls += 1
        try:
            if "repository" in task_request.context:
                response = await replica.stub.ExecuteTask(
                    task_request, metadata=self._metadata, timeout=remaining_seconds
                )
            else:
                updates = replica.stub.StreamExecuteTask(
                    task_request, metadata=self._metadata, timeout=remaining_seconds
                )
                try:
                    response = await _read_stream(updates, on_text, self._max_chars)
                finally:
                    updates.cancel()
            failed = False
        except grpc.aio.AioRpcError as error:
            # A refusal of a query as too long or too frequent says nothing about the replica.
            failed = True if error.code() is grpc.StatusCode.UNAVAILABLE else None
            replica.checked_at = float("-inf")
            raise
        finally:
            replica.own_calls -= 1
            call.end(failed=failed)
        return _reply(response, self._endpoint, round((monotonic() - started_at) * 1000))


async def _read_stream(
    updates: AsyncIterable[pb.TaskUpdate], on_text: Callable[[str], None] | None, max_chars: int
) -> pb.ExecuteTaskResponse:
    """Return the response that a stream amounts to, as `ExecuteTask` would have returned it. Raises
    `ModelReplyInvalid` for more than `max_chars` characters.
    """
    response = pb.ExecuteTaskResponse(status=common.STATUS_CODE_ERROR)
    has_status, limit = False, max_chars
    async for update in updates:
        max_chars -= len(update.delta) + len(update.message)
        if max_chars < 0:
            raise ModelReplyInvalid(
                f"the answer of the remote agent has more than {limit:,} characters"
            )
        if update.delta and on_text is not None:
            on_text(update.delta)
        if update.tool_result.tool_id == USAGE:
            response.status, has_status = update.tool_result.status, True
            response.metrics.token_usage.CopyFrom(read_usage(update.tool_result.output))
        if update.state == pb.AGENT_STATE_COMPLETED:
            response.result = update.message
            if not has_status:  # not every agent reports its usage
                response.status = common.STATUS_CODE_OK
        elif update.state == pb.AGENT_STATE_FAILED:
            response.error_message = update.message
            if response.status == common.STATUS_CODE_OK:
                response.status = common.STATUS_CODE_ERROR
    return response


def _reply(response: pb.ExecuteTaskResponse, endpoint: str, duration_ms: int) -> ChatReply:
    """Convert an agent's response to a reply. Raises the error of its status."""
    message = f"the agent at {endpoint} failed: {response.error_message[:500] or 'no reason'}"
    match response.status:
        case common.STATUS_CODE_OK:
            token_usage = response.metrics.token_usage
            prompt, completion = (
                max(0, token_usage.prompt_tokens),
                max(0, token_usage.completion_tokens),
            )
            usage = Usage(
                # Some agents report the total alone.
                prompt_tokens=prompt + max(0, token_usage.total_tokens - prompt - completion),
                completion_tokens=completion,
                calls=1,
                cost_usd=max(0.0, token_usage.cost_usd),
            )
            diff = protobuf.struct_data(response.metadata, "metadata").get("diff")
            text = json.dumps(
                {"result": response.result, "diff": diff if isinstance(diff, str) else ""},
                ensure_ascii=False,
            )
            return ChatReply(text, "stop", usage, token_usage.model, duration_ms)
        case common.STATUS_CODE_TIMEOUT:
            raise DeadlineExceeded(message)
        case common.STATUS_CODE_BUDGET_EXCEEDED:
            raise BudgetExceeded(message)
        case common.STATUS_CODE_RATE_LIMITED:
            raise ModelUnavailable(message)
    raise ModelReplyInvalid(message)


@asynccontextmanager
async def open_remote_agents(
    settings: AgentSettings, limits: RemoteAgentLimits = _LIMITS
) -> AsyncIterator[dict[str, RemoteAgent]]:
    """Connect to the remote agents that the settings allow. Yields them by endpoint. Raises
    `ConfigurationError`.
    """
    try:
        token = (
            settings.endpoint_token_file.read_text("utf-8").strip()
            if settings.endpoint_token_file
            else ""
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"agents.endpoint_token_file cannot be read: {error}") from error
    async with AsyncExitStack() as stack:
        agents: dict[str, RemoteAgent] = {}
        for endpoint, replicas in settings.endpoints.items():
            stubs = []
            for target in replicas:
                channel = await stack.enter_async_context(
                    await open_channel(target, settings.endpoint_ca)
                )
                stubs.append((target, pb_grpc.AgentServiceStub(channel)))
            agents[endpoint] = RemoteAgent(endpoint, stubs, token, limits)
        yield agents
