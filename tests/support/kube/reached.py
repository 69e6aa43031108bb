"""Services on this machine that pods can reach: a bus, and settings that make workspaces Jobs on
it. The environment selects the cluster (scripts/test-k8s).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from moothall.config import BusSettings, JobSettings, SandboxSettings, Settings, WorkspaceSettings
from moothall.events.nats.server import _binary
from moothall.settings import load_settings
from support.kube import WORKER
from support.kube.ctl import kubectl

WORKSPACES = f"workspaces{WORKER}"
"""The namespace of Jobs whose host is on this machine."""
DEPLOY = Path(__file__).parents[3] / "deploy/k8s"


def make_namespaces() -> None:
    """Create the namespaces of deploy/k8s, with quota and roles but without pods, and one more of
    their kind for our Jobs.
    """
    for name in ("namespaces", "rbac", "quota"):
        manifest = (DEPLOY / f"base/{name}.yaml").read_text(encoding="utf-8")
        for text in (manifest, manifest.replace("moothall-workspaces", WORKSPACES)):
            # Several workers may do this at once.
            kubectl("apply", "--server-side", "-f", "-", stdin=text)


@asynccontextmanager
async def bus(folder: Path) -> AsyncIterator[str]:
    """Yield the URL of a bus with its files in a folder, at an address that pods can reach."""
    address = os.environ["CLUSTER_ADDRESS"]
    with socket.create_server((address, 0)) as free:
        port = free.getsockname()[1]
    arguments = ("-a", address, "-p", str(port), "-js", "-sd", str(folder))
    server = await asyncio.create_subprocess_exec(
        _binary(), *arguments, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while not await _answers(address, port):
                await asyncio.sleep(0.05)
        yield f"nats://{address}:{port}"
    finally:
        server.terminate()
        await server.wait()


async def _answers(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def local_host_settings(folder: Path, bus: str, *, warm: int = 0, **jobs: Any) -> Settings:
    """Return the settings of a local host whose workspaces are Jobs; `jobs` are more settings of
    these.
    """
    images = {
        "image": os.environ["MOOTHALL_JOBS__IMAGE"],
        "link_image": os.environ["MOOTHALL_JOBS__LINK_IMAGE"],
    }
    return load_settings(
        data_dir=folder / "data",
        bus=BusSettings(url=bus),
        workspace=WorkspaceSettings(kind="kubernetes", warm=warm),
        jobs=JobSettings(**{**images, "namespace": WORKSPACES, "cpu": "1", **jobs}),
        sandbox=SandboxSettings(memory_bytes=600_000_000),
    )
