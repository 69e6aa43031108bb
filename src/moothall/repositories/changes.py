"""What changed in a workspace: read from the upper folder of its overlay, by the trusted side.

The folder is hostile data. Nothing of it is followed or run: names by directory descriptor, symlinks
as text, no file opened that is not a regular one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moothall.errors import PatchRefused
from moothall.repositories import patch_rules
from moothall.repositories.objects import Change

# Never part of a change, so never read: a build may leave gigabytes of them.
_LEFT_OUT = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "node_modules", ".venv"})
_GIT = ".git"  # what a git inside keeps for itself; no commit can hold a path with such a name
_OPAQUE = "user.overlay.opaque"
_MAX_DEPTH = 100
_DEEPEST = 2 * _MAX_DEPTH  # what a build may need meanwhile
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class ChangeCaps:
    """Bounds on what is read: one file, all changed files together, entries of the upper folder."""

    file_bytes: int
    total_bytes: int
    entries: int = 200_000


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    status: os.stat_result
    folder: int  # descriptor of the folder that it lies in, valid until the walk goes on
    opaque: bool = False


def _walk(root: int, base_folders: frozenset[str], caps: ChangeCaps) -> Iterator[_Found]:
    """Yield everything beneath `root`, a folder before what is in it; leftovers that the base has not are left out.

    Closes `root`. One descriptor a level is open, however many folders lie side by side.
    """
    open_levels = [_Level("", root)]
    seen = 0
    try:
        while open_levels:
            level = open_levels[-1]
            if not level.names:
                os.close(open_levels.pop().folder)
                continue
            name = level.names.pop()
            below = f"{level.path}/{name}" if level.path else name
            if name == _GIT:
                continue
            seen += 1
            if seen > caps.entries:
                raise PatchRefused(f"more than {caps.entries} files were written; delete what is not part of the change")
            status = os.stat(name, dir_fd=level.folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                yield _Found(below, status, level.folder)
                continue
            if below.count("/") >= _MAX_DEPTH:
                raise PatchRefused(f"folders deeper than {_MAX_DEPTH} below {below[:200]!r}")
            if name in _LEFT_OUT and below not in base_folders:
                continue
            inner = _open_folder(name, level.folder)
            yield _Found(below, status, level.folder, opaque=_is_opaque(inner))
            open_levels.append(_Level(below, inner))
    finally:
        for level in open_levels:
            os.close(level.folder)


class _Level:
    """A folder that is being walked, by descriptor, and its names that are still to come, the last one first."""

    __slots__ = ("folder", "names", "path")

    def __init__(self, path: str, folder: int) -> None:
        self.path, self.folder = path, folder
        self.names = sorted(os.listdir(folder), reverse=True)


def _open_folder(name: str, folder: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)  # its owner took the rights away; it is ours
        return os.open(name, flags, dir_fd=folder)


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False


def measure(upper: Path, bytes_limit: int, entries_limit: int) -> tuple[int, int]:
    """Return (bytes on disk, entries) beneath `upper`; stops counting behind a limit, and where folders lie too deep to count.

    By descriptors: a path may be longer than any that can be named, and what can't be looked at must not count as nothing.
    """
    size = entries = 0
    try:
        open_levels = [_Level("", os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]
    except OSError:
        return 0, 0  # just being removed
    try:
        while open_levels:
            level = open_levels[-1]
            if not level.names:
                os.close(open_levels.pop().folder)
                continue
            name = level.names.pop()
            entries += 1
            try:
                status = os.stat(name, dir_fd=level.folder, follow_symlinks=False)
                size += status.st_blocks * _BLOCK
                if stat.S_ISDIR(status.st_mode):
                    open_levels.append(_Level("", _open_folder(name, level.folder)))
            except OSError:
                continue  # gone meanwhile
            if len(open_levels) > _DEEPEST:
                return size, entries_limit + 1
            if size > bytes_limit or entries > entries_limit:
                break
    finally:
        for level in open_levels:
            os.close(level.folder)
    return size, entries


def _read(found: _Found, caps: ChangeCaps) -> bytes:
    name = found.path.rpartition("/")[2]
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=found.folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=found.folder, follow_symlinks=False)
        descriptor = os.open(name, flags, dir_fd=found.folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PatchRefused(f"{found.path!r} is not a regular file")
        return file.read(caps.file_bytes + 1)


def same(base: Path, change: Change) -> bool:
    """Whether the base's checkout has the very same file: it was only touched. No symlink of the
    base is followed.
    """
    before, content = base / change.path, change.content
    if content is None:
        return False
    try:
        if before.parent.resolve() != base.resolve() / Path(change.path).parent:
            return False
        status = os.lstat(before)
        if change.mode == patch_rules.SYMLINK:
            return stat.S_ISLNK(status.st_mode) and os.fsencode(os.readlink(before)) == content  # noqa: PTH115 - a Path drops "./"
        if not stat.S_ISREG(status.st_mode) or status.st_size != len(content) or _mode(status) != change.mode:
            return False
        return before.read_bytes() == content
    except OSError:
        return False


def _mode(status: os.stat_result) -> str:
    return patch_rules.EXECUTABLE if status.st_mode & 0o100 else patch_rules.FILE


def collect(upper: Path, base: Path, base_files: Sequence[str], caps: ChangeCaps) -> list[Change]:
    """Return what differs from the checkout `base`. Raises `PatchRefused` for what no patch can hold."""
    there: dict[str, Change] = {}
    untouched: set[str] = set()
    hiding: set[str] = set()
    total = 0
    for found in _walk(os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), _folders(base_files), caps):
        kind = found.status.st_mode
        if stat.S_ISDIR(kind):
            if found.opaque:
                hiding.add(found.path)
            continue
        hiding.add(found.path)  # where the base has a folder of this name, it is gone
        if stat.S_ISCHR(kind) and found.status.st_rdev == 0:
            continue  # overlayfs's mark of a deletion
        change = _change(found, caps)
        if same(base, change):
            untouched.add(found.path)
            continue
        there[found.path] = change
        total = _add_size(total, change, caps)
    gone = [
        Change(path, patch_rules.FILE, None)
        for path in base_files
        if path not in there and path not in untouched and any(above in hiding for above in _ancestors(path))
    ]
    return sorted([*gone, *there.values()], key=lambda change: change.path)


Stamp = tuple[int, ...]
"""What of a file's status differs once somebody wrote to it; only the kernel sets the last of it."""


