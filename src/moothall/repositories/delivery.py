"""Delivery of a commit: as a branch, as a push to a URL, or merged into its branch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from moothall.domain.repository import MergeResult
from moothall.errors import AlreadyExists, InvalidRequest, RepositoryError, WorkspaceFailed
from moothall.repositories import sources
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.sources import Local, remote_refs
from moothall.repositories.worktree import changed_files, read_own_settings

# Delivery of a commit: as a branch in a local repository, or as a push to a URL.


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
            f"cannot create the branch {branch!r} in {str(local.top)!r}: {update.reason}"
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
        reason = "is merged nowhere" if current_sha == sha else "has commits of other authors"
        raise RepositoryError(
            f"the branch {branch!r} {reason}; merge it, or remove it anyway with --force"
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


# Merging an approved commit into its branch, in a local repository or at a URL.
#
# The branch moves only forward, and only from the tip that was read. Uncommitted changes of the
# owner stay untouched.


_SHOWN_PATHS = 5
_CONVERTING_ATTRIBUTES = {"filter": (), "working-tree-encoding": (), "ident": (), "eol": ("lf",)}
"""Attributes by which git writes other bytes than the commit's, and their values that change
nothing here.
"""
_NO_VALUE = ("unspecified", "unset")


async def merge_onto(
    clone: TrustedClone, branch: str, tip: str, sha: str, message: str
) -> MergeResult:
    """Merge `sha` into a branch that is at `tip`, without moving the branch.

    The status is `merged` with the tip; `merged` without a tip if the branch has the commit
    already; `moved` if the tip has commits that `sha` lacks, because only a tested state is merged;
    or `left` with the reason.
    """
    if await _is_in(clone, sha, tip):
        later_merges = await clone.call(
            "rev-list",
            "--ancestry-path",
            "--first-parent",
            "--merges",
            "--reverse",
            f"{sha}..{tip}",
        )
        return MergeResult("merged", branch, (later_merges.out.decode().split() or [sha])[0])
    parent = (await clone.call("rev-parse", "--verify", "--quiet", f"{sha}^1")).out.decode().strip()
    if not parent or not await _is_in(clone, parent, tip):
        return MergeResult(
            "left",
            branch,
            sha,
            tip,
            why=f"it was built on {parent[:12]}, which {branch} does not have",
        )
    if not await _is_in(clone, tip, sha):
        return MergeResult("moved", branch, sha, tip, await clone.diff(parent, sha))
    return MergeResult(
        "merged", branch, (await clone.merge(tip, tip, sha, message)).commit_sha, tip
    )


async def move_local_branch(
    git: GitRunner, clone: TrustedClone, local: Local, merged: MergeResult
) -> str:
    """Move the branch of a local repository to a merge. Return '', or the reason why it was not
    moved.

    If the branch is checked out, update its files too, without filters or hooks. Files with
    uncommitted changes that the merge touches prevent that.
    """
    ref = f"refs/heads/{merged.branch}"
    await send_objects(git, clone.path, local, base_sha=merged.tip, sha=merged.commit_sha)
    git_dir, owner = f"--git-dir={local.shared}", owner_of(local.shared)
    trees = await _find_worktrees(git, local, ref)
    if len(trees) > 1:
        return f"{merged.branch} is checked out in {len(trees)} work trees"
    if trees:
        return await _move_files(git, await sources.find_local(git, trees[0]), ref, merged, owner)
    committer = {"GIT_COMMITTER_NAME": "Moothall", "GIT_COMMITTER_EMAIL": "moothall@localhost"}
    reflog = ("-m", "moothall: an approved story")
    result = await git.call(
        git_dir,
        "update-ref",
        *reflog,
        ref,
        merged.commit_sha,
        merged.tip,
        cwd=local.shared,
        env=committer,
        owner=owner,
    )
    return f"{merged.branch} could not be moved: {result.reason}" if result.status else ""


async def push_merge(
    git: GitRunner, clone: Path, url: str, merged: MergeResult, env: Mapping[str, str]
) -> str:
    """Push a merge to its branch at a URL, from the tip on which it was made. Return '', or the
    reason why it was not moved.
    """
    ref = f"refs/heads/{merged.branch}"
    result = await git.call(
        "push",
        "--quiet",
        "--no-verify",
        "--no-follow-tags",
        "--recurse-submodules=no",
        f"--force-with-lease={ref}:{merged.tip}",
        "--",
        url,
        f"{merged.commit_sha}:{ref}",
        cwd=clone,
        env=env,
    )
    return (
        f"{merged.branch} of {url!r} could not be moved: {result.reason}" if result.status else ""
    )


async def _move_files(
    git: GitRunner, local: Local, ref: str, merged: MergeResult, owner: tuple[int, int] | None
) -> str:
    location = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    output = await git.run(
        *location,
        "diff-tree",
        "-r",
        "-z",
        "--name-only",
        "--no-renames",
        merged.tip,
        merged.commit_sha,
        cwd=local.top,
    )
    paths = tuple(name.decode(errors="surrogateescape") for name in output.split(b"\0") if name)
    if uncommitted := await changed_files(git, local, paths, ignored=True):
        return (
            f"there are uncommitted changes in {_list_some(uncommitted)}: commit or stash them, "
            "then merge it yourself"
        )
    if converted := await _find_converted(git, location, local.top, merged.commit_sha, paths):
        return (
            f"attributes let git write {_list_some(converted)} through a filter or in another "
            "encoding: merge it yourself"
        )
    if (await git.run(*location, "symbolic-ref", "HEAD", cwd=local.top)).decode().strip() != ref:
        return f"{merged.branch} is no longer checked out"
    options = (
        "--ff-only",
        "--quiet",
        "--no-stat",
        "--no-autostash",
        "--no-squash",
        "--no-overwrite-ignore",
    )
    settings = await read_own_settings(git, local)  # so that git writes the owner's line endings
    result = await git.call(
        *location,
        *settings.options,
        "merge",
        *options,
        merged.commit_sha,
        cwd=local.top,
        owner=owner,
    )
    return (
        f"{merged.branch} is checked out, and could not be moved: {result.reason}"
        if result.status
        else ""
    )


async def _find_converted(
    git: GitRunner, location: Sequence[str], top: Path, sha: str, paths: Sequence[str]
) -> list[str]:
    """Return the paths whose attributes in the merge make git write bytes that differ from their
    content.
    """
    output = await git.run(
        *location,
        "check-attr",
        "-z",
        "--stdin",
        *_CONVERTING_ATTRIBUTES,
        cwd=top,
        stdin="\0".join((*paths, "")).encode(errors="surrogateescape"),
        env={"GIT_ATTR_SOURCE": sha},
    )
    fields = output.decode(errors="replace").split("\0")
    rows = zip(fields[::3], fields[1::3], fields[2::3], strict=False)
    return sorted(
        {
            path
            for path, name, value in rows
            if value not in (*_NO_VALUE, *_CONVERTING_ATTRIBUTES[name])
        }
    )


async def _find_worktrees(git: GitRunner, local: Local, ref: str) -> list[Path]:
    """Return the work trees in which a branch is checked out."""
    output = await git.run(
        f"--git-dir={local.shared}", "worktree", "list", "--porcelain", "-z", cwd=local.shared
    )
    records = [record.split(b"\0") for record in output.split(b"\0\0")]
    names = [
        next((line[9:] for line in lines if line.startswith(b"worktree ")), b"")
        for lines in records
        if f"branch {ref}".encode() in lines
    ]
    if not all(names):
        raise RepositoryError(f"git does not say where the work trees of {str(local.top)!r} are")
    return [Path(name.decode(errors="surrogateescape")) for name in names]


async def _is_in(clone: TrustedClone, old: str, new: str) -> bool:
    """Return whether a commit is another one or an ancestor of it."""
    return not (await clone.call("merge-base", "--is-ancestor", old, new)).status


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_PATHS]) + (", …" if len(names) > _SHOWN_PATHS else "")
