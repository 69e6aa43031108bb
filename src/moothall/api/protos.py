"""The services of the protos and their implementations: one list for gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf.descriptor import ServiceDescriptor

from moothall.api.agent import AgentKernel, AgentService
from moothall.api.context import Context
from moothall.api.dependencies import ApiDependencies
from moothall.api.orchestrator import OrchestratorService
from moothall.api.stories import Planning, StoryCoach
from moothall.api.tools import Scoring, SecureRunner, Tools, ToolService
from moothall.pb.context.v1 import context_pb2, context_pb2_grpc
from moothall.pb.kernel.v1 import kernel_pb2, kernel_pb2_grpc
from moothall.pb.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from moothall.pb.planning.v1 import planning_pb2, planning_pb2_grpc
from moothall.pb.runner.v1 import runner_pb2, runner_pb2_grpc
from moothall.pb.shannon.agent import agent_pb2, agent_pb2_grpc
from moothall.pb.storycoach.v1 import storycoach_pb2, storycoach_pb2_grpc
from moothall.pb.tool.v1 import tool_pb2, tool_pb2_grpc
from moothall.pb.workspace.v1 import workspace_pb2, workspace_pb2_grpc


@dataclass(frozen=True, slots=True)
class Service:
    """A service. `servicer` has a coroutine for each method, or an async generator if the method
    streams. `add` adds it to a gRPC server.
    """

    descriptor: ServiceDescriptor
    servicer: Any
    add: Callable[[Any, Any], None]


def services_of(dependencies: ApiDependencies) -> list[Service]:
    """Return the services that this process serves."""
    services = (
        []
        if "api" not in dependencies.serving.roles
        else [
            _service(
                "OrchestratorService",
                orchestrator_pb2,
                orchestrator_pb2_grpc,
                OrchestratorService(dependencies),
            ),
            _service("PlanningService", planning_pb2, planning_pb2_grpc, Planning(dependencies)),
            _service(
                "StoryCoachService",
                storycoach_pb2,
                storycoach_pb2_grpc,
                StoryCoach(dependencies.stories.author),
            ),
            _service("WorkspaceService", workspace_pb2, workspace_pb2_grpc, Scoring()),
            _service("ContextService", context_pb2, context_pb2_grpc, Context(dependencies)),
        ]
    )
    if dependencies.tools.sessions is not None:
        tools = ToolService(
            Tools(
                dependencies.tools.sessions,
                dependencies.tools.approvals,
                dependencies.tools.workflows,
            )
        )
        services += [
            _service("ToolService", tool_pb2, tool_pb2_grpc, tools),
            _service(
                "AgentKernel",
                kernel_pb2,
                kernel_pb2_grpc,
                AgentKernel(dependencies.deliberations, dependencies.tools.sessions),
            ),
        ]
    if dependencies.tools.agents is not None:
        agents = AgentService(
            dependencies.tools.agents, dependencies.health_check, dependencies.models
        )
        services.append(_service("AgentService", agent_pb2, agent_pb2_grpc, agents))
    if dependencies.tools.executions is not None:
        services.append(
            _service(
                "SecureRunner",
                runner_pb2,
                runner_pb2_grpc,
                SecureRunner(dependencies.tools.executions),
            )
        )
    return services


def _service(name: str, messages: Any, stubs: Any, servicer: Any) -> Service:
    descriptor = cast("ServiceDescriptor", messages.DESCRIPTOR.services_by_name[name])
    return Service(descriptor, servicer, getattr(stubs, f"add_{name}Servicer_to_server"))
