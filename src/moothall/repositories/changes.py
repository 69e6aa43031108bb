"""The changes in a workspace, read from the upper folder of its overlay on the trusted side.

The folder is hostile data. Nothing in it is followed or run: names are opened by directory
descriptor, symlinks are read as text, and only regular files are opened. Names are listed first,
git says which new ones .gitignore files ignore, and only the rest is read.
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
from moothall.repositories.git_objects import LIST_BYTES, Change

_GIT_DIR = ".git"  # belongs to a git process in the sandbox; no commit can have such a path
_GITIGNORE = ".gitignore"
_CACHE_TAG = "CACHEDIR.TAG"
_CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
"""The first bytes of the tag, from the Cache Directory Tagging Specification."""
_OPAQUE = "user.overlay.opaque"
_MAX_DEPTH = 100
_MAX_OPEN_FOLDERS = 2 * _MAX_DEPTH  # builds may need more depth for a while
_BLOCK_BYTES = 512
_NAMES_BEFORE_QUESTION = 1_000
"""How many names are listed in new folders before git is asked whether it ignores the folders."""
_GONE_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class ChangeCaps:
    """Limits of one file, of all changed files together, and of the entries in the upper folder."""

    file_bytes: int = patch_rules.MAX_FILE_BYTES
    total_bytes: int = patch_rules.MAX_CHANGE_BYTES
    entries: int = 200_000


@dataclass(frozen=True, slots=True)
class NewPaths:
    """Paths that the base does not have and that may be ignored.

    lists: the .gitignore files that differ from the base's; None for a deleted one.
    """

    folders: Sequence[str]
    files: Sequence[str]
    lists: Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class WorkspaceChanges:
    """The changes in a workspace, and the new paths that .gitignore files exclude: path → rule. The
    path of a folder that was not listed ends with a slash.
    """

    changes: Sequence[Change]
    ignored: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    path: str
    status: os.stat_result
    folder: int  # descriptor of its folder, valid until the next file is yielded


AskIgnored = Callable[[NewPaths], Awaitable[Mapping[str, str]]]
"""Returns the ignored ones of these paths: path → rule."""

Stamp = tuple[int, ...]
"""The parts of a file's status that differ after a write; only the kernel sets the last one."""


