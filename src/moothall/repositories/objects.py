"""Reading a commit's tree and blobs out of a bare clone, and writing them as plain files. To be run in threads."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.repositories import patch_rules
from moothall.repositories.gitcmd import GitRunner, again
from moothall.repositories.scratch import scratch

_CHUNK = 1 << 20
_LINK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file of a commit, or a submodule; `target` is where a symlink points to, `size` is in bytes."""

    path: str
    mode: str
    oid: str
    size: int
    target: str | None = None

    @property
    def content(self) -> tuple[str, str]:
        """Equal for files that are the same."""
        return self.mode, self.oid


@dataclass(frozen=True, slots=True)
class Change:
    """A path as it is after a change. `mode` 100644, 100755 or 120000 (content: the target); None: deleted."""

    path: str
    mode: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A line of a log; `date` is ISO 8601."""

    sha: str
    author: str
    date: str
    subject: str


@again
def read_tree(git: GitRunner, repository: Path, sha: str, max_bytes: int) -> tuple[TreeEntry, ...]:
    """Return every file and submodule of a commit in git's order; raises `RepositoryError` for what we don't take in."""
    with git.stream("ls-tree", "-r", "-z", "-l", "--full-tree", sha, cwd=repository) as out:
        entries = [_entry(record) for record in out.read().split(b"\0")[:-1]]
    _check(entries, max_bytes)
    links = [entry.oid for entry in entries if entry.mode == patch_rules.SYMLINK]
    targets = iter(read_blobs(git, repository, links, _LINK_BYTES + 1))
    return tuple(_with_target(entry, next(targets)) if entry.mode == patch_rules.SYMLINK else entry for entry in entries)


@again
def read_blobs(git: GitRunner, repository: Path, oids: Sequence[str], limit: int) -> list[bytes]:
    """Return the content of blobs, at most `limit` bytes of each (0: all)."""
    blobs: list[bytes] = []
    for size, take in _blobs(git, repository, oids):
        content = bytearray()
        wanted = min(size, limit) if limit else size
        while len(content) < wanted:
            content += take(wanted - len(content))
        blobs.append(bytes(content))
    return blobs


@again
def write_files(git: GitRunner, repository: Path, entries: Sequence[TreeEntry], dest: Path, seconds: float) -> None:
    """Write checked entries below `dest`, which must be empty or absent; on failure nothing stays."""
    dest.mkdir(parents=True, exist_ok=True)
    if any(dest.iterdir()):
        raise RepositoryError(f"cannot check out into {dest}: the folder is not empty")
    try:
        made = {dest}
        blobs = _blobs(git, repository, [entry.oid for entry in entries], seconds)
        for entry, (size, take) in zip(entries, blobs, strict=True):
            path = dest / entry.path
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            if entry.mode == patch_rules.SYMLINK:
                path.symlink_to(entry.target or "")
            else:
                _write(path, entry.mode, size, take)
    except OSError as error:
        shutil.rmtree(dest, ignore_errors=True)
        raise RepositoryError(f"cannot write the checkout {dest}: {error.strerror}") from error
    except (RepositoryError, WorkspaceFailed):
        shutil.rmtree(dest, ignore_errors=True)
        raise


async def ignored_paths(git: GitRunner, repository: Path, lists: Sequence[TreeEntry], paths: Sequence[str]) -> frozenset[str]:
    """Return those of `paths` that these .gitignore files name."""
    if not paths or not lists:
        return frozenset()
    with scratch() as folder:
        tree = folder / "tree"
        await asyncio.to_thread(write_files, git, repository, lists, tree, 0)
        answer = await git.call(
            *(f"--git-dir={repository}", f"--work-tree={tree}", "check-ignore", "--no-index", "-z", "--stdin"),
            cwd=tree,
            stdin="".join(f"./{path}\0" for path in paths).encode(),  # a leading ':' would be pathspec magic
            env={"GIT_LITERAL_PATHSPECS": "0"},
        )
    if answer.status > 1:  # 1: none is ignored
        raise RepositoryError(f"the ignore rules cannot be read: {answer.reason}")
    return frozenset(path.removeprefix("./") for path in answer.out.decode().split("\0")[:-1])


def _write(path: Path, mode: str, size: int, take: Callable[[int], bytes]) -> None:
    bits = 0o755 if mode == patch_rules.EXECUTABLE else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits), "wb") as file:
        os.fchmod(file.fileno(), bits)  # whatever the umask says
        left = size
        while left:
            left -= file.write(take(left))


def _blobs(
    git: GitRunner, repository: Path, oids: Sequence[str], seconds: float = 0
) -> Iterator[tuple[int, Callable[[int], bytes]]]:
    """Yield each blob's size and a function that gives its next bytes; what is not taken is skipped."""
    if not oids:
        return
    listing = "".join(f"{oid}\n" for oid in oids).encode()
    with git.stream("cat-file", "--batch", cwd=repository, stdin=listing, seconds=seconds) as out:
        for oid in oids:
            fields = out.readline().split()
            if len(fields) != 3 or fields[1] != b"blob":  # noqa: PLR2004 - id, type, size
                raise RepositoryError(f"object {oid} is missing from the trusted clone")
            reader = _Reader(out, int(fields[2]))
            yield reader.left, reader.take
            while reader.left:
                reader.take(reader.left)
            out.read(1)  # the line feed after each blob


