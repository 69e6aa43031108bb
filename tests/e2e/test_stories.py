"""Stories, councils and metrics on a real server: real bus, hosts and gRPC; only the model is
scripted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from served import ALICE, EVE, Served, make_command, run_server

from command import Command
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.testing.model import ScriptedModel

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

HERE = Path(__file__).parent


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_command(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return make_command(tmp_path_factory.mktemp("stories"), model.base_url)


async def wait_for_result(stub: Any, task_id: str) -> Any:
    """Wait for the end of a deliberation that may not be dispatched yet."""
    async with asyncio.timeout(180):
        while True:
            try:
                response = await stub.GetDeliberationResult(
                    pb.GetDeliberationResultRequest(task_id=task_id)
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
            else:
                if response.status not in {
                    pb.DELIBERATION_STATUS_PENDING,
                    pb.DELIBERATION_STATUS_IN_PROGRESS,
                }:
                    return response
            await asyncio.sleep(0.1)


async def test_a_server_serves_two_tenants(own_command: Command) -> None:
    """One test for all steps, because each start of a server costs more than the steps."""
    async with run_server(own_command) as app:
        await _a_seed_era_client_gets_an_answer(app)
        await _a_council_gives_its_seats(app)
        await _orchestrate(app)
        design, code = await _a_story_is_planned(app, "story-1", "HAIKU")
        assert (await wait_for_result(app.stub(), design)).winner_id
        assert (await wait_for_result(app.stub(), code)).winner_id
        await _check_metrics(app, deliberations=5)
        waiting, hanging = await _a_story_is_planned(app, "story-2", "HANG")
    async with run_server(own_command) as restarted:
        council = (
            await restarted.stub().ListCouncils(pb.ListCouncilsRequest(include_agents=True))
        ).councils[0]
        assert [agent.agent_id for agent in council.agents] == ["agent-dev-001", "specialist"]
        await _check_metrics(restarted, deliberations=6)
        # The plan continues after the restart: its first task ends without a winner, so the second
        # cannot start and reports why.
        pending = await restarted.stub().GetDeliberationResult(
            pb.GetDeliberationResultRequest(task_id=hanging)
        )
        assert pending.status == pb.DELIBERATION_STATUS_PENDING
        await restarted.stub().CancelDeliberation(pb.CancelDeliberationRequest(task_id=waiting))
        assert (
            await wait_for_result(restarted.stub(), waiting)
        ).status == pb.DELIBERATION_STATUS_CANCELLED
        finished = await _task_outcomes(restarted, "story-2")
        assert finished == {waiting: "CANCELLED", hanging: "SKIPPED"}
        skipped = await wait_for_result(restarted.stub(), hanging)
        assert skipped.status == pb.DELIBERATION_STATUS_FAILED
        assert (
            f"not started: {waiting}, whose work it builds on, has no winner"
            in skipped.error_message
        )
        await _what_cannot_start_is_not_processed(restarted)


async def _what_cannot_start_is_not_processed(app: Served) -> None:
    def move_event(story: str, **metadata: str) -> pb.ProcessPlanningEventRequest:
        fields = {"title": "A text", "brief": "Write a HAIKU", "roles": "dev", **metadata}
        return pb.ProcessPlanningEventRequest(
            event_type="story.transitioned", case_id=story, to_state="PLANNING", metadata=fields
        )

    outside_path = str(app.command.data_dir.parent)
    for repository, reason in (
        ("no-such", "no repository 'no-such'"),
        (outside_path, "is not below an allowed root"),
    ):
        answer = await app.stub().ProcessPlanningEvent(move_event("story-3", repository=repository))
        assert (answer.processed, list(answer.derived_task_ids)) == (False, [])
        assert reason in answer.message
    await app.stub().DeleteCouncil(pb.DeleteCouncilRequest(role="dev"))
    answer = await app.stub().ProcessPlanningEvent(move_event("story-4"))
    assert not answer.processed
    assert "the dev council was deleted" in answer.message


async def _a_seed_era_client_gets_an_answer(app: Served) -> None:
    folder = app.command.data_dir / "seed"
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "seed" / "client.py"),
        app.command.served_at,
        ALICE,
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    answer = json.loads(out)
    assert answer["winner_id"].startswith("agent-dev-")
    assert answer["results"][0]["proposal"]["content"] == "An old silent pond"
    assert {result["rank"] for result in answer["results"]} == {1, 2}


async def _a_council_gives_its_seats(app: Served) -> None:
    alice, eve = app.stub(), app.stub(EVE)
    config = pb.CouncilConfig(custom_params={"protocol": "vote"})
    await alice.CreateCouncil(pb.CreateCouncilRequest(role="DEV", num_agents=1, config=config))
    await alice.RegisterAgent(
        pb.RegisterAgentRequest(agent_id="specialist", role="dev", endpoint="http://127.0.0.1:9/")
    )
    answer = await alice.Deliberate(
        pb.DeliberateRequest(task_description="Write a HAIKU", role="dev")
    )
    assert sorted(seat.agent_id for seat in answer.seats) == ["agent-dev-001", "specialist"]
    await alice.CreateCouncil(pb.CreateCouncilRequest(role="qa", num_agents=1))
    await alice.DeleteCouncil(pb.DeleteCouncilRequest(role="qa"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await alice.Deliberate(pb.DeliberateRequest(task_description="Write a HAIKU", role="qa"))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "CreateCouncil" in str(caught.value.details())
    assert not (await eve.ListCouncils(pb.ListCouncilsRequest())).councils
    hers = await eve.SubmitDeliberation(
        pb.DeliberateRequest(task_description="Write a HAIKU", role="dev", num_agents=1)
    )
    assert hers.agent_count == 1
    assert (await wait_for_result(eve, hers.task_id)).winner_id == "agent-dev-001"


async def _orchestrate(app: Served) -> None:
    request = pb.OrchestrateRequest(
        task_description="Write a HAIKU",
        role="dev",
        case_id="story-0",
        options=pb.OrchestratorOptions(enable_architect_selection=True),
    )
    answer = await app.stub().Orchestrate(request)
    assert answer.winner.proposal.content == "An old silent pond"
    assert [item.rank for item in answer.candidates] == [1, 2]
    assert answer.candidates[0] == answer.winner


async def _a_story_is_planned(app: Served, story: str, kind: str) -> tuple[str, str]:
    moved = pb.ProcessPlanningEventRequest(
        event_type="story.transitioned",
        case_id=story,
        plan_id="plan-1",
        from_state="DRAFT",
        to_state="PLANNING",
        metadata={"title": f"A {kind}", "brief": f"Write a {kind}", "roles": "architect,dev"},
    )
    answer = await app.stub().ProcessPlanningEvent(moved)
    assert answer.processed, answer.message
    design, code = answer.derived_task_ids
    return design, code


async def _check_metrics(app: Served, *, deliberations: int) -> None:
    stub = app.stub()
    async with asyncio.timeout(20):  # the request is visible once the collector has seen it
        while True:
            stats = (await stub.GetStatus(pb.GetStatusRequest(include_stats=True))).stats
            if stats.total_deliberations >= deliberations:
                break
            await asyncio.sleep(0.1)
    assert stats.total_deliberations == deliberations
    assert stats.total_orchestrations == 1
    assert stats.avg_deliberation_time_ms > 0
    metrics = await stub.GetMetrics(pb.GetMetricsRequest())
    assert (
        0
        < metrics.performance.p50_latency_ms
        <= metrics.performance.p95_latency_ms
        <= metrics.performance.p99_latency_ms
    )
    assert metrics.councils.health_per_council["council-dev"].success_rate == 1.0
    assert (
        await app.stub(EVE).GetStatus(pb.GetStatusRequest(include_stats=True))
    ).stats.total_deliberations == 1


async def _task_outcomes(app: Served, story: str) -> dict[str, str]:
    """Return the outcomes of the tasks of a story's plan, from the log."""
    async with asyncio.timeout(60):
        while True:
            events = await app.command("log", "tail", "--json")
            for line in events.out.splitlines():
                event = json.loads(line)
                if event["type"] == "moothall.plan.finished" and event["data"]["story_id"] == story:
                    return dict(event["data"]["tasks"])
            await asyncio.sleep(0.2)