def stamp(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns


def stamps(tree: Path) -> dict[str, Stamp]:
    """Return the stamp of each file beneath a tree that nobody else has seen yet."""
    found = {}
    for folder, folders, names, descriptor in os.fwalk(tree):
        for name in (*folders, *names):  # a link to a folder is among the folders
            path = os.path.relpath(os.path.join(folder, name), tree)  # noqa: PTH118 - names that are no text come back as they were
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                found[path] = stamp(status)
    return found


def collect_tree(tree: Path, before: Mapping[str, Stamp], base_files: Sequence[str], caps: ChangeCaps) -> list[Change]:
    """Return what was written in a whole tree since `before`, and which files of the base are gone. Some of it may be `same` as it was.

    Raises `PatchRefused` for what no patch can hold.
    """
    written: list[Change] = []
    there: set[str] = set()
    total = 0
    caps = replace(caps, entries=caps.entries + len(before))
    for found in _walk(os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), _folders(base_files), caps):
        if stat.S_ISDIR(found.status.st_mode):
            continue
        there.add(found.path)
        if before.get(found.path) != stamp(found.status):
            written.append(_change(found, caps))
            total = _add_size(total, written[-1], caps)
    gone = [Change(path, patch_rules.FILE, None) for path in base_files if path in before and path not in there]
    return sorted([*gone, *written], key=lambda change: change.path)


def _change(found: _Found, caps: ChangeCaps) -> Change:
    """Read what lies there now."""
    kind = found.status.st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
        raise PatchRefused(f"{found.path!r} is a socket, pipe or device; a patch holds files and symlinks")
    if stat.S_ISLNK(kind):
        content = os.fsencode(os.readlink(found.path.rpartition("/")[2], dir_fd=found.folder))
        return Change(found.path, patch_rules.SYMLINK, content)
    return Change(found.path, _mode(found.status), _read(found, caps))


def _add_size(total: int, change: Change, caps: ChangeCaps) -> int:
    total += len(change.content or b"")
    if total > caps.total_bytes:
        raise PatchRefused(f"changed files hold more than {caps.total_bytes} bytes; delete what is not part of the change")
    return total


def _folders(base_files: Sequence[str]) -> frozenset[str]:
    return frozenset(above for path in base_files for above in _ancestors(path.rpartition("/")[0]))


def _ancestors(path: str) -> Iterator[str]:
    """Yield the path and the folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
