"""The submodules of a commit: fetched into the trusted clone, each at its recorded commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from moothall.config import WorkspaceSettings as Settings
from moothall.errors import MoothallError, Refused
from moothall.repositories import sources
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.patch_rules import invalid_path_reason
from moothall.repositories.registry import Registered
from moothall.repositories.transport import (
    Pin,
    anonymous_transport,
    hide_reason,
    registered_transport,
)

_MAX_DEPTH = 3
_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule: its path from the root, its recorded commit, and why it is missing ('' if it is
    not).
    """

    path: str
    sha: str
    missing: str = ""


class Submodules:
    """A fetcher of the submodules of a repository's commits.

    URLs on the host of a registered repository are fetched with its credential, others anonymously
    if `pin` allows them.
    """

    def __init__(
        self,
        git: GitRunner,
        clone: TrustedClone,
        entry: Registered,
        settings: Settings,
        *,
        secrets: Mapping[str, str],
        pin: Pin,
    ) -> None:
        self._git = git
        self._clone = clone
        self._entry = entry
        self._settings = settings
        self._secrets = secrets
        self._pin = pin

    async def fetch(self, sha: str, modules: Path | None) -> tuple[str, ...]:
        """Fetch the submodules of a commit, and return a message for each that is left out.

        `modules` is the folder with a local repository's own copies ('.git/modules').
        """
        submodules = [
            submodule
            async for submodule in self._fetch_all(sha, "", modules, self._entry.origin, _MAX_DEPTH)
        ]
        return tuple(
            f"the submodule {submodule.path} is left out: {submodule.missing}"
            for submodule in submodules
            if submodule.missing
        )

    async def _fetch_all(
        self, sha: str, prefix: str, modules: Path | None, origin: str, depth: int
    ) -> AsyncIterator[Submodule]:
        config = await _names(self._clone, sha)
        commits = {
            path: commit
            for path, commit in (await self._clone.submodules(sha)).items()
            if not invalid_path_reason(path)
        }
        for number, (path, commit) in enumerate(commits.items()):
            full_path = f"{prefix}{path}"
            if number >= self._settings.max_submodules or not depth:
                yield Submodule(
                    full_path,
                    commit,
                    "there are too many (workspace.max_submodules), or they lie too deep in each "
                    "other",
                )
                continue
            name, url = config.get(path, ("", ""))
            own_copy = await asyncio.to_thread(_inside, modules, name)
            try:
                resolved_url = await self._fetch_one(commit, url, origin, own_copy)
            except MoothallError as error:
                yield Submodule(full_path, commit, " ".join(error.message.split())[:_REASON_CHARS])
                continue
            yield Submodule(full_path, commit)
            async for submodule in self._fetch_all(
                commit, f"{full_path}/", own_copy and own_copy / "modules", resolved_url, depth - 1
            ):
                yield submodule

    async def _fetch_one(self, commit: str, url: str, origin: str, own_copy: Path | None) -> str:
        """Fetch a commit, preferably from the user's own copy, and return its URL."""
        full_url = absolute_url(url, origin)
        if await self._clone.has(commit):
            return full_url
        if own_copy is not None:
            await self._clone.fetch(str(own_copy), commit)
            return full_url
        if not sources.is_url(full_url):
            raise Refused(
                f"its URL {full_url[:100]!r} names no repository to fetch; run `git submodule "
                "update --init` in yours first"
            )
        checked = sources.check_url(full_url, self._settings.allowed_schemes)
        if self._entry.listed and _host(checked) == _host(self._entry.origin):
            env = registered_transport(self._entry, self._settings.allowed_schemes, self._secrets)
            await self._clone.fetch(checked, commit, protocols=env["GIT_ALLOW_PROTOCOL"], env=env)
            return checked
        env = await anonymous_transport(self._git, self._clone.path, checked, self._pin)
        with hide_reason(checked):
            await self._clone.fetch(checked, commit, protocols=env["GIT_ALLOW_PROTOCOL"], env=env)
        return checked


async def _names(clone: TrustedClone, sha: str) -> dict[str, tuple[str, str]]:
    """Read a commit's .gitmodules: path → (name, URL)."""
    pattern = r"^submodule\..*\.(path|url)$"
    result = await clone.call(
        "config", "--null", f"--blob={sha}:.gitmodules", "--get-regexp", pattern
    )
    pairs = result.out.decode(errors="replace").split("\0") if not result.status else []
    sections: dict[str, dict[str, str]] = {}
    for pair in pairs:
        key, _, value = pair.partition("\n")
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        sections.setdefault(name, {})[field] = value
    return {
        section["path"]: (name, section.get("url", ""))
        for name, section in sections.items()
        if "path" in section
    }


def _inside(modules: Path | None, name: str) -> Path | None:
    """Return the folder of a submodule's own repository below `modules`, or None."""
    if modules is None or not name or "\0" in name:
        return None
    folder = (modules / name).resolve()
    return (
        folder if folder.is_relative_to(modules.resolve()) and (folder / "HEAD").is_file() else None
    )


def _host(url: str) -> str:
    return urlsplit(url).netloc if "://" in url else url.partition(":")[0]


def absolute_url(url: str, origin: str) -> str:
    """Return the URL of a submodule, which may be relative to that of its parent repository."""
    if not url.startswith(("./", "../")):
        return url
    base = origin.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            separator = max(base.rfind("/"), base.rfind(":"))
            base = base[:separator] if separator > 0 else base
        url = url.partition("/")[2]
    return f"{base}/{url}"
