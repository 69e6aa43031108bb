"""The agent service over gRPC: an in-memory deliberation service, a real gateway, and workspaces
that answer from a function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from moothall.agents.admission import BUCKET, AgentSessions
from moothall.agents.service import AgentTasks
from moothall.api.dependencies import HealthCheck, Probe
from moothall.authorization.rules import read_grants
from moothall.config import AgentSettings
from moothall.domain.budget import Usage
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.status import Condition
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import ToolCall, ToolResult, ToolStatus
from moothall.errors import Temporary
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.ports import Workspace
from moothall.testing.bus import MemoryBus
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.schemas import Arguments, Output
from moothall.tools.spec import Caps, Danger, ToolSpec
from support.callers import TOKEN, api_dependencies, serving, with_parts
from support.deliberation_service import MemoryDeliberations
from support.session_manager import SessionsFixture, open_session_manager

PONDER = ToolSpec(
    name="slow.ponder",
    summary="ponder",
    arguments=Arguments,
    output=Output,
    danger=Danger.READ,
    caps=Caps(60),
)
LOOK = ToolSpec(
    name="slow.look",
    summary="look",
    arguments=Arguments,
    output=Output,
    danger=Danger.READ,
    caps=Caps(60),
    cache_seconds=60.0,
)
GRANTS = """
roles:
  dev: {tools: {"files.*": [read, write], "tests.*": [execute], "slow.*": [read]}}
"""


class Slow:
    """A toolkit whose calls wait for a signal; `max_running` is the maximum number of concurrent
    calls.
    """

    def __init__(self) -> None:
        self.running = self.max_running = 0
        self.order: list[str] = []
        self.go = asyncio.Event()

    async def call(self, call: ToolCall, workspace: Workspace, tenant: str) -> ToolResult:
        """Wait, and answer."""
        del workspace, tenant
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        await self.go.wait()
        self.running -= 1
        return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS, {"id": call.request_id})


@dataclass
class Agent:
    """A stub that carries a token, and its backend."""

    stub: Any
    backend: SessionsFixture
    deliberations: MemoryDeliberations
    bus: MemoryBus
    slow: Slow
    tasks: AgentTasks
    target: str

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.stub, name)
        return lambda request, token=TOKEN: method(
            request, metadata=[("authorization", f"Bearer {token}")], timeout=20
        )


async def _blank(tenant: str) -> RepositoryRef:
    del tenant
    return RepositoryRef(id="sample")


@asynccontextmanager
async def serving_agents(
    tmp_path: Path,
    deliberations: MemoryDeliberations,
    settings: AgentSettings,
    probes: Mapping[str, Probe] | None = None,
) -> AsyncIterator[Agent]:
    """Serve, and yield a caller."""
    bus, slow = MemoryBus(), Slow()
    catalogue = {
        name: spec for name, spec in CATALOGUE.items() if name.startswith(("files.", "tests."))
    }
    catalogue |= {PONDER.name: PONDER, LOOK.name: LOOK}
    grants = read_grants(GRANTS, catalogue.values())
    async with open_session_manager(
        tmp_path,
        max_open=20,
        catalogue=catalogue,
        grants=grants,
        toolkits={"slow": slow.call},
    ) as backend:
        sessions = AgentSessions(bus.bucket(BUCKET), backend.session_manager, _blank)
        tasks = AgentTasks(
            deliberations, backend.session_manager, sessions, settings, parallelism=4, memory_mb=512
        )

        async def fail() -> tuple[Condition, str]:
            raise Temporary("the model server is away")

        checkup = HealthCheck(
            probes or {"model": Probe(fail, needed=False)}, cache_seconds=0, patience_seconds=0.2
        )
        async with serving(
            deliberations,
            with_parts(
                api_dependencies(deliberations, bus, checkup=checkup),
                sessions=backend.session_manager,
                agents=tasks,
            ),
        ) as app:
            yield Agent(
                pb_grpc.AgentServiceStub(app.channel),
                backend,
                deliberations,
                bus,
                slow,
                tasks,
                app.server.target,
            )


def execute_request(
    query: str = "", context: dict[str, Any] | None = None, **fields: Any
) -> pb.ExecuteTaskRequest:
    """Return a request."""
    request = pb.ExecuteTaskRequest(query=query, **fields)
    request.context.update(context or {})
    return request


async def refusal_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return status and details of a refused call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def read_all(stream: Any) -> list[pb.TaskUpdate]:
    """Return all messages of a stream."""
    return [update async for update in stream]


async def answer(agent: Agent, task_id: str, text: str, **fields: Any) -> None:
    """Play the council: it ends with this text."""
    async with asyncio.timeout(10):
        while task_id not in agent.deliberations.task_ids():
            await asyncio.sleep(0)
    best = Result(1, "agent-dev-001", "dev", 1.0, (), passed_gates=True, proven=False, content=text)
    outcome = Outcome(
        task_id,
        DeliberationStatus.COMPLETED,
        agent_count=1,
        winner_id="agent-dev-001",
        results=(best,),
        usage=Usage(prompt_tokens=10, completion_tokens=5, calls=1, cost_usd=0.5),
        final_state="answered",
    )
    await agent.deliberations.decide(replace(outcome, **fields))
