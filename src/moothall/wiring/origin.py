"""Which commit a line of a file comes from. Apart from the graph, since git is slow to import and most questions need none."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.domain.task import RepositoryRef
from moothall.repositories import sources
from moothall.repositories.blame import Origin, origin_of
from moothall.repositories.gitcmd import GitRunner
from moothall.wiring.trusted import trusted_repositories


async def line_origin(settings: Settings, where: str, ref: str, path: str, line: int) -> Origin:
    """Return which commit a line comes from, in a local repository or a registered one.

    Raises `NotFound`, `InvalidRequest`, `RepositoryError`.
    """
    repositories = trusted_repositories(settings)
    git = GitRunner(settings.data_dir / "repos", settings.workspace.git_seconds)
    if not await asyncio.to_thread(os.path.exists, where):
        entry = repositories.registry.get(where, LOCAL.tenant)
        if not entry.local:
            base = await repositories.resolve(RepositoryRef(id=entry.id, ref=ref))
            return await origin_of(git, repositories.clone(entry.id).path, base.sha, path, line)
        where = entry.origin
    local = await sources.find_local(git, Path(where))
    return await origin_of(git, local.git_dir, await sources.local_commit(git, local, ref), path, line)
