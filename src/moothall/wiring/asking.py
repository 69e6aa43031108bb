"""The repository that `moothall ask` is about, and taking over what came of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moothall.config import Settings
from moothall.domain.identity import LOCAL
from moothall.domain.task import RepositoryRef
from moothall.errors import RepositoryError
from moothall.wiring.trusted import register, trusted_repositories
from moothall.workspace import sources
from moothall.workspace.applying import apply_to_files
from moothall.workspace.gitcmd import GitRunner


async def asked_about(settings: Settings, where: str, ref: str) -> RepositoryRef | None:
    """Return the repository that was named, or the one round the current folder; None where that is in none."""
    if where:
        return await register(settings, where, ref)
    try:
        await sources.find_local(_git(settings), await asyncio.to_thread(Path.cwd))
    except RepositoryError:
        return None
    return await register(settings, ".", ref)


def files_of(settings: Settings, repository: RepositoryRef) -> Path | None:
    """Return where the files of a repository lie on this machine; None for one that was fetched from a URL."""
    entry = trusted_repositories(settings).registry.get(repository.id, LOCAL.tenant)
    return Path(entry.origin) if entry.local else None


async def take_over(settings: Settings, top: Path, diff: str) -> tuple[str, ...]:
    """Apply a diff to the files there and return the paths. Raises `RepositoryError`; nothing is changed then."""
    git = _git(settings)
    return await apply_to_files(git, await sources.find_local(git, top), diff)


def _git(settings: Settings) -> GitRunner:
    return GitRunner(settings.data_dir / "repos", settings.workspace.git_seconds)
