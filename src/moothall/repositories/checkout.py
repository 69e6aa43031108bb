"""The shared checkout of a commit: its files, those of its submodules, and the content of its
LFS files. A `.git` for set-up only: the commit and its nearest tag, for builds that derive
their version from tags. The submodules of a commit: fetched into the trusted clone, each at
its recorded commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from moothall.config import WorkspaceSections
from moothall.config import WorkspaceSettings as Settings
from moothall.domain.repository import Base
from moothall.errors import MoothallError, Refused, RepositoryError
from moothall.repositories import sources
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.patch_rules import invalid_path_reason
from moothall.repositories.profile import read_text
from moothall.repositories.registry import (
    Pin,
    Registered,
    anonymous_transport,
    hide_reason,
    registered_transport,
)
from moothall.sandbox.spawn import sandbox_uid, set_owner

# A `.git` for set-up only: the commit and its nearest tag, for builds that derive their version
# from tags.
#
# It has no hooks, no remotes and no configuration of the source. Checks and agents never see it.


_MAX_TAG_DISTANCE = 5000
_DESCRIPTION = re.compile(r"(.+)-(\d+)-g[0-9a-f]+")
_VERSION = re.compile(r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.])")
_CHANGE_LOGS = re.compile(
    r"(?:CHANGE|CHANGES|CHANGELOG|HISTORY|NEWS|RELEASE)[\w-]*(?:\.(?:md|rst|txt))?", re.IGNORECASE
)
_CHANGE_LOG_BYTES = 20_000
_DEFAULT_VERSION = "0.1.0"
# The checkout follows the attributes of the repository except these.
_ATTRIBUTES = "* -filter -ident\n"


async def write_history(
    git: GitRunner, clone: TrustedClone, sha: str, folder: Path, tree: Path
) -> str:
    """Write `folder`/.git for a commit whose files are in `tree`. Return the version that was
    assumed because no tag gives one, '' if a tag does.
    """
    description = await clone.call("describe", "--tags", "--long", "--match=*[0-9]*", sha)
    match = (
        _DESCRIPTION.fullmatch(description.out.decode(errors="replace").strip())
        if not description.status
        else None
    )
    tag, distance = (
        (match[1], int(match[2])) if match and int(match[2]) <= _MAX_TAG_DISTANCE else ("", 0)
    )
    await git.run(
        "init", "--quiet", "--template=", "--initial-branch=main", "--", str(folder), cwd=folder
    )
    fetched = await git.call(
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-recurse-submodules",
        "--update-head-ok",
        f"--depth={distance + 1}",
        "--",
        f"file://{clone.path.resolve()}",
        f"{sha}:refs/heads/main",
        *((f"refs/tags/{tag}:refs/tags/{tag}",) if tag else ()),
        cwd=folder,
        env={"GIT_ALLOW_PROTOCOL": "file"},
    )
    if fetched.status:
        raise RepositoryError(f"the history for set-up cannot be written: {fetched.reason}")
    await git.run("read-tree", "HEAD", cwd=folder)
    git_dir = folder / ".git"
    await asyncio.to_thread(_reset_git_dir, git_dir)
    if tag:
        return ""
    version = await asyncio.to_thread(_version, tree)
    await asyncio.to_thread((git_dir / "refs/tags").mkdir, parents=True, exist_ok=True)
    await asyncio.to_thread(
        (git_dir / "refs/tags" / f"v{version}").write_text, f"{sha}\n", encoding="ascii"
    )
    return version


def _reset_git_dir(git_dir: Path) -> None:
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info/attributes").write_text(_ATTRIBUTES, encoding="ascii")
    (git_dir / "FETCH_HEAD").unlink(missing_ok=True)


def _version(tree: Path) -> str:
    """Return the version of a release without a tag: from its own metadata, or the first one in its
    change log.
    """
    metadata = read_text(tree / "PKG-INFO", _CHANGE_LOG_BYTES) or ""
    if match := re.search(r"^Version: (\d[\w.]*)$", metadata, re.MULTILINE):
        return match[1]
    for name in sorted(os.listdir(tree)):  # noqa: PTH208 - only names are needed
        if _CHANGE_LOGS.fullmatch(name):
            text = read_text(tree / name, _CHANGE_LOG_BYTES) or ""
            if match := _VERSION.search(text):
                return match[1]
    return _DEFAULT_VERSION


# The submodules of a commit: fetched into the trusted clone, each at its recorded commit.


_MAX_DEPTH = 3
_MAX_SUBMODULES = 20  # of one repository
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
            if number >= _MAX_SUBMODULES or not depth:
                yield Submodule(
                    full_path,
                    commit,
                    f"there are more than {_MAX_SUBMODULES}, or they are nested too deeply",
                )
                continue
            name, url = config.get(path, ("", ""))
            own_copy = await asyncio.to_thread(_submodule_folder, modules, name)
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
        checked_url = sources.check_url(full_url, self._settings.allowed_schemes)
        if self._entry.listed and _host(checked_url) == _host(self._entry.origin):
            env = registered_transport(self._entry, self._settings.allowed_schemes, self._secrets)
            await self._clone.fetch(
                checked_url, commit, protocols=env["GIT_ALLOW_PROTOCOL"], env=env
            )
            return checked_url
        env = await anonymous_transport(self._git, self._clone.path, checked_url, self._pin)
        with hide_reason(checked_url):
            await self._clone.fetch(
                checked_url, commit, protocols=env["GIT_ALLOW_PROTOCOL"], env=env
            )
        return checked_url


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


def _submodule_folder(modules: Path | None, name: str) -> Path | None:
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


# The shared checkout of a commit: its files, those of its submodules, and the content of its LFS
# files.


_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*oid sha256:([0-9a-f]{64})\nsize "
    rb"(\d{1,15})\n"
)
_POINTER_BYTES = 1024
_MAX_SUBMODULE_DEPTH = 3
Progress = Callable[[str], None]


async def check_out(
    clone: TrustedClone,
    base: Base,
    dest: Path,
    settings: WorkspaceSections,
    report_progress: Progress,
) -> None:
    """Write the files of `base` to `dest` and give them to the uid of the sandbox. Missing parts
    are reported and left out.
    """
    await _write_tree(clone, base.sha, dest, report_progress)
    if bad_entries := [
        entry for entry in await clone.entries(base.sha) if entry.unpatchable_reason
    ]:
        report_progress(
            f"{len(bad_entries)} files have names that a patch cannot hold, such as "
            f"{bad_entries[0].path[:100]!r} ({bad_entries[0].unpatchable_reason}); they stay as "
            "they are"
        )
    await _check_out_submodules(clone, base.sha, dest, report_progress, _MAX_SUBMODULE_DEPTH)
    pointers = await asyncio.to_thread(lambda: list(_pointers(dest)))
    if pointers:
        missing = await asyncio.to_thread(
            _smudge, pointers, _stores(base.origin), settings.workspace.max_repository_bytes
        )
        if missing:
            report_progress(
                f"{missing} of {len(pointers)} LFS files are pointers only: their content is not "
                f"in {base.origin} (git lfs pull)"
            )
    await asyncio.to_thread(change_owner, dest, sandbox_uid())


async def _write_tree(clone: TrustedClone, sha: str, dest: Path, report_progress: Progress) -> None:
    if missing := await clone.checkout(sha, dest):
        report_progress(
            f"{missing} files are left out of the checkout: their names or link targets are too "
            "long for a file system"
        )


async def _check_out_submodules(
    clone: TrustedClone, sha: str, dest: Path, report_progress: Progress, depth: int
) -> None:
    for path, commit in (await clone.submodules(sha)).items() if depth else ():
        folder = dest / path
        if invalid_path_reason(path) or not _is_free(dest, folder):
            continue
        if await clone.has(commit):
            report_progress(
                f"checking out the submodule {path} at {commit[:12]}; changes there are not part "
                "of an answer"
            )
            await _write_tree(clone, commit, folder, report_progress)
            await _check_out_submodules(clone, commit, folder, report_progress, depth - 1)
        else:
            report_progress(f"the submodule {path} is missing; continuing without it")
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)


def _is_free(dest: Path, folder: Path) -> bool:
    """Return whether a folder below `dest` is empty or absent and not reached over a symlink."""
    is_plain = folder.resolve() == dest.resolve() / folder.relative_to(dest)
    return is_plain and not (folder.is_dir() and any(folder.iterdir()))


def _pointers(dest: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield (path, sha-256, size in bytes) of each LFS pointer, if a .gitattributes uses the LFS
    filter.
    """
    files = list(_files(dest))
    if not any(
        path.name == ".gitattributes" and b"filter=lfs" in _read_start(path, 100_000)
        for path, _ in files
    ):
        return
    for path, size in files:
        if size < _POINTER_BYTES and (match := _POINTER.match(_read_start(path, _POINTER_BYTES))):
            yield path, match[1].decode(), int(match[2])


