"""Who sits for a role: a council, its agents, and what they do unless a caller says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an agent says of itself: listed. `model_profile` chooses the model of its seat; nothing
    else is decided by it.
    """

    supported_tasks: tuple[str, ...] = ()
    model_profile: str = ""
    max_concurrent_tasks: int = 0
    languages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """A member of a council. It takes a seat under its id. `endpoint` is called where the settings
    allow it, and else kept.
    """

    id: str
    capabilities: Capabilities = field(default_factory=Capabilities)
    endpoint: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CouncilConfig:
    """What fills the zeros of a request to this council. `params` are of
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
        """One a role and tenant."""
        return f"council-{self.role}"

    def agent(self, agent_id: str) -> Agent | None:
        """Return the member of that id, or None."""
        return next((agent for agent in self.agents if agent.id == agent_id), None)
