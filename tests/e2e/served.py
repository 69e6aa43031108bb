"""A dedicated server with two tenants that a test can stop and restart."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from command import Command
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub

ALICE, EVE = "alices-token-of-these-tests", "eves-token-of-these-tests"
_TOKENS = f"""
[[principals]]
token = "{ALICE}"
name = "alice"
tenant = "team-a"

[[principals]]
token = "{EVE}"
name = "eve"
tenant = "team-e"
"""


def make_command(folder: Path, model_url: str, *, hosts: str = "process") -> Command:
    """Return a command whose server knows alice and eve. Its hosts run without Ray, which these
    tests do not cover and which is slow to start.
    """
    tokens = folder / "tokens.toml"
    tokens.write_text(_TOKENS, encoding="utf-8")
    tokens.chmod(0o600)
    return Command(
        folder / "data",
        model_url,
        {
            "MOOTHALL_GRPC__TOKENS_FILE": str(tokens),
            "MOOTHALL_LOG__LEVEL": "error",
            "MOOTHALL_RAY__MODE": hosts,
        },
    )


@dataclass(frozen=True, slots=True)
class Served:
    """A running server and its endpoints."""

    command: Command
    pid: int
    channel: grpc.aio.Channel
    web: str = ""
    """The address of the HTTP server; empty if it is disabled."""
    link: str = ""
    """The one-time sign-in link."""

    def stub(self, token: str = ALICE) -> Any:
        """Return a stub whose calls carry a token and time out after two minutes."""
        return _Stub(OrchestratorServiceStub(self.channel), token)


class _Stub:
    def __init__(self, stub: Any, token: str) -> None:
        self._stub = stub
        self._metadata = (("authorization", f"Bearer {token}"),)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return lambda request, **options: method(
            request, **({"metadata": self._metadata, "timeout": 120} | options)
        )


@asynccontextmanager
async def run_server(
    command: Command, end: signal.Signals = signal.SIGTERM
) -> AsyncIterator[Served]:
    """Serve until the context ends, then send the signal `end`."""
    server = await command.start("serve", "--port", "0")
    assert server.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(180):
        while line := (await server.stderr.readline()).decode():
            lines.append(line)
            if line.startswith("serving gRPC on"):
                break
        else:
            raise AssertionError("serve ended: " + "".join(lines))
    drain = asyncio.ensure_future(server.stderr.read())
    command.served_at = line.split()[3].rstrip(";")
    try:
        async with grpc.aio.insecure_channel(command.served_at) as channel:
            web = next(
                (
                    line.split()[3].rstrip(":")
                    for line in lines
                    if line.startswith("serving HTTP on")
                ),
                "",
            )
            link = next((line.split()[-1] for line in lines if "/sign-in?link=" in line), "")
            yield Served(command, server.pid, channel, web, link)
    finally:
        exit_code = server.returncode
        if exit_code is None:
            server.send_signal(end)
            async with asyncio.timeout(90):
                await server.wait()
        tail = (await drain).decode()
        # Check this first: later failures may be caused by it.
        assert exit_code is None, f"serve ended unexpectedly with {exit_code}: {tail}"
    assert server.returncode == (130 if end is signal.SIGTERM else -end), tail
