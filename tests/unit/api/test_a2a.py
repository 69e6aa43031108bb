"""A2A over JSON-RPC: tasks of deliberations that the test decides, and everything refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moothall.domain.budget import Usage
from moothall.domain.evidence import EvidenceLevel
from moothall.domain.ids import TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from support.callers import OTHER, api_dependencies
from support.deliberation_service import MemoryDeliberations
from support.rest import Web, problem, serving_http

pytest.importorskip("a2a", reason="pip install 'moothall[a2a]'")

VERSION = {"A2A-Version": "1.0"}
DIFF = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture
async def web(deliberations: MemoryDeliberations) -> AsyncIterator[Web]:
    async with serving_http(api_dependencies(deliberations), body_bytes=10_000) as client:
        yield client


async def rpc(web: Web, method: str, params: Any, **options: Any) -> Any:
    """Return the result of a call, or its error as {"code", "message"}."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await web("POST", "/a2a", body, headers=VERSION, **options)
    assert answer.status == 200, answer
    return answer.json.get("result") or answer.json["error"]


def message(text: str = "Add hello_world()", **fields: Any) -> dict[str, Any]:
    content = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}], **fields}
    return {"message": content, "configuration": {"returnImmediately": True}}


def outcome(task_id: str, **fields: Any) -> Outcome:
    result = Result(1, "agent-dev-001", "dev", 1.0, ("Passes.",), True, True, diff=DIFF)
    values: dict[str, Any] = {
        "status": DeliberationStatus.COMPLETED,
        "winner_id": "agent-dev-001",
        "results": (result,),
        "evidence_level": EvidenceLevel.REPRODUCED,
        "branch": f"moothall/{task_id}",
        "usage": Usage(100, 0, 10, 2, 0.5),
        "final_state": "committed",
    }
    return Outcome(TaskId(task_id), **(values | fields))


async def test_a_message_starts_a_deliberation_and_its_result_is_an_artifact(
    web: Web, deliberations: MemoryDeliberations
) -> None:
    metadata = {"repository": "sample", "ref": "main", "agents": 2, "model": "deep", "other": 1}
    task = (await rpc(web, "SendMessage", message(metadata=metadata)))["task"]
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
    submitted_request = deliberations.request(task["id"])
    assert (submitted_request.description, submitted_request.role) == ("Add hello_world()", "dev")
    assert submitted_request.repository is not None
    assert (submitted_request.repository.id, submitted_request.repository.ref) == ("sample", "main")
    assert (
        submitted_request.num_agents,
        submitted_request.model,
        submitted_request.about_text,
    ) == (2, "deep", False)
    # The same message starts no second one; the same id with another text is refused.
    repeated_answer = await rpc(web, "SendMessage", message(metadata=metadata))
    assert repeated_answer["task"]["id"] == task["id"]
    assert (await rpc(web, "SendMessage", message("Else")))["code"] == -32602
    await deliberations.decide(outcome(task["id"]))
    ended_task = await rpc(web, "GetTask", {"id": task["id"]})
    assert ended_task["status"]["state"] == "TASK_STATE_COMPLETED"
    (artifact,) = ended_task["artifacts"]
    figures, diff = artifact["parts"]
    assert figures["data"]["evidence_level"] == "reproduced"
    assert figures["data"]["branch"] == f"moothall/{task['id']}"
    assert (diff["text"], diff["mediaType"]) == (DIFF, "text/x-diff")
    assert (await rpc(web, "CancelTask", {"id": task["id"]}))["code"] == -32002
    assert (await rpc(web, "SubscribeToTask", {"id": task["id"]}))["code"] == -32004
    follow_up = message("More", messageId="m-2", taskId=task["id"])
    assert (await rpc(web, "SendMessage", follow_up))["code"] == -32004
    hidden = await rpc(web, "GetTask", {"id": task["id"]}, token=OTHER)
    assert hidden["code"] == -32001


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"final_state": "no_winner", "winner_id": "", "error_message": "No."}, "FAILED"),
        ({"status": DeliberationStatus.TIMEOUT, "winner_id": ""}, "FAILED"),
        ({"status": DeliberationStatus.FAILED, "winner_id": "", "results": ()}, "FAILED"),
        ({"status": DeliberationStatus.CANCELLED, "winner_id": ""}, "CANCELED"),
        ({"final_state": "answered", "branch": ""}, "COMPLETED"),
    ],
)
async def test_the_end_of_a_deliberation_sets_the_state_of_its_task(
    web: Web, deliberations: MemoryDeliberations, fields: dict[str, Any], state: str
) -> None:
    task = (await rpc(web, "SendMessage", message()))["task"]
    await deliberations.decide(outcome(task["id"], **fields))
    ended_task = await rpc(web, "GetTask", {"id": task["id"]})
    assert ended_task["status"]["state"] == f"TASK_STATE_{state}"
    assert ("artifacts" in ended_task) == (state == "COMPLETED")


