"""What changed in a workspace: read from the upper folder of its overlay, by the trusted side.

The folder is hostile data. Nothing of it is followed or run: names by directory descriptor,
symlinks
as text, no file opened that is not a regular one. Names are listed first; git says which new ones
.gitignore files ignore; only the rest is read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from moothall.errors import PatchRefused
from moothall.repositories import patch_rules
from moothall.repositories.objects import LIST_BYTES, Change

_GIT = ".git"  # what a git inside keeps for itself; no commit can hold a path with such a name
_GITIGNORE = ".gitignore"
_OPAQUE = "user.overlay.opaque"
_MAX_DEPTH = 100
_DEEPEST = 2 * _MAX_DEPTH  # what a build may need meanwhile
_BLOCK = 512
_AHEAD = 1_000
"""Names that are listed in new folders before git was asked whether it ignores these folders."""
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class ChangeCaps:
    """Bounds on what is read: one file, all changed files together, entries of the upper folder."""

    file_bytes: int
    total_bytes: int
    entries: int = 200_000


@dataclass(frozen=True, slots=True)
class NewPaths:
    """Paths that the base does not have: the question which of them are ignored. `lists` are the
    .gitignore files that differ from the base's, None for one that is gone.
    """

    folders: Sequence[str]
    files: Sequence[str]
    lists: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the change, and what .gitignore files keep out of it: path → rule. The path
    of a folder that was not looked into ends with a slash.
    """

    changes: Sequence[Change]
    ignored: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    status: os.stat_result
    folder: int  # descriptor of the folder that it lies in, valid until the next one is found


AskIgnored = Callable[[NewPaths], Awaitable[Mapping[str, str]]]
"""Returns which of these paths are ignored: path → rule."""

Stamp = tuple[int, ...]
"""What of a file's status differs once somebody wrote to it; only the kernel sets the last of it.
"""


