from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from moothall import errors
from moothall.domain.codec import dump
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.proposal import Proposal
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from support.callers import OTHER, Client, Serving, serving
from support.deliberation_service import MemoryDeliberations

ASK = pb.DeliberateRequest(task_description="Add hello_world()", role="DEV", task_id="task-1")
FIND = pb.GetDeliberationResultRequest(task_id="task-1")


def ended_outcome(
    status: DeliberationStatus = DeliberationStatus.COMPLETED, winner: str = "agent-dev-001"
) -> Outcome:
    return Outcome(
        "task-1", status, role="dev", winner_id=winner, final_state="committed", duration_ms=5
    )


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def refusal(call: Any) -> tuple[grpc.StatusCode, error_details_pb2.ErrorInfo, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = rpc_status.from_call(cast("grpc.Call", caught.value))
    info = error_details_pb2.ErrorInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    return (
        caught.value.code(),
        info,
        [status.message, *(detail.type_url for detail in status.details)],
    )


async def take(stream: AsyncIterator[Any], count: int) -> list[Any]:
    return [await anext(stream) for _ in range(count)]


async def test_a_waiting_client_gets_the_outcome(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(
            _deliberate(
                client,
                pb.DeliberateRequest(task_description="t", role="dev", rounds=1, num_agents=3),
            )
        )
        await deliberations.submitted.wait()
        (task_id,) = deliberations.task_ids()
        await deliberations.decide(
            Outcome(task_id, DeliberationStatus.COMPLETED, winner_id="agent-dev-002")
        )
    answer = call.result()
    assert (answer.task_id, answer.winner_id) == (task_id, "agent-dev-002")
    assert answer.status == pb.DELIBERATION_STATUS_COMPLETED
    assert answer.metadata.execution_id == task_id
    assert deliberations.request(task_id).rounds == 1


async def _deliberate(client: Client, request: pb.DeliberateRequest) -> pb.DeliberateResponse:
    answer: pb.DeliberateResponse = await client.Deliberate(request)
    return answer


async def test_submit_returns_immediately_and_the_result_can_be_polled(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    answer = await client.SubmitDeliberation(ASK)
    assert (answer.task_id, answer.status, answer.agent_count) == (
        "task-1",
        pb.DELIBERATION_STATUS_PENDING,
        3,
    )
    assert (await client.GetDeliberationResult(FIND)).status == pb.DELIBERATION_STATUS_PENDING
    await deliberations.decide(ended_outcome())
    result = await client.GetDeliberationResult(FIND)
    assert (result.status, result.winner_id, result.duration_ms) == (
        pb.DELIBERATION_STATUS_COMPLETED,
        "agent-dev-001",
        5,
    )


async def test_a_stream_sends_every_event_and_ends_with_the_decision(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    stream = client.StreamDeliberation(ASK)
    updates = stream.__aiter__()
    first = await anext(updates)
    assert (first.status, first.task_id, first.event.type) == (
        "PENDING",
        "task-1",
        "moothall.deliberation.requested",
    )
    await deliberations.record(
        "task-1",
        EventType.SEAT_STARTED,
        {"task_id": "task-1", "seat": "agent-dev-001", "approach": "directly"},
    )
    proposal = Proposal("agent-dev-001", "dev", "done", diff="diff")
    await deliberations.record(
        "task-1", EventType.SEAT_PROPOSED, {"seat": "agent-dev-001", "proposal": dump(proposal)}
    )
    await deliberations.decide(ended_outcome())
    rest = [update async for update in updates]
    assert [update.status for update in rest] == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED"]
    assert [update.current_agent for update in rest] == ["agent-dev-001", "agent-dev-001", ""]
    assert rest[1].partial_result.proposal.diff == "diff"
    assert rest[0].event.data["approach"] == "directly"
    assert rest[-1].progress_percent == 100
    percents = [first.progress_percent, *(update.progress_percent for update in rest)]
    assert percents == sorted(percents)
    assert all(update.current_step for update in rest)


async def test_a_reconnecting_watcher_misses_nothing_and_gets_no_duplicates(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    await client.SubmitDeliberation(ASK)
    for turn in range(5):
        await deliberations.record(
            "task-1",
            EventType.SEAT_TURN,
            {"seat": "agent-dev-001", "turn": turn + 1, "operations": []},
        )
    call = client.WatchDeliberation(pb.WatchDeliberationRequest(task_id="task-1"))
    first_updates = await take(call.__aiter__(), 3)
    call.cancel()
    await deliberations.decide(ended_outcome())
    second_call = client.WatchDeliberation(
        pb.WatchDeliberationRequest(task_id="task-1", after_seq=first_updates[-1].seq)
    )
    rest = [update async for update in second_call]
    assert [update.seq for update in [*first_updates, *rest]] == list(range(1, 8))
    assert rest[0].progress_percent >= first_updates[-1].progress_percent


async def test_cancelling_stops_the_deliberation(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    await client.SubmitDeliberation(ASK)
    answer = await client.CancelDeliberation(
        pb.CancelDeliberationRequest(task_id="task-1", reason="changed my mind")
    )
    assert answer.status == pb.DELIBERATION_STATUS_CANCELLED
    assert deliberations.cancelled == {"task-1": "changed my mind"}
    assert (await client.GetDeliberationResult(FIND)).status == pb.DELIBERATION_STATUS_CANCELLED


async def test_a_deadline_stops_the_deliberation(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    for seconds in (
        0.3,
        3,
        30,
    ):  # on a busy machine a short deadline passes before the call arrives
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.Deliberate(ASK, timeout=seconds)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if deliberations.submitted.is_set():
            break
    await until(lambda: deliberations.cancelled)


async def test_a_cancelled_call_stops_the_deliberation(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    call = client.Deliberate(pb.DeliberateRequest(task_description="t", role="dev"))
    await deliberations.submitted.wait()
    call.cancel()
    await until(lambda: deliberations.cancelled)


async def test_a_broken_connection_stops_the_deliberation(
    deliberations: MemoryDeliberations, app: Serving
) -> None:
    async with grpc.aio.insecure_channel(app.server.target) as channel:
        call = Client(channel).Deliberate(ASK)
        await deliberations.submitted.wait()
    assert call.done()
    await until(lambda: deliberations.cancelled)


async def test_a_caller_that_cancels_during_submission_leaves_nothing_running(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    deliberations.open_gate.clear()
    call = client.Deliberate(ASK)
    await until(lambda: deliberations.waiting)
    call.cancel()
    await until(lambda: deliberations.waiting == 2)  # poll for the result
    deliberations.open_gate.set()
    await until(lambda: deliberations.cancelled)


async def test_a_cancelled_call_never_stops_another_deliberation_with_the_same_id(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    await client.SubmitDeliberation(ASK)
    deliberations.open_gate.clear()
    call = client.Deliberate(
        pb.DeliberateRequest(task_description="something else", role="DEV", task_id="task-1")
    )
    await until(lambda: deliberations.waiting)
    call.cancel()
    await until(lambda: deliberations.waiting == 2)
    deliberations.open_gate.set()
    await until(lambda: not deliberations.waiting)
    assert deliberations.cancelled == {}


async def test_a_stream_whose_client_disconnects_only_detaches(
    deliberations: MemoryDeliberations, client: Client
) -> None:
    call = client.StreamDeliberation(ASK)
    await anext(call.__aiter__())
    assert deliberations.watchers == 1
    call.cancel()
    await until(lambda: deliberations.watchers == 0)
    assert deliberations.cancelled == {}
    assert (await deliberations.result("task-1", LOCAL)).status is DeliberationStatus.PENDING


async def test_a_stopping_server_does_not_cancel_deliberations(
    deliberations: MemoryDeliberations,
) -> None:
    async with serving(deliberations) as app:
        call = app.client.Deliberate(ASK)
        await deliberations.submitted.wait()
    assert await call.code() is not grpc.StatusCode.OK
    assert deliberations.cancelled == {}


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (errors.InvalidRequest("no"), (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")),
        (errors.NotFound("no"), (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")),
        (errors.AlreadyExists("no"), (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")),
        (errors.Refused("no"), (grpc.StatusCode.PERMISSION_DENIED, "REFUSED")),
        (errors.BudgetExceeded("no"), (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXCEEDED")),
        (errors.RateLimited("no"), (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")),
        (errors.DeadlineExceeded("no"), (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")),
        (errors.BusUnavailable("no", 3.0), (grpc.StatusCode.UNAVAILABLE, "BUS_UNAVAILABLE")),
        (
            errors.RepositoryError("no"),
            (grpc.StatusCode.FAILED_PRECONDITION, "REPOSITORY_UNUSABLE"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.parametrize("rpc", ["Deliberate", "SubmitDeliberation", "StreamDeliberation"])
async def test_every_error_reaches_the_caller_with_its_code(
    deliberations: MemoryDeliberations,
    client: Client,
    rpc: str,
    planted: errors.MoothallError,
    expected: tuple[grpc.StatusCode, str],
) -> None:
    deliberations.failure = planted
    call = getattr(client, rpc)(ASK)
    status_code, info, details = await refusal(
        call if rpc != "StreamDeliberation" else call.__aiter__().__anext__()
    )
    assert ((status_code, info.reason), info.domain, details[0]) == (expected, "moothall", "no")
    assert any("RetryInfo" in line for line in details) == isinstance(planted, errors.Temporary)


@pytest.mark.parametrize("rpc", ["Deliberate", "StreamDeliberation"])
async def test_the_text_of_a_bug_is_not_disclosed(
    deliberations: MemoryDeliberations, client: Client, rpc: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deliberations.failure = ValueError("the password is hunter2")
    call = getattr(client, rpc)(ASK)
    code, info, details = await refusal(
        call if rpc == "Deliberate" else call.__aiter__().__anext__()
    )
    assert (code, info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "hunter2" not in str(details)
    printed = capsys.readouterr()
    assert "hunter2" in printed.out + printed.err


@pytest.mark.parametrize("task_id", ["task-unknown", "", "../x", "A" * 100_000])
async def test_unknown_and_invalid_ids_are_refused(client: Client, task_id: str) -> None:
    expected = (
        grpc.StatusCode.NOT_FOUND if task_id == "task-unknown" else grpc.StatusCode.INVALID_ARGUMENT
    )
    for call in (
        client.GetDeliberationResult(pb.GetDeliberationResultRequest(task_id=task_id)),
        client.CancelDeliberation(pb.CancelDeliberationRequest(task_id=task_id)),
        client.WatchDeliberation(pb.WatchDeliberationRequest(task_id=task_id))
        .__aiter__()
        .__anext__(),
    ):
        assert (await refusal(call))[0] is expected


async def test_a_negative_sequence_number_is_refused(client: Client) -> None:
    await client.SubmitDeliberation(ASK)
    call = client.WatchDeliberation(pb.WatchDeliberationRequest(task_id="task-1", after_seq=-1))
    assert (await refusal(call.__aiter__().__anext__()))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_ten_thousand_agents_are_refused_by_the_service(client: Client) -> None:
    deliberate_request = pb.DeliberateRequest(task_description="t", role="dev", num_agents=10_000)
    code, _, details = await refusal(client.Deliberate(deliberate_request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "10000" in details[0]


async def test_an_oversized_message_is_refused(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.SubmitDeliberation(
            pb.DeliberateRequest(task_description="x" * 5_000_000, role="dev")
        )
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_bytes_that_are_not_a_message_are_refused(client: Client, app: Serving) -> None:
    for rpc, streaming in (
        ("Deliberate", False),
        ("StreamDeliberation", True),
        ("CreateCouncil", False),
    ):
        method = f"/orchestrator.v1.OrchestratorService/{rpc}"
        open_call: Any = (
            app.channel.unary_stream(method) if streaming else app.channel.unary_unary(method)
        )
        call = open_call(b"\xff\xff\xff", metadata=client.metadata, timeout=20)
        code, info, details = await refusal(call.__aiter__().__anext__() if streaming else call)
        assert (code, info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        assert "not a message of its type" in details[0]


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer ")],
        [("authorization", "Basic a-token-of-the-tests")],
        [("authorization", "a-token-of-the-tests")],
        [("authorization", "Bearer a-token-of-the-test")],
        [("authorization", "Bearer a-token-of-the-tests"), ("authorization", "Bearer wrong")],
    ],
)
@pytest.mark.parametrize("rpc", ["SubmitDeliberation", "StreamDeliberation"])
async def test_a_call_without_a_valid_token_is_refused(
    deliberations: MemoryDeliberations, client: Client, rpc: str, metadata: list[tuple[str, str]]
) -> None:
    call = getattr(client, rpc)(ASK, metadata=metadata)
    code, info, _ = await refusal(
        call if rpc == "SubmitDeliberation" else call.__aiter__().__anext__()
    )
    assert (code, info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert deliberations.task_ids() == []


async def test_the_authorization_scheme_is_case_insensitive(client: Client) -> None:
    await client.SubmitDeliberation(
        ASK, metadata=[("authorization", "bearer a-token-of-the-tests")]
    )


async def test_another_tenants_deliberation_is_not_found(app: Serving, client: Client) -> None:
    await client.SubmitDeliberation(ASK)
    eve = Client(app.channel, OTHER)
    for call in (
        eve.GetDeliberationResult(FIND),
        eve.CancelDeliberation(pb.CancelDeliberationRequest(task_id="task-1")),
        eve.WatchDeliberation(pb.WatchDeliberationRequest(task_id="task-1"))
        .__aiter__()
        .__anext__(),
    ):
        assert (await refusal(call))[0] is grpc.StatusCode.NOT_FOUND


async def test_concurrent_calls_keep_their_own_principals(
    deliberations: MemoryDeliberations, app: Serving
) -> None:
    mine, hers = Client(app.channel), Client(app.channel, OTHER)
    async with asyncio.TaskGroup() as group:
        for n in range(40):
            deliberate_request = pb.DeliberateRequest(
                task_description="t", role="dev", task_id=f"task-{n}"
            )
            group.create_task(_submit(mine if n % 2 else hers, deliberate_request))
    assert {
        task_id: deliberations.deliberation(task_id).principal
        for task_id in deliberations.task_ids()
    } == {
        f"task-{n}" if n % 2 else f"elsewhere_task-{n}": "local" if n % 2 else "eve"
        for n in range(40)
    }


async def _submit(client: Client, request: pb.DeliberateRequest) -> None:
    await client.SubmitDeliberation(request)
