from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from moothall.config import LimitSettings, LlmSettings, Models
from moothall.domain.council import Agent, Capabilities, CouncilConfig
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.task import DeliberationRequest
from moothall.errors import AlreadyExists, InvalidRequest, NoCouncil, NotFound
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.request_planning import Defaults, plan_deliberation
from moothall.testing.bus import MemoryBus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OTHER = Principal("eve", "elsewhere")
PLAIN = CouncilConfig()
MODELS = Models.of(
    LlmSettings(model="qwen", tier="small"),
    {"x": LlmSettings(model="deep", tier="large", roles=("qa",))},
)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def council_registry(bus: MemoryBus) -> CouncilRegistry:
    return CouncilRegistry(bus, LimitSettings(), MODELS)


async def test_there_is_no_council_by_default(council_registry: CouncilRegistry) -> None:
    assert council_registry.find("dev", "local") is None
    assert await council_registry.list(LOCAL) == []


async def test_a_council_survives_a_restart_and_belongs_to_its_tenant(
    bus: MemoryBus, council_registry: CouncilRegistry
) -> None:
    council = await council_registry.create(
        "DEV", 2, CouncilConfig(rounds=2, peer_review=True, params={"protocol": "vote"}), LOCAL
    )
    assert (council.id, [agent.id for agent in council.agents]) == (
        "council-dev",
        ["agent-dev-001", "agent-dev-002"],
    )
    fresh = CouncilRegistry(bus, LimitSettings())
    await fresh.refresh()
    assert fresh.find("dev", "local") == council
    assert fresh.find("dev", "elsewhere") is None
    assert await fresh.list(LOCAL) == await fresh.list(LOCAL, "dev") == [council]
    assert await fresh.list(LOCAL, "qa") == await fresh.list(OTHER) == []


async def test_council_settings_fill_unset_fields_of_a_request(
    council_registry: CouncilRegistry,
) -> None:
    params = {
        "protocol": "debate",
        "adaptive": "true",
        "max_iterations": "4",
        "timeout_seconds": "60",
    }
    council = await council_registry.create(
        "dev", 2, CouncilConfig(rounds=3, peer_review=True, params=params), LOCAL
    )
    request = DeliberationRequest("x", "dev")
    planned = plan_deliberation(request, LOCAL, Defaults(LimitSettings()), NOW, council)
    assert planned.seats == ("agent-dev-001", "agent-dev-002")
    assert (planned.rounds, planned.peer_review, planned.protocol) == (3, True, "debate")
    assert (planned.adaptive, planned.max_turns, (planned.deadline - NOW).seconds) == (True, 4, 60)
    explicit = plan_deliberation(
        DeliberationRequest("x", "dev", rounds=1, num_agents=1, protocol="vote"),
        LOCAL,
        Defaults(LimitSettings()),
        NOW,
        council,
    )
    assert (explicit.rounds, len(explicit.seats), explicit.protocol) == (1, 1, "vote")
    with pytest.raises(InvalidRequest, match="the dev council has 2: agent-dev-001, agent-dev-002"):
        plan_deliberation(
            DeliberationRequest("x", "dev", num_agents=3),
            LOCAL,
            Defaults(LimitSettings()),
            NOW,
            council,
        )


async def test_creating_the_same_council_again_changes_nothing_and_another_is_refused(
    bus: MemoryBus, council_registry: CouncilRegistry
) -> None:
    council = await council_registry.create("dev", 2, PLAIN, LOCAL)
    assert await council_registry.create("dev", 2, PLAIN, LOCAL) == council
    assert (await bus.state("COUNCILS")).messages == 1
    with pytest.raises(AlreadyExists, match="delete it first"):
        await council_registry.create("dev", 3, PLAIN, LOCAL)


async def test_a_deleted_council_closes_its_role_until_another_is_created(
    council_registry: CouncilRegistry,
) -> None:
    await council_registry.create("dev", 2, PLAIN, LOCAL)
    assert len((await council_registry.delete("dev", LOCAL)).agents) == 2
    with pytest.raises(NoCouncil, match="was deleted; create one with CreateCouncil"):
        council_registry.find("dev", "local")
    with pytest.raises(NotFound):
        await council_registry.delete("dev", LOCAL)
    assert council_registry.find("dev", "elsewhere") is None
    recreated = await council_registry.create("dev", 2, PLAIN, LOCAL)
    assert council_registry.find("dev", "local") == recreated
    await council_registry.delete("dev", LOCAL)
    await council_registry.create("dev", 2, PLAIN, LOCAL)
    assert council_registry.find("dev", "local") == recreated


