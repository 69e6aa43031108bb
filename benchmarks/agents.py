"""The agent service from outside: a tool without a model in a session and without one, what a
session that nobody uses costs, and how soon the model is left alone by a call that was cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.load import many
from benchmarks.micro import Times
from benchmarks.served import Served
from benchmarks.stub import Stub
from moothall.pb.shannon.agent import agent_pb2 as pb
from moothall.pb.shannon.agent import agent_pb2_grpc as pb_grpc
from moothall.pb.shannon.common import common_pb2 as common

SETTINGS = {
    "MOOTHALL_AGENTS__CALLS_A_SECOND": "100000",
    "MOOTHALL_AGENTS__TASKS": "1000",
    "MOOTHALL_GUARD__SEAT_CALLS": "100000",  # a session has those of one seat
}
_AT_ONCE = 16


async def measure(app: Served, count: int, sessions: int) -> dict[str, float]:
    """Return milliseconds and calls a second of `count` direct tools, of a fresh workspace each,
    and kilobytes a session of `sessions`.
    """
    stub: Any = pb_grpc.AgentServiceStub(app.channel)

    async def call(query: str, session: str, context: dict[str, Any]) -> None:
        request = pb.ExecuteTaskRequest(
            query=query,
            mode=common.EXECUTION_MODE_SIMPLE,
            metadata=common.TaskMetadata(session_id=session),
        )
        request.context.update(context)
        response = await stub.ExecuteTask(request, metadata=app.metadata, timeout=120)
        if response.status != common.STATUS_CODE_OK:
            raise RuntimeError(response.error_message)

    look = {"tool_parameters": {"tool": "files.list"}}
    for session in ("warm", ""):
        await call("", session, look)
    in_session = await _times(count, lambda: call("", "warm", look))
    alone = await _times(max(count // 10, 3), lambda: call("", "", look))
    began = time.perf_counter()
    await many(lambda: call("", "warm", look), count, _AT_ONCE)
    rate = count / (time.perf_counter() - began)
    numbers = iter(range(sessions + 8))
    for _ in range(8):
        await call("Say something.", f"first-{next(numbers)}", {})
    before = app.system.held().pss["serve"]
    await many(lambda: call("Say something.", f"idle-{next(numbers)}", {}), sessions, _AT_ONCE)
    await asyncio.sleep(1)
    grown = (app.system.held().pss["serve"] - before) / 1024 / sessions
    return {
        "p50": in_session.p50,
        "p99": in_session.p99,
        "a_second": rate,
        "alone_p50": alone.p50,
        "sessions": sessions,
        "session_kb": grown,
    }


async def cancelled(app: Served, stub: Stub, count: int) -> Times:
    """Return the seconds from the end of a caller's stream to that of its call of the model, which
    would go on forever.
    """
    calls: Any = pb_grpc.AgentServiceStub(app.channel)
    await stub.set(hold=1)
    seconds = []
    for _ in range(count):
        before = await stub.stats()
        stream = calls.StreamExecuteTask(
            pb.ExecuteTaskRequest(query="Say something."), metadata=app.metadata
        )
        while (await stub.stats())["calls"] == before["calls"]:
            pass
        began = time.perf_counter()
        stream.cancel()
        while (await stub.stats())["gone"] == before["gone"]:
            pass
        seconds.append(time.perf_counter() - began)
    await stub.set(hold=0)
    return Times(tuple(seconds))


async def _times(count: int, act: Callable[[], Awaitable[None]]) -> Times:
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        await act()
        seconds.append(time.perf_counter() - began)
    return Times(tuple(seconds))
