"""Ray nodes on loopback for tests, with or without a token, and the hosts that they run."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from support.processes import all_gone, command_line, descendants

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
"""The environment of nodes and drivers of a cluster with a token."""
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}


@asynccontextmanager
async def ray_nodes(
    count: int, environment: Mapping[str, str] = TOKEN
) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Yield the cluster's address and the raylet of its last node."""
    async with growing_nodes(count, environment) as (address, raylet, _):
        yield address, raylet


@asynccontextmanager
async def growing_nodes(
    count: int, environment: Mapping[str, str] = TOKEN
) -> AsyncIterator[tuple[str, psutil.Process, Callable[[], None]]]:
    """Yield the cluster's address, the raylet of its last node, and a function that adds a node."""
    folder = Path(tempfile.mkdtemp(prefix="mh-", dir="/tmp"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).parent / "ray_cluster.py"),
        str(folder),
        str(count),
        env={**os.environ, **environment},
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
        node = json.loads(line)
        # Ray writes its address beside its sessions. A machine that never ran Ray has no /tmp/ray
        # for that.
        assert (folder / "ray" / "ray_current_cluster").is_file()
        yield (
            node["address"],
            psutil.Process(node["raylet"]),
            functools.partial(process.stdin.write, b"add\n"),
        )
    finally:
        children = descendants(process.pid)
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        assert await all_gone(children) == []
        shutil.rmtree(folder, ignore_errors=True)


def hosts_below(root: psutil.Process) -> list[psutil.Process]:
    """Return the host processes that a node runs."""
    return [child for child in descendants(root.pid) if "ray::Host" in command_line(child)]
