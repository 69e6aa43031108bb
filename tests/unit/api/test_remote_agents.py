"""Remote agents: seats that real servers, which start and stop, answer over AgentService."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from moothall.api import protobuf
from moothall.api.remote_agents import RemoteAgent, RemoteAgentLimits, open_remote_agents
from moothall.config import AgentSettings
from moothall.deliberation.recorded_model import Recording
from moothall.domain.budget import Usage
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    Message,
    ModelDescription,
    ReplyMode,
    Writing,
)
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, digest, seat_id
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.errors import (
    ConfigurationError,
    DeadlineExceeded,
    ModelReplyInvalid,
    ModelUnavailable,
)
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.common import common_pb2 as common
from support.agents import Agent, serving_agents
from support.callers import TOKEN
from support.council import append, by_seat, of, open_council, outcomes
from support.deliberation_service import MemoryDeliberations

ENDPOINT = "grpc://coders.example:50051"
USED = Usage(prompt_tokens=10, completion_tokens=5, calls=1, cost_usd=0.5)
CALL = "task-1/agent-dev-001/elsewhere/0.1"
TASK = f"task-{digest(CALL)[:24]}"
DIFF = """diff --git a/src/utils.py b/src/utils.py
--- a/src/utils.py
+++ b/src/utils.py
@@ -4,3 +4,8 @@
 def greet(name: str) -> str:
     \"\"\"Return a greeting.\"\"\"
     return f"Hello, {name}!"
