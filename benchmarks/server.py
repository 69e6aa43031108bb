"""`moothall serve` in a process, with default settings where possible, and a client of its gRPC
API.
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
DEFERRED_GRAPH = {"MOOTHALL_GRAPH__PACE_SECONDS": "86400"}
"""Settings that defer the projection into the graph, which is measured separately."""
TASK = (
    "Design the queue between our order page and the warehouse: what happens when it is full, when "
    "a worker dies, and what an operator watches."
)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server with a client."""

    system: System
    data_dir: Path
    address: str
    channel: grpc.aio.Channel
    stub: OrchestratorServiceStub
    token: str

    async def deliberate(
        self, request: pb.DeliberateRequest, *, seconds: float = 600
    ) -> pb.DeliberateResponse:
        """Send one unary call."""
        return await self.stub.Deliberate(request, metadata=self.metadata, timeout=seconds)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of a call: the access token."""
        return (("authorization", f"Bearer {self.token}"),)


def text_request() -> pb.DeliberateRequest:
    """Return a request for a deliberation of nine model calls: three seats propose, each reviews
    another's proposal, and all revise. The budget prevents further calls.
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
async def run_server(
    data_dir: Path, base_url: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """Run `moothall serve` on `data_dir` for the duration of the context.

    settings: additional environment variables.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("MOOTHALL_")}
    server_env = {
        "MOOTHALL_DATA_DIR": str(data_dir),
        "MOOTHALL_LLM__BASE_URL": base_url,
        "PYTHONDONTWRITEBYTECODE": "",  # bytecode is cached, as for users
        "MOOTHALL_LLM__APPROACHES": "off",  # the workload has no planning call
        "MOOTHALL_LLM__CONCURRENCY": "4096",  # the stub has no limit
        "MOOTHALL_LOG__LEVEL": "warning",
        **(settings or {}),
    }
    command = (sys.executable, "-m", "moothall", "serve", "--port", "0")
    async with cpu_group() as group:
        process = await asyncio.create_subprocess_exec(
            *(group.command(*command) if group else command),
            env=env | server_env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the server
        )
        try:
            address = await _read_address(process)
            if process.stderr is None:
                raise AssertionError("stderr is not a pipe")
            drain = asyncio.ensure_future(process.stderr.read())
            async with grpc.aio.insecure_channel(address) as channel:
                token = (data_dir / "token").read_text(encoding="ascii").strip()
                stub = OrchestratorServiceStub(channel)
                yield Server(System(process.pid, group), data_dir, address, channel, stub, token)
            await _end_process(process)
            await drain
        finally:
            await _end_process(process)


async def _end_process(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # the benchmark may have killed it
        process.terminate()
    async with asyncio.timeout(_STOP_SECONDS):
        await process.wait()


async def _read_address(process: asyncio.subprocess.Process) -> str:
    """Read the output of the server until it reports its address."""
    if process.stderr is None:
        raise AssertionError("stderr is not a pipe")
    lines: list[str] = []
    async with asyncio.timeout(_START_SECONDS):
        while line := (await process.stderr.readline()).decode():
            lines.append(line)
            if line.startswith("serving gRPC on"):
                return line.split()[3].rstrip(";")
    raise RuntimeError("moothall serve ended before it was ready:\n" + "".join(lines))
