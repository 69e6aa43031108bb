"""AgentService: sessions, and queries for an agent or a council."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from moothall.agents.admission import BUCKET
from moothall.agents.queries import Query
from moothall.agents.service import ANSWER_RESTARTED
from moothall.domain.chat import Writing
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.proposal import SeatOutcome, SeatStatus
from moothall.domain.task import RepositoryRef
from moothall.errors import BudgetExceeded
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.common import common_pb2 as common
from support.agents import Agent, answer, execute_request, read_all, refusal_of
from support.callers import OTHER

# ---- sessions


async def test_a_session_keeps_its_workspace_and_history(agent: Agent) -> None:
    meta = common.TaskMetadata(session_id="The Session 7")
    write = {"tool_parameters": {"tool": "files.write", "path": "new.py", "content": "x = 1\n"}}
    await agent.ExecuteTask(execute_request(context=write, metadata=meta))
    await agent.ExecuteTask(
        execute_request(context={"tool_parameters": {"tool": "files.list"}}, metadata=meta)
    )
    assert len(agent.backend.fake_workspaces.fake_workspaces) == 1
    documents = await agent.bus.bucket(BUCKET).entries()
    (document,) = documents.values()
    assert (document["files_created"], document["tools_used"]) == (
        ["new.py"],
        ["files.write", "files.list"],
    )
    await agent.ExecuteTask(
        execute_request(context={"tool_parameters": {"tool": "files.list"}}, metadata=meta), OTHER
    )
    assert len(agent.backend.fake_workspaces.fake_workspaces) == 2, (
        "sessions of different callers with one name are separate"
    )


async def test_a_query_gets_the_context_of_the_session(agent: Agent) -> None:
    meta = common.TaskMetadata(task_id="first", session_id="s")
    first = asyncio.ensure_future(
        agent.ExecuteTask(execute_request("What is 2 + 2?", metadata=meta))
    )
    await answer(agent, "first", "4")
    await first
    meta = common.TaskMetadata(task_id="second", session_id="s")
    second = asyncio.ensure_future(
        agent.ExecuteTask(execute_request("And doubled?", {"style": "terse"}, metadata=meta))
    )
    await answer(agent, "second", "8")
    assert (await second).result == "8"
    description = agent.deliberations.request("second").description
    assert (
        description.index("- What is 2 + 2?")
        < description.index("- 4")
        < description.index('"style": "terse"')
        < description.index("And doubled?")
    )
    context = pb.SessionContext(session_id="s", history=["only this"])
    third = asyncio.ensure_future(
        agent.ExecuteTask(
            execute_request(
                "Now?", session_context=context, metadata=common.TaskMetadata(task_id="third")
            )
        )
    )
    await answer(agent, "third", "yes")
    await third
    assert "2 + 2" not in agent.deliberations.request("third").description


# ---- queries


async def test_an_agent_answers_and_reports_its_usage(agent: Agent) -> None:
    meta = common.TaskMetadata(task_id="q-1", token_budget=5000)
    running = asyncio.ensure_future(
        agent.ExecuteTask(
            execute_request(
                "Why?",
                metadata=meta,
                mode=common.EXECUTION_MODE_SIMPLE,
                config=pb.AgentConfig(max_iterations=2),
            )
        )
    )
    await answer(agent, "q-1", "Because.")
    response = await running
    assert (response.status, response.result, response.final_state) == (
        1,
        "Because.",
        pb.AGENT_STATE_COMPLETED,
    )
    used = response.metrics
    assert (
        used.agents_used,
        used.token_usage.total_tokens,
        used.token_usage.cost_usd,
        used.mode,
    ) == (1, 15, 0.5, 1)
    request = agent.deliberations.request("q-1")
    assert (request.num_agents, request.budget.tokens, request.constraints.max_iterations) == (
        1,
        5000,
        2,
    )


async def test_complex_mode_is_a_council_on_the_repository_of_the_context(agent: Agent) -> None:
    meta = common.TaskMetadata(task_id="q-2", max_agents=5)
    running = asyncio.ensure_future(
        agent.ExecuteTask(
            execute_request(
                "Mend it",
                {"repository": "sample", "role": "qa"},
                metadata=meta,
                mode=common.EXECUTION_MODE_COMPLEX,
            )
        )
    )
    await answer(agent, "q-2", "done", branch="moothall/q-2", commit_sha="a" * 40)
    response = await running
    request = agent.deliberations.request("q-2")
    assert (request.num_agents, request.role, request.repository) == (
        5,
        "qa",
        RepositoryRef(id="sample"),
    )
    assert response.metadata["branch"] == "moothall/q-2"


@pytest.mark.parametrize(
    ("available", "context", "tools"),
    [
        ((), {}, ()),
        (("files.read", "files.list", "file_read"), {}, ("files.list", "files.read")),
        (
            ("files.read", "files.list"),
            {"allowed_tools": ["files.read", "slow.ponder"]},
            ("files.read",),
        ),
        ((), {"allowed_tools": ["slow.ponder"]}, ("slow.ponder",)),
    ],
)
async def test_an_agent_on_a_repository_has_the_tools_its_caller_allows(
    agent: Agent, available: tuple[str, ...], context: dict[str, Any], tools: tuple[str, ...]
) -> None:
    query = execute_request(
        "Mend it",
        {"repository": "sample", **context},
        available_tools=available,
        metadata=common.TaskMetadata(task_id="q-6"),
    )
    running = asyncio.ensure_future(agent.ExecuteTask(query))
    await answer(agent, "q-6", "done")
    await running
    assert tuple(sorted(agent.deliberations.request("q-6").tools)) == tools


@pytest.mark.parametrize("repository", [{}, {"repository": "sample"}])
@pytest.mark.parametrize(
    ("available", "context", "field"),
    [
        (("no.tool",), {}, "available_tools"),
        (("*",), {}, "available_tools"),
        (("files.read", "calculator"), {}, "available_tools"),
        ((), {"allowed_tools": ["files.read", "no.tool"]}, "context.allowed_tools"),
        (("no.tool",), {"tool_parameters": {"tool": "files.list"}}, "available_tools"),
        (("no.tool",), {"tool_parameters": {}}, "available_tools"),
    ],
)
async def test_unknown_tool_names_are_an_error(
    agent: Agent,
    available: tuple[str, ...],
    context: dict[str, Any],
    field: str,
    repository: dict[str, Any],
) -> None:
    for mode in (
        common.EXECUTION_MODE_SIMPLE,
        common.EXECUTION_MODE_STANDARD,
        common.EXECUTION_MODE_COMPLEX,
    ):
        query = execute_request(
            "Mend it", {**repository, **context}, available_tools=available, mode=mode
        )
        for call in (agent.ExecuteTask(query), read_all(agent.StreamExecuteTask(query))):
            code, details = await refusal_of(call)
            assert (code, details.startswith(f"{field} names tools that do not exist")) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                True,
            ), details
    assert agent.deliberations.task_ids() == []


@pytest.mark.parametrize(
    ("mode", "available", "has_tools"),
    [
        (common.EXECUTION_MODE_UNSPECIFIED, (), True),
        (common.EXECUTION_MODE_STANDARD, ("file_read",), True),
        (common.EXECUTION_MODE_SIMPLE, ("file_read",), True),
        (common.EXECUTION_MODE_SIMPLE, (), False),
        (common.EXECUTION_MODE_COMPLEX, (), False),
    ],
)
async def test_an_agent_without_a_repository_uses_the_empty_workspace_of_direct_tools(
    agent: Agent,
    mode: common.ExecutionMode.ValueType,
    available: tuple[str, ...],
    *,
    has_tools: bool,
) -> None:
    query = execute_request(
        "Why?", mode=mode, available_tools=available, metadata=common.TaskMetadata(task_id="blank")
    )
    running = asyncio.ensure_future(agent.ExecuteTask(query))
    await answer(agent, "blank", "Because.")
    assert (await running).result == "Because."
    request = agent.deliberations.request("blank")
    assert request.repository == (
        RepositoryRef(id="sample") if has_tools else None
    )  # the empty repository of the tests has this name
    assert (request.about_text, request.tools) == (
        not has_tools,
        ("files.read",) if available else (),
    )


@pytest.mark.parametrize(
    ("available", "context"),
    [((), {"allowed_tools": []}), (("files.read",), {"allowed_tools": ["files.list"]})],
)
async def test_a_missing_tool_is_reported_at_once(
    agent: Agent, available: tuple[str, ...], context: dict[str, Any]
) -> None:
    query = execute_request(
        "Mend it", {"repository": "sample", **context}, available_tools=available
    )
    code, message = await refusal_of(agent.ExecuteTask(query))
    assert (code, "DiscoverTools" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True), message
    assert not agent.deliberations.task_ids()


@pytest.mark.parametrize("allowed", ["files.read", 3, {"a": 1}, [1]])
async def test_an_invalid_list_of_tools_is_refused(agent: Agent, allowed: Any) -> None:
    code, message = await refusal_of(
        agent.ExecuteTask(
            execute_request("Mend it", {"repository": "sample", "allowed_tools": allowed})
        )
    )
    assert (code, "allowed_tools" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True), message


def test_web_search_and_web_fetch_allow_each_other() -> None:
    for name in ("web.search", "web.fetch"):
        assert Query("t", available_tools=(name, "files.read")).tools() == frozenset(
            {"web.search", "web.fetch", "files.read"}
        )
    assert Query("t", available_tools=("files.read",)).tools() == frozenset({"files.read"})


@pytest.mark.parametrize(
    ("requested_by", "model"),
    [({"model_tier": 3}, "large"), ({"model_profile": "large", "model_tier": 1}, "large")],
)
async def test_a_query_names_a_model_by_tier_or_profile_and_reports_the_one_that_answered(
    agent: Agent, requested_by: dict[str, Any], model: str
) -> None:
    running = asyncio.ensure_future(
        agent.ExecuteTask(
            execute_request("Why?", requested_by, metadata=common.TaskMetadata(task_id="q-5"))
        )
    )
    await answer(agent, "q-5", "Because.")
    used = (await running).metrics.token_usage
    assert (used.model, used.tier) == ("deep", common.MODEL_TIER_LARGE)
    assert (
        agent.deliberations.request("q-5").model,
        agent.deliberations.request("q-5").description,
    ) == (
        model,
        "Why?",
    )


@pytest.mark.parametrize("tier", [4, 1.5, True, "huge"])
async def test_an_unknown_model_tier_is_refused(agent: Agent, tier: Any) -> None:
    code, message = await refusal_of(
        agent.ExecuteTask(execute_request("Why?", {"model_tier": tier}))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "allowed are 1 (small), 2 (medium) and 3 (large)" in message


async def test_a_task_id_in_a_foreign_format_is_accepted(agent: Agent) -> None:
    meta = common.TaskMetadata(task_id="Task/User_1 42")
    running = asyncio.ensure_future(agent.ExecuteTask(execute_request("Why?", metadata=meta)))
    async with asyncio.timeout(10):
        while not agent.deliberations.task_ids():
            await asyncio.sleep(0)
    await answer(agent, agent.deliberations.task_ids()[0], "Because.")
    assert (await running).task_id == "Task/User_1 42"


async def test_a_query_over_its_budget_ends_as_budget_exceeded(agent: Agent) -> None:
    running = asyncio.ensure_future(
        agent.ExecuteTask(execute_request("Why?", metadata=common.TaskMetadata(task_id="q-3")))
    )
    over = (
        SeatOutcome(
            "agent-dev-001",
            SeatStatus.FAILED,
            BudgetExceeded.code,
            "the budget of 10 tokens is used up",
        ),
    )
    await answer(
        agent, "q-3", "", status=DeliberationStatus.FAILED, winner_id="", results=(), seats=over
    )
    assert (await running).status == common.STATUS_CODE_BUDGET_EXCEEDED


@pytest.mark.parametrize(
    ("status", "code"), [(DeliberationStatus.TIMEOUT, 3), (DeliberationStatus.FAILED, 2)]
)
async def test_a_failed_query_reports_its_status_and_error(
    agent: Agent, status: DeliberationStatus, code: int
) -> None:
    running = asyncio.ensure_future(
        agent.ExecuteTask(execute_request("Why?", metadata=common.TaskMetadata(task_id="q-3")))
    )
    await answer(
        agent, "q-3", "", status=status, winner_id="", results=(), error_message="nobody knew"
    )
    response = await running
    assert (response.status, response.error_message, response.final_state) == (
        code,
        "nobody knew",
        pb.AGENT_STATE_FAILED,
    )


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_tools_that_an_agent_ran_are_shown(agent: Agent, *, streamed: bool) -> None:
    request = execute_request("Why?", metadata=common.TaskMetadata(task_id="tools"))
    running = asyncio.ensure_future(
        read_all(agent.StreamExecuteTask(request)) if streamed else agent.ExecuteTask(request)
    )
    async with asyncio.timeout(10):
        while "tools" not in agent.deliberations.task_ids():
            await asyncio.sleep(0)
    assert agent.deliberations.request("tools").records_calls
    successful_call = {
        "id": "r.1",
        "tool": "files.read",
        "arguments": {"path": "a"},
        "status": "success",
        "output": {"content": "x"},
    }
    failed_call = {
        "id": "r.2",
        "tool": "files.read",
        "arguments": {"path": "b"},
        "status": "error",
        "error": "no file",
        "duration_ms": 3,
    }
    torn: list[Any] = [7, {"tool": 7, "status": [], "arguments": "no", "duration_ms": "long"}]
    recorded: tuple[Any, ...] = ([successful_call], "none", None, [failed_call, *torn])
    for recorded_calls in recorded:
        turn = {
            "task_id": "tools",
            "seat": "agent-dev-001",
            "thought": "look",
            "calls": recorded_calls,
        }
        await agent.deliberations.record("tools", EventType.SEAT_TURN, turn)
    await answer(agent, "tools", "Because.")
    result_updates = await running
    if streamed:
        calls = [update.tool_call for update in result_updates if update.HasField("tool_call")]
        results = [
            update.tool_result for update in result_updates if update.HasField("tool_result")
        ]
        assert results.pop().tool_id == "usage_metrics"
        assert "".join(update.delta for update in result_updates) == "Because."
    else:
        calls, results = result_updates.tool_calls, result_updates.tool_results
        assert (result_updates.status, result_updates.metrics.cache_hit) == (
            common.STATUS_CODE_OK,
            False,
        )
    assert [(call.name, call.tool_id) for call in calls] == [
        ("files.read", "r.1"),
        ("files.read", "r.2"),
        ("7", ""),
    ]
    assert json_format.MessageToDict(calls[1].parameters) == {"path": "b"}
    outcomes = [(result.tool_id, result.status, result.error_message) for result in results]
    assert outcomes == [("r.1", 1, ""), ("r.2", 2, "no file"), ("", 2, "error")]
    assert json_format.MessageToDict(results[0].output) == {"content": "x"}


async def test_calls_that_do_not_fit_in_a_message_are_named(agent: Agent) -> None:
    running = asyncio.ensure_future(
        agent.ExecuteTask(execute_request("Why?", metadata=common.TaskMetadata(task_id="many")))
    )
    async with asyncio.timeout(10):
        while "many" not in agent.deliberations.task_ids():
            await asyncio.sleep(0)
    calls = [
        {
            "id": f"r.{number}",
            "tool": "files.read",
            "arguments": {},
            "status": "success",
            "output": {"content": "x" * 60_000},
        }
        for number in range(90)
    ]
    await agent.deliberations.record(
        "many", EventType.SEAT_TURN, {"seat": "agent-dev-001", "calls": calls}
    )
    await answer(agent, "many", "Because.")
    tool_results = (await running).tool_results
    assert [result.tool_id for result in tool_results] == [call["id"] for call in calls]
    assert json_format.MessageToDict(tool_results[0].output) != {}
    assert json_format.MessageToDict(tool_results[-1].output) == {}


async def test_usage_is_written_in_the_old_and_the_new_format(agent: Agent) -> None:
    request = execute_request("Why?", metadata=common.TaskMetadata(task_id="used"))
    reading = asyncio.ensure_future(read_all(agent.StreamExecuteTask(request)))
    async with asyncio.timeout(10):
        while "used" not in agent.deliberations.task_ids():
            await asyncio.sleep(0)
    await agent.deliberations.record(
        "used", EventType.MODEL_CALLED, {"seat": "agent-dev-001", "model": "served-as-this"}
    )
    await answer(agent, "used", "Because.")
    (result,) = [
        update.tool_result
        for update in await reading
        if update.tool_result.tool_id == "usage_metrics"
    ]
    metrics = json_format.MessageToDict(result.output)
    assert metrics.pop("agents_used") == 1
    assert metrics == {
        "input_tokens": 10,
        "output_tokens": 5,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "cost_usd": 0.5,
        "model": metrics["model"],
        "provider": metrics["provider"],
    }
    unary = asyncio.ensure_future(
        agent.ExecuteTask(execute_request("Why?", metadata=common.TaskMetadata(task_id="unary")))
    )
    await answer(agent, "unary", "Because.")
    used = (await unary).metrics.token_usage
    assert metrics["provider"] == used.provider == "llama.cpp"
    assert metrics["model"]


async def test_a_stream_plans_and_works_and_ends_with_the_complete_text(agent: Agent) -> None:
    stream = agent.StreamExecuteTask(
        execute_request("Why?", metadata=common.TaskMetadata(task_id="q-4"))
    )
    reading = asyncio.ensure_future(read_all(stream))
    async with asyncio.timeout(10):
        while "q-4" not in agent.deliberations.task_ids():
            await asyncio.sleep(0)
    await agent.deliberations.record(
        "q-4",
        EventType.SEAT_TURN,
        {"task_id": "q-4", "seat": "agent-dev-001", "thought": "look first"},
    )
    await answer(agent, "q-4", "Because of it.")
    updates = await reading
    assert (updates[0].state, updates[0].progress) == (pb.AGENT_STATE_PLANNING, 0)
    assert [update.state for update in updates[1:-1]] == [pb.AGENT_STATE_EXECUTING] * (
        len(updates) - 2
    )
    assert "agent-dev-001: look first" in [update.message for update in updates]
    assert "".join(update.delta for update in updates) == updates[-1].message == "Because of it."
    (usage,) = [
        update.tool_result for update in updates if update.tool_result.tool_id == "usage_metrics"
    ]
    assert usage.output.struct_value["total_tokens"] == 15
    assert (updates[-1].state, updates[-1].progress) == (pb.AGENT_STATE_COMPLETED, 1)
    assert {update.task_id for update in updates} == {"q-4"}


@pytest.mark.parametrize(
    ("writes", "deltas", "restarted"),
    [
        (("Because", "Because of"), ["Because", " of", " it."], False),
        (("Because of", "Because", "", "Because of it."), ["Because of", " it."], False),
        (("That is", "Because"), ["That is", "Because", " of it."], True),
        (("Because of it. Or", ""), ["Because of it. Or", "Because of it."], True),
    ],
)
async def test_the_reply_is_streamed_as_it_is_written(
    agent: Agent, writes: Sequence[str], deltas: list[str], *, restarted: bool
) -> None:
    agent.deliberations.writes = [Writing("agent-dev-001", text, text) for text in writes]
    reading = asyncio.ensure_future(
        read_all(
            agent.StreamExecuteTask(
                execute_request("Why?", metadata=common.TaskMetadata(task_id="q-4"))
            )
        )
    )
    await agent.deliberations.written.wait()
    await answer(agent, "q-4", "Because of it.")
    updates = await reading
    assert [update.delta for update in updates if update.delta] == deltas
    assert (ANSWER_RESTARTED in [update.message for update in updates]) is restarted
    (last,) = [place for place, update in enumerate(updates) if update.message == ANSWER_RESTARTED][
        -1:
    ] or [0]
    assert (
        "".join(update.delta for update in updates[last:])
        == updates[-1].message
        == "Because of it."
    )
    assert all(update.progress <= next_update.progress for update, next_update in pairwise(updates))


async def test_a_councils_stream_contains_no_text_of_its_seats(agent: Agent) -> None:
    agent.deliberations.writes = [Writing("agent-dev-001", "Mine", "Mine")]
    request = execute_request(
        "Why?", metadata=common.TaskMetadata(task_id="q-4"), mode=common.EXECUTION_MODE_COMPLEX
    )
    reading = asyncio.ensure_future(read_all(agent.StreamExecuteTask(request)))
    await answer(agent, "q-4", "Because.")
    assert [update.delta for update in await reading if update.delta] == ["Because."]


async def test_the_stream_of_a_tool_call_shows_call_and_result(agent: Agent) -> None:
    updates = await read_all(
        agent.StreamExecuteTask(
            execute_request(context={"tool_parameters": {"tool": "files.list"}})
        )
    )
    assert [update.tool_call.name for update in updates if update.HasField("tool_call")] == [
        "files.list"
    ]
    results = [update.tool_result for update in updates if update.HasField("tool_result")]
    assert [result.tool_id.rpartition(".")[2] for result in results] == ["0", "usage_metrics"]


async def test_a_disconnected_caller_ends_its_query(agent: Agent) -> None:
    stream = agent.StreamExecuteTask(
        execute_request("Why?", metadata=common.TaskMetadata(task_id="q-5"))
    )
    await stream.read()
    stream.cancel()
    async with asyncio.timeout(10):
        while "q-5" not in agent.deliberations.cancelled:
            await asyncio.sleep(0.01)
        while agent.tasks.count_active(LOCAL):
            await asyncio.sleep(0.01)
