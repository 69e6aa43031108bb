"""Git bundles that carry commits from one clone to another. A bundle omits what the other side has,
and only the requested commits are fetched from it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from moothall.config import WorkspaceSettings as Settings
from moothall.errors import NotFound, RepositoryError, Temporary
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner, OutputCaps, exceeds_file_limit

_SHA = re.compile(r"[0-9a-f]{40}")
_MAX_HAVES, _MAX_SUBMODULE_DEPTH = 64, 3
_BASES, _PATCHES = "refs/moothall/bases/", "refs/moothall/patches/"


async def include_submodules(
    clone: TrustedClone, shas: Iterable[str], depth: int = _MAX_SUBMODULE_DEPTH
) -> list[str]:
    """Return commits and those commits of their submodules that the clone has."""
    commits: list[str] = []
    for sha in dict.fromkeys(shas):
        submodules = [
            commit
            for commit in (await clone.submodules(sha)).values()
            if depth and await clone.has(commit)
        ]
        commits += [sha, *await include_submodules(clone, submodules, depth - 1)]
    return list(dict.fromkeys(commits))


async def newest_commits(clone: TrustedClone) -> list[str]:
    """Return the newest base commits, which a bundle for this clone may omit; none if there is no
    clone yet.
    """
    if not (clone.path / "HEAD").exists():
        return []
    listed = await clone.call(
        "for-each-ref",
        "--sort=-creatordate",
        f"--count={_MAX_HAVES}",
        "--format=%(objectname)",
        _BASES,
    )
    return listed.out.decode().split()


def shallow_commits(clone: TrustedClone) -> tuple[str, ...]:
    """Return the commits at which the history of a shallow clone ends."""
    try:
        return tuple(
            line
            for line in (clone.path / "shallow").read_text(encoding="ascii").split()
            if _SHA.fullmatch(line)
        )
    except FileNotFoundError:
        return ()


async def write_bundle(
    git: GitRunner,
    clone: TrustedClone,
    settings: Settings,
    file: Path,
    *,
    wants: Sequence[str],
    haves: Iterable[str],
) -> int:
    """Write a bundle of the history of `wants` without that of `haves`, with its tags. Return its
    size in bytes, 0 if nothing is missing.

    Raises `NotFound` for commits that the clone lacks, and `RepositoryError`.
    """
    ref_fields = (
        (await clone.call("for-each-ref", "--format=%(objectname) %(refname)", _BASES, _PATCHES))
        .out.decode()
        .split()
    )
    refs_by_sha = dict(zip(ref_fields[::2], ref_fields[1::2], strict=True))
    if missing := [sha for sha in wants if sha not in refs_by_sha]:
        raise NotFound(f"the commit {missing[0][:40]} is not here")
    excluded = [sha for sha in haves if sha in refs_by_sha]
    if set(wants) <= set(excluded):
        return 0
    tags = await clone.call(
        "for-each-ref", "--format=%(refname)", f"--merged={wants[0]}", "refs/tags"
    )
    tag_names = tags.out.decode().split("\n")
    revisions = [
        *(refs_by_sha[sha] for sha in wants),
        *filter(None, tag_names),
        *(f"^{sha}" for sha in excluded),
    ]
    result = await git.call(
        "bundle",
        "create",
        "--quiet",
        "--version=2",
        str(file),
        "--stdin",
        cwd=clone.path,
        stdin="".join(f"{line}\n" for line in revisions).encode(),
        seconds=settings.setup_seconds,
        caps=OutputCaps(file_bytes=settings.max_repository_bytes),
    )
    if "empty bundle" in result.err:
        return 0
    if result.status and exceeds_file_limit(result.err):
        raise FetchTooLarge(
            f"a bundle may have at most {settings.max_repository_bytes} bytes "
            "(workspace.max_repository_bytes)"
        )
    if result.status:
        raise RepositoryError(f"the commit {wants[0][:12]} cannot be bundled: {result.reason}")
    return (await asyncio.to_thread(file.stat)).st_size


async def fetch_bundle(
    git: GitRunner,
    clone: TrustedClone,
    settings: Settings,
    file: Path | None,
    *,
    wants: Sequence[str],
    shallow: Iterable[str] = (),
    tags: bool = True,
) -> None:
    """Fetch `wants` and tags from a bundle; without a file, from what the clone has already. Raises
    `Temporary` if a commit is incomplete.
    """
    await clone.create()
    if invalid := [sha for sha in (*wants, *shallow) if not _SHA.fullmatch(sha)]:
        raise RepositoryError(f"{invalid[0][:80]!r} is not a full commit id")
    haves = await newest_commits(clone)
    if file is not None:
        await asyncio.to_thread(_add_shallow, clone.path / "shallow", set(shallow))
        heads = await git.run("bundle", "list-heads", str(file), cwd=clone.path)
        pairs = [line.split(" ", 1) for line in heads.decode(errors="replace").splitlines()]
        # Each ref of ours is named by its commit; refs whose name and commit differ are ignored.
        offered_refs = {
            sha: name
            for sha, name in pairs
            if sha in wants and name in {_BASES + sha, _PATCHES + sha}
        }
        fetched = await git.call(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--update-shallow",
            "--",
            str(file),
            *(f"+{name}:{_BASES}{sha}" for sha, name in offered_refs.items()),
            *(["+refs/tags/*:refs/tags/*"] if tags else []),
            cwd=clone.path,
            env={"GIT_ALLOW_PROTOCOL": "file"},
            seconds=settings.setup_seconds,
            caps=OutputCaps(file_bytes=settings.max_repository_bytes),
        )
        if fetched.status:
            raise Temporary(f"a bundle of {wants[0][:12]} could not be taken: {fetched.reason}")
    for sha in wants:
        if not await clone.has(sha):
            await _adopt(clone, sha, haves)


async def _adopt(clone: TrustedClone, sha: str, haves: Sequence[str]) -> None:
    """Create the ref of a commit whose whole history the clone has."""
    missing = await clone.call("rev-list", "--max-count=1", sha, "--not", *haves)
    if missing.status or missing.out.strip() or not haves:
        raise Temporary(f"the commit {sha[:12]} did not come")
    await clone.call("update-ref", f"{_BASES}{sha}", sha)


def _add_shallow(file: Path, shallow: set[str]) -> None:
    """Add commits to those at which the history ends."""
    recorded = set(file.read_text(encoding="ascii").split()) if file.exists() else set()
    if shallow - recorded:
        new_file = file.with_suffix(".new")
        new_file.write_text(
            "".join(f"{sha}\n" for sha in sorted(shallow | recorded)), encoding="ascii"
        )
        new_file.replace(file)
