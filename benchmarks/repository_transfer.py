"""Measure the transfer of a repository to a host with another disk, for the first time and again,
compared with `git clone`.
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


async def measure_transfer(folder: Path, megabytes: int, rounds: int) -> dict[str, Any]:
    """Return the median seconds of the first transfer, of the same commit again, of one more
    commit, and of `git clone`. Each round measures all of them.
    """
    generator = random.Random(7)  # noqa: S311 - bytes that do not compress
    size = megabytes * 1_000_000 // _FILES
    repo = make_repo(
        folder / "repo",
        {f"data/{number}.bin": generator.randbytes(size) for number in range(_FILES)},
    )
    seconds_by_step: dict[str, list[float]] = {
        "first": [],
        "again": [],
        "commit": [],
        "clone": [],
    }
    for number in range(rounds):
        for name, seconds in (await _measure_round(folder / str(number), repo)).items():
            seconds_by_step[name].append(seconds)
    return {
        "megabytes": megabytes,
        **{name: statistics.median(values) for name, values in seconds_by_step.items()},
    }


async def _measure_round(folder: Path, repo: Repo) -> dict[str, float]:
    settings = load_settings(data_dir=folder / "server", ray=RaySettings(address="remote:1"))
    host_settings = settings.model_copy(update={"data_dir": folder / "host"})
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(embedded_server(settings.bus, folder / "bus"))
        shared_bus, host_bus = [
            await stack.enter_async_context(open_bus(settings.bus, url)) for _ in range(2)
        ]
        app = await stack.enter_async_context(
            serve_repositories(settings, shared_bus, trusted_repositories(settings))
        )
        host = (
            await stack.enter_async_context(open_workspace_services(host_settings, host_bus))
        ).repositories
        entry = await app.register(str(repo.path))

        async def pin_head() -> RepositoryRef:
            return RepositoryRef(
                id=entry.id, ref=(await app.resolve(RepositoryRef(id=entry.id))).sha
            )

        base = await pin_head()
        durations = {
            "first": await _measure_seconds(host.resolve(base)),
            "again": await _measure_seconds(host.resolve(base)),
        }
        repo.commit({"small.txt": f"{folder}\n"})
        durations["commit"] = await _measure_seconds(host.resolve(await pin_head()))
        source = app.clone(entry.id).path  # packed by now, because the host was served from it
    clone = ("git", "clone", "--quiet", "--mirror", f"file://{source}", str(folder / "clone.git"))
    durations["clone"] = await _measure_seconds(
        asyncio.to_thread(subprocess.run, clone, check=True)
    )
    return durations


async def _measure_seconds(awaitable: Awaitable[object]) -> float:
    start = time.perf_counter()
    await awaitable
    return time.perf_counter() - start