class ChangeScan:
    """A scan for changes in `upper`, the upper folder of an overlay over the checkout `base`, or,
    with the earlier stamps of all files, in a whole tree.

    Call `list_new_paths` and `apply_ignore_rules` until the former returns None, then `read`. The
    methods block, and raise `PatchRefused` for changes that no patch can contain.
    """

    def __init__(
        self,
        upper: Path,
        base_files: Sequence[str],
        caps: ChangeCaps,
        *,
        base: Path | None = None,
        stamps: Mapping[str, Stamp] | None = None,
    ) -> None:
        self._root = upper
        self._base = base
        self._files = frozenset(base_files)
        self._folders = _folders(base_files)
        self._caps = caps
        self._before = stamps
        self._ignored: dict[str, str] = {}
        self._pending: deque[str] = deque([""])
        """Folders to list that are in the base, or that git does not ignore."""
        self._undecided: deque[str] = deque()
        """New folders to list; git was not asked about them yet."""
        self._new: dict[str, bool] = {}
        """New paths that git was not asked about: path → whether it is a folder."""
        self._written: set[str] = set()
        """Written paths, except folders."""
        self._remaining_files: set[str] = set()
        """In a whole tree: files of the base that still exist."""
        self._hiding: set[str] = set()
        """In an overlay: paths that hide files of the base at or below them."""
        self._lists: dict[str, bytes | None] = {}
        self._deep: list[str] = []
        """Folders that are too deep to be listed."""
        self._set_up = _folders(stamps or ())
        """Folders that existed before, in the base or not."""

    def list_new_paths(self) -> NewPaths | None:
        """List names. Return the new ones that git must be asked about, None if there are none."""
        while self._pending:
            self._list_folder(self._pending.popleft())
        budget: int | None = _NAMES_BEFORE_QUESTION
        while self._undecided and budget is not None:
            budget = self._list_folder(self._undecided[0], budget)
            if budget is not None:
                self._undecided.popleft()
        files = [path for path, is_folder in self._new.items() if not is_folder]
        if not (files or self._undecided or self._deep):
            self._check_entry_count()
            return None
        deleted_lists = {
            path: None
            for path in self._files
            if path.rpartition("/")[2] == _GITIGNORE and self._is_deleted(path)
        }
        return NewPaths(
            [path for path, is_folder in self._new.items() if is_folder],
            files,
            {**deleted_lists, **self._lists},
        )

    def apply_ignore_rules(self, rules: Mapping[str, str]) -> None:
        """Exclude ignored paths: path → rule, for the paths that `list_new_paths` returned."""
        ignored: dict[str, str] = {}
        for path, is_folder in self._new.items():  # a folder comes before its content
            if rule := rules.get(path) or ignored.get(path.rpartition("/")[0]):
                ignored[path] = rule
                self._written.discard(path)
                if not is_folder:
                    self._ignored[path] = rule
        self._ignored |= {
            f"{folder}/": ignored[folder] for folder in self._undecided if folder in ignored
        }
        self._pending.extend(folder for folder in self._undecided if folder not in ignored)
        self._deep = [folder for folder in self._deep if folder not in ignored]
        self._undecided.clear()
        self._new.clear()
        self._check_entry_count()

    def read(self) -> WorkspaceChanges:
        """Return the written files that are not ignored, and the deleted files of the base.

        In a whole tree without a base folder, some of them may be unchanged.
        """
        self._check_sizes()
        changes: list[Change] = []
        touched: set[str] = set()
        sizes: dict[str, int] = {}
        total = 0
        for file in self._open_written_files():
            if self._before is None and _marks_deletion(file.status):
                continue
            change = self._change(file)
            if self._base is not None and is_unchanged(self._base, change):
                touched.add(file.path)
                continue
            changes.append(change)
            sizes[file.path] = size = len(change.content or b"")
            total += size
            if size > self._caps.file_bytes or total > self._caps.total_bytes:
                self._refuse({**sizes, file.path: file.status.st_size})
        present = touched | sizes.keys()
        deletions = [
            Change(path, patch_rules.FILE, None)
            for path in self._files
            if path not in present and self._is_deleted(path)
        ]
        return WorkspaceChanges(
            sorted([*deletions, *changes], key=lambda change: change.path), self._ignored
        )

    def _list_folder(self, folder: str, budget: int | None = None) -> int | None:
        """List a folder. `budget` limits its new names; return the rest of it. Return None and
        record nothing if there are more names.
        """
        try:
            descriptor = _open_below(self._root, folder)
        except OSError as error:
            if error.errno in _GONE_ERRORS:
                return budget
            raise
        try:
            return self._list_entries(folder, descriptor, budget)
        finally:
            os.close(descriptor)

    def _list_entries(self, folder: str, descriptor: int, budget: int | None) -> int | None:
        if folder and folder not in self._folders and _is_cache(descriptor):
            return budget
        folders: dict[str, bool] = {}
        files: dict[str, bool] = {}
        count = 0
        with os.scandir(descriptor) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                is_folder = entry.is_dir(follow_symlinks=False)
                in_base = path in (self._folders if is_folder else self._files)
                if entry.name == _GIT_DIR or (not in_base and patch_rules.is_left_out(entry.name)):
                    continue
                if is_folder:
                    folders[path] = in_base
                elif self._is_written(path, entry):
                    files[path] = in_base or self._is_deletion(entry)
                else:
                    continue
                count += not (folders if is_folder else files)[path] and path not in self._set_up
                if budget is not None and count > budget:
                    return None
        self._new |= {path: True for path, is_known in folders.items() if not is_known}
        self._new |= {path: False for path, is_known in files.items() if not is_known}
        self._written.update(files)
        self._lists |= {
            path: _read_list(descriptor) for path in files if path.rpartition("/")[2] == _GITIGNORE
        }
        if self._before is None:
            self._hiding.update(files, [folder] if _is_opaque(descriptor) else [])
            self._hiding.update(path for path in folders if path in self._files)
        for path, is_known in folders.items():
            if path.count("/") >= _MAX_DEPTH:
                self._deep.append(path)
            else:
                (self._pending if is_known else self._undecided).append(path)
        return None if budget is None else budget - count

    def _is_written(self, path: str, entry: os.DirEntry[str]) -> bool:
        if self._before is None:
            return True
        if path in self._files:
            self._remaining_files.add(path)
        try:
            return self._before.get(path) != stamp(_status(entry))
        except FileNotFoundError:
            return False  # deleted meanwhile

    def _is_deletion(self, entry: os.DirEntry[str]) -> bool:
        is_plain = entry.is_file(follow_symlinks=False) or entry.is_symlink()
        return not is_plain and self._before is None and _marks_deletion(_status(entry))

    def _is_deleted(self, path: str) -> bool:
        """Return whether a file of the base was deleted, if nothing was written at its path."""
        if self._before is not None:
            return path in self._before and path not in self._remaining_files
        return any(ancestor in self._hiding for ancestor in _ancestors(path))

    def _open_written_files(self) -> Iterator[_WrittenFile]:
        """Yield the written files, with the descriptors of their folders."""
        folder, descriptor = None, -1
        try:
            for path in sorted(self._written, key=lambda path: path.rpartition("/")):
                parent, _, name = path.rpartition("/")
                try:
                    if parent != folder:
                        if descriptor >= 0:
                            os.close(descriptor)
                        folder, descriptor = parent, -1
                        descriptor = _open_below(self._root, parent)
                    if descriptor >= 0:
                        yield _WrittenFile(
                            path,
                            os.stat(name, dir_fd=descriptor, follow_symlinks=False),
                            descriptor,
                        )
                except OSError as error:
                    if error.errno not in _GONE_ERRORS:
                        raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _change(self, file: _WrittenFile) -> Change:
        """Read a written file."""
        kind = file.status.st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            raise PatchRefused(
                f"{file.path[:200]!r} is a socket, pipe or device; a patch holds files and "
                "symlinks. Delete it, or name it in .gitignore."
            )
        if stat.S_ISLNK(kind):
            content = os.fsencode(os.readlink(file.path.rpartition("/")[2], dir_fd=file.folder))
            return Change(file.path, patch_rules.SYMLINK, content)
        limit, size = self._caps.file_bytes, file.status.st_size
        if (
            self._base is not None
            and file.path in self._files
            and size > limit
            and _size(self._base / file.path) == size
        ):
            limit = size  # a large file of the base that was only touched
        return Change(file.path, _mode(file.status), _read_content(file, limit))

    def _check_entry_count(self) -> None:
        """Raise `PatchRefused` if there are more entries than may be listed."""
        if self._deep:
            raise PatchRefused(
                f"folders are deeper than {_MAX_DEPTH} below {self._deep[0][:200]!r}. "
                f"{patch_rules.ADVICE}"
            )
        if len(self._written) > self._caps.entries:
            largest = patch_rules.largest_paths(dict.fromkeys(self._written, 1), self._folders)
            excerpt = ", ".join(f"{path} ({count} files)" for path, count in largest)
            raise PatchRefused(
                f"more than {self._caps.entries} files were written: {excerpt}. "
                f"{patch_rules.ADVICE}"
            )

    def _check_sizes(self) -> None:
        """Refuse new files that are too large, before any is read."""
        new = [
            file
            for file in self._open_written_files()
            if file.path not in self._files and stat.S_ISREG(file.status.st_mode)
        ]
        sizes = {file.path: file.status.st_size for file in new}
        if (
            sum(sizes.values()) > self._caps.total_bytes
            or max(sizes.values(), default=0) > self._caps.file_bytes
        ):
            self._refuse(sizes)

    def _refuse(self, sizes: Mapping[str, int]) -> NoReturn:
        caps = self._caps
        if sum(sizes.values()) > caps.total_bytes:
            limit = f"the changed files hold more than {caps.total_bytes} bytes; most is in"
        else:
            limit = f"a file may hold {caps.file_bytes} bytes; larger is"
            sizes = {path: size for path, size in sizes.items() if size > caps.file_bytes}
        largest = ", ".join(
            f"{path} ({size} bytes)"
            for path, size in patch_rules.largest_paths(sizes, self._folders)
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
    """Return (bytes on disk, entries) beneath `upper`. Counting stops at a limit, and at folders
    that are too deep.

    Folders are opened by descriptor, because a path may be too long to name, and a folder that
    cannot be read must not count as empty.
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
                size += status.st_blocks * _BLOCK_BYTES
                if stat.S_ISDIR(status.st_mode):
                    open_levels.append(_Level("", _open_folder(name, level.folder)))
            except OSError:
                continue  # gone meanwhile
            if len(open_levels) > _MAX_OPEN_FOLDERS:
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
    """Return whether a file is the whiteout with which overlayfs marks a deletion."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    return entry.stat(follow_symlinks=False)


def _read_content(file: _WrittenFile, limit: int) -> bytes:
    name = file.path.rpartition("/")[2]
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=file.folder)
    except PermissionError:
        os.chmod(name, 0o600, dir_fd=file.folder, follow_symlinks=False)
        descriptor = os.open(name, flags, dir_fd=file.folder)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PatchRefused(f"{file.path[:200]!r} is not a regular file.")
        return stream.read(limit + 1)


