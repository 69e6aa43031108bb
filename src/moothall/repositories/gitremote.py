"""Where a workspace's git reaches beyond it, on the trusted side: its repository's origin, and repositories at public URLs.

No credential of ours goes anywhere but to the origin that the operator registered it for, and no branch is ever moved.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from moothall.config import Workspace as Settings
from moothall.errors import InvalidRequest, Refused
from moothall.repositories import sources
from moothall.repositories.clone import Change, TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.scratch import scratch

Pin = Callable[[str], Awaitable[str]]
"""Returns `host:port:address` of a URL that may be called: the address that was judged. Raises `Refused`, `InvalidRequest`."""

_PINS_SINCE = (2, 37)
_VERSION = re.compile(rb"git version (\d+)\.(\d+)")
# Nothing that one program reads as a host and another does not: what was judged must be what git calls.
_PLAIN = re.compile(r"(?i:https?)://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/[A-Za-z0-9._~/+-]+")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Cloned:
    """The files of a commit of another repository, below the folder `name`."""

    name: str
    sha: str
    changes: tuple[Change, ...]


class Remote(Protocol):
    """What the git tools reach beyond the workspace."""

    async def push(self, base_sha: str, sha: str, branch: str) -> tuple[str, str]:
        """Make the new branch `moothall/<branch>` of a commit where the push policy allows; return its name and where it is.

        Raises `Refused` where it allows none, `AlreadyExists` where the branch is another commit, `RepositoryError`.
        """
        ...

    async def fetch(self) -> str:
        """Bring the newest commit of the origin's default branch here. Raises `RepositoryError`."""
        ...

    async def clone(self, url: str, ref: str) -> Cloned:
        """Bring the files of another repository. Raises `Refused`, `InvalidRequest`, `RepositoryError`."""
        ...


async def clone_public(git: GitRunner, settings: Settings, url: str, ref: str, pin: Pin) -> Cloned:
    """Fetch a repository that nobody registered: over https to the address that was judged, without credentials or redirects."""
    sources.check_url(url, settings.allowed_schemes)
    if not url.lower().startswith(("https://", "http://")):
        raise Refused("another repository is cloned over https; over ssh the operator's keys would be shown to any host")
    if not _PLAIN.fullmatch(url):
        raise InvalidRequest(f"{url[:120]!r} is not a plain URL such as https://host.example/team/tools.git")
    env = {
        "GIT_ALLOW_PROTOCOL": url.partition(":")[0].lower(),
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "http.curloptResolve",
        "GIT_CONFIG_VALUE_0": await pin(url),
        "GIT_CONFIG_KEY_1": "http.followRedirects",
        "GIT_CONFIG_VALUE_1": "false",
        "GIT_CONFIG_KEY_2": "http.proxy",
        "GIT_CONFIG_VALUE_2": "",  # a proxy would ask for the name again, and reach what it likes
    }
    with scratch() as folder:
        told = await git.run("version", cwd=folder)
        version = _VERSION.match(told)
        if version is None or (int(version[1]), int(version[2])) < _PINS_SINCE:
            raise Refused("git.clone needs git 2.37 or newer, which keeps to the address that was judged")
        clone = TrustedClone(folder / "clone.git", settings, git)
        await clone.make()
        name, _ = await sources.remote_commit(git, clone.path, url, ref, env)
        sha = await clone.fetch(url, name, protocols=env["GIT_ALLOW_PROTOCOL"], env=env)
        entries = await clone.entries(sha)
        size = sum(entry.size for entry in entries)
        if len(entries) > settings.max_patch_files or size > 4 * settings.max_file_bytes:
            raise Refused(
                f"the repository has {len(entries)} files with {size} bytes; a workspace takes at most "
                f"{settings.max_patch_files} files with {4 * settings.max_file_bytes} bytes"
            )
        files = await clone.contents(sha)
    place = _NAME.sub("-", url.rstrip("/").removesuffix(".git").rpartition("/")[2]).strip(".-")[:60] or "repository"
    return Cloned(place, sha, tuple(Change(f"{place}/{change.path}", change.mode, change.content) for change in files))
