"""Merging an approved commit into the branch that it is for: in a local repository, without
touching what its owner has not committed, or at a URL. The branch moves only from the tip that was
looked at, and only forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from moothall.domain.repository import MergeResult
from moothall.errors import RepositoryError
from moothall.repositories import sources
from moothall.repositories.apply_diff import changed_files
from moothall.repositories.clone import TrustedClone
from moothall.repositories.delivery import hand_objects, owner_of
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.sources import Local
from moothall.repositories.worktree import read_own_settings

_SHOWN = 5
_CONVERTED = {"filter": (), "working-tree-encoding": (), "ident": (), "eol": ("lf",)}
"""Attributes by which git writes other bytes than the commit's, and the values that change nothing
here.
"""
_PLAIN = ("unspecified", "unset")


async def merge_onto(
    clone: TrustedClone, branch: str, tip: str, sha: str, message: str
) -> MergeResult:
    """Return the merge of `sha` into a branch that is at `tip`, as `merged` with that tip though
    nothing has been moved yet, without a tip where the branch has it already; or why there is none.

    Only what was checked is merged: `sha` has to have all that the tip has.
    """
    if await _is_in(clone, sha, tip):
        onward = await clone.ask(
            "rev-list",
            "--ancestry-path",
            "--first-parent",
            "--merges",
            "--reverse",
            f"{sha}..{tip}",
        )
        return MergeResult("merged", branch, (onward.out.decode().split() or [sha])[0])
    begin = (await clone.ask("rev-parse", "--verify", "--quiet", f"{sha}^1")).out.decode().strip()
    if not begin or not await _is_in(clone, begin, tip):
        return MergeResult(
            "left",
            branch,
            sha,
            tip,
            why=f"it was built on {begin[:12]}, which {branch} does not have",
        )
    if not await _is_in(clone, tip, sha):
        return MergeResult("moved", branch, sha, tip, await clone.diff(begin, sha))
    return MergeResult(
        "merged", branch, (await clone.merge(tip, tip, sha, message)).commit_sha, tip
    )


async def move_local(git: GitRunner, clone: TrustedClone, local: Local, merged: MergeResult) -> str:
    """Move the branch of a local repository to a merge; return '', or why it stays. Where it is
    checked out, its files move along: unless any that the merge changes has changes of its owner's,
    and by no filter or hook.
    """
    ref = f"refs/heads/{merged.branch}"
    await hand_objects(git, clone.path, local, base_sha=merged.tip, sha=merged.commit_sha)
    at, owner = f"--git-dir={local.shared}", owner_of(local.shared)
    trees = await _trees(git, local, ref)
    if len(trees) > 1:
        return f"{merged.branch} is checked out in {len(trees)} work trees"
    if trees:
        return await _move_files(git, await sources.find_local(git, trees[0]), ref, merged, owner)
    who = {"GIT_COMMITTER_NAME": "Moothall", "GIT_COMMITTER_EMAIL": "moothall@localhost"}
    said = ("-m", "moothall: an approved story")
    moved = await git.call(
        at,
        "update-ref",
        *said,
        ref,
        merged.commit_sha,
        merged.tip,
        cwd=local.shared,
        env=who,
        owner=owner,
    )
    return f"{merged.branch} could not be moved: {moved.reason}" if moved.status else ""


async def push_merge(
    git: GitRunner, clone: Path, url: str, merged: MergeResult, env: Mapping[str, str]
) -> str:
    """Push a merge to its branch at a URL, from the tip that it was made on; return '', or why it
    stays.
    """
    ref = f"refs/heads/{merged.branch}"
    answer = await git.call(
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
        f"{merged.branch} of {url!r} could not be moved: {answer.reason}" if answer.status else ""
    )


async def _move_files(
    git: GitRunner, local: Local, ref: str, merged: MergeResult, owner: tuple[int, int] | None
) -> str:
    where = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    listed = await git.run(
        *where,
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
    if own := await changed_files(git, local, paths, ignored=True):
        return (
            f"there are changes of your own in {_some(own)}: commit or stash them, then merge it "
            "yourself"
        )
    if converted := await _find_converted(git, where, local.top, merged.commit_sha, paths):
        return (
            f"attributes say that git writes {_some(converted)} by a filter or in another "
            "encoding: merge it yourself"
        )
    if (await git.run(*where, "symbolic-ref", "HEAD", cwd=local.top)).decode().strip() != ref:
        return f"{merged.branch} was just left for another branch"
    how = (
        "--ff-only",
        "--quiet",
        "--no-stat",
        "--no-autostash",
        "--no-squash",
        "--no-overwrite-ignore",
    )
    settings = await read_own_settings(git, local)  # so that git writes the owner's line ends
    moved = await git.call(
        *where, *settings.options, "merge", *how, merged.commit_sha, cwd=local.top, owner=owner
    )
    return (
        f"{merged.branch} is checked out, and could not be moved: {moved.reason}"
        if moved.status
        else ""
    )


async def _find_converted(
    git: GitRunner, where: Sequence[str], top: Path, sha: str, paths: Sequence[str]
) -> list[str]:
    """Return the paths whose attributes, as the merge has them, make git write something else than
    their content.
    """
    told = await git.run(
        *where,
        "check-attr",
        "-z",
        "--stdin",
        *_CONVERTED,
        cwd=top,
        stdin="\0".join((*paths, "")).encode(errors="surrogateescape"),
        env={"GIT_ATTR_SOURCE": sha},
    )
    words = told.decode(errors="replace").split("\0")
    rows = zip(words[::3], words[1::3], words[2::3], strict=False)
    return sorted({path for path, name, value in rows if value not in (*_PLAIN, *_CONVERTED[name])})


async def _trees(git: GitRunner, local: Local, ref: str) -> list[Path]:
    """Return the work trees in which a branch is checked out."""
    told = await git.run(
        f"--git-dir={local.shared}", "worktree", "list", "--porcelain", "-z", cwd=local.shared
    )
    records = [record.split(b"\0") for record in told.split(b"\0\0")]
    names = [
        next((line[9:] for line in lines if line.startswith(b"worktree ")), b"")
        for lines in records
        if f"branch {ref}".encode() in lines
    ]
    if not all(names):
        raise RepositoryError(f"git does not say where the work trees of {str(local.top)!r} are")
    return [Path(name.decode(errors="surrogateescape")) for name in names]


async def _is_in(clone: TrustedClone, old: str, new: str) -> bool:
    """Whether a commit is an ancestor of another, or that itself."""
    return not (await clone.ask("merge-base", "--is-ancestor", old, new)).status


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