class _Reader:
    def __init__(self, out: IO[bytes], left: int) -> None:
        self._out = out
        self.left = left

    def take(self, count: int) -> bytes:
        chunk = self._out.read(min(count, self.left, _CHUNK))
        if not chunk:
            raise RepositoryError("git stopped in the middle of a file")
        self.left -= len(chunk)
        return chunk


def _entry(record: bytes) -> TreeEntry:
    head, _, raw = record.partition(b"\t")
    mode, _, oid, size = head.decode().split()
    try:
        return TreeEntry(raw.decode(), mode, oid, int(size) if size != "-" else 0)
    except UnicodeDecodeError as error:
        raise RepositoryError(f"the repository can't be used: the path {raw[:200]!r} is not UTF-8") from error


def _with_target(entry: TreeEntry, blob: bytes) -> TreeEntry:
    target = blob.decode(errors="surrogateescape")
    if reason := patch_rules.why_target(entry.path, target):
        raise RepositoryError(f"the repository can't be used: {entry.path[:200]!r}: {reason}")
    return replace(entry, target=target)


def _check(entries: Sequence[TreeEntry], max_bytes: int) -> None:
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        raise RepositoryError(f"the repository's files have {total} bytes; at most {max_bytes} are allowed")
    for entry in entries:
        reason = patch_rules.why_path(entry.path)
        if not reason and entry.mode not in {*patch_rules.MODES, patch_rules.SUBMODULE, "100664"}:
            reason = f"mode {entry.mode} is not supported"
        if reason:
            raise RepositoryError(f"the repository can't be used: {entry.path[:200]!r}: {reason}")
    # A crafted tree can hold a name twice, or a link and, on a case-insensitive disk, a folder of the same name.
    leaves = {entry.path.casefold() if entry.mode == patch_rules.SYMLINK else entry.path for entry in entries}
    seen: set[str] = set()
    for entry in entries:
        parents = [entry.path[:at] for at, char in enumerate(entry.path) if char == "/"]
        twice = entry.path in seen or any(parent in leaves or parent.casefold() in leaves for parent in parents)
        if twice:
            raise RepositoryError(f"the repository can't be used: {entry.path[:200]!r} is there twice")
        seen.add(entry.path)


def content_of(entry: TreeEntry | None) -> tuple[str, str] | None:
    """Return what is equal for files that are the same, None where there is none."""
    return entry.content if entry else None


def replaces_folder(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a file came to where a folder was, or the other way round."""
    folders = {path[:at] for path in old for at, char in enumerate(path) if char == "/"}
    return not folders.isdisjoint(new)


def raw_entry(path: str, old: TreeEntry | None, new: TreeEntry | None) -> patch_rules.RawChange:
    """Return a path's change from one tree to another."""
    before = old.mode if old else patch_rules.ABSENT
    if new is None:
        return patch_rules.RawChange(path, before, patch_rules.ABSENT)
    return patch_rules.RawChange(path, before, new.mode, new.target, new.size)


def raw_change(change: Change, old: Mapping[str, TreeEntry]) -> patch_rules.RawChange:
    """Return what a change does to the tree that has the entries `old`."""
    before = old[change.path].mode if change.path in old else patch_rules.ABSENT
    if change.content is None:
        return patch_rules.RawChange(change.path, before, patch_rules.ABSENT)
    link = change.content.decode(errors="surrogateescape") if change.mode == patch_rules.SYMLINK else None
    return patch_rules.RawChange(change.path, before, change.mode, link, len(change.content))
