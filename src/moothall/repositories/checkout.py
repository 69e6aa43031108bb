"""The shared checkout of a commit: its files, those of its submodules, and the content of its LFS
files.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.domain.repository import Base
from moothall.repositories.clone import TrustedClone
from moothall.repositories.patch_rules import invalid_path_reason
from moothall.sandbox.spawn import sandbox_uid, set_owner

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
    await _write(clone, base.sha, dest, report_progress)
    if odd := [entry for entry in await clone.entries(base.sha) if entry.oddity]:
        report_progress(
            f"{len(odd)} files have names that a patch cannot hold, such as {odd[0].path[:100]!r} "
            f"({odd[0].oddity}); they stay as they are"
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


async def _write(clone: TrustedClone, sha: str, dest: Path, report_progress: Progress) -> None:
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
                f"checking out the submodule {path} at {commit[:12]}; changes there are no part of "
                "an answer"
            )
            await _write(clone, commit, folder, report_progress)
            await _check_out_submodules(clone, commit, folder, report_progress, depth - 1)
        else:
            report_progress(f"the submodule {path} is not here; going on without it")
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
        path.name == ".gitattributes" and b"filter=lfs" in _read(path, 100_000) for path, _ in files
    ):
        return
    for path, size in files:
        if size < _POINTER_BYTES and (match := _POINTER.match(_read(path, _POINTER_BYTES))):
            yield path, match[1].decode(), int(match[2])


def _files(dest: Path) -> Iterator[tuple[Path, int]]:
    for folder, _, names in os.walk(dest):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                yield path, path.stat().st_size


def _read(path: Path, limit: int) -> bytes:
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
