"""The services of the protos over HTTP: the same answers as over gRPC, in protobuf's JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any, cast

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from moothall.api.grpc_server import services_of
from moothall.api.http import server as rest
from moothall.api.http.documents import parse
from moothall.domain.event import EventType
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.errors import InvalidRequest
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.tool.v1 import tool_pb2
from moothall.tool_sessions.executions import Executions
from support.callers import OTHER, TOKEN, Client, Serving, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, call, open_workspace, problem, serving_http
from support.session_manager import SessionsFixture

ASK = {"task_description": "Add hello_world()", "role": "DEV", "task_id": "task-1"}
ORCHESTRATOR, TOOLS = "/orchestrator.v1.OrchestratorService", "/tool.v1.ToolService"


@pytest.fixture
async def over_http(
    deliberations: MemoryDeliberations, backend: SessionsFixture
) -> AsyncIterator[Web]:
    async with serving_http(
        with_parts(
            api_dependencies(deliberations),
            sessions=backend.session_manager,
            approvals=backend.parking,
        )
    ) as web:
        yield web


async def test_every_method_of_the_protos_is_implemented_and_routed(
    deliberations: MemoryDeliberations, backend: SessionsFixture
) -> None:
    executions = cast("Executions", object())
    services = services_of(
        with_parts(
            api_dependencies(deliberations),
            sessions=backend.session_manager,
            executions=executions,
        )
    )
    assert {service.descriptor.full_name.partition(".")[0] for service in services} == {
        "orchestrator",
        "tool",
        "kernel",
        "runner",
        "planning",
        "storycoach",
        "workspace",
        "context",
    }
    paths = {route.path for route in rest.rpc_routes(services)}
    for service in services:
        for method in service.descriptor.methods:
            answer = getattr(service.servicer, method.name)
            assert (
                isasyncgenfunction(answer)
                if method.server_streaming
                else iscoroutinefunction(answer)
            ), method.full_name
            assert f"/{service.descriptor.full_name}/{method.name}" in paths


async def test_a_response_equals_the_one_over_grpc(
    deliberations: MemoryDeliberations, over_http: Web, app: Serving
) -> None:
    client = Client(app.channel)
    council = await over_http(
        "POST", f"{ORCHESTRATOR}/CreateCouncil", {"role": "qa", "num_agents": 2}
    )
    assert (council.status, council.json["council_id"], council.json["agents_created"]) == (
        200,
        "council-qa",
        2,
    )
    await client.CreateCouncil(pb.CreateCouncilRequest(role="qa", num_agents=2))
    over_grpc = await client.ListCouncils(pb.ListCouncilsRequest(include_agents=True))
    listed = await over_http("POST", f"{ORCHESTRATOR}/ListCouncils", {"include_agents": True})
    assert json_format.ParseDict(listed.json, pb.ListCouncilsResponse()) == over_grpc
    submission = await over_http("POST", f"{ORCHESTRATOR}/SubmitDeliberation", ASK)
    assert submission.json == {
        "task_id": "task-1",
        "status": "DELIBERATION_STATUS_PENDING",
        "agent_count": 3,
    }
    await deliberations.decide(
        Outcome("task-1", DeliberationStatus.COMPLETED, winner_id="agent-dev-001", duration_ms=5)
    )
    result = await over_http("POST", f"{ORCHESTRATOR}/GetDeliberationResult", {"task_id": "task-1"})
    assert (result.json["winner_id"], result.json["duration_ms"]) == (
        "agent-dev-001",
        "5",
    )  # 64 bits, as protobuf's JSON has them


async def test_a_stream_has_one_line_per_message(
    deliberations: MemoryDeliberations, over_http: Web
) -> None:
    url = f"http://127.0.0.1:{over_http.port}{ORCHESTRATOR}/StreamDeliberation"
    async with over_http.session.post(
        url, json=ASK, headers={"Authorization": f"Bearer {TOKEN}"}
    ) as response:
        assert response.content_type == "application/x-ndjson"
        first = json.loads(await response.content.readline())
        assert (first["task_id"], first["event"]["type"]) == (
            "task-1",
            EventType.DELIBERATION_REQUESTED.value,
        )
        await deliberations.decide(Outcome("task-1", DeliberationStatus.FAILED))
        rest = [json.loads(line) async for line in response.content]
        assert rest[-1]["status"] == "FAILED"
    refused = await over_http(
        "POST", f"{ORCHESTRATOR}/WatchDeliberation", {"task_id": "task-1", "after_seq": -1}
    )
    assert problem(refused)[:2] == (
        400,
        "INVALID_REQUEST",
    )  # an error before the first line is a separate response


async def test_a_disconnect_cancels_a_deliberate_call_but_not_a_stream(
    deliberations: MemoryDeliberations, over_http: Web
) -> None:
    for method, dies in (("Deliberate", True), ("StreamDeliberation", False)):
        body = ASK | {"task_id": f"task-{method.lower()}"}
        requesting = asyncio.ensure_future(over_http("POST", f"{ORCHESTRATOR}/{method}", body))
        async with asyncio.timeout(10):
            while body["task_id"] not in deliberations.task_ids():
                await asyncio.sleep(0.01)
            requesting.cancel()
            while (body["task_id"] in deliberations.cancelled) != dies or deliberations.watchers:
                await asyncio.sleep(0.01)
        assert (body["task_id"] in deliberations.cancelled) == dies


async def test_tool_calls_use_the_same_tokens(over_http: Web, backend: SessionsFixture) -> None:
    workspace = await open_workspace(over_http)
    body = call(workspace, path="a.py") | {"tool": "files.read"}
    answer = await over_http("POST", f"{TOOLS}/CallTool", body)
    assert (answer.status, answer.json["status"], answer.json["output"]["path"]) == (
        200,
        "success",
        "a.py",
    )
    repeated_answer = await over_http("POST", "/v1/tools/files.read", call(workspace, path="a.py"))
    assert json_format.ParseDict(
        repeated_answer.json, tool_pb2.CallToolResponse()
    ) == json_format.ParseDict(answer.json, tool_pb2.CallToolResponse())
    assert len(backend.fake_workspaces.fake_workspaces[workspace["workspace_id"]].calls) == 1
    assert problem(await over_http("POST", f"{TOOLS}/CallTool", body, token=OTHER))[:2] == (
        403,
        "REFUSED",
    )
    assert problem(await over_http("POST", f"{TOOLS}/ListParked", {}, token=OTHER))[:2] == (
        403,
        "REFUSED",
    )
    assert problem(await over_http("POST", f"{TOOLS}/CallTool", body, token=None))[:2] == (
        401,
        "UNAUTHENTICATED",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"colour": "red"}, "colour"),
        ({"role": 7}, "role"),
        ({"num_agents": 1.5}, "num_agents"),
        ([], "orchestrator.v1.DeliberateRequest"),
        ({"role": "wizard", "task_description": "t"}, "unknown role"),
    ],
)
async def test_invalid_messages_are_reported(over_http: Web, body: Any, message: str) -> None:
    status, code, detail = problem(
        await over_http("POST", f"{ORCHESTRATOR}/SubmitDeliberation", body)
    )
    assert (status, code) == (400, "INVALID_REQUEST")
    assert message in detail
    assert problem(await over_http("GET", f"{ORCHESTRATOR}/SubmitDeliberation"))[0] == 405
    assert problem(await over_http("POST", f"{ORCHESTRATOR}/NoSuchMethod", {}))[0] == 404


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([field.name for field in pb.DeliberateRequest.DESCRIPTOR.fields])
            | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON | st.binary())
def test_any_input_is_a_message_or_refused(sent_value: Any) -> None:
    raw = sent_value if isinstance(sent_value, bytes) else json.dumps(sent_value).encode()
    for kind in (pb.DeliberateRequest, tool_pb2.CallToolRequest):
        with suppress(InvalidRequest):
            assert isinstance(parse(raw, kind), kind)
