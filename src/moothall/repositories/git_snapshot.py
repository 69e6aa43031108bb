"""A `.git` for set-up only: the commit and its nearest tag, for builds that derive their version
from tags.

It has no hooks, no remotes and no configuration of the source. Checks and agents never see it.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from moothall.errors import RepositoryError
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.profile import read_text

_MAX_TAG_DISTANCE = 5000
_DESCRIPTION = re.compile(r"(.+)-(\d+)-g[0-9a-f]+")
_VERSION = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.])")
_CHANGE_LOGS = re.compile(
    r"(?:CHANGE|CHANGES|CHANGELOG|HISTORY|NEWS|RELEASE)[\w-]*(?:\.(?:md|rst|txt))?", re.IGNORECASE
)
_CHANGE_LOG_BYTES = 20_000
_DEFAULT_VERSION = "0.1.0"
# The checkout follows the attributes of the repository except these.
_ATTRIBUTES = "* -filter -ident\n"


async def write_history(
    git: GitRunner, clone: TrustedClone, sha: str, folder: Path, tree: Path
) -> str:
    """Write `folder`/.git for a commit whose files are in `tree`. Return the version that was
    assumed because no tag gives one, '' if a tag does.
    """
    description = await clone.call("describe", "--tags", "--long", "--match=*[0-9]*", sha)
    match = (
        _DESCRIPTION.fullmatch(description.out.decode(errors="replace").strip())
        if not description.status
        else None
    )
    tag, distance = (
        (match[1], int(match[2])) if match and int(match[2]) <= _MAX_TAG_DISTANCE else ("", 0)
    )
    await git.run(
        "init", "--quiet", "--template=", "--initial-branch=main", "--", str(folder), cwd=folder
    )
    fetched = await git.call(
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-recurse-submodules",
        "--update-head-ok",
        f"--depth={distance + 1}",
        "--",
        f"file://{clone.path.resolve()}",
        f"{sha}:refs/heads/main",
        *((f"refs/tags/{tag}:refs/tags/{tag}",) if tag else ()),
        cwd=folder,
        env={"GIT_ALLOW_PROTOCOL": "file"},
    )
    if fetched.status:
        raise RepositoryError(f"the history for set-up cannot be written: {fetched.reason}")
    await git.run("read-tree", "HEAD", cwd=folder)
    git_dir = folder / ".git"
    await asyncio.to_thread(_tidy, git_dir)
    if tag:
        return ""
    version = await asyncio.to_thread(_version, tree)
    await asyncio.to_thread((git_dir / "refs/tags").mkdir, parents=True, exist_ok=True)
    await asyncio.to_thread(
        (git_dir / "refs/tags" / f"v{version}").write_text, f"{sha}\n", encoding="ascii"
    )
    return version


def _tidy(git_dir: Path) -> None:
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info/attributes").write_text(_ATTRIBUTES, encoding="ascii")
    (git_dir / "FETCH_HEAD").unlink(missing_ok=True)


def _version(tree: Path) -> str:
    """Return the version of a release without a tag: from its own metadata, or the first one in its
    change log.
    """
    metadata = read_text(tree / "PKG-INFO", _CHANGE_LOG_BYTES) or ""
    if match := re.search(r"^Version: (\d[\w.]*)$", metadata, re.MULTILINE):
        return match[1]
    for name in sorted(os.listdir(tree)):  # noqa: PTH208 - only names are needed
        if _CHANGE_LOGS.fullmatch(name):
            text = read_text(tree / name, _CHANGE_LOG_BYTES) or ""
            if match := _VERSION.search(text):
                return match[1]
    return _DEFAULT_VERSION
