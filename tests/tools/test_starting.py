"""Programs started while gRPC is busy in the same process start and end well, on the event loop
that `moothall` uses.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

# In a separate process: another test may have loaded gRPC before our settings were read.
PROGRAM = """
import asyncio
import moothall.config
import grpc, uvloop

async def echo(request, context):
    return request

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(echo)

async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    over = asyncio.Event()

    async def call():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary("/a/b")
            while not over.is_set():
                await method(b"x")

    failed = []
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(call())
        for _ in range(150):
            process = await asyncio.create_subprocess_exec("/bin/true", stderr=asyncio.subprocess.PIPE)
            stderr = (await process.communicate())[1]
            if process.returncode or stderr:
                failed.append((process.returncode, stderr[:200]))
        over.set()
    await server.stop(0)
    print(len(failed), failed[:3])

uvloop.run(main())
"""  # noqa: E501 - a line of embedded text


async def test_programs_start_while_grpc_is_busy() -> None:
    process = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout == "0 []\n"
    assert "fork" not in process.stderr
