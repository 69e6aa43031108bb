"""Delivery of a commit: as a branch in a local repository, or as a push to a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from moothall.errors import AlreadyExists, InvalidRequest, RepositoryError, WorkspaceFailed
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.sources import Local, remote_refs

_BRANCH = re.compile(r"moothall/[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_NO_SHA = "0" * 40
"""The old value of a ref that must not exist."""


def check_branch(branch: str) -> str:
    """Return a name of one of our branches; others are never touched. Raises `InvalidRequest`."""
    if not _BRANCH.fullmatch(branch):
        raise InvalidRequest(f"{branch[:80]!r} is not a branch of ours; write moothall/<task id>")
    return branch


async def create_local_branch(
    git: GitRunner, clone: Path, local: Local, *, base_sha: str, sha: str, branch: str
) -> None:
    """Create the branch in a local repository. Work tree, index, HEAD and other refs do not change,
    and no hook runs.

    The objects are unpacked from a pack and the ref is written once: nothing is fetched, merged or
    checked out there. Raises `AlreadyExists` if the branch is at another commit, and
    `RepositoryError` if it cannot be written.
    """
    owner = owner_of(local.shared)
    git_dir, cwd = f"--git-dir={local.shared}", local.shared
    ref = f"refs/heads/{check_branch(branch)}"
    await send_objects(git, clone, local, base_sha=base_sha, sha=sha)
    committer = {"GIT_COMMITTER_NAME": "Moothall", "GIT_COMMITTER_EMAIL": "moothall@localhost"}
    update = await git.call(
        git_dir,
        "update-ref",
        "-m",
        "moothall: the winner of a deliberation",
        ref,
        sha,
        _NO_SHA,
        cwd=cwd,
        env=committer,
        owner=owner,
    )
    if not update.status:
        return
    current_sha = (
        (await git.call(git_dir, "rev-parse", "--verify", "--quiet", ref, cwd=cwd))
        .out.decode()
        .strip()
    )
    if not current_sha:
        raise RepositoryError(
            f"cannot make the branch {branch!r} in {str(local.top)!r}: {update.reason}"
        )
    if current_sha != sha:
        raise AlreadyExists(
            f"the branch {branch!r} in {str(local.top)!r} is already another commit, "
            f"{current_sha[:12]}"
        )


async def find_branch_obstacle(git: GitRunner, local: Local, base_sha: str, branch: str) -> str:
    """Return why the branch cannot be created in a local repository, or ''. Git prepares the update
    and aborts it.
    """
    git_dir, cwd, owner = f"--git-dir={local.shared}", local.shared, owner_of(local.shared)
    if (await git.call(git_dir, "cat-file", "-e", f"{base_sha}^{{commit}}", cwd=cwd)).status:
        return ""  # there is no commit to prepare the update with
    commands = f"start\ncreate refs/heads/{check_branch(branch)} {base_sha}\nprepare\nabort\n"
    update = await git.call(
        git_dir, "update-ref", "--stdin", cwd=cwd, stdin=commands.encode(), owner=owner
    )
    return update.reason if update.status else ""


def find_conflicting_branch(refs: Iterable[str], branch: str) -> str:
    """Return why a branch cannot be created beside these refs, or ''."""
    ref = f"refs/heads/{check_branch(branch)}"
    for name in refs:
        if name == ref or ref.startswith(f"{name}/") or name.startswith(f"{ref}/"):
            return f"there is a branch {name.removeprefix('refs/heads/')!r}"
    return ""


async def send_objects(
    git: GitRunner, clone: Path, local: Local, *, base_sha: str, sha: str
) -> None:
    """Write the objects of a commit that a local repository lacks, except for those of `base_sha`
    if it has that commit. Raises `RepositoryError`.
    """
    git_dir, cwd = f"--git-dir={local.shared}", local.shared
    base_lookup = await git.call(git_dir, "cat-file", "-e", f"{base_sha}^{{commit}}", cwd=cwd)
    revisions = f"{sha}\n" if base_lookup.status else f"{sha}\n^{base_sha}\n"
    pack = await git.run(
        "pack-objects", "--quiet", "--revs", "--stdout", cwd=clone, stdin=revisions.encode()
    )
    unpacked = await git.call(
        git_dir, "unpack-objects", "-q", cwd=cwd, stdin=pack, owner=owner_of(local.shared)
    )
    if unpacked.status:
        raise RepositoryError(
            f"cannot write into the repository {str(local.top)!r}: {unpacked.reason}"
        )


async def drop_branch(git: GitRunner, local: Local, branch: str, sha: str, *, force: bool) -> bool:
    """Remove a branch of ours that is at `sha`, and return whether it existed. Work trees do not
    change.

    Raises `RepositoryError` if it is checked out, or if it was moved or is merged nowhere and
    `force` is false.
    """
    git_dir, cwd, ref = (
        f"--git-dir={local.shared}",
        local.shared,
        f"refs/heads/{check_branch(branch)}",
    )
    current_sha = (
        (await git.call(git_dir, "rev-parse", "--verify", "--quiet", ref, cwd=cwd))
        .out.decode()
        .strip()
    )
    if not current_sha:
        return False
    worktrees = await git.run(git_dir, "worktree", "list", "--porcelain", "-z", cwd=cwd)
    if f"branch {ref}".encode() in worktrees.split(b"\0"):
        raise RepositoryError(f"the branch {branch!r} is checked out; check out another one first")
    containing_refs = await git.run(
        git_dir,
        "for-each-ref",
        "--format=%(refname)",
        f"--contains={current_sha}",
        "refs/heads",
        "refs/tags",
        "refs/remotes",
        cwd=cwd,
    )
    if not force and (
        current_sha != sha or set(containing_refs.decode(errors="replace").split()) <= {ref}
    ):
        reason = "is merged nowhere" if current_sha == sha else "has commits of somebody else's"
        raise RepositoryError(
            f"the branch {branch!r} {reason}; merge it, or remove it all the same with --force"
        )
    deletion = await git.call(
        git_dir, "update-ref", "-d", ref, current_sha, cwd=cwd, owner=owner_of(local.shared)
    )
    if deletion.status:
        raise RepositoryError(f"cannot remove the branch {branch!r}: {deletion.reason}")
    return True


async def push(
    git: GitRunner,
    clone: Path,
    url: str,
    *,
    sha: str,
    branch: str,
    env: Mapping[str, str],
    parent: str = "",
) -> None:
    """Push the commit as a new branch, or onto a branch that is at its `parent`. Raises
    `AlreadyExists` if the branch is at another commit.

    If git is killed, read the branch of the remote again and push once more.
    """
    try:
        await _push(git, clone, url, sha=sha, branch=branch, env=env, parent=parent)
    except WorkspaceFailed:
        await _push(git, clone, url, sha=sha, branch=branch, env=env, parent=parent)


async def _push(
    git: GitRunner,
    clone: Path,
    url: str,
    *,
    sha: str,
    branch: str,
    env: Mapping[str, str],
    parent: str,
) -> None:
    ref = f"refs/heads/{check_branch(branch)}"
    current_sha = (await remote_refs(git, clone, url, env)).get(ref, "")
    if current_sha == sha:
        return
    if current_sha and current_sha != parent:
        raise AlreadyExists(
            f"the branch {branch!r} of {url!r} is already another commit, {current_sha[:12]}"
        )
    result = await git.call(
        "push",
        "--quiet",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        f"--force-with-lease={ref}:{current_sha}",
        "--",
        url,
        f"{sha}:{ref}",
        cwd=clone,
        env=env,
    )
    if result.status:
        raise RepositoryError(f"cannot push the branch {branch!r} to {url!r}: {result.reason}")


def owner_of(path: Path) -> tuple[int, int] | None:
    """Return the user and group to write as, so that root creates no files of its own in another
    user's repository.
    """
    status = path.stat()
    return (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid != 0 else None
