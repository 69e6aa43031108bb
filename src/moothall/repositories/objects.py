"""Reading a commit's tree and blobs out of a bare clone, and writing them as plain files. To be run
in threads.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.repositories import patch_rules
from moothall.repositories.conversion import NAMES, Conversion, read_conversions
from moothall.repositories.gitcmd import UNSET, GitAnswer, GitRunner, again
from moothall.repositories.scratch import scratch

_CHUNK = 1 << 20
_LINK_BYTES = _PATH_BYTES = 4096
_NAME_BYTES = 255
_RULE_CHARS = 100
LIST_BYTES = 1_000_000  # of a .gitignore or .gitattributes
_CONVERTED_BYTES = 100_000_000  # as git reads no larger file at once
NO_CONVERSIONS: Mapping[str, Conversion] = {}
_FILE_MODE = re.compile(r"100[0-7]{3}")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file of a commit, or a submodule; `target` is where a symlink points, `size` is in bytes.

    A path or target that is not UTF-8 contains surrogates, as from `os.fsdecode`.
    """

    path: str
    mode: str
    oid: str
    size: int
    target: str | None = None

    @property
    def content(self) -> tuple[str, str]:
        """Equal for files that are the same."""
        return self.mode, self.oid

    @property
    def oddity(self) -> str:
        """Why no patch may hold this entry, or ''. In a base it stays as it is; prompts and lists
        of files leave it out.
        """
        return patch_rules.why_path(self.path)


@dataclass(frozen=True, slots=True)
class Change:
    """A path as it is after a change. `mode` 100644, 100755 or 120000 (content: the target); None:
    deleted.
    """

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
    """Return every file and submodule of a commit in git's order.

    Raises `RepositoryError` for a tree that git itself would not check out.
    """
    with git.stream("ls-tree", "-r", "-z", "-l", "--full-tree", sha, cwd=repository) as out:
        entries = [_entry(record) for record in out.read().split(b"\0")[:-1]]
    _check(entries, max_bytes)
    links = [entry.oid for entry in entries if entry.mode == patch_rules.SYMLINK]
    targets = iter(read_blobs(git, repository, links, _LINK_BYTES + 1))
    return tuple(
        replace(entry, target=os.fsdecode(next(targets)))
        if entry.mode == patch_rules.SYMLINK
        else entry
        for entry in entries
    )


@again
def read_blobs(git: GitRunner, repository: Path, oids: Sequence[str], limit: int) -> list[bytes]:
    """Return the content of blobs, at most `limit` bytes of each (0: all)."""
    blobs: list[bytes] = []
    for size, take in _blobs(git, repository, oids):
        blobs.append(_whole(min(size, limit) if limit else size, take))
    return blobs


def _whole(size: int, take: Callable[[int], bytes]) -> bytes:
    content = bytearray()
    while len(content) < size:
        content += take(size - len(content))
    return bytes(content)


@again
def write_files(
    git: GitRunner,
    repository: Path,
    entries: Sequence[TreeEntry],
    dest: Path,
    seconds: float,
    *,
    conversions: Mapping[str, Conversion] = NO_CONVERSIONS,
) -> int:
    """Write checked entries below `dest`, which must be empty or absent; on failure nothing stays.
    Return the number of entries that are left out because the file system cannot hold them.

    Symlinks come last: nothing is written through one.
    """
    dest.mkdir(parents=True, exist_ok=True)
    if any(dest.iterdir()):
        raise RepositoryError(f"cannot check out into {dest}: the folder is not empty")
    try:
        made = {dest}

        def place(entry: TreeEntry) -> Path:
            path = dest / entry.path
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            return path

        fitting = [entry for entry in entries if _fits(entry, dest)]
        files = [entry for entry in fitting if entry.mode != patch_rules.SYMLINK]
        blobs = _blobs(git, repository, [entry.oid for entry in files], seconds)
        for entry, (size, take) in zip(files, blobs, strict=True):
            if entry.path in conversions and size <= _CONVERTED_BYTES:
                content = conversions[entry.path].smudge(_whole(size, take))
                _write(place(entry), entry.mode, len(content), io.BytesIO(content).read)
            else:
                _write(place(entry), entry.mode, size, take)
        for entry in fitting:
            if entry.target is not None:
                place(entry).symlink_to(entry.target)
        return len(entries) - len(fitting)
    except OSError as error:
        shutil.rmtree(dest, ignore_errors=True)
        raise RepositoryError(f"cannot write the checkout {dest}: {error.strerror}") from error
    except (RepositoryError, WorkspaceFailed):
        shutil.rmtree(dest, ignore_errors=True)
        raise


