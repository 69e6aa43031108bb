"""Reading trees and blobs of a bare clone, and writing them as plain files. Call these functions in
threads.
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
from moothall.repositories.gitcmd import UNSET, GitResult, GitRunner, retry_if_killed
from moothall.repositories.scratch import scratch

_CHUNK = 1 << 20
_LINK_BYTES = _PATH_BYTES = 4096
_NAME_BYTES = 255
_RULE_CHARS = 100
LIST_BYTES = 1_000_000
"""The size up to which a .gitignore or .gitattributes is read."""
_CONVERTED_BYTES = 100_000_000
"""The size up to which a file is converted; git streams larger ones without conversion."""
NO_CONVERSIONS: Mapping[str, Conversion] = {}
_FILE_MODE = re.compile(r"100[0-7]{3}")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file or a submodule of a commit.

    A path or target that is not UTF-8 contains surrogates, as from `os.fsdecode`.

    size: in bytes.
    target: the target of a symlink, None for anything else.
    """

    path: str
    mode: str
    oid: str
    size: int
    target: str | None = None

    @property
    def content(self) -> tuple[str, str]:
        """A value that is equal for equal files."""
        return self.mode, self.oid

    @property
    def oddity(self) -> str:
        """Why no patch may contain this entry, or ''. Such entries of a base stay as they are;
        prompts and lists of files omit them.
        """
        return patch_rules.invalid_path_reason(self.path)


@dataclass(frozen=True, slots=True)
class Change:
    """A path after a change.

    mode: 100644, 100755 or 120000.
    content: the content, or the target of a symlink; None if the path is deleted.
    """

    path: str
    mode: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry of a log; `date` is ISO 8601."""

    sha: str
    author: str
    date: str
    subject: str


@retry_if_killed
def read_tree(git: GitRunner, repository: Path, sha: str, max_bytes: int) -> tuple[TreeEntry, ...]:
    """Return all files and submodules of a commit in git's order.

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


@retry_if_killed
def read_blobs(git: GitRunner, repository: Path, oids: Sequence[str], limit: int) -> list[bytes]:
    """Return the content of blobs, at most `limit` bytes of each (0: all)."""
    blobs: list[bytes] = []
    for size, read in _blobs(git, repository, oids):
        blobs.append(_read_all(min(size, limit) if limit else size, read))
    return blobs


def _read_all(size: int, read: Callable[[int], bytes]) -> bytes:
    content = bytearray()
    while len(content) < size:
        content += read(size - len(content))
    return bytes(content)


@retry_if_killed
def write_files(
    git: GitRunner,
    repository: Path,
    entries: Sequence[TreeEntry],
    dest: Path,
    seconds: float,
    *,
    conversions: Mapping[str, Conversion] = NO_CONVERSIONS,
) -> int:
    """Write checked entries to `dest`, which must be empty or absent; on failure, remove it. Return
    the number of entries that were skipped because the file system cannot hold them.

    Symlinks are written last, so that nothing is written through one.
    """
    dest.mkdir(parents=True, exist_ok=True)
    if any(dest.iterdir()):
        raise RepositoryError(f"cannot check out into {dest}: the folder is not empty")
    try:
        created_folders = {dest}

        def create_parent(entry: TreeEntry) -> Path:
            path = dest / entry.path
            if path.parent not in created_folders:
                path.parent.mkdir(parents=True, exist_ok=True)
                created_folders.add(path.parent)
            return path

        fitting = [entry for entry in entries if _fits(entry, dest)]
        files = [entry for entry in fitting if entry.mode != patch_rules.SYMLINK]
        blobs = _blobs(git, repository, [entry.oid for entry in files], seconds)
        for entry, (size, read) in zip(files, blobs, strict=True):
            if entry.path in conversions and size <= _CONVERTED_BYTES:
                content = conversions[entry.path].smudge(_read_all(size, read))
                _write(create_parent(entry), entry.mode, len(content), io.BytesIO(content).read)
            else:
                _write(create_parent(entry), entry.mode, size, read)
        for entry in fitting:
            if entry.target is not None:
                create_parent(entry).symlink_to(entry.target)
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
    """Return those of `paths` that .gitignore files ignore: path → rule, such as `line 3 of
    .gitignore, build/`. `folders` are the paths among them that are folders.
    """
    # "./" keeps a leading ':' from being read as pathspec magic.
    stdin_paths = [f"./{path}" for path in paths if len(path) < _PATH_BYTES // 4]
    if not stdin_paths or not lists:
        return {}
    command = ("check-ignore", "--no-index", "--verbose", "-z", "--stdin")
    env = {"GIT_LITERAL_PATHSPECS": "0"}
    result = await _run_in_tree(
        git, repository, lists, command, stdin_paths, env=env, folders=folders
    )
    if result.status > 1:  # 1: none is ignored
        raise RepositoryError(f"the ignore rules cannot be read: {result.reason}")
    fields = result.out.split(b"\0")
    rules = zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=False)
    return {
        os.fsdecode(path.removeprefix(b"./")): _rule(source, line, rule)
        for source, line, rule, path in rules
        if not rule.startswith(b"!")  # a rule that excludes the path from earlier ones
    }


