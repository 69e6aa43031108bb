"""Limits before every query of the agent service, unary and streamed: length, rate, circuit breaker
and timeout.
"""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from moothall.agents.admission import BREAKER_CALLS
from moothall.config import AgentSettings
from moothall.domain.ids import key_of
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.errors import Temporary
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.common import common_pb2 as common
from support.agents import Agent, answer, execute_request, read_all, refusal_of
from support.callers import OTHER


async def test_a_query_that_exceeds_its_timeout_is_ended(agent: Agent) -> None:
    config = pb.AgentConfig(timeout_seconds=1)
    unary, stream = (
        execute_request("Why?", metadata=common.TaskMetadata(task_id=task_id), config=config)
        for task_id in ("q-6", "q-7")
    )
    for code, details in await asyncio.gather(
        refusal_of(agent.ExecuteTask(unary)), refusal_of(read_all(agent.StreamExecuteTask(stream)))
    ):
        assert (code, details.partition(":")[0]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout")
    assert {"q-6", "q-7"} <= set(agent.deliberations.cancelled)
    code, _ = await refusal_of(
        agent.StreamExecuteTask(
            execute_request("Why?", config=pb.AgentConfig(timeout_seconds=-1))
        ).read()
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("mode", "status"),
    [
        (common.EXECUTION_MODE_STANDARD, DeliberationStatus.TIMEOUT),
        (common.EXECUTION_MODE_COMPLEX, DeliberationStatus.FAILED),
    ],
)
async def test_late_seats_are_reported_as_a_timeout_once_the_time_is_up(
    agent: Agent, mode: common.ExecutionMode.ValueType, status: DeliberationStatus
) -> None:
    late = SeatOutcome(
        "agent-dev-001", SeatStatus.LATE, "DEADLINE_EXCEEDED", "the seat was not done in time"
    )
    outcome_fields = {
        "status": status,
        "winner_id": "",
        "results": (),
        "seats": (late,),
        "error_message": "the time was up",
    }
    config, began = pb.AgentConfig(timeout_seconds=1), time.monotonic()
    calls = []
    for name in ("unary", "stream"):
        request = execute_request(
            "Why?", mode=mode, config=config, metadata=common.TaskMetadata(task_id=name)
        )
        call = (
            agent.ExecuteTask(request)
            if name == "unary"
            else read_all(agent.StreamExecuteTask(request))
        )
        calls.append(asyncio.ensure_future(refusal_of(call)))
        await answer(agent, name, "", **outcome_fields)
    for code, details in await asyncio.gather(*calls):
        assert (code, details.partition(":")[0]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout")
    assert time.monotonic() - began >= 1, "the caller gave a second"


async def test_one_agent_gets_extra_time_and_a_council_keeps_to_the_timeout(
    agent: Agent,
) -> None:
    timeouts = {}
    for name, mode in (
        ("one", common.EXECUTION_MODE_STANDARD),
        ("council", common.EXECUTION_MODE_COMPLEX),
    ):
        request = execute_request(
            "Why?",
            mode=mode,
            config=pb.AgentConfig(timeout_seconds=60),
            metadata=common.TaskMetadata(task_id=name),
        )
        running = asyncio.ensure_future(agent.ExecuteTask(request))
        await answer(agent, name, "Because.")
        assert (await running).status == common.STATUS_CODE_OK
        timeouts[name] = agent.deliberations.request(name).constraints.timeout_seconds
    assert timeouts == {"one": 91, "council": 60}


class TestTight:
    @pytest.fixture
    def settings(self) -> AgentSettings:
        return AgentSettings(calls_a_second=0.001)  # one now, and the next in fifteen minutes

    async def test_a_long_query_is_refused_on_unary_and_stream(self, agent: Agent) -> None:
        for call in (
            agent.ExecuteTask(execute_request("why " * 100_001)),
            agent.StreamExecuteTask(execute_request("why " * 100_001)).read(),
        ):
            code, details = await refusal_of(call)
            assert (code, details.partition(":")[0]) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "token_limit",
            )

    async def test_a_caller_over_the_rate_limit_is_refused_and_others_are_not(
        self, agent: Agent
    ) -> None:
        request = execute_request(context={"tool_parameters": {"tool": "files.list"}})
        await agent.ExecuteTask(request)
        for call in (agent.ExecuteTask(request), agent.StreamExecuteTask(request).read()):
            code, details = await refusal_of(call)
            assert (code, details.partition(":")[0]) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "rate_limited",
            )
        assert (await agent.ExecuteTask(request, OTHER)).status == common.STATUS_CODE_OK