async def ignored_paths(
    git: GitRunner,
    repository: Path,
    lists: Mapping[str, bytes],
    paths: Sequence[str],
    folders: Sequence[str] = (),
) -> dict[str, str]:
    """Return those of `paths` that .gitignore files ignore: path → the rule, such as `line 3 of
    .gitignore, build/`. `folders` are those of them that are folders.
    """
    plain = [
        f"./{path}" for path in paths if len(path) < _PATH_BYTES // 4
    ]  # a leading ':' would be pathspec magic
    if not plain or not lists:
        return {}
    command = ("check-ignore", "--no-index", "--verbose", "-z", "--stdin")
    env = {"GIT_LITERAL_PATHSPECS": "0"}
    answer = await _ask_in_tree_of(git, repository, lists, command, plain, env=env, folders=folders)
    if answer.status > 1:  # 1: none is ignored
        raise RepositoryError(f"the ignore rules cannot be read: {answer.reason}")
    words = answer.out.split(b"\0")
    rules = zip(words[::4], words[1::4], words[2::4], words[3::4], strict=False)
    return {
        os.fsdecode(path.removeprefix(b"./")): _rule(source, line, rule)
        for source, line, rule, path in rules
        if not rule.startswith(b"!")  # it overrides a rule that ignores
    }


def _rule(source: bytes, line: bytes, rule: bytes) -> str:
    file, number, pattern = (part.decode(errors="replace") for part in (source, line, rule))
    return f"line {number} of {file.removeprefix('./')}, {pattern[:_RULE_CHARS]}"


async def find_conversions(
    git: GitRunner, repository: Path, lists: Mapping[str, bytes], paths: Sequence[str]
) -> dict[str, Conversion]:
    """Return the conversions of `paths` by .gitattributes files."""
    if not paths or not lists:
        return {}
    command = ("check-attr", "-z", "--stdin", *NAMES)
    answer = await _ask_in_tree_of(
        git, repository, lists, command, paths, env={"GIT_ATTR_SOURCE": UNSET}
    )
    if answer.status:
        raise RepositoryError(f"the attributes of files cannot be read: {answer.reason}")
    return read_conversions(answer.out)


async def _ask_in_tree_of(
    git: GitRunner,
    repository: Path,
    lists: Mapping[str, bytes],
    command: Sequence[str],
    paths: Sequence[str],
    *,
    env: Mapping[str, str],
    folders: Sequence[str] = (),
) -> GitAnswer:
    """Run a git command on paths in a work tree that holds only these files, and these folders."""
    with scratch() as folder:
        tree = folder / "tree"
        await asyncio.to_thread(_write_lists, tree, lists, folders)
        return await git.call(
            f"--git-dir={repository}",
            f"--work-tree={tree}",
            *command,
            cwd=tree,
            stdin="".join(f"{path}\0" for path in paths).encode(errors="surrogateescape"),
            env=env,
        )


def _write_lists(tree: Path, lists: Mapping[str, bytes], folders: Sequence[str]) -> None:
    for path, text in lists.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(text)
    for path in folders:
        with suppress(
            OSError, ValueError
        ):  # a name that no file system here can hold matches as a file does
            (tree / path).mkdir(parents=True, exist_ok=True)


def _fits(entry: TreeEntry, dest: Path) -> bool:
    """Whether Linux can hold an entry below `dest`."""
    if len(os.fsencode(dest / entry.path)) >= _PATH_BYTES:
        return False
    if any(len(os.fsencode(name)) > _NAME_BYTES for name in entry.path.split("/")):
        return False
    return entry.target is None or (
        0 < len(os.fsencode(entry.target)) < _LINK_BYTES and "\0" not in entry.target
    )


