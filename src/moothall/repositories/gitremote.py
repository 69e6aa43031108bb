"""Where a workspace's git reaches beyond it, on the trusted side: its repository's origin, and
repositories at public URLs.

No credential of ours goes anywhere but to the origin that the operator registered it for, and no
branch is ever moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from moothall.config import WorkspaceSettings as Settings
from moothall.errors import Refused
from moothall.repositories import sources
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.objects import Change, TreeEntry
from moothall.repositories.patch_rules import why_target
from moothall.repositories.scratch import scratch
from moothall.repositories.transport import Pin, hide_reason, stranger_transport

_SHA = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Cloned:
    """The files of a commit of another repository, below the folder `name`."""

    name: str
    sha: str
    changes: tuple[Change, ...]


async def fetch_commit(
    git: GitRunner,
    clone: TrustedClone,
    url: str,
    ref: str,
    env: Mapping[str, str],
    *,
    talking: Callable[[], AbstractContextManager[None]] = nullcontext,
    tags: bool = True,
) -> str:
    """Bring the commit that `ref` (empty: HEAD) means at a URL into a clone that is there; return
    its sha. Inside `talking` the other side has the word. Raises `RepositoryError`.
    """
    name = sha = ref
    if not _SHA.fullmatch(ref):
        with talking():
            refs = await sources.remote_refs(git, clone.path, url, env)
        name, sha = sources.remote_commit(refs, url, ref)
    if not await clone.has(sha):
        with talking():
            return await clone.fetch(
                url, name, protocols=env["GIT_ALLOW_PROTOCOL"], env=env, tags=tags
            )
    return sha


async def clone_public(git: GitRunner, settings: Settings, url: str, ref: str, pin: Pin) -> Cloned:
    """Fetch a repository that nobody registered. See `stranger_transport`."""
    sources.check_url(url, settings.allowed_schemes)
    with scratch() as folder:
        env = await stranger_transport(git, folder, url, pin)
        clone = TrustedClone(folder / "clone.git", settings, git)
        await clone.make()
        sha = await fetch_commit(
            git, clone, url, ref, env, talking=lambda: hide_reason(url), tags=False
        )
        entries = [
            entry for entry in await clone.entries(sha) if not (entry.oddity or _leads_out(entry))
        ]
        size = sum(entry.size for entry in entries)
        if len(entries) > settings.max_patch_files or size > 4 * settings.max_file_bytes:
            raise Refused(
                f"the repository has {len(entries)} files with {size} bytes; a workspace takes at "
                f"most {settings.max_patch_files} files with {4 * settings.max_file_bytes} bytes"
            )
        paths = {entry.path for entry in entries}
        # A patch cannot hold the others.
        files = [file for file in await clone.contents(sha) if file.path in paths]
    place = (
        _NAME.sub("-", url.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip(".-")[:60]
        or "repository"
    )
    return Cloned(
        place,
        sha,
        tuple(Change(f"{place}/{change.path}", change.mode, change.content) for change in files),
    )


def _leads_out(entry: TreeEntry) -> bool:
    return entry.target is not None and why_target(entry.path, entry.target) != ""
