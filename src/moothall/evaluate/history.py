"""Walk the history of a repository, and make repositories that end with a commit."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from moothall.errors import RepositoryError
from moothall.evaluate.mining import Commit
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner

_TAGS = 200


async def walk(clone: TrustedClone, sha: str, most: int) -> AsyncIterator[Commit]:
    """Yield the newest commits of a history, at most `most`, without merges and with the changed
    paths.
    """
    listed = await clone.call(
        "log",
        "-z",
        "--no-merges",
        f"--max-count={most}",
        "--format=%H%x01%P%x01%B",
        "--no-show-signature",
        sha,
    )
    if listed.status:
        raise RepositoryError(f"the history cannot be read: {listed.reason}")
    for entry in listed.out.decode(errors="replace").split("\0"):
        commit, parents, message = (*entry.split("\x01", 2), "", "")[:3]
        if not commit:
            continue
        found = await clone.call(
            "diff-tree",
            "-r",
            "-z",
            "--root",
            "--no-commit-id",
            "--name-only",
            "--no-renames",
            commit,
        )
        paths = tuple(path for path in os.fsdecode(found.out).split("\0") if path)
        yield Commit(commit, tuple(parents.split()), message, paths)


async def seal(git: GitRunner, clone: TrustedClone, sha: str, folder: Path) -> None:
    """Make a bare repository with the history of a commit, the tags in it, and no other object."""
    if (folder / "HEAD").exists():
        return
    making = folder.with_name(f".{folder.name}.part")
    await asyncio.to_thread(shutil.rmtree, making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    await git.run(
        "init",
        "--quiet",
        "--bare",
        "--template=",
        "--initial-branch=main",
        "--",
        str(making),
        cwd=making.parent,
    )
    # Build tools read versions from tags.
    listed = await clone.call(
        "for-each-ref",
        f"--count={_TAGS}",
        "--sort=-creatordate",
        "--format=%(refname)",
        f"--merged={sha}",
        "refs/tags",
    )
    tags = listed.out.decode(errors="surrogateescape").splitlines()
    fetched = await git.call(
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--update-shallow",
        "--",
        f"file://{clone.path.resolve()}",
        f"{sha}:refs/heads/main",
        *(f"{tag}:{tag}" for tag in tags),
        cwd=making,
        env={"GIT_ALLOW_PROTOCOL": "file"},
    )
    if fetched.status:
        raise RepositoryError(f"the history up to {sha[:12]} cannot be copied: {fetched.reason}")
    making.rename(folder)
