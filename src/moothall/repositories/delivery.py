"""Putting a commit where its owner finds it: a branch in a local repository, or a push to a URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from moothall.errors import AlreadyExists, InvalidRequest, RepositoryError, WorkspaceFailed
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.sources import Local, remote_refs

_BRANCH = re.compile(r"moothall/[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_ABSENT = "0" * 40


def check_branch(branch: str) -> str:
    """Return a branch name of ours; others are never touched. Raises `InvalidRequest`."""
    if not _BRANCH.fullmatch(branch):
        raise InvalidRequest(f"{branch[:80]!r} is not a branch of ours; write moothall/<task id>")
    return branch


async def branch_locally(
    git: GitRunner, clone: Path, local: Local, *, base_sha: str, sha: str, branch: str
) -> None:
    """Make the branch in a local repository. Work tree, index, HEAD and other refs stay as they
    are; no hook runs.

    Objects are handed over as a pack and the ref is written once: nothing there is fetched, merged
    or checked out.
    Raises `AlreadyExists` where the branch is another commit, `RepositoryError` where it can't be
    written.
    """
    owner = owner_of(local.shared)
    at, cwd = f"--git-dir={local.shared}", local.shared
    ref = f"refs/heads/{check_branch(branch)}"
    await hand_objects(git, clone, local, base_sha=base_sha, sha=sha)
    who = {"GIT_COMMITTER_NAME": "Moothall", "GIT_COMMITTER_EMAIL": "moothall@localhost"}
    made = await git.call(
        at,
        "update-ref",
        "-m",
        "moothall: the winner of a deliberation",
        ref,
        sha,
        _ABSENT,
        cwd=cwd,
        env=who,
        owner=owner,
    )
    if not made.status:
        return
    there = (
        (await git.call(at, "rev-parse", "--verify", "--quiet", ref, cwd=cwd)).out.decode().strip()
    )
    if not there:
        raise RepositoryError(
            f"cannot make the branch {branch!r} in {str(local.top)!r}: {made.reason}"
        )
    if there != sha:
        raise AlreadyExists(
            f"the branch {branch!r} in {str(local.top)!r} is already another commit, {there[:12]}"
        )


async def why_no_branch(git: GitRunner, local: Local, base_sha: str, branch: str) -> str:
    """Return why the branch cannot be created in a local repository, or ''. Git prepares the update
    and aborts it.
    """
    at, cwd, owner = f"--git-dir={local.shared}", local.shared, owner_of(local.shared)
    if (await git.call(at, "cat-file", "-e", f"{base_sha}^{{commit}}", cwd=cwd)).status:
        return ""  # there is no commit to try it with
    orders = f"start\ncreate refs/heads/{check_branch(branch)} {base_sha}\nprepare\nabort\n"
    tried = await git.call(at, "update-ref", "--stdin", cwd=cwd, stdin=orders.encode(), owner=owner)
    return tried.reason if tried.status else ""


def branch_in_the_way(refs: Iterable[str], branch: str) -> str:
    """Return why a branch cannot be created beside these refs, or ''."""
    ref = f"refs/heads/{check_branch(branch)}"
    for name in refs:
        if name == ref or ref.startswith(f"{name}/") or name.startswith(f"{ref}/"):
            return f"there is a branch {name.removeprefix('refs/heads/')!r}"
    return ""


async def hand_objects(
    git: GitRunner, clone: Path, local: Local, *, base_sha: str, sha: str
) -> None:
    """Write the objects of a commit that a local repository lacks, as far as those of `base_sha`
    tell. Raises `RepositoryError`.
    """
    at, cwd = f"--git-dir={local.shared}", local.shared
    known = await git.call(at, "cat-file", "-e", f"{base_sha}^{{commit}}", cwd=cwd)
    wanted = f"{sha}\n" if known.status else f"{sha}\n^{base_sha}\n"
    pack = await git.run(
        "pack-objects", "--quiet", "--revs", "--stdout", cwd=clone, stdin=wanted.encode()
    )
    unpacked = await git.call(
        at, "unpack-objects", "-q", cwd=cwd, stdin=pack, owner=owner_of(local.shared)
    )
    if unpacked.status:
        raise RepositoryError(
            f"cannot write into the repository {str(local.top)!r}: {unpacked.reason}"
        )


async def drop_branch(git: GitRunner, local: Local, branch: str, sha: str, *, force: bool) -> bool:
    """Remove a branch of ours that is still at `sha`; whether there was one. Work trees stay as
    they are.

    Raises `RepositoryError` where it is checked out, has been moved on, or is merged nowhere and
    not `force`.
    """
    at, cwd, ref = f"--git-dir={local.shared}", local.shared, f"refs/heads/{check_branch(branch)}"
    there = (
        (await git.call(at, "rev-parse", "--verify", "--quiet", ref, cwd=cwd)).out.decode().strip()
    )
    if not there:
        return False
    trees = await git.run(at, "worktree", "list", "--porcelain", "-z", cwd=cwd)
    if f"branch {ref}".encode() in trees.split(b"\0"):
        raise RepositoryError(f"the branch {branch!r} is checked out; check out another one first")
    holding = await git.run(
        at,
        "for-each-ref",
        "--format=%(refname)",
        f"--contains={there}",
        "refs/heads",
        "refs/tags",
        "refs/remotes",
        cwd=cwd,
    )
    if not force and (there != sha or set(holding.decode(errors="replace").split()) <= {ref}):
        why = "is merged nowhere" if there == sha else "has commits of somebody else's"
        raise RepositoryError(
            f"the branch {branch!r} {why}; merge it, or remove it all the same with --force"
        )
    gone = await git.call(at, "update-ref", "-d", ref, there, cwd=cwd, owner=owner_of(local.shared))
    if gone.status:
        raise RepositoryError(f"cannot remove the branch {branch!r}: {gone.reason}")
    return True


async def push(
    git: GitRunner,
    clone: Path,
    url: str,
    *,
    sha: str,
    branch: str,
    env: Mapping[str, str],
    after: str = "",
) -> None:
    """Push the commit as a new branch, or move the branch on that is at its parent `after`. Raises
    `AlreadyExists` where it is another commit.

    Where git is killed, the remote is asked how far it came, and the push is made once more.
    """
    try:
        await _push(git, clone, url, sha=sha, branch=branch, env=env, after=after)
    except WorkspaceFailed:
        await _push(git, clone, url, sha=sha, branch=branch, env=env, after=after)


async def _push(
    git: GitRunner,
    clone: Path,
    url: str,
    *,
    sha: str,
    branch: str,
    env: Mapping[str, str],
    after: str,
) -> None:
    ref = f"refs/heads/{check_branch(branch)}"
    there = (await remote_refs(git, clone, url, env)).get(ref, "")
    if there == sha:
        return
    if there and there != after:
        raise AlreadyExists(
            f"the branch {branch!r} of {url!r} is already another commit, {there[:12]}"
        )
    answer = await git.call(
        "push",
        "--quiet",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        f"--force-with-lease={ref}:{there}",
        "--",
        url,
        f"{sha}:{ref}",
        cwd=clone,
        env=env,
    )
    if answer.status:
        raise RepositoryError(f"cannot push the branch {branch!r} to {url!r}: {answer.reason}")


def owner_of(path: Path) -> tuple[int, int] | None:
    """Return whom to write as: root leaves no files of its own in another user's repository."""
    found = path.stat()
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 and found.st_uid != 0 else None
