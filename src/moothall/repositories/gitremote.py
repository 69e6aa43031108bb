"""Access of a workspace's git to the origin of its repository and to public repositories, on the
trusted side.

A credential is sent only to the origin for which the operator registered it, and no branch is
moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from moothall.config import WorkspaceSettings as Settings
from moothall.errors import Refused
from moothall.processes import scratch
from moothall.repositories import sources
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change, TreeEntry
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.patch_rules import (
    MAX_CHANGE_BYTES,
    MAX_PATCH_FILES,
    invalid_target_reason,
)
from moothall.repositories.registry import Pin, anonymous_transport, hide_reason

_SHA = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Cloned:
    """The files of a commit of another repository, in the folder `name`."""

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
    remote_call: Callable[[], AbstractContextManager[None]] = nullcontext,
    tags: bool = True,
) -> str:
    """Fetch the commit that `ref` (empty: HEAD) names at a URL into an existing clone, and return
    its sha. Each call to the remote runs inside a `remote_call` context. Raises `RepositoryError`.
    """
    name = sha = ref
    if not _SHA.fullmatch(ref):
        with remote_call():
            refs = await sources.remote_refs(git, clone.path, url, env)
        name, sha = sources.remote_commit(refs, url, ref)
    if not await clone.has(sha):
        with remote_call():
            return await clone.fetch(
                url, name, protocols=env["GIT_ALLOW_PROTOCOL"], env=env, tags=tags
            )
    return sha


async def clone_public(git: GitRunner, settings: Settings, url: str, ref: str, pin: Pin) -> Cloned:
    """Fetch the files of a repository that is not registered. See `anonymous_transport`."""
    sources.check_url(url, settings.allowed_schemes)
    with scratch() as folder:
        env = await anonymous_transport(git, folder, url, pin)
        clone = TrustedClone(folder / "clone.git", settings, git)
        await clone.create()
        sha = await fetch_commit(
            git, clone, url, ref, env, remote_call=lambda: hide_reason(url), tags=False
        )
        entries = [
            entry for entry in await clone.entries(sha) if not (entry.oddity or _leaves_tree(entry))
        ]
        size = sum(entry.size for entry in entries)
        if len(entries) > MAX_PATCH_FILES or size > MAX_CHANGE_BYTES:
            raise Refused(
                f"the repository has {len(entries)} files with {size} bytes; a workspace takes at "
                f"most {MAX_PATCH_FILES} files with {MAX_CHANGE_BYTES} bytes"
            )
        paths = {entry.path for entry in entries}
        # Entries with odd names and links out of the tree cannot be part of a patch.
        files = [file for file in await clone.contents(sha) if file.path in paths]
    folder_name = (
        _NAME.sub("-", url.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip(".-")[:60]
        or "repository"
    )
    return Cloned(
        folder_name,
        sha,
        tuple(
            Change(f"{folder_name}/{change.path}", change.mode, change.content) for change in files
        ),
    )


def _leaves_tree(entry: TreeEntry) -> bool:
    return entry.target is not None and invalid_target_reason(entry.path, entry.target) != ""
