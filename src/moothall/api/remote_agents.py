"""Remote agents: what seats are asked over AgentService, at whichever replica stands and has the
most room.
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

from moothall.agents.admission import CircuitOpen, RollingCircuitBreaker
from moothall.api import protobuf
from moothall.api.agent_usage import USAGE, read_usage
from moothall.api.remote import PASSING, open_channel
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
from moothall.llm.retry import delay_before
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common
from moothall.telemetry import get_logger

log = get_logger(__name__)

_LOOK_SECONDS, _LOOK_EVERY = 2.0, 5.0
_BREAKER_CALLS = 2


@dataclass(slots=True)
class _Replica:
    """Where an agent is called. `room` is the share of its tasks that are free, as it said itself
    and less what we asked since.
    """

    target: str
    stub: Any
    breaker: RollingCircuitBreaker
    most: int = 1
    active: int = 0
    ours: int = 0
    looked: float = field(default=float("-inf"))

    @property
    def room(self) -> float:
        return 1 - max(self.active, self.ours) / max(1, self.most)


class RemoteAgent:
    """Implements `ports.ChatModel` for the seat of a remote agent: of a request's messages the
    first is what the agent is told as its context, in JSON, and the last is the query; the answer
    is JSON of what it said (`result`) and changed (`diff`). Belongs to one event loop.
    """

    def __init__(
        self, endpoint: str, stubs: Sequence[tuple[str, Any]], token: str, settings: AgentSettings
    ) -> None:
        often = settings.model_copy(update={"breaker_calls": _BREAKER_CALLS})
        self._endpoint = endpoint
        self._replicas = [
            _Replica(target, stub, RollingCircuitBreaker(often)) for target, stub in stubs
        ]
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._pause = settings.endpoint_pause_seconds
        self._most = settings.endpoint_chars

    async def reply_mode(self) -> ReplyMode:
        """Say that nothing is asked of how it replies."""
        return "blocks"

    async def describe(self) -> ModelDescription:
        """Say nothing about the model behind the agent."""
        return ModelDescription()

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        ours: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Ask it; where it has no repository, and so no tools, `on_text` sees its answer grow.
        Where a replica is gone, each of the others is asked once. Raises `ModelUnavailable` where
        none answers, and what its answer means: `BudgetExceeded`, `DeadlineExceeded`,
        `ModelReplyInvalid`.
        """
        tried: list[_Replica] = []
        why = "none stands"
        for attempt in range(len(self._replicas)):
            if attempt:
                await asyncio.sleep(delay_before(attempt, request.call_id, self._pause))
            if (replica := await self._choose(tried)) is None:
                break
            if ours is not None and not ours():
                raise asyncio.CancelledError
            tried.append(replica)
            try:
                return await self._ask(replica, request, on_text)
            except grpc.aio.AioRpcError as error:
                why = f"{replica.target}: {error.code().name}: {str(error.details() or '')[:300]}"
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise DeadlineExceeded(
                        f"the agent at {self._endpoint} was not done in time"
                    ) from error
                if error.code() not in PASSING:
                    raise ModelReplyInvalid(
                        f"the agent at {self._endpoint} refused: {why}"
                    ) from error
                log.warning(
                    "a remote agent is gone; asking another of its replicas",
                    endpoint=self._endpoint,
                    reason=why,
                )
        raise ModelUnavailable(f"no replica of the agent at {self._endpoint} answers; {why}")

    async def _choose(self, tried: Sequence[_Replica]) -> _Replica | None:
        """Return the one with the most room of those that stand and were not asked yet."""
        left = [replica for replica in self._replicas if replica not in tried]
        stands = await asyncio.gather(*(self._stands(replica) for replica in left))
        standing = [replica for replica, stand in zip(left, stands, strict=True) if stand]
        for replica in sorted(standing, key=lambda one: one.room, reverse=True):
            try:
                replica.breaker.enter()
            except CircuitOpen:
                continue
            return replica
        return None

    async def _stands(self, replica: _Replica) -> bool:
        """Ask how a replica is and what it can do, unless that is known from just now."""
        if monotonic() - replica.looked < _LOOK_EVERY:
            return True
        try:
            health, can = await asyncio.gather(
                replica.stub.HealthCheck(
                    pb.HealthCheckRequest(), metadata=self._metadata, timeout=_LOOK_SECONDS
                ),
                replica.stub.GetCapabilities(
                    pb.GetCapabilitiesRequest(), metadata=self._metadata, timeout=_LOOK_SECONDS
                ),
            )
        except grpc.aio.AioRpcError as error:
            log.info(
                "a remote agent does not answer", target=replica.target, code=error.code().name
            )
            return False
        replica.active, replica.most, replica.looked = (
            health.active_tasks,
            can.max_concurrent_tasks,
            monotonic(),
        )
        modes = can.supported_modes
        return bool(health.healthy) and (not modes or common.EXECUTION_MODE_STANDARD in modes)

    async def _ask(
        self, replica: _Replica, request: ChatRequest, on_text: Callable[[str], None] | None
    ) -> ChatReply:
        begun, left = monotonic(), (request.deadline - datetime.now(UTC)).total_seconds()
        if left <= 0:
            raise DeadlineExceeded("the seat's time is over")
        asked = pb.ExecuteTaskRequest(
            query=request.messages[-1].content,
            mode=common.EXECUTION_MODE_STANDARD,
            metadata=common.TaskMetadata(
                task_id=f"task-{digest(request.call_id)[:24]}"
            ),  # a repeat is the same one
            config=pb.AgentConfig(timeout_seconds=math.ceil(left), enable_sandbox=True),
        )
        asked.context.update(json.loads(request.messages[0].content))
        failed: bool | None = None
        replica.ours += 1
        try:
            if "repository" in asked.context:
                answer = await replica.stub.ExecuteTask(
                    asked, metadata=self._metadata, timeout=left
                )
            else:
                updates = replica.stub.StreamExecuteTask(
                    asked, metadata=self._metadata, timeout=left
                )
                try:
                    answer = await _read_stream(updates, on_text, self._most)
                finally:
                    updates.cancel()
            failed = False
        except grpc.aio.AioRpcError as error:
            # A refusal of a query as too long or too frequent says nothing about the replica.
            failed = True if error.code() is grpc.StatusCode.UNAVAILABLE else None
            replica.looked = float("-inf")
            raise
        finally:
            replica.ours -= 1
            replica.breaker.note(failed=failed)
        return _reply(answer, self._endpoint, round((monotonic() - begun) * 1000))


