"""Two Ray nodes on one machine, and one is killed: the other's host ends the work. The replacement
of a head is noticed.
"""

from __future__ import annotations

import asyncio
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

from command import Command, answer_turns_with, by_task, git
from moothall.cli.demo import make_sample_repository
from moothall.config import BusSettings
from moothall.events.nats.server import embedded_server
from moothall.testing.model import Fault, scripted_model
from ray_nodes import TOKEN, growing_nodes, hosts_below, ray_nodes
from serving import serving, until_begun, until_serving
from support.processes import all_gone, descendants
from support.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


async def test_another_node_finishes_the_work_of_a_killed_one(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)

    async def slowly(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
        await asyncio.sleep(2)
        return by_task(body, headers)

    async with (
        scripted_model(answer_turns_with(slowly)) as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        ray_nodes(2) as (address, second),
    ):
        extra = {
            **TOKEN,
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__HOSTS": "2",
            "MOOTHALL_RAY__SEATS_PER_HOST": "1",  # two deliberations, one for each host
            "MOOTHALL_BUS__URL": bus_url,
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": "3",
        }
        command = Command(tmp_path / "data", model.base_url, extra)
        async with serving(command), asyncio.TaskGroup() as group:
            assert len(hosts_below(second)) == 1  # the work is spread over both hosts
            ask = ("deliberate", "--repo", str(repo), "--json", "--task-id")
            deliberations = [
                group.create_task(command(*ask, name, TASK, seconds=300)) for name in ("one", "two")
            ]
            await until_begun(model, 2, tmp_path / "data")
            for child in (second, *descendants(second.pid)):
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
        for result in (task.result() for task in deliberations):
            assert result.code == 0, result.err
            assert result.document["proven"] is True
            assert git(repo, "branch", "--list", result.document["branch"])


async def test_each_node_gets_a_host_and_work_continues_after_one_is_lost(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    async with (
        scripted_model(answer_turns_with(by_task)) as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        growing_nodes(2) as (address, second, add_node),
    ):
        extra = {
            **TOKEN,
            "MOOTHALL_RAY__ADDRESS": address,
            "MOOTHALL_RAY__HOSTS": "0",
            "MOOTHALL_BUS__URL": bus_url,
            "MOOTHALL_BUS__ACK_WAIT_SECONDS": "3",
        }
        command = Command(tmp_path / "data", model.base_url, extra)
        async with serving(command):
            assert await hosts(command) == {"host-1", "host-2"}
            assert len(hosts_below(second)) == 1
            (killed,) = hosts_below(second)
            add_node()
            async with asyncio.timeout(120):
                while await hosts(command) != {"host-1", "host-2", "host-3"}:
                    await asyncio.sleep(0.5)
            for child in (second, *descendants(second.pid)):
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGKILL)
            async with asyncio.timeout(120):
                while len(remaining := await hosts(command)) != 2:
                    await asyncio.sleep(0.5)
            assert await all_gone([killed]) == []
            assert "host-3" in remaining
            result = await command("deliberate", "--repo", str(repo), "--json", TASK, seconds=300)
        assert result.code == 0, result.err
        assert result.document["proven"] is True


async def hosts(command: Command) -> set[str]:
    """Return the names of the hosts that answer."""
    result = await command("fleet", "--json")
    # The rest of a name identifies the owner.
    return {"-".join(host["name"].split("-")[:2]) for host in result.document["hosts"]}


@asynccontextmanager
async def ray_head(folder: Path, port: int) -> AsyncIterator[None]:
    """Run a Ray head; kill it with all its children at the end."""
    place = await asyncio.to_thread(tempfile.mkdtemp, prefix="mh-", dir=folder)
    program = (
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        f"--temp-dir={place}",
    )
    process = await asyncio.create_subprocess_exec(
        *program,
        "--num-cpus=1",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=false",
        "--object-store-memory=80000000",
        env={**os.environ, **TOKEN, "RAY_TMPDIR": place},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(240):
            while (await asyncio.to_thread(is_listening, port)) is False:
                assert process.returncode is None, "the head did not start"
                await asyncio.sleep(0.2)
        yield
    finally:
        processes = [psutil.Process(process.pid), *descendants(process.pid)]
        for child in processes:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        await process.wait()
        assert await all_gone(processes) == []


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill the process if it still runs."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def is_listening(port: int) -> bool:
    """True if somebody listens on loopback."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


async def test_a_replaced_ray_head_ends_the_server_with_a_message(tmp_path: Path) -> None:
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="mh-", dir="/tmp"))
    async with (
        scripted_model(by_task) as model,
        embedded_server(BusSettings(), tmp_path / "bus") as bus_url,
        AsyncExitStack() as stack,
    ):
        extra = {
            **TOKEN,
            "MOOTHALL_RAY__ADDRESS": f"127.0.0.1:{port}",
            "MOOTHALL_BUS__URL": bus_url,
        }
        command = Command(tmp_path / "data", model.base_url, extra)
        async with ray_head(folder, port):
            server = await command.start("serve", "--port", "0")
            stack.push_async_callback(end, server)
            await until_serving(server)
        assert server.stderr is not None
        async with ray_head(folder, port), asyncio.timeout(240):
            stderr = await server.stderr.read()
            assert await server.wait() == 2
    assert b"another head answers at its address" in stderr, stderr.decode()
    shutil.rmtree(folder, ignore_errors=True)