def _files(dest: Path) -> Iterator[tuple[Path, int]]:
    for folder, _, names in os.walk(dest):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                yield path, path.stat().st_size


def _read_start(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        return file.read(limit)


def _stores(origin: str) -> tuple[Path, ...]:
    """Return the folders in which a local repository stores the content of its LFS files."""
    return (
        (Path(origin, ".git/lfs/objects"), Path(origin, "lfs/objects"))
        if origin.startswith("/")
        else ()
    )


def _smudge(
    pointers: Iterable[tuple[Path, str, int]], stores: tuple[Path, ...], free_bytes: int
) -> int:
    """Replace pointers by their content if it is in a store and has the right checksum. Return the
    number of pointers that are left.
    """
    missing = 0
    for path, oid, size in pointers:
        free_bytes -= size
        missing += free_bytes < 0 or not any(
            _copy(store / oid[:2] / oid[2:4] / oid, path, oid, size) for store in stores
        )
    return missing


def _copy(source: Path, path: Path, oid: str, size: int) -> bool:
    temporary = path.with_name(f".{oid[:16]}.lfs")
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file, temporary.open("xb") as copy:
            if os.fstat(file.fileno()).st_size == size:
                shutil.copyfileobj(file, copy)
        with temporary.open("rb") as file:
            is_complete = hashlib.file_digest(file, "sha256").hexdigest() == oid
        if is_complete:
            temporary.chmod(path.stat().st_mode & 0o777)
            temporary.replace(path)
    except OSError:
        is_complete = False
    temporary.unlink(missing_ok=True)
    return is_complete


def change_owner(path: Path, uid: int | None) -> None:
    """Give a tree that we have just written to a uid, without following links."""
    if uid is None:
        return
    set_owner(path, uid)
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            set_owner(Path(folder, name), uid)
