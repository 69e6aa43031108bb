"""Moothall as its users run it: `moothall serve` as a process, and a client of its gRPC API in
this one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from benchmarks.accounting import cpu_group
from benchmarks.machine import System
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

_START_SECONDS = 180
_STOP_SECONDS = 60
SEATS, CALLS = 3, 9
GRAPH_LATER = {"MOOTHALL_GRAPH__PACE_SECONDS": "86400"}
"""Puts the graph's projection off, which follows behind the answers: it is told apart."""
TASK = (
    "Design the queue between our order page and the warehouse: what happens when it is full, when "
    "a worker dies, and what an operator watches."
)


@dataclass(frozen=True, slots=True)
class Served:
    """A running server and its caller."""

    system: System
    data_dir: Path
    address: str
    channel: grpc.aio.Channel
    stub: OrchestratorServiceStub
    token: str

    async def deliberate(
        self, request: pb.DeliberateRequest, *, seconds: float = 600
    ) -> pb.DeliberateResponse:
        """One unary call."""
        return await self.stub.Deliberate(request, metadata=self.metadata, timeout=seconds)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Who calls."""
        return (("authorization", f"Bearer {self.token}"),)


def text_request() -> pb.DeliberateRequest:
    """Three seats propose, each reviews another's proposal, all revise: nine calls, and the budget
    ends it there.
    """
    return pb.DeliberateRequest(
        task_description=TASK,
        role="dev",
        num_agents=SEATS,
        protocol="debate",
        rounds=1,
        budget=common_pb2.Budget(calls=CALLS),
    )


@asynccontextmanager
async def served(
    data_dir: Path, base_url: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Served]:
    """Start `moothall serve` on `data_dir` and end it with the context; `settings` are more
    environment variables.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")}
    ours = {
        "MOOTHALL_DATA_DIR": str(data_dir),
        "MOOTHALL_LLM__BASE_URL": base_url,
        "PYTHONDONTWRITEBYTECODE": "",  # as users run it: compiled once
        "MOOTHALL_LLM__APPROACHES": "off",  # the workload has no planning call
        "MOOTHALL_LLM__CONCURRENCY": "4096",  # the stub takes what comes
        "MOOTHALL_LOG__LEVEL": "warning",
        **(settings or {}),
    }
    command = (sys.executable, "-m", "moothall", "serve", "--port", "0")
    async with cpu_group() as group:
        process = await asyncio.create_subprocess_exec(
            *(group.command(*command) if group else command),
            env=kept | ours,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
        try:
            address = await _address(process)
            if process.stderr is None:
                raise AssertionError("asked for a pipe")
            drain = asyncio.ensure_future(process.stderr.read())
            async with grpc.aio.insecure_channel(address) as channel:
                token = (data_dir / "token").read_text(encoding="ascii").strip()
                stub = OrchestratorServiceStub(channel)
                yield Served(System(process.pid, group), data_dir, address, channel, stub, token)
            await _end(process)
            await drain
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it may have been killed, as a part of what is measured
        process.terminate()
    async with asyncio.timeout(_STOP_SECONDS):
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Read what it says until it serves."""
    if process.stderr is None:
        raise AssertionError("asked for a pipe")
    output_text: list[str] = []
    async with asyncio.timeout(_START_SECONDS):
        while line := (await process.stderr.readline()).decode():
            output_text.append(line)
            if line.startswith("serving gRPC on"):
                return line.split()[3].rstrip(";")
    raise RuntimeError("serve ended before it served:\n" + "".join(output_text))
