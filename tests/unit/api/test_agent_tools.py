"""AgentService: tool calls without a model, discovery, capabilities and health."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format

from moothall.agents.queries import ALIASES
from moothall.api.dependencies import Probe
from moothall.app.gateway_rules import catalogue_of
from moothall.config import AgentSettings
from moothall.domain.status import Condition
from moothall.errors import Temporary
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.common import common_pb2 as common
from moothall.settings import AllSettings
from moothall.tools.catalogue import CATALOGUE
from support.agents import Agent, execute_request, refusal_of, serving_agents
from support.callers import OTHER, TOKEN
from support.deliberation_service import MemoryDeliberations

# ---- tools without a model


async def test_a_direct_tool_uses_no_model_and_leaves_no_workspace(agent: Agent) -> None:
    response = await agent.ExecuteTask(
        execute_request(
            context={"tool_parameters": {"tool": "files.read", "path": "a.py", "lines": 3}},
            metadata=common.TaskMetadata(task_id="mine"),
        )
    )
    assert (response.task_id, response.status, response.final_state) == (
        "mine",
        common.STATUS_CODE_OK,
        pb.AGENT_STATE_COMPLETED,
    )
    assert response.metrics.agents_used == 0
    assert json_format.MessageToDict(response.tool_results[0].output) == {
        "path": "a.py",
        "start": 1.0,
        "lines": 3.0,
    }
    assert [(call.name, call.tool_id) for call in response.tool_calls] == [
        ("files.read", response.tool_results[0].tool_id)
    ]
    assert agent.deliberations.task_ids() == []
    assert len(agent.backend.fake_workspaces.closed) == 1


@pytest.mark.parametrize(
    ("context", "available"),
    [
        ({"tool_parameters": {"tool": "files.list"}}, ()),
        ({"tool_parameters": {"tool_name": "files.list"}}, ()),
        ({"tool_parameters": {"name": "files.list"}}, ()),
        ({"tool_parameters": {}, "tool": "files.list"}, ()),
        ({"tool_parameters": {}}, ("files.list",)),
        (
            {"tool_parameters": {"tool": "files.list", "parameters": {}}},
            ("files.list", "files.read"),
        ),
        ({"tool_parameters": {"tool": "files.list"}, "allowed_tools": ["files.list"]}, ()),
    ],
)
async def test_a_tool_name_is_found_in_every_supported_place(
    agent: Agent, context: dict[str, Any], available: tuple[str, ...]
) -> None:
    response = await agent.ExecuteTask(execute_request(context=context, available_tools=available))
    assert (response.status, response.tool_calls[0].name) == (common.STATUS_CODE_OK, "files.list")
    assert dict(response.tool_calls[0].parameters) == {}


@pytest.mark.parametrize(
    ("context", "available", "code", "words"),
    [
        ({"tool_parameters": {}}, (), grpc.StatusCode.INVALID_ARGUMENT, "names no tool"),
        (
            {"tool_parameters": {"tool": "files.burn"}},
            (),
            grpc.StatusCode.INVALID_ARGUMENT,
            "DiscoverTools",
        ),
        (
            {"tool_parameters": {"tool": "files.list"}},
            ("files.read",),
            grpc.StatusCode.PERMISSION_DENIED,
            "available_tools",
        ),
        (
            {"tool_parameters": {"tool": "files.list"}, "allowed_tools": []},
            (),
            grpc.StatusCode.PERMISSION_DENIED,
            "allowed_tools",
        ),
        (
            {"tool_calls": [{"tool": "files.list"}, {}]},
            (),
            grpc.StatusCode.INVALID_ARGUMENT,
            "tool_calls[1]",
        ),
        ({"tool_calls": "files.list"}, (), grpc.StatusCode.INVALID_ARGUMENT, "not a list"),
        (
            {"tool_parameters": {"tool": "files.list", "parameters": 3}},
            (),
            grpc.StatusCode.INVALID_ARGUMENT,
            "not an object",
        ),
        ({}, (), grpc.StatusCode.INVALID_ARGUMENT, "the query is empty"),
    ],
)
async def test_calls_that_cannot_run_are_refused_with_a_reason(
    agent: Agent,
    context: dict[str, Any],
    available: tuple[str, ...],
    code: grpc.StatusCode,
    words: str,
) -> None:
    status_code, details = await refusal_of(
        agent.ExecuteTask(execute_request(context=context, available_tools=available))
    )
    assert (status_code, words in details) == (code, True), details


@pytest.mark.parametrize(
    ("name", "parameters", "tool", "arguments"),
    [
        (
            "file_read",
            {"path": "a.py", "offset": 3, "limit": 5},
            "files.read",
            {"path": "a.py", "start": 3, "lines": 5},
        ),
        ("file_read", {"path": "a.py", "offset": 0, "limit": None}, "files.read", {"path": "a.py"}),
        (
            "file_write",
            {"path": "a.py", "content": ""},
            "files.write",
            {"path": "a.py", "content": ""},
        ),
        (
            "file_edit",
            {"path": "a", "old_text": "x", "new_text": ""},
            "files.edit",
            {"path": "a", "old": "x", "new": ""},
        ),
        (
            "file_search",
            {"query": "x", "include": "*.py"},
            "files.search",
            {"pattern": "x", "glob": "*.py"},
        ),
    ],
)
async def test_a_tool_runs_by_its_alias_of_other_systems(
    agent: Agent, name: str, parameters: dict[str, Any], tool: str, arguments: dict[str, Any]
) -> None:
    single = execute_request(
        context={"tool_parameters": {"tool": name, **parameters}, "allowed_tools": [name]},
        available_tools=(name,),
    )
    multiple = execute_request(context={"tool_calls": [{"tool": name, "parameters": parameters}]})
    for response in (await agent.ExecuteTask(single), await agent.ExecuteTask(multiple)):
        (call,) = response.tool_calls
        assert (response.status, call.name) == (common.STATUS_CODE_OK, tool), response.error_message
        assert json_format.MessageToDict(call.parameters) == arguments


def test_the_api_document_has_the_table_of_aliases() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \| (.*) \|$", text, re.MULTILINE)
    documented_aliases = {
        name: (tool, dict(re.findall(r"`(\w+)` as `(\w+)`", arguments)))
        for name, tool, arguments in rows
    }
    assert documented_aliases == {
        name: (alias.tool, dict(alias.arguments)) for name, alias in ALIASES.items()
    }
    catalogue = catalogue_of(AllSettings())
    assert {alias.tool for alias in ALIASES.values()} <= catalogue.keys()
    for alias in ALIASES.values():
        assert (
            set(alias.arguments.values()) <= catalogue[alias.tool].schema(None)["properties"].keys()
        )


async def test_a_sequence_runs_four_at_a_time_and_answers_in_order(agent: Agent) -> None:
    calls = [{"tool": "slow.ponder"} for _ in range(9)]
    running = asyncio.ensure_future(
        agent.ExecuteTask(execute_request(context={"tool_calls": calls}))
    )
    async with asyncio.timeout(10):
        while agent.slow.running < 4:
            await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    agent.slow.go.set()
    response = await running
    assert agent.slow.max_running == 4
    assert [result.tool_id for result in response.tool_results] == [
        f"{response.task_id}.{place}" for place in range(9)
    ]
    assert response.status == common.STATUS_CODE_OK


async def test_a_failure_in_a_sequence_is_reported_and_stops_no_other(agent: Agent) -> None:
    calls = [
        {"tool": "files.list"},
        {"tool": "files.read", "parameters": {}},
        {"tool": "files.list"},
        {"tool": "files.write"},
    ]
    response = await agent.ExecuteTask(execute_request(context={"tool_calls": calls}))
    assert (response.status, response.final_state) == (
        common.STATUS_CODE_ERROR,
        pb.AGENT_STATE_FAILED,
    )
    assert [result.status for result in response.tool_results] == [1, 2, 1, 2]
    first, second = (
        f"{call.tool_calls[place].name}: {call.tool_results[place].error_message}"
        for call, place in ((response, 1), (response, 3))
    )
    assert response.error_message == f"{first}; {second}"


async def test_the_eleventh_dangerous_call_in_a_minute_is_refused_in_any_workspace(
    agent: Agent,
) -> None:
    request = execute_request(context={"tool_parameters": {"tool": "tests.pytest"}})
    responses = [await agent.ExecuteTask(request) for _ in range(11)]
    assert [response.status for response in responses] == [common.STATUS_CODE_OK] * 10 + [
        common.STATUS_CODE_RATE_LIMITED
    ]
    assert "10 a minute" in responses[-1].error_message
    theirs = await agent.ExecuteTask(request, OTHER)
    assert theirs.status == common.STATUS_CODE_OK


async def test_a_result_of_an_earlier_call_is_a_cache_hit_for_the_same_tenant_only(
    agent: Agent,
) -> None:
    agent.slow.go.set()
    request = execute_request(context={"tool_parameters": {"tool": "slow.look"}})
    responses = [await agent.ExecuteTask(request, token) for token in (TOKEN, TOKEN, OTHER)]
    assert [response.metrics.cache_hit for response in responses] == [False, True, False]
    outputs = [
        json_format.MessageToDict(response.tool_results[0].output)["id"] for response in responses
    ]
    assert (outputs[0] == outputs[1], outputs[0] == outputs[2]) == (True, False)


# ---- discovery, capabilities and health


async def test_tools_are_found_by_words_category_tag_and_danger(agent: Agent) -> None:
    discovery = await agent.DiscoverTools(pb.DiscoverToolsRequest(query="files.read"))
    assert discovery.tools[0].id == "files.read"
    discovery = await agent.DiscoverTools(pb.DiscoverToolsRequest(categories=["tests", "slow"]))
    assert {tool.category for tool in discovery.tools} == {"tests", "slow"}
    discovery = await agent.DiscoverTools(pb.DiscoverToolsRequest(tags=["change"]))
    assert {"files.write", "files.edit"} <= {tool.id for tool in discovery.tools}
    assert all("change" in tool.tags for tool in discovery.tools)
    discovery = await agent.DiscoverTools(pb.DiscoverToolsRequest(exclude_dangerous=True))
    assert not any(tool.is_dangerous for tool in discovery.tools)
    assert "tests.pytest" not in [tool.id for tool in discovery.tools]
    assert len((await agent.DiscoverTools(pb.DiscoverToolsRequest(max_results=2))).tools) == 2
    assert (await refusal_of(agent.DiscoverTools(pb.DiscoverToolsRequest(max_results=-1))))[
        0
    ] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_tool_is_described_completely(agent: Agent) -> None:
    tool = (await agent.GetToolCapability(pb.GetToolCapabilityRequest(tool_id="tests.pytest"))).tool
    spec = CATALOGUE["tests.pytest"]
    assert (tool.name, tool.description, tool.version, tool.is_dangerous) == (
        spec.name,
        spec.summary,
        spec.version,
        True,
    )
    assert json_format.MessageToDict(tool.input_schema)["type"] == "object"
    assert (tool.rate_limit.requests_per_minute, tool.rate_limit.requests_per_hour) == (10, 300)
    assert tool.estimated_duration_ms > 0
    code, _ = await refusal_of(
        agent.GetToolCapability(pb.GetToolCapabilityRequest(tool_id="files.burn"))
    )
    assert code is grpc.StatusCode.NOT_FOUND


async def test_capabilities_and_health_match_the_server(agent: Agent) -> None:
    capabilities = await agent.GetCapabilities(pb.GetCapabilitiesRequest())
    assert "files.read" in capabilities.supported_tools
    assert list(capabilities.supported_modes) == [1, 2, 3]
    assert (capabilities.max_memory_mb, capabilities.max_concurrent_tasks) == (512, 64)
    running = asyncio.ensure_future(
        agent.ExecuteTask(execute_request(context={"tool_parameters": {"tool": "slow.ponder"}}))
    )
    async with asyncio.timeout(10):
        while not agent.slow.running:
            await asyncio.sleep(0)
    health = await agent.HealthCheck(pb.HealthCheckRequest())
    assert (health.healthy, health.active_tasks) == (True, 1)
    assert health.message.startswith("degraded; model: the model server is away")
    assert 0 < health.memory_usage_percent < 100
    agent.slow.go.set()
    await running
    assert (await agent.HealthCheck(pb.HealthCheckRequest())).active_tasks == 0


async def _raise_stopped() -> tuple[Condition, str]:
    raise Temporary("the bus is gone")


async def _slow() -> tuple[Condition, str]:
    await asyncio.Event().wait()
    return Condition.HEALTHY, ""


async def _full() -> tuple[Condition, str]:
    return Condition.DEGRADED, "nearly full"


@pytest.mark.parametrize(
    ("probe", "healthy", "message"),
    [
        (Probe(_raise_stopped), False, "down; bus: the bus is gone"),
        (Probe(_slow), False, "down; bus: no answer within 0.2 seconds"),
        (Probe(_slow, needed=False), True, "degraded; bus: no answer within 0.2 seconds"),
        (Probe(_full), True, "degraded; bus: nearly full"),
    ],
    ids=["stopped", "silent", "slow", "full"],
)
async def test_a_stopped_or_slow_part_makes_the_server_unhealthy_or_degraded(
    deliberations: MemoryDeliberations,
    tmp_path: Path,
    probe: Probe,
    message: str,
    *,
    healthy: bool,
) -> None:
    async with serving_agents(tmp_path, deliberations, AgentSettings(), {"bus": probe}) as app:
        health = await app.HealthCheck(pb.HealthCheckRequest())
    assert health.healthy is healthy
    assert health.message.startswith(message)