async def test_a_waiting_call_answers_at_the_end(
    web: Web, deliberations: MemoryDeliberations
) -> None:
    call = asyncio.ensure_future(rpc(web, "SendMessage", {"message": message()["message"]}))
    async with asyncio.timeout(10):
        await deliberations.submitted.wait()
    (task_id,) = deliberations.task_ids()
    await deliberations.decide(outcome(task_id))
    assert (await call)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("method", "params", "code", "text"),
    [
        ("SendMessage", message(parts=[{"url": "https://x"}]), -32005, "text parts"),
        ("SendMessage", message(contextId="mine"), -32602, "contextId"),
        ("SendMessage", message(metadata={"agents": "many"}), -32602, "whole number"),
        ("SendMessage", message(metadata={"agents": 2.5}), -32602, "whole number"),
        ("SendMessage", message(metadata={"role": 7}), -32602, "role must be a string"),
        ("SendMessage", message(metadata={"agents": float("nan")}), -32602, "metadata"),
        ("SendMessage", message(" "), -32602, "the task is empty"),
        ("SendMessage", message(messageId=""), -32602, "messageId"),
        ("SendMessage", message(taskId="No id"), -32602, "is not an id"),
        ("GetTask", {"id": "nobodys"}, -32001, "nobodys"),
        ("CancelTask", {"id": "../x"}, -32602, "is not an id"),
        ("ListTasks", {"pageToken": "x"}, -32602, "page_token"),
        ("ListTasks", {"pageSize": -5}, -32602, "page_size"),
        ("ListTasks", {"contextId": "x"}, -32004, "without filters"),
        ("GetExtendedAgentCard", {}, -32007, "Card"),
        ("CreateTaskPushNotificationConfig", {"taskId": "t", "url": "https://x"}, -32003, "Push"),
        ("Delete", {}, -32601, ""),
    ],
)
async def test_invalid_requests_are_refused(
    web: Web, method: str, params: dict[str, Any], code: int, text: str
) -> None:
    error = await rpc(web, method, params)
    assert error["code"] == code, error
    assert text in str(error)


async def test_the_log_has_no_text_of_refused_requests(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await rpc(web, "GetTask", {"id": {"\x1b[31m": 1}}))["code"] == -32602
    assert (await rpc(web, "\x1b[31m", {}))["code"] == -32601
    assert not caplog.records


async def test_the_a2a_endpoint_has_the_checks_of_all_endpoints(web: Web) -> None:
    assert problem(await web("POST", "/a2a", {}, token=None))[0] == 401
    assert problem(await web("POST", "/a2a"))[:2] == (415, "NOT_JSON")
    large = {"x": "y" * 10_000}
    assert problem(await web("POST", "/a2a", large))[:2] == (413, "BODY_TOO_LARGE")
    rebound = {"Host": "rebound.example"}
    assert problem(await web("POST", "/a2a", {}, headers=rebound))[0] == 403
    card = await web("GET", "/.well-known/agent-card.json", token=None)
    assert card.json["supportedInterfaces"][0]["url"] == f"http://127.0.0.1:{web.port}/a2a"
    old = await web("POST", "/a2a", {"jsonrpc": "2.0", "id": 1, "method": "GetTask"})
    assert "0.3" in str(old.json["error"])
