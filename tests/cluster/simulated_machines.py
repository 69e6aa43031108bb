"""Simulated machines: each a network and mount namespace with a private folder, joined by a bridge.

Requires root, and a separate network namespace for the test: then nobody else can reach the bridge
and its listeners.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from ray_nodes import TOKEN
from support.processes import all_gone, descendants
from support.servers import relay_port

SERVER = "10.77.0.1"
_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",  # a busy machine starts its agents slowly
}


def missing() -> str:
    """Return what such machines would need and lack, '' if nothing."""
    if missing_programs := [
        name for name in ("ip", "unshare", "nsenter", "mount") if shutil.which(name) is None
    ]:
        return f"the programs {', '.join(missing_programs)} (iproute2, util-linux)"
    if os.geteuid():
        return "root"
    devices = [
        line.partition(":")[0].strip()
        for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    ]
    if devices != ["lo"]:
        return "a network namespace of the test's own: scripts/test-nodes runs it in one"
    return ""


async def run(*command: str) -> None:
    """Run a command that must succeed."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode == 0, f"{' '.join(command)}: {stderr.decode()}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine; `holder` is the process that keeps its namespaces."""

    ip: str
    holder: psutil.Process

    def entering(self, *command: str) -> tuple[str, ...]:
        """Return a command that runs another command on the machine."""
        return ("nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--", *command)

    def sees(self, path: Path) -> Path:
        """Return the path under which this process sees the machine's `path`."""
        return Path(f"/proc/{self.holder.pid}/root{path}")

    async def reaches(self, host: str, port: int) -> bool:
        """True if the machine can connect there."""
        code = f"import socket; socket.create_connection(({host!r}, {port}), 5)"
        process = await asyncio.create_subprocess_exec(
            *self.entering(sys.executable, "-c", code), stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait() == 0


@asynccontextmanager
async def bridge() -> AsyncIterator[None]:
    """Join machines; the server is at `SERVER`."""
    await run("ip", "link", "add", "mh", "type", "bridge")
    try:
        await run("ip", "addr", "add", f"{SERVER}/24", "dev", "mh")
        for device in ("mh", "lo"):
            await run("ip", "link", "set", device, "up")
        yield
    finally:
        await run("ip", "link", "del", "mh")


@asynccontextmanager
async def machine(number: int, folder: Path) -> AsyncIterator[Machine]:
    """Yield a machine that has an empty `folder` of its own in place of ours. Requires `bridge`."""
    ready = (
        f"mount -t tmpfs -o mode=0755 tmpfs {folder} && mkdir {folder}/ray && echo ready && exec "
        "cat"
    )
    process = await asyncio.create_subprocess_exec(
        "unshare",
        "--net",
        "--mount",
        "sh",
        "-c",
        ready,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        created = Machine(f"10.77.0.{number + 1}", psutil.Process(process.pid))
        await run(
            "ip",
            "link",
            "add",
            f"mh{number}",
            "type",
            "veth",
            "peer",
            "name",
            "e0",
            "netns",
            str(process.pid),
        )
        await run("ip", "link", "set", f"mh{number}", "master", "mh", "up")
        for command in (
            ("addr", "add", f"{created.ip}/24", "dev", "e0"),
            ("link", "set", "e0", "up"),
            ("link", "set", "lo", "up"),
        ):
            await run(*created.entering("ip", *command))
        yield created
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def relay(url: str) -> AsyncIterator[str]:
    """Yield the URL under which machines reach `url`, which is on our loopback."""
    parts = urlsplit(url)
    async with relay_port(("127.0.0.1", parts.port or 0), SERVER) as port:
        user = f"{parts.username}@" if parts.username else ""
        yield parts._replace(netloc=f"{user}{SERVER}:{port}").geturl()


@dataclass(frozen=True, slots=True)
class Node:
    """A Ray node."""

    process: asyncio.subprocess.Process

    def kill(self) -> None:
        """Kill all that runs on it."""
        for process in (*descendants(self.process.pid), psutil.Process(self.process.pid)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def node(command: tuple[str, ...], environment: Mapping[str, str]) -> AsyncIterator[Node]:
    """Run a Ray node until the context ends; yield once it has joined."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(180):
            while b"Ray runtime started" not in output:
                line = await process.stdout.readline()
                assert line, f"the node did not start: {output.decode()}"
                output += line
        drain = asyncio.ensure_future(process.stdout.read())
        yield Node(process)
    finally:
        children = descendants(process.pid)
        if process.returncode is None:
            process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        assert await all_gone(children) == []
        await drain


@asynccontextmanager
async def nodes(folder: Path, machines: list[Machine]) -> AsyncIterator[tuple[str, list[Node]]]:
    """Yield the address of a Ray cluster with a head beside the server, which offers no processor,
    and a node on each machine.
    """
    address = f"{SERVER}:6379"
    environment = {**os.environ, **_RAY, **TOKEN, "RAY_TMPDIR": str(folder)}
    # Ray writes its address there for other processes, and expects a folder.
    (folder / "ray").mkdir()
    start = (
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
    )
    memory = "--object-store-memory=80000000"
    head = (*start, memory, "--head", "--port=6379", f"--node-ip-address={SERVER}", "--num-cpus=0")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            node((*head, "--include-dashboard=false", f"--temp-dir={folder}"), environment)
        )
        joined = [
            await stack.enter_async_context(
                node(
                    host.entering(
                        *start,
                        memory,
                        f"--address={address}",
                        f"--node-ip-address={host.ip}",
                        "--num-cpus=1",
                    ),
                    environment,
                )
            )
            for host in machines
        ]
        yield address, joined