def _rule(file_field: bytes, number_field: bytes, pattern_field: bytes) -> str:
    file, number, pattern = (
        part.decode(errors="replace") for part in (file_field, number_field, pattern_field)
    )
    return f"line {number} of {file.removeprefix('./')}, {pattern[:_RULE_CHARS]}"


async def find_conversions(
    git: GitRunner, repository: Path, lists: Mapping[str, bytes], paths: Sequence[str]
) -> dict[str, Conversion]:
    """Return the conversions of `paths` that .gitattributes files ask for."""
    if not paths or not lists:
        return {}
    command = ("check-attr", "-z", "--stdin", *NAMES)
    result = await _run_in_tree(
        git, repository, lists, command, paths, env={"GIT_ATTR_SOURCE": UNSET}
    )
    if result.status:
        raise RepositoryError(f"the attributes of files cannot be read: {result.reason}")
    return read_conversions(result.out)


async def _run_in_tree(
    git: GitRunner,
    repository: Path,
    lists: Mapping[str, bytes],
    command: Sequence[str],
    paths: Sequence[str],
    *,
    env: Mapping[str, str],
    folders: Sequence[str] = (),
) -> GitResult:
    """Run a git command on paths in a work tree that contains only these lists and folders."""
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
        # A folder whose name no file system can hold is matched as a file.
        with suppress(OSError, ValueError):
            (tree / path).mkdir(parents=True, exist_ok=True)


def _fits(entry: TreeEntry, dest: Path) -> bool:
    """Return whether Linux can hold an entry below `dest`."""
    if len(os.fsencode(dest / entry.path)) >= _PATH_BYTES:
        return False
    if any(len(os.fsencode(name)) > _NAME_BYTES for name in entry.path.split("/")):
        return False
    return entry.target is None or (
        0 < len(os.fsencode(entry.target)) < _LINK_BYTES and "\0" not in entry.target
    )


def _write(path: Path, mode: str, size: int, read: Callable[[int], bytes]) -> None:
    bits = 0o755 if mode == patch_rules.EXECUTABLE else 0o644
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits), "wb"
    ) as file:
        os.fchmod(file.fileno(), bits)  # the umask does not apply
        remaining = size
        while remaining:
            remaining -= file.write(read(remaining))


def _blobs(
    git: GitRunner, repository: Path, oids: Sequence[str], seconds: float = 0
) -> Iterator[tuple[int, Callable[[int], bytes]]]:
    """Yield the size of each blob and a function that reads its next bytes. Bytes that the caller
    does not read are skipped.
    """
    if not oids:
        return
    listing = "".join(f"{oid}\n" for oid in oids).encode()
    with git.stream(
        "cat-file", "--batch", cwd=repository, stdin=listing, seconds=seconds
    ) as output:
        for oid in oids:
            fields = output.readline().split()
            if len(fields) != 3 or fields[1] != b"blob":  # noqa: PLR2004 - id, type, size
                raise RepositoryError(f"object {oid} is missing from the trusted clone")
            reader = _BlobReader(output, int(fields[2]))
            yield reader.remaining, reader.read
            while reader.remaining:
                reader.read(reader.remaining)
            output.read(1)  # the line feed after each blob


