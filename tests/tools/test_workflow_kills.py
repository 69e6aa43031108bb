"""Workflows and SIGKILL: of the command that runs a workflow, and of the process that serves it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from command import Command
from moothall.authorization.audit import verify_all
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.tool.v1 import tool_pb2 as pb
from moothall.pb.tool.v1 import tool_pb2_grpc as pb_grpc
from support.repos import make_repo

pytestmark = pytest.mark.e2e
MAKEFILE = """slow:
	printf half >> count.txt
	sleep 8
	printf 'b\\n' >> count.txt
quick:
	echo d >> count.txt
"""
FLOW = """
name: count
steps:
  - {id: a, tool: files.append, arguments: {path: count.txt, content: "a\\n"}}
  - {id: b, tool: tests.make, arguments: {target: slow}}
  - {id: c, tool: files.append, arguments: {path: count.txt, content: "${steps.a.output.path} ${steps.b.output.exit_code}\\n"}}
  - {id: d, tool: tests.make, arguments: {target: quick}}
  - {id: read, tool: files.read, arguments: {path: count.txt}}
"""  # noqa: E501 - a line of embedded text
COUNTED = "a\nhalfb\ncount.txt 0\nd\n"


def make_flow(folder: Path) -> Path:
    make_repo(folder / "repo", {"a.txt": "A\n", "Makefile": MAKEFILE})
    (folder / "flow.yaml").write_text(textwrap.dedent(FLOW), encoding="utf-8")
    return folder / "repo"


async def read_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    """Read the lines of a command up to one with these words."""
    assert process.stdout is not None
    lines = []
    async with asyncio.timeout(240):
        while line := (await process.stdout.readline()).decode():
            lines.append(line.rstrip())
            if text in line:
                return lines
    raise AssertionError(f"it ended without {text!r}: {lines}")


async def test_a_killed_command_continues_under_its_id(tmp_path: Path) -> None:
    repo = make_flow(tmp_path)
    command = Command(tmp_path / "data")
    run = ("tools", "run", str(tmp_path / "flow.yaml"), "--repo", str(repo), "--id", "counting")
    first = await command.start(*run)
    lines = await read_until(first, "b: started")
    assert any(line.startswith("[1/5] a: succeeded") for line in lines), lines
    await asyncio.sleep(2)
    first.kill()
    await first.wait()
    resumed = await command(*run, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.document["steps"]["read"]["result"]["output"]["content"] == COUNTED
    assert {name: step["attempt"] for name, step in resumed.document["steps"].items()} == {
        "a": 1,
        "b": 2,
        "c": 1,
        "d": 1,
        "read": 1,
    }
    repeated = await command(*run)  # it has ended: its events are repeated, and nothing runs
    assert (repeated.code, repeated.out.splitlines()[-1]) == (
        0,
        "[5/5] workflow counting: succeeded",
    )
    verified = await command("audit", "verify")
    assert (verified.code, "1 calls whose end is not recorded: whole" in verified.out) == (
        0,
        True,
    ), verified.out
    invalid_file = tmp_path / "wrong.yaml"
    invalid_file.write_text("steps: [{id: a, tool: files.raed}]", encoding="utf-8")
    refused = await command("tools", "run", str(invalid_file), "--repo", str(repo))
    assert (refused.code, "did you mean 'files.read'" in refused.err) == (2, True)


async def test_a_server_killed_in_or_between_steps_continues_by_itself(
    tmp_path: Path,
) -> None:
    repo = make_flow(tmp_path)
    unused_model = "http://127.0.0.1:9/v1"  # no model is called
    command = Command(
        tmp_path / "data",
        unused_model,
        extra={"MOOTHALL_WORKSPACE__ALLOWED_ROOTS": json.dumps([str(tmp_path)])},
    )
    server, stub, metadata = await serve(command)
    opened = await stub.OpenWorkspace(
        pb.OpenWorkspaceRequest(repository=common_pb2.Repository(url=str(repo)), role="dev"),
        metadata=metadata,
        timeout=240,
    )
    request = pb.RunWorkflowRequest(
        workspace_id=opened.workspace_id, capability_token=opened.capability_token
    )
    request.workflow.update({"id": "counting", **flow_document()})
    await until(stub.RunWorkflow(request, metadata=metadata, timeout=240), "b", "started")
    await asyncio.sleep(2)
    await kill(server)
    server, stub, metadata = await serve(command)
    await until(stub.RunWorkflow(request, metadata=metadata, timeout=240), "b", "succeeded")
    await kill(server)
    server, stub, metadata = await serve(command)
    try:
        events = await until(
            stub.RunWorkflow(request, metadata=metadata, timeout=240), "", "succeeded"
        )
        [read] = [
            event.result for event in events if (event.step, event.state) == ("read", "succeeded")
        ]
        assert read.output["content"] == COUNTED
        started = [
            (event.step, event.attempt)
            for event in events
            if event.state == "started" and event.step
        ]
        assert {"a", "b"} <= {name for name, _ in started}
        assert [attempt for name, attempt in started if name == "a"] == [1]
        assert [attempt for name, attempt in started if name == "b"] == [1, 2]
        attached = await command(
            "tools", "run", str(tmp_path / "flow.yaml"), "--repo", str(repo), "--id", "second"
        )
        assert (attached.code, attached.out.splitlines()[-1]) == (
            0,
            "[5/5] workflow second: succeeded",
        ), attached.err
    finally:
        server.terminate()
        await server.wait()
    assert verify_all(tmp_path / "data").ok


def flow_document() -> dict[str, Any]:
    from moothall.workflows.plan import read_yaml

    return {**read_yaml(FLOW)}


async def serve(command: Command) -> tuple[asyncio.subprocess.Process, Any, Any]:
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(240):
        while line := (await server.stderr.readline()).decode():
            lines.append(line)
            if line.startswith("serving gRPC on"):
                break
    assert line, "".join(lines)
    channel = grpc.aio.insecure_channel(line.split()[3].rstrip(";"))
    token = (command.data_dir / "token").read_text(encoding="ascii").strip()
    return server, pb_grpc.ToolServiceStub(channel), (("authorization", f"Bearer {token}"),)


async def kill(server: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGKILL)
    await server.wait()


async def until(stream: Any, step: str, state: str) -> list[pb.WorkflowEvent]:
    events: list[pb.WorkflowEvent] = []
    async for event in stream:
        events.append(event)
        if (event.step, event.state) == (step, state):
            return events
    raise AssertionError(f"it ended without {step} {state}: {events}")
