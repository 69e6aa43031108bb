"""Workflows over gRPC with real sandboxes: outputs passed on, retries, compensation, and the
effects of kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from moothall.authorization.audit import verify_all
from moothall.pb.tool.v1 import tool_pb2 as pb
from support.callers import OTHER, TOKEN, api_dependencies, with_parts
from support.deliberation_service import MemoryDeliberations
from support.rest import serving_http
from support.tool_server import ToolServer, open_tool_server

pytestmark = pytest.mark.e2e
ROLES = """
roles:
  dev:
    tools: {"files.*": [read, write], "git.*": [read, write], "tests.*": [execute], "code.*": [execute]}
  qa:
    tools: {"files.*": [read]}
"""  # noqa: E501 - a line of embedded text
FILES = {"src/a.txt": "A = 1\n", "ok.sh": "test -e done || { touch done; exit 3; }\n"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[ToolServer]:
    async with open_tool_server(tmp_path, FILES, roles=ROLES) as opened:
        yield opened


def step(name: str, tool: str, **fields: Any) -> dict[str, Any]:
    step_fields = {"needs", "retry", "timeout", "on_failure", "accept", "compensate"}
    return {
        "id": name,
        "tool": tool,
        "arguments": {key: value for key, value in fields.items() if key not in step_fields},
        **{key: value for key, value in fields.items() if key in step_fields},
    }


def count(name: str, **fields: Any) -> dict[str, Any]:
    """A step that appends a line each time it runs."""
    return step(name, "files.append", path="count.txt", content=f"{name}\n", **fields)


def state_lines(events: list[pb.WorkflowEvent]) -> list[str]:
    return [
        f"{event.step or 'workflow'}{' undo' if event.compensation else ''} {event.state}"
        for event in events
    ]


async def read_file(app: ToolServer, opened: pb.OpenWorkspaceResponse, path: str) -> str:
    result = await app.call(
        opened, "files.read", f"read-{path}-{asyncio.get_running_loop().time()}", path=path
    )
    return str(result.output["content"]) if result.status == "success" else result.status


async def test_three_steps_pass_outputs_on_and_retry_and_report_progress(
    app: ToolServer,
) -> None:
    opened = await app.open()
    flow = {
        "id": "three",
        "steps": [
            step("read", "files.read", path="src/a.txt"),
            step(
                "run",
                "code.shell",
                command="sh ok.sh",
                needs=[],
                retry={"attempts": 3, "seconds": 0.1},
            ),
            step(
                "write",
                "files.write",
                path="b.py",
                content="# copied\n${steps.read.output.content}",
                needs=["run"],
            ),
        ],
    }
    events = await app.flow(opened, flow)
    assert state_lines(events)[0] == "workflow started"
    assert state_lines(events)[-1] == "workflow succeeded"
    assert [line for line in state_lines(events) if line.startswith("run")] == [
        "run started",
        "run retrying",
        "run started",
        "run succeeded",
    ]
    assert (events[-1].done, events[-1].steps) == (3, 3)
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert await read_file(app, opened, "b.py") == "# copied\nA = 1\n"
    # Sent again, its events are repeated, and after a seq only the rest; nothing runs.
    assert state_lines(await app.flow(opened, flow)) == state_lines(events)
    assert state_lines(await app.flow(opened, flow, after_seq=events[-2].seq)) == [
        "workflow succeeded"
    ]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await app.flow(opened, {**flow, "steps": flow["steps"][:1]})
    assert error.value.code() is grpc.StatusCode.ALREADY_EXISTS
    report = verify_all(app.data_dir)
    assert (report.ok, report.unfinished) == (True, 0)


async def test_an_invalid_workflow_is_refused_before_anything_runs(app: ToolServer) -> None:
    opened = await app.open()
    for steps, message in (
        ([count("a"), step("b", "files.raed", path="x")], "step b: there is no tool 'files.raed'"),
        (
            [count("a"), step("b", "git.push", branch="x")],
            "step b: git.push is not granted by this capability token",
        ),
        ([count("a"), count("a")], "step a: there are two steps"),
        ([count("a", needs=["b"]), count("b", needs=["a"])], "depend on each other"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=message) as refused:
            await app.flow(opened, {"steps": steps})
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as stolen:
        _ = [event async for event in app.flowing(opened, {"steps": [count("a")]}, token=OTHER)]
    assert stolen.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert await read_file(app, opened, "count.txt") == "error"


async def test_completed_steps_are_compensated_in_reverse(app: ToolServer) -> None:
    opened = await app.open()

    def undo(name: str) -> dict[str, Any]:
        return {
            "tool": "files.append",
            "arguments": {"path": "${steps." + name + ".output.path}", "content": f"-{name}\n"},
        }

    events = await app.flow(
        opened,
        {
            "steps": [
                count("a", compensate=undo("a")),
                count("b", compensate=undo("b")),
                step("c", "code.shell", command="exit 4", on_failure="compensate"),
                count("d"),
            ]
        },
    )
    assert state_lines(events)[-6:] == [
        "d skipped",
        "b undo started",
        "b undo succeeded",
        "a undo started",
        "a undo succeeded",
        "workflow compensated",
    ]
    assert "exited with 4" in next(event.error for event in events if event.state == "failed")
    assert await read_file(app, opened, "count.txt") == "a\nb\n-b\n-a\n"


async def test_a_workspace_is_reserved_for_its_workflow_until_that_ends(app: ToolServer) -> None:
    opened = await app.open()
    call = app.flowing(
        opened,
        {
            "id": "long",
            "steps": [count("a"), step("b", "code.shell", command="sleep 3; echo x >> count.txt")],
        },
    )
    stream = aiter(call)
    while (await anext(stream)).step != "b":
        pass
    assert await read_file(app, opened, "src/a.txt") == "A = 1\n"
    for attempt in (
        app.call(opened, "files.write", "mine", path="x", content=""),
        app.flow(opened, {"id": "second", "steps": [count("z")]}),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="workflow long has this workspace"):
            await attempt
    call.cancel()  # it continues without its caller
    events = await app.flow(
        opened,
        {
            "id": "long",
            "steps": [count("a"), step("b", "code.shell", command="sleep 3; echo x >> count.txt")],
        },
    )
    assert state_lines(events)[-1] == "workflow succeeded"
    assert await read_file(app, opened, "count.txt") == "a\nx\n"
    assert (await app.call(opened, "files.write", "mine", path="x", content="")).status == "success"


async def test_a_step_is_repeated_after_its_executor_was_killed(app: ToolServer) -> None:
    opened = await app.open()
    slow = "printf half >> count.txt; sleep 2; printf 'b\\n' >> count.txt"
    call = app.flowing(
        opened, {"steps": [count("a"), step("b", "code.shell", command=slow), count("c")]}
    )
    stream = aiter(call)
    events = [await anext(stream)]
    while (events[-1].step, events[-1].state) != ("b", "started"):
        events.append(await anext(stream))
    while "half" not in app.file(opened.workspace_id, "count.txt"):
        await asyncio.sleep(0.05)
    os.kill(app.pid(opened.workspace_id), signal.SIGKILL)
    events += [event async for event in stream]
    assert state_lines(events)[-1] == "workflow succeeded", events
    assert [
        event.attempt for event in events if event.step == "b" and event.state == "started"
    ] == [1, 2]
    assert await read_file(app, opened, "count.txt") == "a\nhalfb\nc\n"
    assert verify_all(app.data_dir).ok


async def test_a_closed_workspace_ends_its_workflow(app: ToolServer) -> None:
    opened = await app.open()
    call = app.flowing(opened, {"steps": [step("a", "code.shell", command="sleep 60"), count("b")]})
    stream = aiter(call)
    while (event := await anext(stream)).step != "a":
        pass
    await app.rpc("CloseWorkspace", pb.CloseWorkspaceRequest(workspace_id=opened.workspace_id))
    events = [event async for event in stream]
    assert events[-1].state == "cancelled"
    assert event.state == "started"


async def test_a_workflow_over_http_streams_one_json_line_per_event(app: ToolServer) -> None:
    opened = await app.open()
    dependencies = with_parts(
        api_dependencies(MemoryDeliberations()),
        sessions=app.session_manager,
        workflows=app.workflows,
    )
    flow = {"id": "lines", "steps": [count("one"), step("two", "files.read", path="count.txt")]}
    named = {"workspace_id": opened.workspace_id, "capability_token": opened.capability_token}
    async with serving_http(dependencies) as web:
        url, carried = (
            f"http://127.0.0.1:{web.port}/v1/workflows",
            {"Authorization": f"Bearer {TOKEN}"},
        )
        async with web.session.post(
            url, json={**named, "workflow": flow}, headers=carried
        ) as response:
            assert (response.status, response.content_type) == (200, "application/x-ndjson")
            lines = [json.loads(line) async for line in response.content]
        assert [(line.get("step", ""), line["state"]) for line in lines] == [
            ("", "started"),
            ("one", "started"),
            ("one", "succeeded"),
            ("two", "started"),
            ("two", "succeeded"),
            ("", "succeeded"),
        ]
        assert lines[4]["result"]["output"]["content"] == "one\n"
        resumed_request = {**named, "workflow": flow, "after_seq": lines[3]["seq"]}
        async with web.session.post(url, json=resumed_request, headers=carried) as response:
            assert [json.loads(line)["seq"] async for line in response.content] == [
                line["seq"] for line in lines[4:]
            ]
        refused = await web(
            "POST", "/v1/workflows", {**named, "workflow": {"id": "wrong", "steps": []}}
        )
        assert (refused.status, refused.json["code"]) == (400, "INVALID_REQUEST")
        assert (
            await web("POST", "/v1/workflows", {**named, "workflow": flow}, token=OTHER)
        ).status == 403
