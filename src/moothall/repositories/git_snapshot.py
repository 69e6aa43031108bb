"""A `.git` for set-up alone: the commit and its nearest tag, so that what takes its version from
tags can be built.

It is ours: no hooks, no remotes, nothing of the source's configuration. Checks and agents never see
it.
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

_DEEPEST = 5000
_DESCRIBED = re.compile(r"(.+)-(\d+)-g[0-9a-f]+")
_VERSION = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.])")
_LOGS = re.compile(
    r"(?:CHANGE|CHANGES|CHANGELOG|HISTORY|NEWS|RELEASE)[\w-]*(?:\.(?:md|rst|txt))?", re.IGNORECASE
)
_LOG_BYTES = 20_000
_UNKNOWN = "0.1.0"
# The checkout follows the attributes of the repository except these.
_ATTRIBUTES = "* -filter -ident\n"


async def write_history(
    git: GitRunner, clone: TrustedClone, sha: str, folder: Path, tree: Path
) -> str:
    """Make `folder`/.git of a commit whose files lie in `tree`; return the version that no tag
    says, '' where one does.
    """
    answer = await clone.call("describe", "--tags", "--long", "--match=*[0-9]*", sha)
    found = (
        _DESCRIBED.fullmatch(answer.out.decode(errors="replace").strip())
        if not answer.status
        else None
    )
    tag, distance = (found[1], int(found[2])) if found and int(found[2]) <= _DEEPEST else ("", 0)
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
    inner = folder / ".git"
    await asyncio.to_thread(_tidy, inner)
    if tag:
        return ""
    version = await asyncio.to_thread(_version, tree)
    await asyncio.to_thread((inner / "refs/tags").mkdir, parents=True, exist_ok=True)
    await asyncio.to_thread(
        (inner / "refs/tags" / f"v{version}").write_text, f"{sha}\n", encoding="ascii"
    )
    return version


def _tidy(inner: Path) -> None:
    (inner / "info").mkdir(exist_ok=True)
    (inner / "info/attributes").write_text(_ATTRIBUTES, encoding="ascii")
    (inner / "FETCH_HEAD").unlink(missing_ok=True)


def _version(tree: Path) -> str:
    """Return the version of a release that carries no tag: what its own metadata says, or the first
    that its change log names.
    """
    if found := re.search(
        r"^Version: (\d[\w.]*)$", read_text(tree / "PKG-INFO", _LOG_BYTES) or "", re.MULTILINE
    ):
        return found[1]
    logs = sorted(name for name in os.listdir(tree) if _LOGS.fullmatch(name))  # noqa: PTH208 - names are what is meant
    found = next(
        (
            match
            for name in logs
            if (match := _VERSION.search(read_text(tree / name, _LOG_BYTES) or ""))
        ),
        None,
    )
    return found[1] if found else _UNKNOWN