async def _read_stream(
    updates: AsyncIterable[pb.TaskUpdate], on_text: Callable[[str], None] | None, most: int
) -> pb.ExecuteTaskResponse:
    """Return what a stream comes to, as the call that waits for its end would have been answered.
    Raises `ModelReplyInvalid` for more than `most` characters.
    """
    answer = pb.ExecuteTaskResponse(status=common.STATUS_CODE_ERROR)
    has_status = False
    async for update in updates:
        most -= len(update.delta) + len(update.message)
        if most < 0:
            raise ModelReplyInvalid(
                "the remote agent sends more than it may (agents.endpoint_chars)"
            )
        if update.delta and on_text is not None:
            on_text(update.delta)
        if update.tool_result.tool_id == USAGE:
            answer.status, has_status = update.tool_result.status, True
            answer.metrics.token_usage.CopyFrom(read_usage(update.tool_result.output))
        if update.state == pb.AGENT_STATE_COMPLETED:
            answer.result = update.message
            if not has_status:  # not every agent knows what it used
                answer.status = common.STATUS_CODE_OK
        elif update.state == pb.AGENT_STATE_FAILED:
            answer.error_message = update.message
            if answer.status == common.STATUS_CODE_OK:
                answer.status = common.STATUS_CODE_ERROR
    return answer


def _reply(answer: pb.ExecuteTaskResponse, endpoint: str, duration_ms: int) -> ChatReply:
    """Return what an agent said. Raises what its status means."""
    said = f"the agent at {endpoint} says: {answer.error_message[:500] or 'nothing'}"
    match answer.status:
        case common.STATUS_CODE_OK:
            used = answer.metrics.token_usage
            prompt, completion = max(0, used.prompt_tokens), max(0, used.completion_tokens)
            usage = Usage(
                # Some agents report the total alone.
                prompt_tokens=prompt + max(0, used.total_tokens - prompt - completion),
                completion_tokens=completion,
                calls=1,
                cost_usd=max(0.0, used.cost_usd),
            )
            diff = protobuf.struct_data(answer.metadata, "metadata").get("diff")
            text = json.dumps(
                {"result": answer.result, "diff": diff if isinstance(diff, str) else ""},
                ensure_ascii=False,
            )
            return ChatReply(text, "stop", usage, used.model, duration_ms)
        case common.STATUS_CODE_TIMEOUT:
            raise DeadlineExceeded(said)
        case common.STATUS_CODE_BUDGET_EXCEEDED:
            raise BudgetExceeded(said)
        case common.STATUS_CODE_RATE_LIMITED:
            raise ModelUnavailable(said)
    raise ModelReplyInvalid(said)


@asynccontextmanager
async def open_remote_agents(settings: AgentSettings) -> AsyncIterator[dict[str, RemoteAgent]]:
    """The agents that the settings allow to be called, by endpoint. Raises `ConfigurationError`."""
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
            agents[endpoint] = RemoteAgent(endpoint, stubs, token, settings)
        yield agents
