"""Councils, their agents and default settings, the table of protocols, and briefings of agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# The briefing that an agent gets about a task.


@dataclass(frozen=True, slots=True)
class BriefingRequest:
    """A request for the parts of a briefing, limited to the scopes of the role in the phase. If no
    part is requested, all but the timeline are; otherwise the story and the requested parts.
    `scopes` restrict the request further.

    `story_id` or `task_id` is required. `events` limits the timeline, `budget` the whole in tokens;
    0 means the default. `description` and `repository` of a task that does not exist yet are
    compared with past work.
    """

    task_id: str = ""
    story_id: str = ""
    role: str = ""
    phase: str = ""
    timeline: bool = False
    decisions: bool = False
    summaries: bool = False
    events: int = 0
    scopes: tuple[str, ...] = ()
    budget: int = 0
    description: str = ""
    repository: str = ""


@dataclass(frozen=True, slots=True)
class Briefing:
    """The parts of a briefing, and the whole text.

    graph_text: the text of the graph without its fence.
    tokens: the number of tokens of `text`.
    version: changes with the text.
    scopes: the scopes that were read.
    """

    system: str
    context: str
    tools: str
    history: str
    text: str
    tokens: int
    version: str
    graph_text: str = ""
    scopes: tuple[str, ...] = ()


# A council, its agents, and its default settings.


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
    `moothall.orchestrator.council_registry.COUNCIL_PARAMS`.
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


# The table of protocols: the order of a council's steps, which `council.protocols` runs.
#
# Every protocol begins with proposals. It ends with reviews by all seats if they were requested, or
# if the task is about text, which has no other evidence. In between are rounds of revisions, runs
# of each candidate's tests on the others, a second wave of proposals, and reviews or a comparison
# of tied candidates.


ProtocolName = Literal[
    "single", "vote", "debate", "tests_then_verify", "ask", "tournament", "judge"
]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol.

    `rounds`: of revision, if the request names none. `revises_on`: what authors see before a
    revision; `reviews`: another seat reviews each candidate, and its author revises it; `evidence`:
    while no candidate passes the acceptance checks, failed ones are revised. `reviews_ties`: tied
    candidates are reviewed once each. `compares`: they are compared in small groups by summaries
    instead. `second_wave`: seats propose again, with notes on the first proposals, while no
    candidate is reproduced. `stops_early`: it may end before every seat has proposed. `answers`: a
    proposal without a change is an answer in text. `judges`: the first seat proposes a given
    change, the others are its rivals, and nothing is delivered.
    """

    rounds: int = 0
    one_seat: bool = False
    revises_on: Literal["", "reviews", "evidence"] = ""
    reviews_ties: bool = False
    compares: bool = False
    second_wave: bool = False
    stops_early: bool = False
    answers: bool = False
    judges: bool = False


PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "single": Protocol(one_seat=True),
    "vote": Protocol(stops_early=True),
    "debate": Protocol(rounds=1, revises_on="reviews", reviews_ties=True),
    "tests_then_verify": Protocol(
        rounds=1, revises_on="evidence", reviews_ties=True, stops_early=True
    ),
    "ask": Protocol(one_seat=True, answers=True),
    "tournament": Protocol(reviews_ties=True, compares=True, second_wave=True, stops_early=True),
    "judge": Protocol(judges=True),
}
DEFAULT_PROTOCOL: ProtocolName = "tests_then_verify"
