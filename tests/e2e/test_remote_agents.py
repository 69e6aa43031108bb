"""A seat with a remote agent: separate servers answer for it, and one replaces another that is
killed.
"""

from __future__ import annotations

import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from served import ALICE, Served, make_command, run_server

from command import SOLVED, WRONG, answer_turns_with, git, turn
from moothall.cli.demo import make_sample_repository
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="function")]

ENDPOINT = "grpc://coders.example:50051"


async def deliberate(app: Served, repo: Path, task: str) -> pb.DeliberateResponse:
    """Let a council of two seats, one of them remote, add the function."""
    request = pb.DeliberateRequest(
        task_description="Add hello_world() function to src/utils.py",
        role="dev",
        num_agents=2,
        task_id=task,
        repository=common_pb2.Repository(url=str(repo), ref="main"),
    )
    answer: pb.DeliberateResponse = await app.stub().Deliberate(request, timeout=240)
    return answer


async def test_a_seat_proposes_a_remote_agents_change_and_survives_a_killed_replica(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    async with AsyncExitStack() as stack:
        remote_model = await stack.enter_async_context(
            scripted_model(
                answer_turns_with(
                    lambda *_: turn("files.append", path="src/utils.py", content=SOLVED)
                )
            )
        )
        local_model = await stack.enter_async_context(
            scripted_model(
                answer_turns_with(
                    lambda *_: turn("files.append", path="src/utils.py", content=WRONG)
                )
            )
        )
        replicas: list[tuple[Served, AsyncExitStack]] = []
        for name in ("one", "two"):
            (folder := tmp_path / name).mkdir()
            command = make_command(folder, remote_model.base_url)
            command.extra["MOOTHALL_WORKSPACE__ALLOWED_ROOTS"] = f'["{tmp_path}"]'
            replica_stack = await stack.enter_async_context(AsyncExitStack())
            replicas.append(
                (
                    await replica_stack.enter_async_context(run_server(command, signal.SIGKILL)),
                    replica_stack,
                )
            )
        (folder := tmp_path / "server").mkdir()
        token = folder / "elsewhere.token"
        token.write_text(ALICE, encoding="utf-8")
        command = make_command(folder, local_model.base_url)
        command.extra |= {
            "MOOTHALL_WORKSPACE__ALLOWED_ROOTS": f'["{tmp_path}"]',
            "MOOTHALL_AGENTS__ENDPOINTS": json.dumps(
                {ENDPOINT: [replica.command.served_at for replica, _ in replicas]}
            ),
            "MOOTHALL_AGENTS__ENDPOINT_TOKEN_FILE": str(token),
        }
        app = await stack.enter_async_context(run_server(command))
        await app.stub().CreateCouncil(pb.CreateCouncilRequest(role="dev", num_agents=1))
        await app.stub().RegisterAgent(
            pb.RegisterAgentRequest(agent_id="far", role="dev", endpoint=ENDPOINT)
        )
        for number in (1, 2):
            answer = await deliberate(app, repo, f"task-{number}")
            assert answer.winner_id == "far", answer
            assert "Hello, World!" in git(repo, "show", f"{answer.branch}:src/utils.py")
            if number == 1:
                await replicas[0][1].aclose()
