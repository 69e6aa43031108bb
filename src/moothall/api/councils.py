"""The calls of OrchestratorService about councils and agents."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from moothall.api import protobuf
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import caller
from moothall.domain.council import Agent, Capabilities, Council, CouncilConfig
from moothall.errors import InvalidRequest
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb

_ENDPOINT_MESSAGE = (
    "registered; its seat runs at its endpoint if an operator allows that (agents.endpoints), "
    "otherwise on this service's hosts"
)


class CouncilCalls:
    """The council and agent methods of OrchestratorService."""

    _dependencies: ApiDependencies

    async def CreateCouncil(
        self, request: pb.CreateCouncilRequest, context: Any
    ) -> pb.CreateCouncilResponse:
        """Create the council of a role."""
        settings = request.config
        config = protobuf.from_message(
            CouncilConfig,
            settings,
            rounds=settings.deliberation_rounds,
            peer_review=settings.enable_peer_review,
            params=dict(settings.custom_params),
        )
        council = await self._dependencies.councils.create(
            request.role, request.num_agents, config, caller()
        )
        ids = [agent.id for agent in council.agents]
        return pb.CreateCouncilResponse(
            council_id=council.id, agents_created=len(ids), agent_ids=ids
        )

    async def ListCouncils(
        self, request: pb.ListCouncilsRequest, context: Any
    ) -> pb.ListCouncilsResponse:
        """List the councils that exist."""
        who = caller()
        councils = await self._dependencies.councils.list(who, request.role_filter)
        busy = self._dependencies.statistics.find_busy_agents(who)
        return pb.ListCouncilsResponse(
            councils=[
                _council_info(
                    council,
                    busy.get(council.role, ()),
                    self._model(council),
                    agents=request.include_agents,
                )
                for council in councils
            ]
        )

    def _model(self, council: Council) -> str:
        """Return the name of a council's model at its server; the configured profile's name if the
        settings no longer have it.
        """
        profile, models = council.config.model_profile, self._dependencies.models
        try:
            return models.get(
                models.choose(profile) if profile else models.of_role(council.role)
            ).model
        except InvalidRequest:
            return profile

    async def DeleteCouncil(
        self, request: pb.DeleteCouncilRequest, context: Any
    ) -> pb.DeleteCouncilResponse:
        """Delete a role's council. Requests to the role are refused until it is created again."""
        council = await self._dependencies.councils.delete(request.role, caller())
        return pb.DeleteCouncilResponse(
            success=True,
            message=f"deleted; requests to {council.role} are refused until CreateCouncil creates "
            "another council",
            agents_removed=len(council.agents),
        )

    async def RegisterAgent(
        self, request: pb.RegisterAgentRequest, context: Any
    ) -> pb.RegisterAgentResponse:
        """Add an agent to the council of a role."""
        capabilities = protobuf.from_message(Capabilities, request.capabilities)
        agent = protobuf.from_message(
            Agent, request, id=request.agent_id, capabilities=capabilities
        )
        council = await self._dependencies.councils.register(request.role, agent, caller())
        message = (
            _ENDPOINT_MESSAGE
            if agent.endpoint
            else "registered; its seat runs on this service's hosts, with its model"
        )
        return pb.RegisterAgentResponse(success=True, message=message, council_id=council.id)

    async def UnregisterAgent(
        self, request: pb.UnregisterAgentRequest, context: Any
    ) -> pb.UnregisterAgentResponse:
        """Remove an agent from the council of a role."""
        council = await self._dependencies.councils.unregister(
            request.role, request.agent_id, caller()
        )
        remaining = f"{len(council.agents)} left in {council.id}"
        return pb.UnregisterAgentResponse(success=True, message=f"unregistered; {remaining}")


def _council_info(
    council: Council, busy: Collection[str], model: str, *, agents: bool
) -> pb.CouncilInfo:
    status = "busy" if busy else "idle" if council.agents else "empty"
    return pb.CouncilInfo(
        council_id=council.id,
        role=council.role,
        num_agents=len(council.agents),
        agents=[_agent_info(agent, council.role, agent.id in busy) for agent in council.agents]
        if agents
        else (),
        status=status,
        model=model,
    )


def _agent_info(agent: Agent, role: str, busy: bool) -> pb.AgentInfo:  # noqa: FBT001 - private
    return protobuf.to_message(
        pb.AgentInfo, agent, agent_id=agent.id, role=role, status="busy" if busy else "idle"
    )
