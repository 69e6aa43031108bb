"""SIGKILL for processes in pods, from outside.

The nodes of the throw-away cluster are namespaces of this machine, so their processes are visible
here. A killed node is started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def containers(pod: Any, name: str = "") -> Iterator[str]:
    """Yield the ids of a pod's started containers, or of the one with this name."""
    for item in (
        *(pod.status.container_statuses or ()),
        *(pod.status.init_container_statuses or ()),
    ):
        if item.container_id and name in {"", item.name}:
            yield item.container_id.rpartition("/")[2]


def processes(container: str) -> list[psutil.Process]:
    """Return the processes of a node's container on this machine."""
    matching = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if container in Path(f"/proc/{process.pid}/cgroup").read_text(encoding="ascii"):
                matching.append(process)
    return matching


def kill(pod: Any, name: str = "") -> int:
    """Send SIGKILL to all processes of a pod, or of its container with this name; return their
    number.
    """
    hit = 0
    for container in containers(pod, name):
        for process in processes(container):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
                hit += 1
    return hit


async def bring_back() -> None:
    """Restart the missing parts of two nodes. Raises `AssertionError`."""
    up = (sys.executable, "-m", "support.kube", "up", "--nodes", "2")
    process = await asyncio.create_subprocess_exec(
        *up, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert await process.wait() == 0, "scripts/cluster up failed; see its output"