async def test_agents_are_registered_and_unregistered(council_registry: CouncilRegistry) -> None:
    with pytest.raises(NotFound, match="CreateCouncil"):
        await council_registry.register("dev", Agent("specialist"), LOCAL)
    await council_registry.create("dev", 1, PLAIN, LOCAL)
    agent = Agent(
        "specialist",
        Capabilities(("refactoring",), "x", 2, ("python",)),
        "https://agents.example/a",
        {"team": "a"},
    )
    for _ in range(2):
        assert [
            item.id for item in (await council_registry.register("dev", agent, LOCAL)).agents
        ] == [
            "agent-dev-001",
            "specialist",
        ]
    with pytest.raises(AlreadyExists, match="other data"):
        await council_registry.register("dev", Agent("specialist"), LOCAL)
    await council_registry.unregister("dev", "agent-dev-001", LOCAL)
    with pytest.raises(NotFound, match="its agents: specialist"):
        await council_registry.unregister("dev", "agent-dev-001", LOCAL)
    await council_registry.unregister("dev", "specialist", LOCAL)
    with pytest.raises(NoCouncil, match="has no agents"):
        council_registry.find("dev", "local")


async def test_the_size_of_a_council_is_limited(bus: MemoryBus) -> None:
    small = CouncilRegistry(bus, LimitSettings(agents=2))
    with pytest.raises(InvalidRequest, match="1 to 2 agents"):
        await small.create("dev", 3, PLAIN, LOCAL)
    await small.create("dev", 2, PLAIN, LOCAL)
    with pytest.raises(InvalidRequest, match="council is full"):
        await small.register("dev", Agent("third"), LOCAL)
    await small.unregister("dev", "agent-dev-002", LOCAL)
    with pytest.raises(InvalidRequest, match="more than 4000 characters"):
        await small.register("dev", Agent("third", metadata={"k": "v" * 4000}), LOCAL)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CouncilConfig(rounds=-1), "deliberation_rounds is -1"),
        (CouncilConfig(rounds=99), "deliberation_rounds is 99"),
        (
            CouncilConfig(model_profile="gpt"),
            r"unknown model_profile 'gpt'; the settings have: default \(small\), x \(large\)",
        ),
        (CouncilConfig(agent_type="MOCK"), "unknown agent_type 'MOCK'"),
        (CouncilConfig(params={"protokol": "vote"}), "did you mean protocol?"),
        (CouncilConfig(params={"seed": "1"}), "unknown custom_params 'seed'"),
        (CouncilConfig(params={"protocol": "debat"}), "did you mean debate?"),
        (CouncilConfig(params={"adaptive": "maybe"}), "true or false"),
        (CouncilConfig(params={"max_iterations": "-1"}), "whole number"),
        (CouncilConfig(params={"max_iterations": "999"}), "max_iterations 100"),
    ],
)
async def test_an_invalid_council_setting_is_named(
    council_registry: CouncilRegistry, config: CouncilConfig, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await council_registry.create("dev", 1, config, LOCAL)


@pytest.mark.parametrize(
    "endpoint",
    [
        "agent:80",
        "file:///etc/passwd",
        "http://",
        "http://u:p@host/",
        "http://host:99999/",
        "http://ho st/",
        "http://host/\n",
        "x" * 600,
    ],
)
async def test_an_endpoint_must_be_a_valid_address(
    council_registry: CouncilRegistry, endpoint: str
) -> None:
    await council_registry.create("dev", 1, PLAIN, LOCAL)
    with pytest.raises(InvalidRequest, match="is not the address of an agent"):
        await council_registry.register("dev", Agent("a", endpoint=endpoint), LOCAL)


async def test_the_log_decides_which_of_several_concurrent_creations_was_first(
    bus: MemoryBus,
) -> None:
    async def make(count: int) -> Any:
        try:
            return await CouncilRegistry(bus, LimitSettings()).create("dev", count, PLAIN, LOCAL)
        except AlreadyExists as error:
            return error

    ends = await asyncio.gather(*(make(1 + number % 4) for number in range(12)))
    won = {len(end.agents) for end in ends if not isinstance(end, AlreadyExists)}
    assert len(won) == 1
    fresh = CouncilRegistry(bus, LimitSettings())
    await fresh.refresh()
    council = fresh.find("dev", "local")
    assert council is not None
    assert {len(council.agents)} == won


async def test_malformed_events_change_nothing_and_later_ones_are_followed(
    bus: MemoryBus, council_registry: CouncilRegistry
) -> None:
    other_registry = CouncilRegistry(bus, LimitSettings())
    async with asyncio.TaskGroup() as group:
        following = group.create_task(council_registry.run())
        for data in (
            {"role": "wizard"},
            {"role": "dev", "agents": 7, "config": {}},
            {"role": "dev", "agent": None},
        ):
            for kind in (
                EventType.COUNCIL_CREATED,
                EventType.AGENT_REGISTERED,
                EventType.COUNCIL_DELETED,
            ):
                await bus.publish(new_event(kind, "x", data, ordinal=str(data)))
        council = await other_registry.create("qa", 1, PLAIN, LOCAL)
        async with asyncio.timeout(10):
            while council_registry.find("qa", "local") != council:
                await asyncio.sleep(0.01)
        following.cancel()
    assert council_registry.find("dev", "local") is None
