"""A2A 1.0 with the client of the protocol's own library, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from served import ALICE, EVE, Served, make_command, run_server

from command import QUICK, answer_turns_with, by_task, git
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import Answer, Fault, scripted_model

httpx = pytest.importorskip("httpx")
pytest.importorskip("a2a", reason="pip install 'moothall[a2a]'")

from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory  # noqa: E402
from a2a.client.errors import A2AClientError  # noqa: E402
from a2a.helpers import get_message_text, new_text_message  # noqa: E402
from a2a.types import a2a_pb2 as pb  # noqa: E402
from a2a.utils.errors import A2AError  # noqa: E402
from google.protobuf import json_format  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


@asynccontextmanager
async def server(folder: Path, answer: Answer) -> AsyncIterator[Served]:
    """Yield a server whose seats are scripted."""
    async with scripted_model(answer) as model:
        command = make_command(folder, model.base_url)
        command.extra |= QUICK | {
            "MOOTHALL_WEB__PORT": "0",
            "MOOTHALL_WORKSPACE__ALLOWED_ROOTS": f'["{folder}"]',
        }
        async with run_server(command) as running:
            yield running


@asynccontextmanager
async def agent(
    running: Served, token: str = ALICE, *, streaming: bool = False
) -> AsyncIterator[Client]:
    """Yield a client that found the server by its card."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=240) as web:
        card = await A2ACardResolver(web, f"http://{running.web}").get_agent_card()
        config = ClientConfig(streaming=streaming, httpx_client=web)
        async with ClientFactory(config).create(card) as client:
            yield client


def request(
    text: str, message_id: str = "", *, at_once: bool = False, **metadata: Any
) -> pb.SendMessageRequest:
    message = new_text_message(text, role=pb.ROLE_USER)
    message.message_id = message_id or message.message_id
    message.metadata.update(metadata)
    return pb.SendMessageRequest(
        message=message, configuration=pb.SendMessageConfiguration(return_immediately=at_once)
    )


async def send(client: Client, message_request: pb.SendMessageRequest) -> list[pb.StreamResponse]:
    return [update async for update in client.send_message(message_request)]


async def test_an_agent_runs_a_deliberation_to_its_result(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    async with server(tmp_path, answer_turns_with(by_task)) as running:
        async with httpx.AsyncClient(timeout=60) as web:  # the first request imports the library
            card = (await web.get(f"http://{running.web}/.well-known/agent-card.json")).json()
            refused = await web.post(f"http://{running.web}/a2a", json={})
        assert card["supportedInterfaces"] == [
            {
                "url": f"http://{running.web}/a2a",
                "protocolBinding": "JSONRPC",
                "protocolVersion": "1.0",
            }
        ]
        assert refused.status_code == 401
        async with agent(running) as client:
            task_request = request(TASK, "m-1", repository=str(repo), agents=2)
            (update,) = await send(client, task_request)
            task = update.task
            assert task.status.state == pb.TASK_STATE_COMPLETED
            figures, diff = task.artifacts[0].parts
            document = json_format.MessageToDict(figures.data)
            assert document["evidence_level"] == "proven"
            assert get_message_text(task.status.message).startswith(document["winner"])
            assert "hello_world" in git(repo, "show", f"{document['branch']}:src/utils.py")
            assert (diff.media_type, "+def hello_world" in diff.text) == ("text/x-diff", True)
            # The same message starts no second deliberation.
            (repeated,) = await send(client, task_request)
            assert repeated.task.id == task.id
            assert await client.get_task(pb.GetTaskRequest(id=task.id)) == task
            listed = await client.list_tasks(pb.ListTasksRequest())
            assert [item.id for item in listed.tasks] == [task.id]
            with pytest.raises(A2AError, match="has ended"):
                await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            with pytest.raises(A2AError, match="role"):
                await send(client, request(TASK, role="king"))
        # Another tenant does not see the task.
        async with agent(running, EVE) as stranger:
            with pytest.raises(A2AError, match=task.id):
                await stranger.get_task(pb.GetTaskRequest(id=task.id))
            assert not (await stranger.list_tasks(pb.ListTasksRequest())).tasks
        async with agent(running, "no-token-of-this-server") as foreign_client:
            with pytest.raises(A2AClientError, match="401"):
                await foreign_client.get_task(pb.GetTaskRequest(id=task.id))


async def test_an_agent_follows_a_deliberation(tmp_path: Path) -> None:
    async with (
        server(tmp_path, answer_turns_with(by_task)) as running,
        agent(running, streaming=True) as client,
    ):
        first, *updates, artifact, last = await send(client, request("HAIKU about rain"))
        assert first.task.status.state in {pb.TASK_STATE_SUBMITTED, pb.TASK_STATE_WORKING}
        assert updates
        for update in updates:
            assert update.status_update.status.state == pb.TASK_STATE_WORKING
            assert get_message_text(update.status_update.status.message)
        assert artifact.artifact_update.artifact.parts[1].text == "An old silent pond"
        assert last.status_update.status.state == pb.TASK_STATE_COMPLETED
        with pytest.raises(A2AError, match="has ended"):
            _ = [
                update
                async for update in client.subscribe(pb.SubscribeToTaskRequest(id=first.task.id))
            ]


async def test_an_agent_steers_and_cancels_a_deliberation(tmp_path: Path) -> None:
    model_called = asyncio.Event()

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        del body, headers
        model_called.set()
        return Fault("silent", delay=120)

    async with server(tmp_path, slowly) as running, agent(running) as client:
        (update,) = await send(client, request("Think of a name", at_once=True))
        task_id = update.task.id
        async with asyncio.timeout(60):
            await model_called.wait()
        steering = request("A short one", at_once=True)
        steering.message.task_id = task_id
        (steered,) = await send(client, steering)
        assert steered.task.status.state in {pb.TASK_STATE_SUBMITTED, pb.TASK_STATE_WORKING}
        cancelled = await client.cancel_task(pb.CancelTaskRequest(id=task_id))
        assert cancelled.status.state == pb.TASK_STATE_CANCELED
        assert not cancelled.artifacts
