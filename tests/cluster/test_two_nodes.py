"""Two Ray nodes on one machine, one of them killed: the other's host ends the work. A head that is replaced by another is noticed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from house import Command, by_task, git, scripted
from moothall.bus.nats.server import embedded_server
from moothall.config import BusSettings
from moothall.repositories.sample import make_sample_repository
from moothall.testing.model import Fault, scripted_model
from serving import serving, until_begun, until_serving
from support.processes import all_gone, command_line, descendants
from support.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[str, psutil.Process]]:
    """Yield the cluster's address and the raylet of the node that is not the head."""
    folder = Path(tempfile.mkdtemp(prefix="mh-", dir="/tmp"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).parent / "ray_cluster.py"),
        str(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(240):
            while not (line := await process.stdout.readline()).startswith(b"{"):
                assert line, "the cluster did not start"
        told = json.loads(line)
        # Beside its sessions Ray writes where it is; a machine that never ran it has no /tmp/ray for that.
        assert (folder / "ray" / "ray_current_cluster").is_file()
        yield told["address"], psutil.Process(told["raylet"])
    finally:
        below = descendants(process.pid)
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await process.wait()
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        assert await all_gone(below) == []
        shutil.rmtree(folder, ignore_errors=True)


def hosts_below(root: psutil.Process) -> list[psutil.Process]:
    """Return the host processes that a node runs."""
    return [child for child in descendants(root.pid) if "ray::Host" in command_line(child)]


async def test_a_node_that_works_is_killed_and_the_other_ends_the_work(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        await asyncio.sleep(2)
        return by_task(body, headers)

    async with (
        scripted_model(scripted(slowly)) as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        two_nodes() as (address, second),
    ):
        extra = {
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__HOSTS": "2",
            "MOOTHALL_RAY__SEATS_PER_HOST": "1",  # two deliberations, one for each host
            "MOOTHALL_BUS__URL": bus_url,
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": "3",
        }
        command = Command(tmp_path / "data", model.base_url, extra)
        async with serving(command), asyncio.TaskGroup() as group:
            assert len(hosts_below(second)) == 1  # they are spread
            ask = ("deliberate", "--repo", str(repo), "--json", "--task-id")
            asked = [group.create_task(command(*ask, name, TASK, seconds=300)) for name in ("one", "two")]
            await until_begun(model, 2, tmp_path / "data")
            for child in (second, *descendants(second.pid)):
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
        for done in (task.result() for task in asked):
            assert done.code == 0, done.err
            assert done.document["proven"] is True
            assert git(repo, "branch", "--list", done.document["branch"])


@asynccontextmanager
async def a_head(folder: Path, port: int) -> AsyncIterator[None]:
    """Run a head of Ray; it is killed with all that is below it."""
    place = await asyncio.to_thread(tempfile.mkdtemp, prefix="mh-", dir=folder)
    program = (str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}", f"--temp-dir={place}")
    process = await asyncio.create_subprocess_exec(
        *(*program, "--num-cpus=1", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--object-store-memory=80000000"),
        env={**os.environ, "RAY_TMPDIR": place},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(240):
            while (await asyncio.to_thread(answers, port)) is False:
                assert process.returncode is None, "the head did not start"
                await asyncio.sleep(0.2)
        yield
    finally:
        below = [psutil.Process(process.pid), *descendants(process.pid)]
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        await process.wait()
        assert await all_gone(below) == []


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill it, if it has not ended."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def answers(port: int) -> bool:
    """Whether somebody listens on loopback."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


async def test_a_head_that_is_replaced_by_another_ends_serving_with_a_word(tmp_path: Path) -> None:
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="mh-", dir="/tmp"))
    async with (
        scripted_model(by_task) as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        AsyncExitStack() as stack,
    ):
        extra = {"MOOTHALL_RAY__ADDRESS": f"127.0.0.1:{port}", "MOOTHALL_BUS__URL": bus_url}
        command = Command(tmp_path / "data", model.base_url, extra)
        async with a_head(folder, port):
            server = await command.start("serve", "--port", "0")
            stack.push_async_callback(end, server)
            await until_serving(server)
        assert server.stderr is not None
        async with a_head(folder, port), asyncio.timeout(240):
            said = await server.stderr.read()
            assert await server.wait() == 2
    assert b"another head answers at its address" in said, said.decode()
    shutil.rmtree(folder, ignore_errors=True)