def _read_list(folder: int) -> bytes | None:
    """Return a folder's .gitignore; None if it is not a regular file of at most `LIST_BYTES`."""
    return _read_small(_GITIGNORE, folder, LIST_BYTES)


def _read_small(name: str, folder: int, limit: int) -> bytes | None:
    """Return a file of at most `limit` bytes; None if it is larger or not a regular file."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return (
            _read_content(_WrittenFile(name, status, folder), limit)
            if stat.S_ISREG(status.st_mode)
            else None
        )
    except (OSError, PatchRefused):
        return None


def _is_cache(folder: int) -> bool:
    """True if a folder has the tag of cache folders, such as Cargo's `target`."""
    content = _read_small(_CACHE_TAG, folder, LIST_BYTES)
    return content is not None and content.startswith(_CACHE_SIGNATURE)


def is_unchanged(base: Path, change: Change) -> bool:
    """Return whether the base's checkout has the same file: it was only touched. No symlink of the
    base is followed.
    """
    base_path, content = base / change.path, change.content
    if content is None:
        return False
    try:
        if base_path.parent.resolve() != base.resolve() / Path(change.path).parent:
            return False
        status = os.lstat(base_path)
        if change.mode == patch_rules.SYMLINK:
            return stat.S_ISLNK(status.st_mode) and os.fsencode(os.readlink(base_path)) == content  # noqa: PTH115 - a Path drops "./"
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_size != len(content)
            or _mode(status) != change.mode
        ):
            return False
        return base_path.read_bytes() == content
    except OSError:
        return False


def _mode(status: os.stat_result) -> str:
    return patch_rules.EXECUTABLE if status.st_mode & 0o100 else patch_rules.FILE


def stamp(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns


def stamps(tree: Path) -> dict[str, Stamp]:
    """Return the stamp of each file beneath a tree that nobody else has seen yet."""
    stamps = {}
    for folder, folders, names, descriptor in os.fwalk(tree):
        for name in (*folders, *names):  # a link to a folder is among the folders
            path = os.path.relpath(os.path.join(folder, name), tree)  # noqa: PTH118 - names that are no text come back as they were
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                stamps[path] = stamp(status)
    return stamps


def _folders(base_files: Iterable[str]) -> frozenset[str]:
    return frozenset(
        ancestor for path in base_files for ancestor in _ancestors(path.rpartition("/")[0])
    )


def _ancestors(path: str) -> Iterator[str]:
    """Yield the path and the folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