class TestFragile:
    @pytest.fixture
    def settings(self) -> AgentSettings:
        return AgentSettings(calls_a_second=1000)

    async def test_many_failures_stop_model_queries_for_a_while(self, agent: Agent) -> None:
        agent.deliberations.failure = Temporary("the bus is away")
        for _ in range(BREAKER_CALLS):
            assert (await refusal_of(agent.ExecuteTask(execute_request("Why?"))))[
                0
            ] is grpc.StatusCode.UNAVAILABLE
        agent.deliberations.failure = None
        for call in (
            agent.ExecuteTask(execute_request("Why?")),
            agent.StreamExecuteTask(execute_request("Why?")).read(),
        ):
            code, details = await refusal_of(call)
            assert (code, details.partition(":")[0]) == (
                grpc.StatusCode.UNAVAILABLE,
                "circuit_open",
            )
        theirs = asyncio.ensure_future(
            agent.ExecuteTask(
                execute_request("Why?", metadata=common.TaskMetadata(task_id="theirs")), OTHER
            )
        )
        await answer(agent, key_of("theirs", "elsewhere"), "Because.")
        assert (await theirs).status == common.STATUS_CODE_OK, "another tenant is served"
        tool = execute_request(context={"tool_parameters": {"tool": "files.list"}})
        assert (await agent.ExecuteTask(tool)).status == common.STATUS_CODE_OK, (
            "a tool needs no model"
        )
        assert (await read_all(agent.StreamExecuteTask(tool)))[-1].state == pb.AGENT_STATE_COMPLETED

    async def test_limits_chosen_by_callers_are_not_failures(self, agent: Agent) -> None:
        brief = pb.AgentConfig(timeout_seconds=1)
        calls = [agent.ExecuteTask(execute_request("Why?", config=brief)) for _ in range(3)]
        calls += [
            read_all(agent.StreamExecuteTask(execute_request("Why?", config=brief)))
            for _ in range(3)
        ]
        slow = {"tool_parameters": {"tool": "slow.ponder"}}
        calls += [agent.ExecuteTask(execute_request(context=slow, config=brief)) for _ in range(3)]
        codes = [code for code, _ in await asyncio.gather(*map(refusal_of, calls))]
        assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * 9
        low_limits = pb.AgentConfig(max_iterations=1)
        for number in range(3):
            request = execute_request(
                "Why?", config=low_limits, metadata=common.TaskMetadata(task_id=f"few-{number}")
            )
            running = asyncio.ensure_future(agent.ExecuteTask(request))
            failed_seat = SeatOutcome(
                "agent-dev-001", SeatStatus.FAILED, "OUT_OF_TURNS", "all turns are used"
            )
            failed = {
                "status": DeliberationStatus.FAILED,
                "winner_id": "",
                "results": (),
                "seats": (failed_seat,),
            }
            await answer(agent, f"few-{number}", "", **failed)
            assert (await running).status == common.STATUS_CODE_ERROR
        for number in range(3):
            request = execute_request(
                "Why?", metadata=common.TaskMetadata(task_id=f"gone-{number}")
            )
            running = asyncio.ensure_future(agent.ExecuteTask(request))
            cancelled = {"status": DeliberationStatus.CANCELLED, "winner_id": "", "results": ()}
            await answer(agent, f"gone-{number}", "", **cancelled)
            assert (await running).status == common.STATUS_CODE_ERROR
        valid_call = asyncio.ensure_future(
            agent.ExecuteTask(execute_request("Why?", metadata=common.TaskMetadata(task_id="good")))
        )
        await answer(agent, "good", "Because.")
        assert (await valid_call).status == common.STATUS_CODE_OK


class TestFull:
    @pytest.fixture
    def settings(self) -> AgentSettings:
        return AgentSettings(calls_a_second=1000, tasks=2)

    async def test_a_tenant_at_its_query_limit_leaves_capacity_for_others(
        self, agent: Agent
    ) -> None:
        running = [
            asyncio.ensure_future(agent.ExecuteTask(execute_request("Why?"))) for _ in range(2)
        ]
        async with asyncio.timeout(10):
            while len(agent.deliberations.task_ids()) < 2:
                await asyncio.sleep(0.01)
        code, details = await refusal_of(agent.ExecuteTask(execute_request("Why?")))
        assert (code, details.partition(":")[0]) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "rate_limited",
        )
        tool = execute_request(context={"tool_parameters": {"tool": "files.list"}})
        assert (await agent.ExecuteTask(tool, OTHER)).status == common.STATUS_CODE_OK
        assert (await agent.HealthCheck(pb.HealthCheckRequest())).active_tasks == 2
        assert (await agent.HealthCheck(pb.HealthCheckRequest(), OTHER)).active_tasks == 0
        for call in running:
            call.cancel()