+
+
+def hello_world() -> str:
+    \"\"\"Return the greeting.\"\"\"
+    return "Hello, World!"
"""


def chat_request(seconds: float = 30) -> ChatRequest:
    system_message = Message(
        "system", json.dumps({"role": "dev", "repository": {"id": "sample", "ref": "a" * 40}})
    )
    return ChatRequest(
        CALL,
        (system_message, Message("user", "Add it")),
        100,
        datetime.now(UTC) + timedelta(seconds=seconds),
    )


async def answer(agent: Agent, task_id: str, **fields: Any) -> None:
    """Play the council of a replica: it ends with this diff."""
    async with asyncio.timeout(20):
        while task_id not in agent.deliberations.task_ids():
            await asyncio.sleep(0.01)
    best = Result(
        1,
        "agent-dev-001",
        "dev",
        1.0,
        (),
        passed_gates=True,
        proven=True,
        content="It is there.",
        diff=DIFF,
    )
    outcome = Outcome(
        task_id,
        DeliberationStatus.COMPLETED,
        winner_id="agent-dev-001",
        results=(best,),
        usage=USED,
        agent_count=1,
    )
    await agent.deliberations.decide(replace(outcome, **fields))


@dataclass
class Elsewhere:
    """Replicas that can be stopped, and the model that calls them."""

    replicas: list[Agent]
    ends: list[AsyncExitStack]
    model: RemoteAgent


@asynccontextmanager
async def remote_agents(folder: Path, count: int = 2, **limits: Any) -> AsyncIterator[Elsewhere]:
    async with AsyncExitStack() as stack:
        ends, replicas = [], []
        for number in range(count):
            (home := folder / f"replica-{number}").mkdir()
            ends.append(await stack.enter_async_context(AsyncExitStack()))
            replicas.append(
                await ends[-1].enter_async_context(
                    serving_agents(home, MemoryDeliberations(), AgentSettings())
                )
            )
        token = folder / "token"
        token.write_text(TOKEN, encoding="utf-8")
        agent_settings = {
            "endpoints": {ENDPOINT: tuple(replica.target for replica in replicas)},
            "endpoint_token_file": token,
        }
        agents = await stack.enter_async_context(
            open_remote_agents(
                AgentSettings(**agent_settings),
                RemoteAgentLimits(**({"retry_seconds": 0.01} | limits)),
            )
        )
        yield Elsewhere(replicas, ends, agents[ENDPOINT])


async def test_a_remote_agent_gets_the_base_and_returns_a_diff_and_its_usage(
    tmp_path: Path,
) -> None:
    async with remote_agents(tmp_path, 1) as app, asyncio.TaskGroup() as group:
        group.create_task(answer(app.replicas[0], TASK))
        reply = await app.model.chat(chat_request())
        request = app.replicas[0].deliberations.request(TASK)
    assert (request.description.splitlines()[0], request.role) == ("Add it", "dev")
    assert request.repository is not None
    assert (request.repository.id, request.repository.ref) == ("sample", "a" * 40)
    assert json.loads(reply.text) == {"result": "It is there.", "diff": DIFF}
    assert reply.usage == USED


def about_text(seconds: float = 30) -> ChatRequest:
    system_message = Message("system", json.dumps({"role": "dev"}))
    return replace(chat_request(seconds), messages=(system_message, Message("user", "Why?")))


async def test_text_is_streamed_if_no_tools_are_involved(tmp_path: Path) -> None:
    async with remote_agents(tmp_path, 1) as app:
        (replica,) = app.replicas
        replica.deliberations.writes = [Writing("agent-dev-001", "It is", "It is")]
        pieces: list[str] = []
        reply = asyncio.create_task(app.model.chat(about_text(), pieces.append))
        await replica.deliberations.written.wait()
        await answer(replica, TASK)
        chat_reply = await reply
        assert (json.loads(chat_reply.text), chat_reply.usage, chat_reply.model) == (
            {"result": "It is there.", "diff": ""},
            USED,
            "scripted",
        )
        assert pieces == ["It is", " there."]
        answer_task = asyncio.create_task(
            app.model.chat(replace(chat_request(), call_id="task-2/s/elsewhere/0.1"), pieces.append)
        )
        await answer(replica, f"task-{digest('task-2/s/elsewhere/0.1')[:24]}")
        assert "diff" in (await answer_task).text
        assert len(pieces) == 2, "a task on a repository is one call"


@pytest.mark.parametrize(
    ("status", "seconds", "error", "message"),
    [
        (DeliberationStatus.FAILED, 30, ModelReplyInvalid, "failed: nobody knew"),
        (DeliberationStatus.TIMEOUT, 2, DeadlineExceeded, "did not finish in time"),
    ],
)
async def test_a_stream_without_a_result_reports_its_error(
    tmp_path: Path,
    status: DeliberationStatus,
    seconds: float,
    error: type[Exception],
    message: str,
) -> None:
    async with remote_agents(tmp_path, 1) as app:
        reply = asyncio.create_task(app.model.chat(about_text(seconds)))
        await answer(app.replicas[0], TASK, status=status, error_message="nobody knew")
        with pytest.raises(error, match=message):
            await reply


class Streams:
    """A healthy replica that streams updates until it is stopped."""

    def __init__(self, stub: Any, *updates: pb.TaskUpdate) -> None:
        self.stub = stub
        self.updates = updates
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return (lambda *_, **__: self) if name == "StreamExecuteTask" else getattr(self.stub, name)

    def cancel(self) -> None:
        """Record the cancellation."""
        self.stopped = True

    async def __aiter__(self) -> AsyncIterator[pb.TaskUpdate]:
        """Yield the updates."""
        for update in self.updates:
            yield update


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([pb.TaskUpdate(delta="x" * 600)] * 2, "more than 1,000 characters"),
        ([pb.TaskUpdate(delta="words")], "failed: no reason"),
        ([], "failed: no reason"),
    ],
)
async def test_an_oversized_or_unfinished_stream_is_an_invalid_reply(
    tmp_path: Path, updates: list[pb.TaskUpdate], message: str
) -> None:
    async with remote_agents(tmp_path, 1, max_chars=1000) as app:
        replica = app.model._replicas[0]
        replica.stub = stream = Streams(replica.stub, *updates)
        with pytest.raises(ModelReplyInvalid, match=message):
            await app.model.chat(about_text())
        assert stream.stopped


async def test_invalid_usage_figures_of_a_stream_are_ignored(tmp_path: Path) -> None:
    invalid_usage: dict[str, Any] = {
        "prompt_tokens": float("nan"),
        "completion_tokens": -7,
        "cost_usd": -1,
        "model": 3,
    }
    usage_result = common.ToolResult(
        tool_id="usage_metrics", output=protobuf.value(invalid_usage), status=common.STATUS_CODE_OK
    )
    end = pb.TaskUpdate(state=pb.AGENT_STATE_COMPLETED, message="done")
    async with remote_agents(tmp_path, 1) as app:
        replica = app.model._replicas[0]
        replica.stub = Streams(replica.stub, pb.TaskUpdate(tool_result=usage_result), end)
        reply = await app.model.chat(about_text())
    assert (json.loads(reply.text)["result"], reply.usage, reply.model) == (
        "done",
        Usage(calls=1),
        "",
    )


@pytest.mark.parametrize(
    ("metrics", "expected_usage"),
    [
        (
            {
                "input_tokens": 12,
                "output_tokens": 7,
                "total_tokens": 19,
                "cost_usd": 0.25,
                "model": "m",
                "provider": "p",
            },
            Usage(prompt_tokens=12, completion_tokens=7, calls=1, cost_usd=0.25),
        ),
        (
            {"prompt_tokens": 12, "completion_tokens": 7},
            Usage(prompt_tokens=12, completion_tokens=7, calls=1),
        ),
        (
            {"input_tokens": "12", "output_tokens": None, "total_tokens": 19},
            Usage(prompt_tokens=19, calls=1),
        ),
        ({"total_tokens": 19}, Usage(prompt_tokens=19, calls=1)),
        (None, Usage(calls=1)),
    ],
)
async def test_usage_is_read_in_the_formats_of_other_systems_or_is_absent(
    tmp_path: Path, metrics: dict[str, Any] | None, expected_usage: Usage
) -> None:
    end = pb.TaskUpdate(state=pb.AGENT_STATE_COMPLETED, message="done", progress=1.0)
    if metrics is not None:
        result = common.ToolResult(
            tool_id="usage_metrics", output=protobuf.value(metrics), status=common.STATUS_CODE_OK
        )
        end.tool_result.CopyFrom(result)
    async with remote_agents(tmp_path, 1) as app:
        replica = app.model._replicas[0]
        replica.stub = Streams(
            replica.stub, pb.TaskUpdate(state=pb.AGENT_STATE_EXECUTING, delta="done"), end
        )
        reply = await app.model.chat(about_text())
    assert (json.loads(reply.text)["result"], reply.usage) == ("done", expected_usage)


async def test_a_failed_stream_is_an_error_even_with_usage(tmp_path: Path) -> None:
    usage_result = common.ToolResult(
        tool_id="usage_metrics",
        output=protobuf.value({"input_tokens": 1}),
        status=common.STATUS_CODE_OK,
    )
    end = pb.TaskUpdate(
        state=pb.AGENT_STATE_FAILED, message="nobody knew", tool_result=usage_result
    )
    async with remote_agents(tmp_path, 1) as app:
        replica = app.model._replicas[0]
        replica.stub = Streams(replica.stub, end)
        with pytest.raises(ModelReplyInvalid, match="failed: nobody knew"):
            await app.model.chat(about_text())


async def test_the_replica_with_more_capacity_is_called(tmp_path: Path) -> None:
    async with remote_agents(tmp_path) as app:
        full, free = app.replicas
        full.tasks._admission._active[LOCAL.tenant] = 60
        reply = asyncio.create_task(app.model.chat(chat_request()))
        await answer(free, TASK)
        assert "It is there." in (await reply).text
        assert TASK not in full.deliberations.task_ids()


async def test_another_replica_takes_over_once_for_a_killed_one(
    tmp_path: Path,
) -> None:
    async with remote_agents(tmp_path) as app:
        reply = asyncio.create_task(app.model.chat(chat_request()))
        async with asyncio.timeout(20):
            while not (
                working_replicas := [
                    number
                    for number, replica in enumerate(app.replicas)
                    if TASK in replica.deliberations.task_ids()
                ]
            ):
                await asyncio.sleep(0.01)
        (first,) = working_replicas
        await app.ends[first].aclose()
        other_replica = app.replicas[1 - first]
        await answer(other_replica, TASK)
        assert "It is there." in (await reply).text
        second_call = asyncio.create_task(
            app.model.chat(replace(chat_request(), call_id="task-2/s/elsewhere/0.1"))
        )
        await answer(other_replica, f"task-{digest('task-2/s/elsewhere/0.1')[:24]}")
        assert "It is there." in (await second_call).text


async def test_a_missing_replica_and_an_elapsed_deadline_are_errors(tmp_path: Path) -> None:
    async with remote_agents(tmp_path, 1) as app:
        with pytest.raises(DeadlineExceeded):
            await app.model.chat(chat_request(0))
        reply = asyncio.create_task(app.model.chat(chat_request()))
        await answer(
            app.replicas[0], TASK, status=DeliberationStatus.FAILED, error_message="nobody knew"
        )
        with pytest.raises(ModelReplyInvalid, match="failed: nobody knew"):
            await reply
        await app.ends[0].aclose()
        app.model._replicas[0].checked_at = float("-inf")
        with pytest.raises(
            ModelUnavailable, match=f"no replica of the agent at {ENDPOINT} answers"
        ):
            await app.model.chat(chat_request())


class Gone:
    """A replica that reports good health and fails when it is called; `requested` counts the
    calls.
    """

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.requested = 0
        self.gone = True

    def __getattr__(self, name: str) -> Any:
        return self.execute if name == "ExecuteTask" else getattr(self.stub, name)

    async def execute(self, *args: Any, **options: Any) -> Any:
        self.requested += 1
        if self.gone:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone"
            )
        return await self.stub.ExecuteTask(*args, **options)


async def test_the_circuit_breaker_persists_across_calls_and_closes_after_a_success(
    tmp_path: Path,
) -> None:
    async with remote_agents(tmp_path, 1, breaker_seconds=0.3) as app:
        replica = app.model._replicas[0]
        replica.stub = failing_stub = Gone(replica.stub)
        for _ in range(4):
            with pytest.raises(ModelUnavailable):
                await app.model.chat(chat_request())
        assert failing_stub.requested == 2, "it is not called after the second failure"
        failing_stub.gone = False
        await asyncio.sleep(0.35)
        reply = asyncio.create_task(app.model.chat(chat_request()))
        await answer(app.replicas[0], TASK)
        assert "It is there." in (await reply).text


async def test_a_replica_that_refuses_long_queries_stays_available(
    tmp_path: Path,
) -> None:
    long = replace(
        chat_request(), messages=(chat_request().messages[0], Message("user", "Add it " * 70_000))
    )
    async with remote_agents(tmp_path, 1) as app:
        for _ in range(3):
            with pytest.raises(ModelUnavailable, match="token_limit"):
                await app.model.chat(long)
        reply = asyncio.create_task(app.model.chat(chat_request()))
        await answer(app.replicas[0], TASK)
        assert "It is there." in (await reply).text


class Responding:
    """A remote agent with a fixed reply; `requested` are its requests."""

    def __init__(self, **fields: str) -> None:
        self.received = json.dumps({"result": "done", "diff": "", **fields})
        self.requested: list[ChatRequest] = []

    async def reply_mode(self) -> ReplyMode:
        """Return the mode of any model."""
        return "blocks"

    async def describe(self) -> ModelDescription:
        """Return an empty description."""
        return ModelDescription()

    async def chat(
        self,
        request: ChatRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        owns_work: Callable[[], bool] | None = None,
    ) -> ChatReply:
        """Return the fixed reply."""
        self.requested.append(request)
        return ChatReply(self.received, "stop", USED, "far")


ONE, TWO = seat_id("dev", 1), seat_id("dev", 2)


@pytest.mark.e2e  # executors that run tests
async def test_a_remote_proposal_is_checked_like_any_other_and_requested_once(
    tmp_path: Path,
) -> None:
    remote = Responding(diff=DIFF)
    async with open_council(tmp_path, by_seat(one=append())) as app:
        answerers = replace(app.parts.answerers, remote={ENDPOINT: remote})
        app.parts = replace(app.parts, answerers=answerers)
        d = app.deliberation(seats=2, elsewhere={TWO: ENDPOINT})
        events = await app.run(d)
        assert outcomes(events) == {ONE: "proposed", TWO: "proposed"}
        proposals = {data["seat"]: data["proposal"] for data in of(events, EventType.SEAT_PROPOSED)}
        assert "+def hello_world" in proposals[TWO]["diff"]
        passed = {
            (data["candidate"], data["evidence"]["verdict"])
            for data in of(events, EventType.CHECK_FINISHED)
        }
        assert (TWO, "passed") in passed
        (call,) = remote.requested
        assert call.call_id == f"task-1/{TWO}/elsewhere/0.1"
        assert json.loads(call.messages[0].content)["repository"] == {
            "id": "sample",
            "ref": d.base_sha,
        }
        await app.run(d, Recording.of(events))
        assert len(remote.requested) == 1, "recorded calls are not repeated"


HOSTILE = [
    ({"diff": "rm -rf /"}, "PATCH_REFUSED"),
    ({"diff": DIFF.replace("src/utils.py", "../../etc/passwd")}, "PATCH_REFUSED"),
    ({"diff": ""}, "NO_CHANGES"),
]


@pytest.mark.parametrize(("fields", "code"), HOSTILE)
async def test_an_invalid_patch_is_refused(
    tmp_path: Path, fields: dict[str, str], code: str
) -> None:
    async with open_council(tmp_path, by_seat()) as app:
        answerers = replace(app.parts.answerers, remote={ENDPOINT: Responding(**fields)})
        app.parts = replace(app.parts, answerers=answerers)
        events = await app.run(app.deliberation("single", seats=1, elsewhere={ONE: ENDPOINT}))
        assert outcomes(events) == {ONE: f"failed {code}"}


ANSWERS = [
    ({"result": "It greets."}, "proposed"),
    ({"result": " "}, "failed NO_CHANGES"),
    ({"diff": DIFF}, "proposed"),
]


@pytest.mark.e2e  # executors that run tests
@pytest.mark.parametrize(("fields", "end"), ANSWERS)
async def test_a_question_is_answered_with_text_or_a_change(
    tmp_path: Path, fields: dict[str, str], end: str
) -> None:
    async with open_council(tmp_path, by_seat()) as app:
        answerers = replace(app.parts.answerers, remote={ENDPOINT: Responding(**fields)})
        app.parts = replace(app.parts, answerers=answerers)
        events = await app.run(app.deliberation("ask", seats=1, elsewhere={ONE: ENDPOINT}))
        assert outcomes(events) == {ONE: end}
        for data in of(events, EventType.SEAT_PROPOSED):
            proposal = data["proposal"]
            assert (proposal["content"], bool(proposal["diff"])) == (
                fields.get("result", "done"),
                "diff" in fields,
            )


async def test_a_diff_is_refused_if_the_tasks_tools_are_read_only(
    tmp_path: Path,
) -> None:
    async with open_council(tmp_path, by_seat()) as app:
        answerers = replace(app.parts.answerers, remote={ENDPOINT: Responding(diff=DIFF)})
        app.parts = replace(app.parts, answerers=answerers)
        events = await app.run(
            app.deliberation("single", seats=1, elsewhere={ONE: ENDPOINT}, tools=("files.read",))
        )
        assert outcomes(events) == {ONE: "failed PATCH_REFUSED"}


async def test_an_endpoint_removed_from_the_settings_is_not_called(tmp_path: Path) -> None:
    async with open_council(tmp_path, by_seat()) as app:
        events = await app.run(app.deliberation("single", seats=1, elsewhere={ONE: ENDPOINT}))
        assert outcomes(events) == {ONE: "failed CONFIGURATION"}


async def test_a_missing_token_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="endpoint_token_file"):
        async with open_remote_agents(
            AgentSettings(endpoints={ENDPOINT: ()}, endpoint_token_file=tmp_path / "none")
        ):
            pass
