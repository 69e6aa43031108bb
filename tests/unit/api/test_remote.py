"""The kernel's client against a real gRPC server with an in-memory deliberation service, and a
server that stops in between.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from moothall.api.kernel_client import RemoteKernel, remote_kernel
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, TaskId
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidRequest,
    NotFound,
    Refused,
    Temporary,
)
from support.callers import (
    EVERYWHERE,
    OTHER,
    TOKEN,
    api_dependencies,
    certificate,
    serving,
    with_parts,
)
from support.deliberation_service import MemoryDeliberations
from support.session_manager import open_session_manager

REQUESTED = DeliberationRequest(
    "What does greet do?",
    "DEV",
    "task-1",
    Constraints(timeout_seconds=60),
    repository=RepositoryRef(url="sample", ref="main"),
    protocol="ask",
)

QUICK = [(f"grpc.{name}_reconnect_backoff_ms", 50) for name in ("initial", "min", "max")]


async def test_a_task_runs_from_submission_to_outcome(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    async with (
        open_session_manager(tmp_path) as backend,
        serving(
            deliberations,
            with_parts(api_dependencies(deliberations), sessions=backend.session_manager),
        ) as app,
        remote_kernel(app.server.target, TOKEN) as kernel,
    ):
        await kernel.submit(REQUESTED, LOCAL)
        await kernel.submit(REQUESTED, LOCAL)
        request = deliberations.request("task-1")
        assert (request.description, request.role, request.budget.seconds) == (
            "What does greet do?",
            "DEV",
            60,
        )
        assert request.repository == RepositoryRef(id="sample", ref="main")
        with pytest.raises(AlreadyExists) as error:
            await kernel.submit(replace(REQUESTED, description="another"), LOCAL)
        assert error.value.code == "ALREADY_EXISTS"
        result = Result(1, "agent-dev-001", "dev", 1.0, (), True, False, content="It greets.")
        outcome = Outcome(
            "task-1",
            DeliberationStatus.COMPLETED,
            winner_id="agent-dev-001",
            results=(result,),
            duration_ms=2**40,
        )
        await deliberations.decide(outcome)
        assert await kernel.wait(TaskId("task-1"), LOCAL) == outcome
        assert await kernel.result(TaskId("task-1"), LOCAL) == outcome
        assert (
            await kernel.cancel(TaskId("task-1"), "too late", LOCAL) is DeliberationStatus.COMPLETED
        )


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="needs openssl to make a certificate: apt-get install openssl",
)
async def test_a_non_loopback_server_is_called_over_tls(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    files = certificate(tmp_path)
    async with (
        open_session_manager(tmp_path) as backend,
        serving(
            deliberations,
            with_parts(api_dependencies(deliberations), sessions=backend.session_manager),
            host=EVERYWHERE,
            **files,
        ) as app,
    ):
        # not a loopback address by its text, although it resolves to one
        server = f"{EVERYWHERE}:{app.server.port}"
        async with remote_kernel(server, TOKEN, files["tls_cert"]) as kernel:
            await kernel.submit(REQUESTED, LOCAL)
        assert deliberations.request("task-1").description == REQUESTED.description


async def test_a_council_can_be_requested_from_a_server_without_a_kernel(
    deliberations: MemoryDeliberations,
) -> None:
    """The server has no kernel, like one with the role `api` alone."""
    async with serving(deliberations) as app, remote_kernel(app.server.target, TOKEN) as kernel:
        await kernel.submit(replace(REQUESTED, protocol="vote"), LOCAL)
        following = asyncio.create_task(kernel.wait(TaskId("task-1"), LOCAL))
        outcome = Outcome("task-1", DeliberationStatus.COMPLETED, final_state="none")
        await deliberations.decide(outcome)
        assert await following == outcome
        assert (
            await kernel.cancel(TaskId("task-1"), "too late", LOCAL) is DeliberationStatus.COMPLETED
        )


async def test_messages_of_the_server_appear_in_our_errors(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    async with (
        open_session_manager(tmp_path) as backend,
        serving(
            deliberations,
            with_parts(api_dependencies(deliberations), sessions=backend.session_manager),
        ) as app,
        remote_kernel(app.server.target, "nobody") as outsider,
        remote_kernel(app.server.target, OTHER) as eve,
        remote_kernel(app.server.target, TOKEN) as kernel,
    ):
        await kernel.submit(REQUESTED, LOCAL)
        with pytest.raises(Refused, match="token is needed") as refused:
            await outsider.submit(REQUESTED, LOCAL)
        assert refused.value.code == "UNAUTHENTICATED"
        with pytest.raises(NotFound):
            await eve.wait(TaskId("task-1"), LOCAL)
        with pytest.raises(InvalidRequest, match="task is empty"):
            await kernel.submit(replace(REQUESTED, description=" ", task_id="task-2"), LOCAL)
        for invalid_request in (
            replace(REQUESTED, seed=1),
            replace(REQUESTED, constraints=Constraints(max_iterations=3)),
        ):
            with pytest.raises(InvalidRequest, match="its own settings"):
                await kernel.submit(invalid_request, LOCAL)


async def test_a_council_request_is_sent_completely_or_refused(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    constraints = Constraints("short", ("polite",), max_iterations=3)
    council = replace(REQUESTED, protocol="vote", num_agents=4, rounds=2, constraints=constraints)
    async with (
        open_session_manager(tmp_path) as backend,
        serving(
            deliberations,
            with_parts(api_dependencies(deliberations), sessions=backend.session_manager),
        ) as app,
        remote_kernel(app.server.target, TOKEN) as kernel,
    ):
        await kernel.submit(council, LOCAL)
        assert deliberations.request("task-1") == council
        with pytest.raises(
            InvalidRequest, match=r"^a remote server does not accept peer review, seed:"
        ):
            await kernel.submit(replace(council, seed=1, peer_review=True), LOCAL)
        for invalid_request in (
            replace(council, model="large"),
            replace(council, about_text=True),
            replace(council, story_id="s-1"),
        ):
            with pytest.raises(InvalidRequest, match="does not accept"):
                await kernel.submit(invalid_request, LOCAL)


async def test_a_client_reconnects_to_a_lost_server_without_duplicates(
    deliberations: MemoryDeliberations, tmp_path: Path
) -> None:
    async with open_session_manager(tmp_path) as backend, AsyncExitStack() as second_server:
        dependencies = with_parts(api_dependencies(deliberations), sessions=backend.session_manager)
        async with serving(deliberations, dependencies) as app:
            port = app.server.port
            channel = await second_server.enter_async_context(
                grpc.aio.insecure_channel(app.server.target, options=QUICK)
            )
            kernel = RemoteKernel(channel, TOKEN, pause_seconds=0.05)
            await kernel.submit(REQUESTED, LOCAL)
            await deliberations.record(
                "task-1", EventType.SEAT_TURN, {"task_id": "task-1", "turn": 1}
            )
            events = await second_server.enter_async_context(
                aclosing(kernel.watch(TaskId("task-1"), 0, LOCAL))
            )
            received_events = [(await anext(events)).seq, (await anext(events)).seq]
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await deliberations.record("task-1", EventType.SEAT_TURN, {"task_id": "task-1", "turn": 2})
        await deliberations.decide(Outcome("task-1", DeliberationStatus.COMPLETED))
        async with serving(deliberations, dependencies, port=port):
            received_events.append((await waiting).seq)
            received_events += [recorded.seq async for recorded in events]
    assert received_events == [1, 2, 3, 4]


async def test_invalid_addresses_and_unreachable_servers_are_errors() -> None:
    for invalid_address in ("nowhere", ":50055", "host:port"):
        with pytest.raises(ConfigurationError, match="HOST:PORT"):
            async with remote_kernel(invalid_address, TOKEN):
                pass
    with pytest.raises(ConfigurationError, match="cannot be read"):
        async with remote_kernel("kernel.example:50055", TOKEN, Path("/nowhere")):
            pass
    async with remote_kernel("127.0.0.1:1", TOKEN) as kernel:
        with pytest.raises(Temporary, match="cannot be reached"):
            await kernel.submit(REQUESTED, LOCAL)