def _write(path: Path, mode: str, size: int, take: Callable[[int], bytes]) -> None:
    bits = 0o755 if mode == patch_rules.EXECUTABLE else 0o644
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits), "wb"
    ) as file:
        os.fchmod(file.fileno(), bits)  # whatever the umask says
        left = size
        while left:
            left -= file.write(take(left))


def _blobs(
    git: GitRunner, repository: Path, oids: Sequence[str], seconds: float = 0
) -> Iterator[tuple[int, Callable[[int], bytes]]]:
    """Yield each blob's size and a function that gives its next bytes; what is not taken is
    skipped.
    """
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
    if _FILE_MODE.fullmatch(mode):  # old tools wrote other permissions than the two that git keeps
        mode = patch_rules.EXECUTABLE if int(mode, 8) & 0o100 else patch_rules.FILE
    return TreeEntry(os.fsdecode(raw), mode, oid, int(size) if size != "-" else 0)


def _check(entries: Sequence[TreeEntry], max_bytes: int) -> None:
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        raise RepositoryError(
            f"the repository's files have {total} bytes; at most {max_bytes} are allowed"
        )
    for entry in entries:
        reason = patch_rules.why_unsafe(entry.path)
        if not reason and entry.mode not in {*patch_rules.MODES, patch_rules.SUBMODULE}:
            reason = f"mode {entry.mode} is not supported"
        if reason:
            raise RepositoryError(f"the repository can't be used: {entry.path[:200]!r}: {reason}")
    # A crafted tree can hold a name twice, as a link and as a folder.
    leaves = {entry.path for entry in entries}
    seen: set[str] = set()
    for entry in entries:
        parents = [entry.path[:at] for at, char in enumerate(entry.path) if char == "/"]
        if entry.path in seen or any(parent in leaves for parent in parents):
            raise RepositoryError(
                f"the repository can't be used: {entry.path[:200]!r} is there twice"
            )
        seen.add(entry.path)


def colliding_links(entries: Iterable[TreeEntry]) -> frozenset[str]:
    """Return the symlinks that have the name of a folder except for case."""
    entries = tuple(entries)
    links = {
        entry.path.casefold(): entry.path for entry in entries if entry.mode == patch_rules.SYMLINK
    }
    if not links:
        return frozenset()
    folders = {
        entry.path[:at].casefold()
        for entry in entries
        for at, char in enumerate(entry.path)
        if char == "/"
    }
    return frozenset(path for folded, path in links.items() if folded in folders)


def content_of(entry: TreeEntry | None) -> tuple[str, str] | None:
    """Return what is equal for files that are the same, None where there is none."""
    return entry.content if entry else None


def replaces_folder(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a file came to where a folder was, or the other way round."""
    folders = {path[:at] for path in old for at, char in enumerate(path) if char == "/"}
    return not folders.isdisjoint(new)


def raw_entry(path: str, old: TreeEntry | None, new: TreeEntry | None) -> patch_rules.RawChange:
    """Return a path's change from one tree to another."""
    before, target = (old.mode, old.target) if old else (patch_rules.ABSENT, None)
    if new is None:
        return patch_rules.RawChange(path, before, patch_rules.ABSENT, old_target=target)
    return patch_rules.RawChange(path, before, new.mode, new.target, new.size, target)


def raw_change(change: Change, old: Mapping[str, TreeEntry]) -> patch_rules.RawChange:
    """Return what a change does to the tree that has the entries `old`."""
    entry = old.get(change.path)
    before, target = (entry.mode, entry.target) if entry else (patch_rules.ABSENT, None)
    if change.content is None:
        return patch_rules.RawChange(change.path, before, patch_rules.ABSENT, old_target=target)
    link = os.fsdecode(change.content) if change.mode == patch_rules.SYMLINK else None
    return patch_rules.RawChange(
        change.path, before, change.mode, link, len(change.content), target
    )
