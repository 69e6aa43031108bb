"""Councils, stories and metrics over gRPC, with the real packages on an in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from moothall.api.dependencies import HealthCheck, Probe
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import TaskKey, own_id
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.status import Condition
from moothall.domain.task import Deliberation
from moothall.errors import GraphUnavailable, ModelUnavailable, NotFound
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus
from support.callers import OTHER, Client, Serving, api_dependencies, serving
from support.deliberation_service import MemoryDeliberations
from support.graph import MemoryGraph

DEV = pb.CreateCouncilRequest(
    role="DEV",
    num_agents=2,
    config=pb.CouncilConfig(deliberation_rounds=1, model_profile="default"),
)
MOVED = pb.ProcessPlanningEventRequest(
    event_type="story.transitioned",
    case_id="story-1",
    plan_id="plan-1",
    from_state="DRAFT",
    to_state="PLANNING",
    timestamp_ms=1_700_000_000_000,
    metadata={"title": "Greet", "brief": "Say hello", "roles": "dev,qa"},
)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def graph() -> MemoryGraph:
    return MemoryGraph()


@pytest.fixture
async def app(
    deliberations: MemoryDeliberations, bus: MemoryBus, graph: MemoryGraph
) -> AsyncIterator[Serving]:
    async with serving(deliberations, api_dependencies(deliberations, bus, graph)) as started:
        yield started


@pytest.fixture
def eve(app: Serving) -> Client:
    return Client(app.channel, OTHER)


async def refusal_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status, info = rpc_status.from_call(caught.value), error_details_pb2.ErrorInfo()  # type: ignore[arg-type] # it is one
    assert status is not None
    assert status.details[0].Unpack(info)
    return caught.value.code(), info.reason, status.message


async def test_a_council_is_created_listed_and_deleted(client: Client) -> None:
    creation = await client.CreateCouncil(DEV)
    assert (creation.council_id, creation.agents_created, list(creation.agent_ids)) == (
        "council-dev",
        2,
        ["agent-dev-001", "agent-dev-002"],
    )
    assert await client.CreateCouncil(DEV) == creation
    listed = await client.ListCouncils(pb.ListCouncilsRequest(include_agents=True))
    (council,) = listed.councils
    assert (council.role, council.num_agents, council.status, council.model) == (
        "dev",
        2,
        "idle",
        "scripted",
    )
    assert [(agent.agent_id, agent.role, agent.status) for agent in council.agents] == [
        ("agent-dev-001", "dev", "idle"),
        ("agent-dev-002", "dev", "idle"),
    ]
    assert not (await client.ListCouncils(pb.ListCouncilsRequest())).councils[0].agents
    deletion = await client.DeleteCouncil(pb.DeleteCouncilRequest(role="dev"))
    assert (deletion.success, deletion.agents_removed) == (True, 2)
    assert "CreateCouncil" in deletion.message
    assert (await refusal_of(client.DeleteCouncil(pb.DeleteCouncilRequest(role="dev"))))[
        0
    ] is grpc.StatusCode.NOT_FOUND


async def test_a_registered_agent_gets_a_seat_and_its_endpoint_is_never_called(
    client: Client,
) -> None:
    await client.CreateCouncil(DEV)
    can = pb.AgentCapabilities(
        supported_tasks=["code"],
        model_profile="large",
        max_concurrent_tasks=2,
        languages=["python"],
    )
    registration = pb.RegisterAgentRequest(
        agent_id="specialist",
        role="dev",
        capabilities=can,
        endpoint="http://169.254.169.254/latest",
        metadata={"team": "a"},
    )
    answer = await client.RegisterAgent(registration)
    assert (answer.success, answer.council_id) == (True, "council-dev")
    assert "if an operator allows that (agents.endpoints)" in answer.message
    assert await client.RegisterAgent(registration) == answer
    (council,) = (await client.ListCouncils(pb.ListCouncilsRequest(include_agents=True))).councils
    assert council.agents[2].capabilities == can
    colliding_agent = pb.RegisterAgentRequest(
        agent_id="b", role="dev", capabilities=pb.AgentCapabilities(model_profile="x")
    )
    code, _, message = await refusal_of(client.RegisterAgent(colliding_agent))
    assert (code, message) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "unknown model_profile 'x'; the settings have: default, large (large)",
    )
    code, reason, _ = await refusal_of(
        client.RegisterAgent(pb.RegisterAgentRequest(agent_id="specialist", role="dev"))
    )
    assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")
    assert (
        await client.UnregisterAgent(pb.UnregisterAgentRequest(agent_id="specialist", role="dev"))
    ).success
    code, _, message = await refusal_of(
        client.UnregisterAgent(pb.UnregisterAgentRequest(agent_id="specialist", role="dev"))
    )
    assert code is grpc.StatusCode.NOT_FOUND
    assert "its agents: agent-dev-001, agent-dev-002" in message


async def test_tenants_have_separate_councils_stories_and_metrics(
    deliberations: MemoryDeliberations, client: Client, eve: Client
) -> None:
    await client.CreateCouncil(DEV)
    await client.SubmitDeliberation(pb.DeliberateRequest(task_description="t", role="dev"))
    response = await client.ProcessPlanningEvent(MOVED)
    assert not (await eve.ListCouncils(pb.ListCouncilsRequest())).councils
    assert (await refusal_of(eve.DeleteCouncil(pb.DeleteCouncilRequest(role="dev"))))[
        0
    ] is grpc.StatusCode.NOT_FOUND
    unregister = pb.UnregisterAgentRequest(agent_id="agent-dev-001", role="dev")
    assert (await refusal_of(eve.UnregisterAgent(unregister)))[0] is grpc.StatusCode.NOT_FOUND
    assert (
        await eve.GetStatus(pb.GetStatusRequest(include_stats=True))
    ).stats.total_deliberations == 0
    assert not (await eve.GetMetrics(pb.GetMetricsRequest())).councils.health_per_council
    publish = pb.DerivationStrategy(auto_publish_to_nats=True)
    stolen = pb.DeriveSubtasksRequest(
        case_id="story-1", plan_id="plan-1", roles=["dev"], strategy=publish
    )
    assert (await refusal_of(eve.DeriveSubtasks(stolen)))[0] is grpc.StatusCode.NOT_FOUND
    assert set(response.derived_task_ids).isdisjoint(
        (await eve.ProcessPlanningEvent(MOVED)).derived_task_ids
    )
    assert len(deliberations.task_ids()) == 1


class Parts:
    """Health of a model that may be degraded, and of a slow graph."""

    def __init__(self) -> None:
        self.wrong = ""
        self.away = False

    async def model(self) -> tuple[Condition, str]:
        if self.away:
            raise ModelUnavailable("nobody answers at http://127.0.0.1:1")
        return (
            (Condition.DEGRADED, self.wrong)
            if self.wrong
            else (Condition.HEALTHY, "1 of 1 servers answer")
        )

    async def graph(self) -> tuple[Condition, str]:
        raise GraphUnavailable("the graph is away")


async def test_status_names_the_unhealthy_part_and_the_reason() -> None:
    deliberations, parts = MemoryDeliberations(), Parts()
    checkup = HealthCheck({"model": Probe(parts.model), "bus": Probe(parts.model)}, cache_seconds=0)
    async with serving(deliberations, api_dependencies(deliberations, checkup=checkup)) as served:
        status_request = pb.GetStatusRequest(include_stats=True)
        well = await served.client.GetStatus(status_request)
        assert (well.status, list(well.reasons), well.HasField("stats")) == ("healthy", [], True)
        parts.wrong = "1 of 2 servers answer"
        slow = await served.client.GetStatus(status_request)
        assert (slow.status, slow.reasons[0]) == ("degraded", "model: 1 of 2 servers answer")
        parts.away = True
        down = await served.client.GetStatus(status_request)
        assert (down.status, down.HasField("stats")) == ("unhealthy", False)
        assert list(down.reasons) == [
            f"{name}: nobody answers at http://127.0.0.1:1 [MODEL_UNAVAILABLE]"
            for name in ("model", "bus")
        ]


async def test_an_optional_part_only_degrades_the_status() -> None:
    deliberations, parts = MemoryDeliberations(), Parts()
    checkup = HealthCheck({"model": Probe(parts.model), "graph": Probe(parts.graph, needed=False)})
    async with serving(deliberations, api_dependencies(deliberations, checkup=checkup)) as served:
        answer = await served.client.GetStatus(pb.GetStatusRequest())
    assert (answer.status, list(answer.reasons)) == (
        "degraded",
        ["graph: the graph is away [GRAPH_UNAVAILABLE]"],
    )


async def test_status_and_metrics_are_correct(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    assert not (await client.GetStatus(pb.GetStatusRequest())).HasField("stats")
    await client.CreateCouncil(DEV)
    await client.SubmitDeliberation(
        pb.DeliberateRequest(task_description="t", role="dev", num_agents=2)
    )
    answer = await client.GetStatus(pb.GetStatusRequest(include_stats=True))
    assert answer.status == "healthy"
    assert (
        answer.stats.total_deliberations,
        answer.stats.active_councils,
        answer.stats.role_counts,
    ) == (1, 1, {"dev": 1})
    metrics_of_all = await client.GetMetrics(pb.GetMetricsRequest(metric_type="ALL"))
    health = metrics_of_all.councils.health_per_council["council-dev"]
    assert (health.status, health.busy_agents, health.available_agents) == ("busy", 2, 0)
    assert (
        metrics_of_all.agents.total_agents,
        metrics_of_all.agents.active_agents,
        metrics_of_all.agents.agents_per_role,
    ) == (2, 2, {"dev": 2})
    performance_metrics = await client.GetMetrics(pb.GetMetricsRequest(metric_type="performance"))
    assert (
        performance_metrics.HasField("performance"),
        performance_metrics.HasField("agents"),
        performance_metrics.HasField("councils"),
    ) == (
        True,
        False,
        False,
    )
    code, _, message = await refusal_of(
        client.GetMetrics(pb.GetMetricsRequest(metric_type="weather"))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "performance, agents, councils" in message
    assert (await refusal_of(client.GetMetrics(pb.GetMetricsRequest(time_range_ms=-1))))[
        0
    ] is grpc.StatusCode.INVALID_ARGUMENT
    (council,) = (await client.ListCouncils(pb.ListCouncilsRequest(include_agents=True))).councils
    assert (council.status, council.agents[0].status) == ("busy", "busy")


async def test_orchestrate_returns_winner_and_candidates_in_ranking_order(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    orchestrate_request = pb.OrchestrateRequest(
        task_id="task-1",
        task_description="Add hello_world()",
        role="DEV",
        options=pb.OrchestratorOptions(
            deliberation_rounds=2,
            enable_architect_selection=True,
            custom_params={"protocol": "vote", "num_agents": "2"},
        ),
        case_id="story-1",
        plan_id="plan-1",
        repository=common_pb2.Repository(id="repo"),
    )
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_await_call(client.Orchestrate(orchestrate_request)))
        await deliberations.submitted.wait()
        request = deliberations.request("task-1")
        results = tuple(
            Result(n, f"agent-dev-00{n}", "dev", 1 / n, (), True, False) for n in (1, 2)
        )
        await deliberations.decide(
            Outcome(
                "task-1",
                DeliberationStatus.COMPLETED,
                role="dev",
                winner_id="agent-dev-001",
                results=results,
                duration_ms=7,
            )
        )
    answer = call.result()
    assert (request.rounds, request.protocol, request.num_agents, request.origin) == (
        2,
        "vote",
        2,
        "orchestrate",
    )
    assert (request.peer_review, request.reviewer, request.story_id, request.plan_id) == (
        True,
        "architect",
        "story-1",
        "plan-1",
    )
    assert answer.winner.proposal.author_id == "agent-dev-001"
    assert [item.proposal.author_id for item in answer.candidates] == [
        "agent-dev-001",
        "agent-dev-002",
    ]
    assert (answer.execution_id, answer.duration_ms, answer.metadata.tags["status"]) == (
        "task-1",
        7,
        "COMPLETED",
    )


async def test_the_reason_for_a_missing_winner_is_shown(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(
            _await_call(client.Orchestrate(pb.OrchestrateRequest(task_description="t", role="qa")))
        )
        await deliberations.submitted.wait()
        (task_id,) = deliberations.task_ids()
        await deliberations.decide(
            Outcome(task_id, DeliberationStatus.FAILED, error_message="No seat proposed anything")
        )
    answer = call.result()
    assert not answer.HasField("winner")
    assert (answer.metadata.tags["status"], answer.metadata.tags["error_message"]) == (
        "FAILED",
        "No seat proposed anything",
    )


async def test_an_orchestrate_call_that_times_out_cancels_its_deliberation(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await client.Orchestrate(
            pb.OrchestrateRequest(task_description="t", role="qa"), timeout=0.3
        )
    async with asyncio.timeout(10):
        while not deliberations.cancelled:
            await asyncio.sleep(0.01)


async def test_the_storys_context_is_added_to_the_task(
    deliberations: MemoryDeliberations, client: Client, graph: MemoryGraph
) -> None:
    graph.announce("context", {"story": {"headline": "Greet the world"}})
    orchestrate_request = pb.OrchestrateRequest(
        task_description="t", role="dev", story_id="story-1", context_options=pb.ContextOptions()
    )
    call = client.Orchestrate(orchestrate_request)
    await deliberations.submitted.wait()
    assert "Greet the world" in deliberations.request(deliberations.task_ids()[0]).context
    call.cancel()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (pb.OrchestratorOptions(custom_params={"temprature": "1"}), "unknown custom_params"),
        (pb.OrchestratorOptions(custom_params={"num_agents": "many"}), "whole number"),
    ],
)
async def test_unknown_parameters_are_refused(
    client: Client, options: pb.OrchestratorOptions, message: str
) -> None:
    code, _, details = await refusal_of(
        client.Orchestrate(pb.OrchestrateRequest(task_description="t", role="dev", options=options))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in details


async def test_different_story_and_case_ids_are_refused(client: Client) -> None:
    contradicting = pb.OrchestrateRequest(
        task_description="t", role="dev", story_id="a", case_id="b"
    )
    assert "differ" in (await refusal_of(client.Orchestrate(contradicting)))[2]


async def test_a_planning_event_derives_tasks_once(client: Client) -> None:
    answer = await client.ProcessPlanningEvent(MOVED)
    assert (answer.processed, len(answer.derived_task_ids)) == (True, 2)
    assert await client.ProcessPlanningEvent(MOVED) == answer
    comment_event = pb.ProcessPlanningEventRequest(
        event_type="story.commented", case_id="story-1", metadata={"comment": "nice"}
    )
    response = await client.ProcessPlanningEvent(comment_event)
    assert not response.processed
    assert "planning" in response.message
    strategy = pb.DerivationStrategy(dependency_order=["qa", "dev"], max_tasks_per_role=2)
    derive_request = pb.DeriveSubtasksRequest(
        case_id="story-1", plan_id="plan-2", roles=["DEV", "QA"], strategy=strategy
    )
    derived = await client.DeriveSubtasks(derive_request)
    tests, code = derived.tasks
    assert (tests.role, code.role, list(code.dependencies), derived.total_tasks) == (
        "qa",
        "dev",
        [tests.task_id],
        2,
    )
    assert "Say hello" in code.description
    assert (code.case_id, code.plan_id, code.priority) == ("story-1", "plan-2", 2)


async def test_a_tasks_context_is_shown(client: Client, graph: MemoryGraph) -> None:
    graph.announce("context", {"brief": {"brief": "Say hello", "criteria": ["polite"]}})
    graph.announce(
        "timeline", {"time": "t", "kind": "story.created", "task_id": "", "text": "Greet"}
    )
    context_request = pb.GetTaskContextRequest(
        case_id="story-1", role="DEV", phase="review", options=pb.ContextOptions(scopes=["brief"])
    )
    context = await client.GetTaskContext(context_request)
    assert "Say hello" in context.blocks.context
    assert context.blocks.context in context.context_text
    assert context.blocks.history == ""
    assert 0 < context.token_count < 2000
    assert (await client.GetTaskContext(context_request)).version_hash == context.version_hash
    strange = pb.GetTaskContextRequest(
        case_id="story-1", options=pb.ContextOptions(scopes=["secrets"])
    )
    assert "the scopes are story" in (await refusal_of(client.GetTaskContext(strange)))[2]


async def _await_call(call: Any) -> Any:
    return await call


async def test_a_derived_task_is_pending_until_its_predecessors_have_ended(
    client: Client, eve: Client
) -> None:
    answer = await client.ProcessPlanningEvent(MOVED)
    for task_id in answer.derived_task_ids:
        waiting = await client.GetDeliberationResult(
            pb.GetDeliberationResultRequest(task_id=task_id)
        )
        assert waiting.status == pb.DELIBERATION_STATUS_PENDING
        code, _, _ = await refusal_of(
            eve.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=task_id))
        )
        assert code is grpc.StatusCode.NOT_FOUND


async def test_a_planning_event_for_an_unknown_repository_is_not_processed(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    deliberations.unable["ghost"] = NotFound("no repository 'ghost'")
    moved = pb.ProcessPlanningEventRequest(
        event_type="story.transitioned", case_id="story-1", to_state="PLANNING"
    )
    moved.metadata.update(
        {"title": "Greet", "brief": "Say hello", "roles": "dev", "repository": "ghost"}
    )
    answer = await client.ProcessPlanningEvent(moved)
    assert (answer.processed, list(answer.derived_task_ids)) == (False, [])
    assert answer.message == "not recorded: no repository 'ghost'"


async def test_operators_set_quotas_of_any_tenant_and_others_see_only_their_own(
    client: Client, app: Serving
) -> None:
    await client.SetQuotas(
        pb.SetQuotasRequest(tenant="elsewhere", quotas=pb.Quotas(tokens_per_day=0, deliberations=3))
    )
    eve = Client(app.channel, OTHER)
    quotas_response = await eve.GetQuotas(pb.GetQuotasRequest())
    assert (
        quotas_response.tenant,
        quotas_response.quotas.deliberations,
        quotas_response.own.HasField("tokens_per_day"),
    ) == (
        "elsewhere",
        3,
        True,
    )
    assert not quotas_response.own.HasField("cost_usd_per_day")
    assert [(change.actor, change.quotas.deliberations) for change in quotas_response.changes] == [
        ("local", 3)
    ]
    for request in (
        eve.GetQuotas(pb.GetQuotasRequest(tenant="local")),
        eve.SetQuotas(pb.SetQuotasRequest(quotas=pb.Quotas(deliberations=9))),
    ):
        assert (await refusal_of(request))[0] is grpc.StatusCode.PERMISSION_DENIED
    negative_quotas = pb.SetQuotasRequest(quotas=pb.Quotas(tokens_per_month=-1))
    assert (await refusal_of(client.SetQuotas(negative_quotas)))[
        0
    ] is grpc.StatusCode.INVALID_ARGUMENT


async def test_deliberations_are_listed_in_pages_by_state_and_search_words(
    client: Client, eve: Client, bus: MemoryBus
) -> None:
    for number in range(5):
        key = TaskKey(f"task-{number}")
        text = f"Export the {'invoices' if number % 2 else 'labels'}"
        deadline = datetime(2026, 12, 1, tzinfo=UTC)
        request = Deliberation(key, text, "dev", "vote", ("seat-1",), 0, deadline, 2)
        status = DeliberationStatus.FAILED if number == 4 else DeliberationStatus.COMPLETED
        for kind, data in (
            (EventType.DELIBERATION_REQUESTED, dump(request)),
            (EventType.DELIBERATION_DECIDED, dump(Outcome(own_id(key, "local"), status))),
        ):
            await bus.publish(write(kind, key, data, tenant="local"))
    listed: list[str] = []
    token = ""
    while True:
        page = await client.ListDeliberations(
            pb.ListDeliberationsRequest(page_size=2, page_token=token)
        )
        listed += [deliberation.task_id for deliberation in page.deliberations]
        assert len(page.deliberations) <= 2
        if not (token := page.next_page_token):
            break
    assert listed == [f"task-{number}" for number in reversed(range(5))]
    matches = await client.ListDeliberations(
        pb.ListDeliberationsRequest(query="INVOICES export", state="ended")
    )
    assert {deliberation.task_id for deliberation in matches.deliberations} == {"task-1", "task-3"}
    assert matches.deliberations[0].status == pb.DELIBERATION_STATUS_COMPLETED
    failed = await client.ListDeliberations(pb.ListDeliberationsRequest(state="failed"))
    assert [deliberation.task_id for deliberation in failed.deliberations] == ["task-4"]
    live = await client.ListDeliberations(pb.ListDeliberationsRequest(state="live"))
    assert not live.deliberations
    assert not (await eve.ListDeliberations(pb.ListDeliberationsRequest())).deliberations
    for invalid_request in (
        pb.ListDeliberationsRequest(state="lost"),
        pb.ListDeliberationsRequest(page_size=1001),
        pb.ListDeliberationsRequest(page_token="-1"),
    ):
        assert (await refusal_of(client.ListDeliberations(invalid_request)))[
            0
        ] is grpc.StatusCode.INVALID_ARGUMENT
