"""Commits on their way from one clone to another as git bundles: thin by what the other side has,
taken for just what was asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from moothall.config import WorkspaceSettings as Settings
from moothall.errors import NotFound, RepositoryError, Temporary
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import FetchTooLarge, GitRunner, OutputCaps, over_limit

_SHA = re.compile(r"[0-9a-f]{40}")
_HAVES, _DEEPEST = 64, 3
_BASES, _PATCHES = "refs/moothall/bases/", "refs/moothall/patches/"


async def with_submodules(
    clone: TrustedClone, shas: Iterable[str], depth: int = _DEEPEST
) -> list[str]:
    """Return commits, and those of their submodules that are here too."""
    found: list[str] = []
    for sha in dict.fromkeys(shas):
        below = [
            each
            for each in (await clone.submodules(sha)).values()
            if depth and await clone.has(each)
        ]
        found += [sha, *await with_submodules(clone, below, depth - 1)]
    return list(dict.fromkeys(found))


async def newest(clone: TrustedClone) -> list[str]:
    """Return the commits by which another side may make a bundle thin; none where there is no clone
    yet.
    """
    if not (clone.path / "HEAD").exists():
        return []
    listed = await clone.ask(
        "for-each-ref", "--sort=-creatordate", f"--count={_HAVES}", "--format=%(objectname)", _BASES
    )
    return listed.out.decode().split()


def shallow_of(clone: TrustedClone) -> tuple[str, ...]:
    """Return the commits at which the history of a clone ends though they have parents."""
    try:
        return tuple(
            line
            for line in (clone.path / "shallow").read_text(encoding="ascii").split()
            if _SHA.fullmatch(line)
        )
    except FileNotFoundError:
        return ()


async def make_bundle(
    git: GitRunner,
    clone: TrustedClone,
    settings: Settings,
    file: Path,
    *,
    wants: Sequence[str],
    haves: Iterable[str],
) -> int:
    """Write what leads to `wants` and not to `haves`, with the tags of its history; return how many
    bytes, 0 where nothing is missing.

    Raises `NotFound` for what is not here, `RepositoryError`.
    """
    listed = (
        (await clone.ask("for-each-ref", "--format=%(objectname) %(refname)", _BASES, _PATCHES))
        .out.decode()
        .split()
    )
    named = dict(zip(listed[::2], listed[1::2], strict=True))
    if gone := [sha for sha in wants if sha not in named]:
        raise NotFound(f"the commit {gone[0][:40]} is not here")
    known = [sha for sha in haves if sha in named]
    if set(wants) <= set(known):
        return 0
    tags = (
        (
            await clone.ask(
                "for-each-ref", "--format=%(refname)", f"--merged={wants[0]}", "refs/tags"
            )
        )
        .out.decode()
        .split("\n")
    )
    asked = [*(named[sha] for sha in wants), *filter(None, tags), *(f"^{sha}" for sha in known)]
    answer = await git.call(
        "bundle",
        "create",
        "--quiet",
        "--version=2",
        str(file),
        "--stdin",
        cwd=clone.path,
        stdin="".join(f"{line}\n" for line in asked).encode(),
        seconds=settings.setup_seconds,
        caps=OutputCaps(file_bytes=settings.max_repository_bytes),
    )
    if "empty bundle" in answer.err:
        return 0
    if answer.status and over_limit(answer.err):
        raise FetchTooLarge(
            f"a bundle may have at most {settings.max_repository_bytes} bytes "
            "(workspace.max_repository_bytes)"
        )
    if answer.status:
        raise RepositoryError(f"the commit {wants[0][:12]} cannot be bundled: {answer.reason}")
    return (await asyncio.to_thread(file.stat)).st_size


async def take_bundle(
    git: GitRunner,
    clone: TrustedClone,
    settings: Settings,
    file: Path | None,
    *,
    wants: Sequence[str],
    shallow: Iterable[str] = (),
    tags: bool = True,
) -> None:
    """Bring `wants` from a bundle, or by what is here already, and its `tags`. Raises `Temporary`
    where one of them did not come whole.
    """
    await clone.make()
    if wrong := [sha for sha in (*wants, *shallow) if not _SHA.fullmatch(sha)]:
        raise RepositoryError(f"{wrong[0][:80]!r} is not a full commit id")
    haves = await newest(clone)
    if file is not None:
        await asyncio.to_thread(_end_at, clone.path / "shallow", set(shallow))
        heads = await git.run("bundle", "list-heads", str(file), cwd=clone.path)
        pairs = [line.split(" ", 1) for line in heads.decode(errors="replace").splitlines()]
        # A name of ours says which commit it is; what is called otherwise than it is, is not taken.
        there = {
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
            *(f"+{name}:{_BASES}{sha}" for sha, name in there.items()),
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
    """Name a commit that is whole here, as part of the history of another."""
    missing = await clone.ask("rev-list", "--max-count=1", sha, "--not", *haves)
    if missing.status or missing.out.strip() or not haves:
        raise Temporary(f"the commit {sha[:12]} did not come")
    await clone.ask("update-ref", f"{_BASES}{sha}", sha)


def _end_at(file: Path, shallow: set[str]) -> None:
    """Add to the commits at which a history ends."""
    known = set(file.read_text(encoding="ascii").split()) if file.exists() else set()
    if shallow - known:
        fresh = file.with_suffix(".new")
        fresh.write_text("".join(f"{sha}\n" for sha in sorted(shallow | known)), encoding="ascii")
        fresh.replace(file)
