"""Sessions of the agent service when their server is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from served import ALICE, Served, make_command, run_server

from command import answer_turns_with
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="function")]

WRITE = {"tool_parameters": {"tool": "files.write", "path": "a.txt", "content": "x"}}
READ = {"tool_parameters": {"tool": "files.read", "path": "a.txt"}}


async def ask(
    app: Served, query: str, context: Mapping[str, Any] | None = None, **facts: Any
) -> pb.ExecuteTaskResponse:
    """Ask in alice's session, with `known` as context."""
    stub: Any = pb_grpc.AgentServiceStub(app.channel)
    request = pb.ExecuteTaskRequest(
        query=query, session_context=pb.SessionContext(session_id="session 7")
    )
    request.context.update(context or {})
    request.session_context.persistent_context.update(facts)
    answer: pb.ExecuteTaskResponse = await stub.ExecuteTask(
        request, metadata=(("authorization", f"Bearer {ALICE}"),), timeout=180
    )
    return answer


async def test_the_knowledge_of_a_session_survives_a_killed_server(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], _headers: Mapping[str, str]) -> str:
        return json.dumps(
            {"thought": "", "finish": "Eight." if "doubled" in str(body["messages"]) else "Four."}
        )

    async with scripted_model(answer_turns_with(answer)) as model:
        command = make_command(tmp_path, model.base_url)
        async with run_server(command, signal.SIGKILL) as app:
            assert (await ask(app, "", WRITE)).status == common.STATUS_CODE_OK
            assert (await ask(app, "What is 2 + 2?", customer="Ada")).result == "Four."
        model.requests.clear()
        async with run_server(command) as app:
            assert (await ask(app, "And doubled?")).result == "Eight."
            read = await ask(app, "", READ)
    prompt = model.requests[0].prompt
    assert (
        prompt.index("- What is 2 + 2?")
        < prompt.index("- Four.")
        < prompt.index('"customer": "Ada"')
        < prompt.index("And doubled?")
    )
    assert read.status == common.STATUS_CODE_ERROR, (
        "the workspace ended with the server; a new one is empty"
    )