class ChangeScan:
    """A look at what was written: `upper` of an overlay over the checkout `base`, or, with the
    stamps of all files `before`, a whole tree.

    Call `look` and `leave_out` until there is no question left, then `read`. They block; what they
    refuse raises `PatchRefused`.
    """

    def __init__(
        self,
        upper: Path,
        base_files: Sequence[str],
        caps: ChangeCaps,
        *,
        base: Path | None = None,
        before: Mapping[str, Stamp] | None = None,
    ) -> None:
        self._root = upper
        self._base = base
        self._files = frozenset(base_files)
        self._folders = _folders(base_files)
        self._caps = caps
        self._before = before
        self._ignored: dict[str, str] = {}
        self._known: deque[str] = deque(
            [""]
        )  # folders that are no question any more, still to be listed
        self._unsure: deque[str] = (
            deque()
        )  # new folders that git was not asked about, still to be listed
        self._new: dict[
            str, bool
        ] = {}  # new paths that git was not asked about: whether it is a folder
        self._written: set[str] = set()  # all but folders
        self._seen: set[str] = set()  # files of the base that are there, in a whole tree
        self._hiding: set[str] = set()  # what hides files of the base at or below it, in an overlay
        self._lists: dict[str, bytes | None] = {}
        self._deep: list[str] = []  # folders that are too deep to be listed
        self._set_up = _folders(before or ())  # folders that were there before, of the base or not

    def look(self) -> NewPaths | None:
        """List names; return the new ones that git must be asked about, None if there are none."""
        while self._known:
            self._list(self._known.popleft())
        ahead: int | None = _AHEAD
        while self._unsure and ahead is not None:
            ahead = self._list(self._unsure[0], ahead)
            if ahead is not None:
                self._unsure.popleft()
        files = [path for path, is_folder in self._new.items() if not is_folder]
        if not (files or self._unsure or self._deep):
            self._check()
            return None
        gone = {
            path: None
            for path in self._files
            if path.rpartition("/")[2] == _GITIGNORE and self._is_gone(path)
        }
        return NewPaths(
            [path for path, is_folder in self._new.items() if is_folder],
            files,
            {**gone, **self._lists},
        )

    def leave_out(self, rules: Mapping[str, str]) -> None:
        """Take the answer to a question: the ignored paths, with the rule of each."""
        ignored: dict[str, str] = {}
        for path, is_folder in self._new.items():  # a folder comes before what is in it
            if rule := rules.get(path) or ignored.get(path.rpartition("/")[0]):
                ignored[path] = rule
                self._written.discard(path)
                if not is_folder:
                    self._ignored[path] = rule
        self._ignored |= {
            f"{folder}/": ignored[folder] for folder in self._unsure if folder in ignored
        }
        self._known.extend(folder for folder in self._unsure if folder not in ignored)
        self._deep = [folder for folder in self._deep if folder not in ignored]
        self._unsure.clear()
        self._new.clear()
        self._check()

    def read(self) -> Written:
        """Return what was written and is not ignored, and which files of the base are gone.

        In a whole tree some of it may be the `same` as it was.
        """
        self._check_sizes()
        changes: list[Change] = []
        touched: set[str] = set()
        sizes: dict[str, int] = {}
        total = 0
        for found in self._each():
            if self._before is None and _marks_deletion(found.status):
                continue
            change = self._change(found)
            if self._base is not None and same(self._base, change):
                touched.add(found.path)
                continue
            changes.append(change)
            sizes[found.path] = size = len(change.content or b"")
            total += size
            if size > self._caps.file_bytes or total > self._caps.total_bytes:
                self._refuse({**sizes, found.path: found.status.st_size})
        made = touched | sizes.keys()
        gone = [
            Change(path, patch_rules.FILE, None)
            for path in self._files
            if path not in made and self._is_gone(path)
        ]
        return Written(sorted([*gone, *changes], key=lambda change: change.path), self._ignored)

    def _list(self, folder: str, most: int | None = None) -> int | None:
        """Note what lies in a folder, with what `most` leaves of new names; None, and nothing is
        noted, where there are more.
        """
        try:
            descriptor = _open_below(self._root, folder)
        except OSError as error:
            if error.errno in _GONE:
                return most
            raise
        try:
            return self._note(folder, descriptor, most)
        finally:
            os.close(descriptor)

    def _note(self, folder: str, descriptor: int, most: int | None) -> int | None:
        inner: dict[str, bool] = {}
        written: dict[str, bool] = {}
        count = 0
        with os.scandir(descriptor) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                in_base = path in (self._folders if is_folder else self._files)
                if entry.name == _GIT or (not in_base and patch_rules.is_left_out(entry.name)):
                    continue
                if is_folder:
                    inner[path] = in_base
                elif self._is_written(path, entry):
                    written[path] = in_base or self._is_deletion(entry)
                else:
                    continue
                count += not (inner if is_folder else written)[path] and path not in self._set_up
                if most is not None and count > most:
                    return None
        self._new |= {path: True for path, known in inner.items() if not known}
        self._new |= {path: False for path, known in written.items() if not known}
        self._written.update(written)
        self._lists |= {
            path: _read_list(descriptor)
            for path in written
            if path.rpartition("/")[2] == _GITIGNORE
        }
        if self._before is None:
            self._hiding.update(written, [folder] if _is_opaque(descriptor) else [])
            self._hiding.update(path for path in inner if path in self._files)
        for path, known in inner.items():
            if path.count("/") >= _MAX_DEPTH:
                self._deep.append(path)
            else:
                (self._known if known else self._unsure).append(path)
        return None if most is None else most - count

    def _is_written(self, path: str, entry: os.DirEntry[str]) -> bool:
        if self._before is None:
            return True
        if path in self._files:
            self._seen.add(path)
        try:
            return self._before.get(path) != stamp(_status(entry))
        except FileNotFoundError:
            return False  # gone meanwhile

    def _is_deletion(self, entry: os.DirEntry[str]) -> bool:
        usual = entry.is_file(follow_symlinks=False) or entry.is_symlink()
        return not usual and self._before is None and _marks_deletion(_status(entry))

    def _is_gone(self, path: str) -> bool:
        """Whether a file of the base is not there any more, if nothing of its name was written."""
        if self._before is not None:
            return path in self._before and path not in self._seen
        return any(above in self._hiding for above in _ancestors(path))

    def _each(self) -> Iterator[_Found]:
        """Yield what was written, with the descriptor of its folder."""
        folder, descriptor = None, -1
        try:
            for path in sorted(self._written, key=lambda path: path.rpartition("/")):
                above, _, name = path.rpartition("/")
                try:
                    if above != folder:
                        if descriptor >= 0:
                            os.close(descriptor)
                        folder, descriptor = above, -1
                        descriptor = _open_below(self._root, above)
                    if descriptor >= 0:
                        yield _Found(
                            path,
                            os.stat(name, dir_fd=descriptor, follow_symlinks=False),
                            descriptor,
                        )
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _change(self, found: _Found) -> Change:
        """Read what lies there now."""
        kind = found.status.st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise PatchRefused(
                f"{found.path[:200]!r} is a socket, pipe or device; a patch holds files and "
                "symlinks. Delete it, or name it in .gitignore."
            )
        if stat.S_ISLNK(kind):
            content = os.fsencode(os.readlink(found.path.rpartition("/")[2], dir_fd=found.folder))
            return Change(found.path, patch_rules.SYMLINK, content)
        most, size = self._caps.file_bytes, found.status.st_size
        if (
            self._base is not None
            and found.path in self._files
            and size > most
            and _size(self._base / found.path) == size
        ):
            most = size  # a large file of the base that was only touched
        return Change(found.path, _mode(found.status), _read(found, most))

    def _check(self) -> None:
        """Refuse what is more than may be listed."""
        if self._deep:
            raise PatchRefused(
                f"folders are deeper than {_MAX_DEPTH} below {self._deep[0][:200]!r}. "
                f"{patch_rules.ADVICE}"
            )
        if len(self._written) > self._caps.entries:
            holders = patch_rules.most_of(dict.fromkeys(self._written, 1), self._folders)
            shown = ", ".join(f"{path} ({count} files)" for path, count in holders)
            raise PatchRefused(
                f"more than {self._caps.entries} files were written: {shown}. {patch_rules.ADVICE}"
            )

    def _check_sizes(self) -> None:
        """Refuse new files that are too large, before any is read."""
        new = [
            found
            for found in self._each()
            if found.path not in self._files and stat.S_ISREG(found.status.st_mode)
        ]
        sizes = {found.path: found.status.st_size for found in new}
        if (
            sum(sizes.values()) > self._caps.total_bytes
            or max(sizes.values(), default=0) > self._caps.file_bytes
        ):
            self._refuse(sizes)

    def _refuse(self, sizes: Mapping[str, int]) -> NoReturn:
        caps = self._caps
        if sum(sizes.values()) > caps.total_bytes:
            limit = (
                f"the changed files hold more than {caps.total_bytes} bytes (4 times "
                "workspace.max_file_bytes); most is in"
            )
        else:
            limit = f"a file may hold {caps.file_bytes} bytes (workspace.max_file_bytes); larger is"
            sizes = {path: size for path, size in sizes.items() if size > caps.file_bytes}
        largest = ", ".join(
            f"{path} ({size} bytes)" for path, size in patch_rules.most_of(sizes, self._folders)
        )
        raise PatchRefused(f"{limit} {largest}. {patch_rules.ADVICE}")


