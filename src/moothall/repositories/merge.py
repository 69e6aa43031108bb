"""Merging an approved commit into its branch, in a local repository or at a URL.

The branch moves only forward, and only from the tip that was read. Uncommitted changes of the owner
stay untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from moothall.domain.repository import MergeResult
from moothall.errors import RepositoryError
from moothall.repositories import sources
from moothall.repositories.apply_diff import changed_files
from moothall.repositories.clone import TrustedClone
from moothall.repositories.delivery import owner_of, send_objects
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.sources import Local
from moothall.repositories.worktree import read_own_settings

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
    listed = await git.run(
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
    paths = tuple(name.decode(errors="surrogateescape") for name in listed.split(b"\0") if name)
    if uncommitted := await changed_files(git, local, paths, ignored=True):
        return (
            f"there are changes of your own in {_list_some(uncommitted)}: commit or stash them, "
            "then merge it yourself"
        )
    if converted := await _find_converted(git, location, local.top, merged.commit_sha, paths):
        return (
            f"attributes say that git writes {_list_some(converted)} by a filter or in another "
            "encoding: merge it yourself"
        )
    if (await git.run(*location, "symbolic-ref", "HEAD", cwd=local.top)).decode().strip() != ref:
        return f"{merged.branch} was just left for another branch"
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