class _BlobReader:
    def __init__(self, output: IO[bytes], remaining: int) -> None:
        self._output = output
        self.remaining = remaining

    def read(self, count: int) -> bytes:
        chunk = self._output.read(min(count, self.remaining, _CHUNK))
        if not chunk:
            raise RepositoryError("git stopped in the middle of a file")
        self.remaining -= len(chunk)
        return chunk


def _entry(record: bytes) -> TreeEntry:
    head, _, raw = record.partition(b"\t")
    mode, _, oid, size = head.decode().split()
    if _FILE_MODE.fullmatch(mode):  # old tools wrote permissions other than git's two
        mode = patch_rules.EXECUTABLE if int(mode, 8) & 0o100 else patch_rules.FILE
    return TreeEntry(os.fsdecode(raw), mode, oid, int(size) if size != "-" else 0)


def _check(entries: Sequence[TreeEntry], max_bytes: int) -> None:
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        raise RepositoryError(
            f"the repository's files have {total} bytes; at most {max_bytes} are allowed"
        )
    for entry in entries:
        reason = patch_rules.unsafe_path_reason(entry.path)
        if not reason and entry.mode not in {*patch_rules.MODES, patch_rules.SUBMODULE}:
            reason = f"mode {entry.mode} is not supported"
        if reason:
            raise RepositoryError(f"the repository can't be used: {entry.path[:200]!r}: {reason}")
    # A crafted tree can contain a name twice, as a link and as a folder.
    leaves = {entry.path for entry in entries}
    seen: set[str] = set()
    for entry in entries:
        parents = [entry.path[:index] for index, char in enumerate(entry.path) if char == "/"]
        if entry.path in seen or any(parent in leaves for parent in parents):
            raise RepositoryError(
                f"the repository can't be used: {entry.path[:200]!r} is there twice"
            )
        seen.add(entry.path)


def colliding_links(entries: Iterable[TreeEntry]) -> frozenset[str]:
    """Return the symlinks whose name is that of a folder except for case."""
    entries = tuple(entries)
    links = {
        entry.path.casefold(): entry.path for entry in entries if entry.mode == patch_rules.SYMLINK
    }
    if not links:
        return frozenset()
    folders = {
        entry.path[:index].casefold()
        for entry in entries
        for index, char in enumerate(entry.path)
        if char == "/"
    }
    return frozenset(path for folded, path in links.items() if folded in folders)


def file_identity(entry: TreeEntry | None) -> tuple[str, str] | None:
    """Return a value that is equal for equal files, None for no file."""
    return entry.content if entry else None


def replaces_folder(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether a path of `new` is a folder in `old`."""
    folders = {path[:index] for path in old for index, char in enumerate(path) if char == "/"}
    return not folders.isdisjoint(new)


def raw_change_between(
    path: str, old: TreeEntry | None, new: TreeEntry | None
) -> patch_rules.RawChange:
    """Return the change of a path between two trees."""
    old_mode, old_target = (old.mode, old.target) if old else (patch_rules.ABSENT, None)
    if new is None:
        return patch_rules.RawChange(path, old_mode, patch_rules.ABSENT, old_target=old_target)
    return patch_rules.RawChange(path, old_mode, new.mode, new.target, new.size, old_target)


def raw_change(change: Change, old: Mapping[str, TreeEntry]) -> patch_rules.RawChange:
    """Return a change of a tree with the entries `old`."""
    entry = old.get(change.path)
    old_mode, old_target = (entry.mode, entry.target) if entry else (patch_rules.ABSENT, None)
    if change.content is None:
        return patch_rules.RawChange(
            change.path, old_mode, patch_rules.ABSENT, old_target=old_target
        )
    target = os.fsdecode(change.content) if change.mode == patch_rules.SYMLINK else None
    return patch_rules.RawChange(
        change.path, old_mode, change.mode, target, len(change.content), old_target
    )
