"""Measure the agent service as a client: direct tool calls with and without a session, the memory
of an idle session, and the time until a cancelled call ends its model call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.load import run_many
from benchmarks.microbenchmarks import Times
from benchmarks.server import Server
from benchmarks.stub import Stub
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common

SETTINGS = {
    "MOOTHALL_AGENTS__CALLS_A_SECOND": "100000",
    "MOOTHALL_AGENTS__TASKS": "1000",
    "MOOTHALL_GUARD__SEAT_CALLS": "100000",  # a session has the limits of one seat
}
_AT_ONCE = 16


async def measure(app: Server, count: int, sessions: int) -> dict[str, float]:
    """Measure `count` direct tool calls in a session, and fewer without one.

    Return milliseconds, calls a second, and the kilobytes of each of `sessions` idle sessions.
    """
    agent_service: Any = pb_grpc.AgentServiceStub(app.channel)

    async def call(query: str, session: str, context: dict[str, Any]) -> None:
        request = pb.ExecuteTaskRequest(
            query=query,
            mode=common.EXECUTION_MODE_SIMPLE,
            metadata=common.TaskMetadata(session_id=session),
        )
        request.context.update(context)
        response = await agent_service.ExecuteTask(request, metadata=app.metadata, timeout=120)
        if response.status != common.STATUS_CODE_OK:
            raise RuntimeError(response.error_message)

    list_files = {"tool_parameters": {"tool": "files.list"}}
    for session in ("warm", ""):
        await call("", session, list_files)
    in_session = await _measure_times(count, lambda: call("", "warm", list_files))
    sessionless = await _measure_times(max(count // 10, 3), lambda: call("", "", list_files))
    start = time.perf_counter()
    await run_many(lambda: call("", "warm", list_files), count, _AT_ONCE)
    rate = count / (time.perf_counter() - start)
    session_numbers = iter(range(sessions + 8))
    for _ in range(8):
        await call("Say something.", f"first-{next(session_numbers)}", {})
    before = app.system.memory_usage().pss["serve"]
    await run_many(
        lambda: call("Say something.", f"idle-{next(session_numbers)}", {}), sessions, _AT_ONCE
    )
    await asyncio.sleep(1)
    session_kb = (app.system.memory_usage().pss["serve"] - before) / 1024 / sessions
    return {
        "p50": in_session.p50,
        "p99": in_session.p99,
        "a_second": rate,
        "sessionless_p50": sessionless.p50,
        "sessions": sessions,
        "session_kb": session_kb,
    }


async def measure_cancellation(app: Server, stub: Stub, count: int) -> Times:
    """Measure the time from the cancellation of a stream to the end of its model call.

    The stub holds its replies, so a model call ends only by cancellation.
    """
    agent_service: Any = pb_grpc.AgentServiceStub(app.channel)
    await stub.set(hold=1)
    seconds = []
    for _ in range(count):
        before = await stub.stats()
        stream = agent_service.StreamExecuteTask(
            pb.ExecuteTaskRequest(query="Say something."), metadata=app.metadata
        )
        while (await stub.stats())["calls"] == before["calls"]:
            pass
        start = time.perf_counter()
        stream.cancel()
        while (await stub.stats())["disconnections"] == before["disconnections"]:
            pass
        seconds.append(time.perf_counter() - start)
    await stub.set(hold=0)
    return Times(tuple(seconds))


async def _measure_times(count: int, operation: Callable[[], Awaitable[None]]) -> Times:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        await operation()
        seconds.append(time.perf_counter() - start)
    return Times(tuple(seconds))
