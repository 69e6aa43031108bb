"""How long a repository takes to a host on another disk, the first time and later, beside a plain
`git clone` of the same.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from moothall.app.repositories import serve_repositories, trusted_repositories
from moothall.app.workspaces import open_workspace_services
from moothall.config import RaySettings
from moothall.domain.task import RepositoryRef
from moothall.events.nats.jetstream import open_bus
from moothall.events.nats.server import embedded_server
from moothall.settings import load_settings
from support.repos import Repo, make_repo

_FILES = 100


async def transfer(folder: Path, megabytes: int, rounds: int) -> dict[str, Any]:
    """Return seconds (medians) of the first transfer, of one where all is there, and of one more
    commit, with `git clone`'s in turn.
    """
    dice = random.Random(7)  # noqa: S311 - bytes that do not compress
    size = megabytes * 1_000_000 // _FILES
    repo = make_repo(
        folder / "repo", {f"data/{number}.bin": dice.randbytes(size) for number in range(_FILES)}
    )
    taken: dict[str, list[float]] = {"first": [], "again": [], "more": [], "clone": []}
    for number in range(rounds):
        found = await _round(folder / str(number), repo)
        for name, seconds in found.items():
            taken[name].append(seconds)
    return {
        "megabytes": megabytes,
        **{name: statistics.median(seconds) for name, seconds in taken.items()},
    }


async def _round(folder: Path, repo: Repo) -> dict[str, float]:
    settings = load_settings(data_dir=folder / "server", ray=RaySettings(address="elsewhere:1"))
    there = settings.model_copy(update={"data_dir": folder / "host"})
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_server(settings.bus, folder / "bus"))
        shared_bus, host_bus = [
            await stack.enter_async_context(open_bus(settings.bus, url)) for _ in range(2)
        ]
        app = await stack.enter_async_context(
            serve_repositories(settings, shared_bus, trusted_repositories(settings))
        )
        host = (
            await stack.enter_async_context(open_workspace_services(there, host_bus))
        ).repositories
        entry = await app.register(str(repo.path))

        async def pin() -> RepositoryRef:
            return RepositoryRef(
                id=entry.id, ref=(await app.resolve(RepositoryRef(id=entry.id))).sha
            )

        base = await pin()
        found = {
            "first": await _timed(host.resolve(base)),
            "again": await _timed(host.resolve(base)),
        }
        repo.commit({"small.txt": f"{folder}\n"})
        found["more"] = await _timed(host.resolve(await pin()))
        source = app.clone(entry.id).path  # what the host got came from there too: packed by then
    clone = ("git", "clone", "--quiet", "--mirror", f"file://{source}", str(folder / "clone.git"))
    found["clone"] = await _timed(asyncio.to_thread(subprocess.run, clone, check=True))
    return found


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began