class _Level:
    """A folder that is being walked, by descriptor, and its names that are still to come, the last
    one first.
    """

    __slots__ = ("folder", "names", "path")

    def __init__(self, path: str, folder: int) -> None:
        self.path, self.folder = path, folder
        self.names = sorted(os.listdir(folder), reverse=True)


def _open_folder(name: str, folder: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(
            name, 0o700, dir_fd=folder, follow_symlinks=False
        )  # its owner took the rights away; it is ours
        return os.open(name, flags, dir_fd=folder)


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError:
        return False


def measure(upper: Path, bytes_limit: int, entries_limit: int) -> tuple[int, int]:
    """Return (bytes on disk, entries) beneath `upper`; stops counting behind a limit, and where
    folders lie too deep to count.

    By descriptors: a path may be longer than any that can be named, and what can't be looked at
    must not count as nothing.
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


def _open_below(root: Path, path: str) -> int:
    """Return a descriptor of a folder beneath `root`; no symlink is followed."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split("/") if path else ():
        try:
            inner = _open_folder(name, descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _size(path: Path) -> int:
    try:
        return path.stat(follow_symlinks=False).st_size
    except OSError:
        return -1


def _marks_deletion(status: os.stat_result) -> bool:
    """Whether it is what overlayfs leaves in the place of what was deleted."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    return entry.stat(follow_symlinks=False)


def _read(found: _Found, most: int) -> bytes:
    name = found.path.rpartition("/")[2]
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=found.folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=found.folder, follow_symlinks=False)
        descriptor = os.open(name, flags, dir_fd=found.folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PatchRefused(f"{found.path[:200]!r} is not a regular file.")
        return file.read(most + 1)


def _read_list(folder: int) -> bytes | None:
    """Return a folder's .gitignore as far as git reads it here, None where it is no regular
    file.
    """
    try:
        status = os.stat(_GITIGNORE, dir_fd=folder, follow_symlinks=False)
        return (
            _read(_Found(_GITIGNORE, status, folder), LIST_BYTES)
            if stat.S_ISREG(status.st_mode)
            else None
        )
    except (OSError, PatchRefused):
        return None


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
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_size != len(content)
            or _mode(status) != change.mode
        ):
            return False
        return before.read_bytes() == content
    except OSError:
        return False


def _mode(status: os.stat_result) -> str:
    return patch_rules.EXECUTABLE if status.st_mode & 0o100 else patch_rules.FILE


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


def _folders(base_files: Iterable[str]) -> frozenset[str]:
    return frozenset(above for path in base_files for above in _ancestors(path.rpartition("/")[0]))


def _ancestors(path: str) -> Iterator[str]:
    """Yield the path and the folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
