"""The submodules of a commit: brought into the trusted clone, each at the commit that is
recorded.
"""

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

_DEEPEST = 3
_REASON = 200


@dataclass(frozen=True, slots=True)
class Submodule:
    """One: `path` from the root, the commit that is recorded, and why it is not here ('' where it
    is).
    """

    path: str
    sha: str
    missing: str = ""


class Submodules:
    """Brings the submodules of commits of one repository.

    What a repository names elsewhere than at its own registered host is called as nobody, where
    `pin` lets it.
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
        """Bring those of a commit that can be had, and return a line for each that cannot.
        `modules` is where a local repository keeps its own ('.git/modules').
        """
        found = [one async for one in self._of(sha, "", modules, self._entry.origin, _DEEPEST)]
        return tuple(
            f"the submodule {one.path} is left out: {one.missing}" for one in found if one.missing
        )

    async def _of(
        self, sha: str, above: str, modules: Path | None, origin: str, depth: int
    ) -> AsyncIterator[Submodule]:
        named = await _names(self._clone, sha)
        links = {
            path: commit
            for path, commit in (await self._clone.submodules(sha)).items()
            if not invalid_path_reason(path)
        }
        for number, (path, commit) in enumerate(links.items()):
            whole = f"{above}{path}"
            if number >= self._settings.max_submodules or not depth:
                yield Submodule(
                    whole,
                    commit,
                    "there are too many (workspace.max_submodules), or they lie too deep in each "
                    "other",
                )
                continue
            name, url = named.get(path, ("", ""))
            here = await asyncio.to_thread(_inside, modules, name)
            try:
                where = await self._bring(commit, url, origin, here)
            except MoothallError as error:
                yield Submodule(whole, commit, " ".join(error.message.split())[:_REASON])
                continue
            yield Submodule(whole, commit)
            async for one in self._of(
                commit, f"{whole}/", here and here / "modules", where, depth - 1
            ):
                yield one

    async def _bring(self, commit: str, url: str, origin: str, here: Path | None) -> str:
        """Fetch a commit, from the user's own copy where there is one. Returns its URL."""
        whole = absolute_url(url, origin)
        if await self._clone.has(commit):
            return whole
        if here is not None:
            await self._clone.fetch(str(here), commit)
            return whole
        if not sources.is_url(whole):
            raise Refused(
                f"its URL {whole[:100]!r} names no repository to fetch; run `git submodule update "
                "--init` in yours first"
            )
        checked = sources.check_url(whole, self._settings.allowed_schemes)
        if self._entry.listed and _host(checked) == _host(self._entry.origin):
            env = registered_transport(self._entry, self._settings.allowed_schemes, self._secrets)
            await self._clone.fetch(checked, commit, protocols=env["GIT_ALLOW_PROTOCOL"], env=env)
            return checked
        env = await anonymous_transport(self._git, self._clone.path, checked, self._pin)
        with hide_reason(checked):
            await self._clone.fetch(checked, commit, protocols=env["GIT_ALLOW_PROTOCOL"], env=env)
        return checked


async def _names(clone: TrustedClone, sha: str) -> dict[str, tuple[str, str]]:
    """Return what a commit's .gitmodules says: path → (name, URL)."""
    pattern = r"^submodule\..*\.(path|url)$"
    answer = await clone.call(
        "config", "--null", f"--blob={sha}:.gitmodules", "--get-regexp", pattern
    )
    said: dict[str, dict[str, str]] = {}
    for pair in answer.out.decode(errors="replace").split("\0") if not answer.status else ():
        key, _, value = pair.partition("\n")
        name, _, what = key.removeprefix("submodule.").rpartition(".")
        said.setdefault(name, {})[what] = value
    return {one["path"]: (name, one.get("url", "")) for name, one in said.items() if "path" in one}


def _inside(modules: Path | None, name: str) -> Path | None:
    """Return the folder of a submodule's own repository below `modules`, None where there is
    none.
    """
    if modules is None or not name or "\0" in name:
        return None
    folder = (modules / name).resolve()
    return (
        folder if folder.is_relative_to(modules.resolve()) and (folder / "HEAD").is_file() else None
    )


def _host(url: str) -> str:
    return urlsplit(url).netloc if "://" in url else url.partition(":")[0]


def absolute_url(url: str, origin: str) -> str:
    """Return a submodule's URL, which may be relative to that of the repository that it stands
    in.
    """
    if not url.startswith(("./", "../")):
        return url
    base = origin.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            at = max(base.rfind("/"), base.rfind(":"))
            base = base[:at] if at > 0 else base
        url = url.partition("/")[2]
    return f"{base}/{url}"
