"""The graph of a running server: the provenance of a delivered line, queried with and without
`serve`; rebuilding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from command import Command, git
from moothall.domain.ids import digest
from moothall.pb.context.v1 import context_pb2 as context
from moothall.pb.context.v1.context_pb2_grpc import ContextServiceStub
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from moothall.pb.planning.v1 import planning_pb2 as planning
from moothall.pb.planning.v1.planning_pb2_grpc import PlanningServiceStub

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


async def _deliver_change(command: Command, repo: Path) -> Any:
    result = await command("deliberate", "--repo", str(repo), "--agents", "2", "--json", TASK)
    assert result.code == 0, result.err
    return result.document


async def _eventually(command: Command, *args: str) -> Any:
    """Retry the query, because the graph lags behind the answer."""
    for _ in range(50):
        result = await command("graph", "query", *args, "--json")
        assert result.code in {0, 1}, result.err
        if result.code == 0:
            return result.document
    pytest.fail(f"the graph never had it: {result.out} {result.err}")


async def test_a_line_of_a_delivered_file_leads_to_its_full_provenance(
    command: Command, repo: Path
) -> None:
    """One query to the running `serve`."""
    outcome = await _deliver_change(command, repo)
    branch = str(outcome["branch"])
    lines = git(repo, "show", f"{branch}:src/utils.py").splitlines()
    number = next(place for place, line in enumerate(lines, 1) if "def hello_world" in line)
    place = ("--repo", str(repo), "--ref", branch, "--file", "src/utils.py", "--line", str(number))
    document = await _eventually(command, "provenance", *place)
    assert document["line"]["text"] == lines[number - 1]
    (row,) = document["proposals"]
    assert row["commit"] == outcome["commit_sha"] == document["line"]["commit"]
    assert row["deliberation"]["task_id"] == outcome["task_id"]
    assert row["seat"]["seat"] == row["proposal"]["seat"] == outcome["winner_id"]
    assert row["proposal"]["won"]
    assert ("tests", "passed") in {(entry["check"], entry["verdict"]) for entry in row["evidence"]}
    assert all(len(call["prompt_sha256"]) == 64 and call["model"] for call in row["model_calls"])
    assert any(call["tool"] == "files.append" for call in row["tool_calls"])
    assert row["decisions"] == []
    provenance = await command("graph", "query", "provenance", *place)
    assert provenance.code == 0
    for text in ("test run", "model call", "prompt sha256", "approver", str(outcome["task_id"])):
        assert text in provenance.out
    first = await command("graph", "query", "provenance", *place[:-1], "1", "--json")
    assert first.code == 1, "the first line is older than the server"
    assert first.document["proposals"] == []


async def test_earlier_deliberations_are_the_context_of_the_next_task(
    command: Command, repo: Path
) -> None:
    """GetTaskContext over gRPC, from the graph of the server."""
    outcome = await _deliver_change(command, repo)
    await _eventually(command, "task_context", f"repository={await _repository(command, outcome)}")
    later_run = await command(
        "deliberate", "--repo", str(repo), "--agents", "1", "--json", f"{TASK} WRONG"
    )
    token = (command.data_dir / "token").read_text(encoding="ascii").strip()
    async with grpc.aio.insecure_channel(command.served_at) as channel:
        response = await OrchestratorServiceStub(channel).GetTaskContext(
            pb.GetTaskContextRequest(task_id=later_run.document["task_id"], role="DEV"),
            metadata=(("authorization", f"Bearer {token}"),),
        )
    assert str(outcome["task_id"]) in response.context_text
    assert "src/utils.py" in response.blocks.context


async def test_a_callers_note_is_published_and_stored(command: Command) -> None:
    """From UpdateContext to GetContext through log and graph, and a bundle, on the running
    server.
    """
    token = (command.data_dir / "token").read_text(encoding="ascii").strip()
    bearer = (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(command.served_at) as channel:
        board, context_service = PlanningServiceStub(channel), ContextServiceStub(channel)
        created = await board.CreateStory(
            planning.CreateStoryRequest(title="Note it", brief="b"), metadata=bearer
        )
        change = context.ContextChange(
            operation="create",
            entity_type="decision",
            entity_id="d-1",
            payload='{"text": "old format"}',
        )
        request = context.UpdateContextRequest(
            story_id=created.story_id, role="dev", changes=[change], expected_version=0
        )
        assert (await context_service.UpdateContext(request, metadata=bearer)).version == 1
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await context_service.UpdateContext(request, metadata=bearer)
        assert late.value.code() is grpc.StatusCode.ABORTED
        assert await _eventually(
            command, "neighbours", "label=Note", f"id={created.story_id}/decision/d-1"
        )
        pack = await context_service.GetContext(
            context.GetContextRequest(story_id=created.story_id, role="dev"), metadata=bearer
        )
        assert 'noted by local for dev: decision d-1: {"text": "old format"}' in pack.context
        bundle = context.RehydrateSessionRequest(
            case_id=created.story_id, roles=["dev"], persist_bundle=True
        )
        session = await context_service.RehydrateSession(bundle, metadata=bearer)
        bundle.persist_bundle = False
        assert session.expires_at_ms
        assert await context_service.RehydrateSession(bundle, metadata=bearer) == session


async def _repository(command: Command, outcome: Any) -> str:
    document = await _eventually(command, "deliberation", f"task_id={outcome['task_id']}")
    return str(document[0]["repository"]["id"])


async def test_an_invalid_query_is_refused_with_a_suggestion(command: Command, repo: Path) -> None:
    for args, message in (
        (("provenence",), "did you mean provenance"),
        (("provenance", "commit_sha=abc"), "40 hexadecimal digits"),
        (
            ("provenance", "--repo", str(repo), "--file", "src/utils.py", "--line", "9999"),
            "has only",
        ),
        (
            ("provenance", "--repo", str(repo), "--file", "nothing.py", "--line", "1"),
            "is not a file in commit",
        ),
        (("provenance", "--repo", str(repo), "--file", "src/utils.py"), "together"),
        (("deliberation", "--line", "1", "task_id=x"), "belong to provenance"),
        (("deliberation", "task_id"), "NAME=VALUE"),
    ):
        result = await command("graph", "query", *args)
        assert result.code == 2, result.out
        assert message in result.err
    rebuild = await command("graph", "rebuild")
    assert rebuild.code == 2
    assert "another process writes the graph" in rebuild.err


async def test_without_a_server_queries_work_and_a_rebuild_gives_the_same_graph(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    own_command = Command(tmp_path / "server", command.model_url)
    outcome = await _deliver_change(own_command, repo)
    document = await _eventually(own_command, "deliberation", f"task_id={outcome['task_id']}")
    assert document[0]["deliberation"]["status"] == "COMPLETED"
    counts_before = (await own_command("graph", "show", "--json")).document
    rebuilt = await own_command("graph", "rebuild", "--json")
    assert rebuilt.code == 0, rebuilt.err
    assert rebuilt.document["same"] is True
    assert rebuilt.document["counts"] == counts_before
    assert rebuilt.document["events"] > 20
    rebuild = await own_command("graph", "rebuild")
    assert "the graph is the same as before" in rebuild.out
    (own_command.data_dir / "graph" / "context.kgl").write_bytes(digest("broken").encode())
    broken = await own_command("graph", "show")
    assert broken.code == 2
    assert "restores it from the log" in broken.err
