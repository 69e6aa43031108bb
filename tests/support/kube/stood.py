"""A deployment by role while it is installed: install it, wait until it is ready, and remove it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.kube import neo4j
from support.kube.ctl import ask
from support.kube.deployment import (
    CLAIMS,
    SPACE,
    WORKSPACES,
    Folders,
    install,
    places,
    secrets,
    uninstall,
)
from support.kube.node import nodes
from support.kube.programs import Home

_TRIES = 4
DEPLOYMENTS = ("api", "collector", "tools", "hosts")


@asynccontextmanager
async def install_deployment(
    home: Home, folder: Path, values: Mapping[str, Any]
) -> AsyncIterator[Folders]:
    """Install a deployment with these values of the chart and yield its volumes, which start empty;
    `folder` receives its keys.

    Raises `gobuilt.Missing`, `programs.Missing`; `AssertionError` with the pods' logs if they do
    not become ready.
    """
    folders = Folders(home.run / "volumes" / SPACE)
    await remove_deployment(home)
    try:
        await asyncio.to_thread(neo4j.make, home, print)
        await give_images(home)
        await asyncio.to_thread(folders.make)
        await ask("apply", "-f", "-", stdin=places(folders))
        await ask("apply", "-f", "-", stdin=secrets(home, folder))
        await asyncio.to_thread(install, home, values)
        await all_rolled_out()
        yield folders
    finally:
        await remove_deployment(home)


async def give_images(home: Home) -> None:
    """Import newly built images on every node."""
    for node in nodes(home):
        await asyncio.to_thread(node.give_images, print)


async def apply_kustomization(folder: str) -> None:
    """Apply a kustomization; retry if the API server is too busy for its larger definitions. Raises
    `AssertionError`.
    """
    for attempts_left in reversed(range(_TRIES)):
        try:
            await ask("apply", "--server-side", "-k", folder)
        except AssertionError as error:
            if not attempts_left or "(Timeout)" not in str(error):
                raise
        else:
            return


async def wait_for_rollout(*names: str) -> None:
    """Wait for Deployments and StatefulSets. Raises `AssertionError` with the pods' logs if they do
    not become ready.
    """
    for name in names:
        try:
            await ask("-n", SPACE, "rollout", "status", name, "--timeout=240s")
        except AssertionError as error:
            description = await ask("-n", SPACE, "get", "pods,events", "-o", "wide")
            logs = await ask(
                "-n", SPACE, "logs", name, "--all-containers", "--tail=40", check=False
            )
            raise AssertionError(f"{error}\n{description[-6000:]}\n{logs[-4000:]}") from error


async def all_rolled_out() -> None:
    """Wait for the whole deployment. Raises `AssertionError`."""
    await wait_for_rollout(
        "statefulset/nats",
        "statefulset/neo4j",
        *(f"deployment/moothall-{name}" for name in DEPLOYMENTS),
    )


async def old_pods_gone() -> None:
    """Wait until no pod is being deleted. A rollout is over before that, and a host that is not
    terminating yet still takes work. Raises `AssertionError`.
    """
    for _ in range(240):
        if not (
            ending := await ask(
                "-n", SPACE, "get", "pods", "-o", "jsonpath={.items[*].metadata.deletionTimestamp}"
            )
        ).strip():
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"pods that should have ended by {ending} are still there")


async def remove_deployment(home: Home) -> None:
    """Remove the whole deployment, as far as it exists."""
    await asyncio.to_thread(uninstall, home)
    await ask("delete", "namespace", SPACE, WORKSPACES, "--ignore-not-found", "--timeout=120s")
    await ask(
        "delete",
        "pv",
        *(f"{SPACE}-{name}" for name in CLAIMS),
        "--ignore-not-found",
        "--timeout=60s",
    )
