"""The gRPC API: a client made from the protos, and one by reflection."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from command import Command, git
from moothall.domain.ids import new_task_id
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from moothall.testing.model import ScriptedModel
from support.processes import command_line, descendants

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


@pytest_asyncio.fixture(loop_scope="session")
async def stub(command: Command) -> AsyncIterator[OrchestratorServiceStub]:
    async with grpc.aio.insecure_channel(command.served_at) as channel:
        yield OrchestratorServiceStub(channel)


def credentials(command: Command) -> tuple[tuple[str, str], ...]:
    return (
        (
            "authorization",
            f"Bearer {(command.data_dir / 'token').read_text(encoding='ascii').strip()}",
        ),
    )


async def register_repository(command: Command, repo: Path) -> common_pb2.Repository:
    result = await command("repo", "add", str(repo), "--json")
    assert result.code == 0, result.err
    return common_pb2.Repository(id=json.loads(result.out)["id"])


async def test_a_deliberation_is_submitted_and_polled(
    command: Command, repo: Path, stub: OrchestratorServiceStub
) -> None:
    metadata = credentials(command)
    request = pb.DeliberateRequest(
        task_description=TASK,
        role="DEV",
        num_agents=2,
        repository=await register_repository(command, repo),
    )
    submitted = await stub.SubmitDeliberation(request, metadata=metadata)
    assert submitted.agent_count == 2
    assert submitted.status == pb.DELIBERATION_STATUS_PENDING
    async with asyncio.timeout(400):
        while True:
            result = await stub.GetDeliberationResult(
                pb.GetDeliberationResultRequest(task_id=submitted.task_id), metadata=metadata
            )
            if result.status == pb.DELIBERATION_STATUS_COMPLETED:
                break
            assert result.status in {
                pb.DELIBERATION_STATUS_PENDING,
                pb.DELIBERATION_STATUS_IN_PROGRESS,
            }
            await asyncio.sleep(0.1)
    assert result.winner_id.startswith("agent-dev-")
    assert result.results[0].proposal.diff
    assert git(repo, "branch", "--list", f"moothall/{submitted.task_id}")


async def test_a_client_with_only_the_original_fields_gets_an_answer(
    command: Command, stub: OrchestratorServiceStub
) -> None:
    request = pb.DeliberateRequest(
        task_description="Write a HAIKU", role="DEV", rounds=1, num_agents=2
    )
    response = await stub.Deliberate(request, metadata=credentials(command), timeout=120)
    assert response.winner_id
    assert response.results[0].proposal.content == "An old silent pond"


async def test_a_stream_can_be_resumed_from_any_sequence_number(
    command: Command, repo: Path, stub: OrchestratorServiceStub
) -> None:
    metadata = credentials(command)
    request = pb.DeliberateRequest(
        task_description=TASK,
        role="DEV",
        num_agents=2,
        repository=await register_repository(command, repo),
    )
    updates = [
        update async for update in stub.StreamDeliberation(request, metadata=metadata, timeout=120)
    ]
    seqs, ids = [update.seq for update in updates], [update.event.id for update in updates]
    assert seqs == sorted(set(seqs))
    assert len(ids) == len(set(ids))
    assert updates[-1].status == "COMPLETED"
    assert updates[-1].progress_percent == 100
    for place in range(len(ids)):  # also within a single message
        watch = pb.WatchDeliberationRequest(task_id=updates[0].task_id, after_seq=seqs[place])
        resumed_ids = [
            update.event.id
            async for update in stub.WatchDeliberation(watch, metadata=metadata, timeout=60)
        ]
        assert resumed_ids == ids[place + 1 :]


async def test_cancel_stops_calls_and_workspaces(
    command: Command, model: ScriptedModel, repo: Path, stub: OrchestratorServiceStub
) -> None:
    metadata = credentials(command)
    request = pb.DeliberateRequest(
        task_description=f"HANG {TASK}",
        role="DEV",
        repository=await register_repository(command, repo),
    )
    submitted = await stub.SubmitDeliberation(request, metadata=metadata)
    watch = pb.WatchDeliberationRequest(task_id=submitted.task_id)
    async for update in stub.WatchDeliberation(watch, metadata=metadata, timeout=60):
        if update.current_agent:
            break
    cancelled = await stub.CancelDeliberation(
        pb.CancelDeliberationRequest(task_id=submitted.task_id, reason="changed my mind"),
        metadata=metadata,
    )
    assert cancelled.status == pb.DELIBERATION_STATUS_CANCELLED
    last = [
        update async for update in stub.WatchDeliberation(watch, metadata=metadata, timeout=30)
    ][-1]
    assert last.status == "CANCELLED"
    # The calls end at the model server, and no sandbox works for them any longer.
    async with asyncio.timeout(10):
        while model.in_flight or any(
            submitted.task_id in command_line(child) for child in descendants(command.server_pid)
        ):
            await asyncio.sleep(0.05)
    assert git(repo, "branch", "--list", "moothall/*") == ""


async def test_a_call_without_the_token_is_refused(stub: OrchestratorServiceStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=new_task_id()))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_local_paths_cannot_be_read_over_the_api(
    command: Command, repo: Path, stub: OrchestratorServiceStub
) -> None:
    request = pb.DeliberateRequest(
        task_description=TASK, role="DEV", repository=common_pb2.Repository(url=str(repo))
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.SubmitDeliberation(request, metadata=credentials(command))
    assert caught.value.code() in {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
    assert "allowed" in str(caught.value.details())


async def test_a_client_can_use_reflection(command: Command) -> None:
    buf = Path(sys.executable).parent / "buf"
    token = (command.data_dir / "token").read_text(encoding="ascii").strip()
    url = f"http://{command.served_at}/orchestrator.v1.OrchestratorService/Deliberate"
    process = await asyncio.create_subprocess_exec(
        str(buf),
        "curl",
        "--http2-prior-knowledge",
        "--protocol",
        "grpc",
        "-H",
        f"authorization: Bearer {token}",
        "-d",
        '{"task_description": "Write a HAIKU", "role": "dev", "num_agents": 1}',
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["winnerId"] == "agent-dev-001"


async def test_a_remote_pipeline_starts_a_council_and_fails_by_its_exit_code(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    """From a data directory of its own, as on another machine: the token is all that it has."""
    repository_id = (await register_repository(command, repo)).id
    client = Command(tmp_path / "mine", extra={"MOOTHALL_LOG__LEVEL": "error"})
    token = str(command.data_dir / "token")
    arguments = (
        "deliberate",
        "--server",
        command.served_at,
        "--token-file",
        token,
        "--repo",
        repository_id,
        "--json",
    )
    result = await client(*arguments, "--summary", str(tmp_path / "summary.md"), TASK)
    assert (result.code, result.document["proven"]) == (0, True), result.err
    assert "hello_world" in git(repo, "show", result.document["branch"])
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert f"branch `{result.document['branch']}`" in summary
    assert "| 1 | " in summary
    failed = await client(*arguments, "Add hello_world() function to src/utils.py WRONG")
    assert failed.code in {1, 3}, failed.err
    refused = await client(*arguments, "--seed", "1", TASK)
    assert (refused.code, "does not accept seed" in refused.err) == (2, True)
    assert not (tmp_path / "mine" / "lock").exists()  # no server was started
