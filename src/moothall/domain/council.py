"""A council, its agents, and its default settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Capabilities:
    """An agent's description of itself. It is only listed, except that `model_profile` selects the
    model of its seat.
    """

    supported_tasks: tuple[str, ...] = ()
    model_profile: str = ""
    max_concurrent_tasks: int = 0
    languages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """A member of a council. Its id is the id of its seat. `endpoint` is called if the settings
    allow it, and otherwise only stored.
    """

    id: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    endpoint: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CouncilConfig:
    """Defaults for requests to this council. The keys of `params` are in
    `moothall.orchestrator.council_params.COUNCIL_PARAMS`.
    """

    rounds: int = 0
    peer_review: bool = False
    model_profile: str = ""
    agent_type: str = ""
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Council:
    """The agents of a role, in the order in which they take seats."""

    role: str
    agents: tuple[Agent, ...] = ()
    config: CouncilConfig = field(default_factory=CouncilConfig)

    @property
    def id(self) -> str:
        """The council's id, unique within a tenant."""
        return f"council-{self.role}"

    def agent(self, agent_id: str) -> Agent | None:
        """Return the member with an id, or None."""
        return next((agent for agent in self.agents if agent.id == agent_id), None)
