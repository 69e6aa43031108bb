"""Git's conversion between blobs and files of a work tree: line endings and encodings by
attributes and settings. Reading trees and blobs of a bare clone, and writing them as plain
files.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal

from moothall.errors import RepositoryError, WorkspaceFailed
from moothall.processes import scratch
from moothall.repositories import patch_rules
from moothall.repositories.gitcmd import UNSET, GitResult, GitRunner, retry_if_killed
from moothall.sandbox_runtime.file_access import text_codec

# Git's conversion between blobs and files of a work tree: line endings and encodings by attributes
# and settings. Pure.
#
# The rules are those of git's `convert.c` on a system with LF line endings. Filters and `ident` are
# ignored.


NAMES = ("text", "crlf", "eol", "working-tree-encoding")
"""The attributes that control the conversion of a file."""
_NONE = ("unspecified", "set", "unset")
_PRINTABLE = bytes([8, 9, 12, 27, *range(32, 127), *range(128, 256)])
_END_OF_FILE = b"\x1a"

ConversionRule = Literal["never", "always", "if text"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A user's git settings: `core.autocrlf` and `core.eol`."""

    autocrlf: Literal["false", "true", "input"] = "false"
    eol: str = ""

    @property
    def text_is_crlf(self) -> bool:
        """Whether text has CRLF in the work tree unless an attribute overrides it."""
        return self.autocrlf == "true" or (self.autocrlf == "false" and self.eol == "crlf")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of one file.

    to_crlf: when a checkout converts LF to CRLF.
    to_lf: when storing converts CRLF to LF.
    codec: the encoding in the work tree, '' for UTF-8.
    mark: the byte order mark that git writes and the codec does not.
    """

    to_crlf: ConversionRule = "never"
    to_lf: ConversionRule = "never"
    codec: str = ""
    mark: bytes = b""

    @property
    def on_checkout(self) -> bool:
        """Whether a checkout may differ from the blob."""
        return self.to_crlf != "never" or self.codec != ""

    def smudge(self, blob: bytes) -> bytes:
        """Return the file that a checkout writes for a blob."""
        if self.to_crlf == "always" or (
            self.to_crlf == "if text" and b"\r" not in blob and not _is_binary(blob)
        ):
            blob = blob.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        if not self.codec or not blob:
            return blob
        try:
            return self.mark + blob.decode().encode(self.codec)
        except UnicodeError:
            return blob  # like git, which warns

    def clean(self, content: bytes, previous_blob: bytes = b"") -> bytes:
        """Return the blob that git stores for a file of the work tree. `previous_blob` is the blob
        that the file had before.
        """
        if self.codec:
            try:
                content = content.removeprefix(self.mark).decode(self.codec).encode()
            except UnicodeError:
                return content  # not in that encoding; a checkout converts it if it is UTF-8
        if self.to_lf == "always" or (
            self.to_lf == "if text" and b"\r\n" not in previous_blob and not _is_binary(content)
        ):
            return content.replace(b"\r\n", b"\n")
        return content


UNCONVERTED = Conversion()


def conversion(attributes: Mapping[str, str], settings: Settings = Settings()) -> Conversion:
    """Return the conversion of a file with these attributes, as `git check-attr` prints them."""
    kind = _kind(attributes.get("text", "")) or _kind(attributes.get("crlf", ""))
    eol = attributes.get("eol", "")
    if kind != "binary" and eol in {"lf", "crlf"}:
        kind = f"auto {eol}" if kind == "auto" else f"text {eol}"
    if not kind:
        kind = {"false": "binary", "true": "auto crlf", "input": "auto lf"}[settings.autocrlf]
    if kind in {"text", "auto"}:
        kind += " crlf" if settings.text_is_crlf else " lf"
    rule: ConversionRule = (
        "never" if kind == "binary" else "if text" if kind.startswith("auto") else "always"
    )
    codec, mark = _codec(attributes.get("working-tree-encoding", ""))
    return Conversion(rule if kind.endswith("crlf") else "never", rule, codec, mark)


def _kind(value: str) -> str:
    return {"set": "text", "unset": "binary", "auto": "auto", "input": "text lf"}.get(value, "")


def _codec(name: str) -> tuple[str, bytes]:
    """Return Python's codec and the byte order mark; both empty for UTF-8 and unknown encodings."""
    if not name or name in _NONE:
        return "", b""
    encoding = name.upper().removesuffix("-BOM")
    codec = text_codec(encoding)
    marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
    if codec == "utf-8":
        return "", b""
    has_mark = encoding != name.upper()
    return codec, marks.get(codec, b"") if has_mark else b""


def _is_binary(content: bytes) -> bool:
    if b"\0" in content or content.count(b"\r") > content.count(b"\r\n"):
        return True
    text = content.replace(b"\r\n", b"").replace(b"\n", b"")
    unprintable = len(text.translate(None, _PRINTABLE)) - content.endswith(_END_OF_FILE)
    return (len(text) - len(text.translate(None, _PRINTABLE))) >> 7 < unprintable


def read_conversions(output: bytes, settings: Settings = Settings()) -> dict[str, Conversion]:
    """Return the conversions that `git check-attr -z` asks for: path → conversion."""
    fields = output.decode("utf-8", "surrogateescape").split("\0")
    attributes: dict[str, dict[str, str]] = {}
    for path, name, value in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        attributes.setdefault(path, {})[name] = value
    conversions = {path: conversion(values, settings) for path, values in attributes.items()}
    return {path: item for path, item in conversions.items() if item != UNCONVERTED}


def asks_for_conversion(texts: Iterable[bytes]) -> bool:
    """Return whether these .gitattributes files may make a checkout differ from the commit."""
    return any(word in text for text in texts for word in (b"eol", b"crlf", b"encoding"))


# Reading trees and blobs of a bare clone, and writing them as plain files. Call these functions in
# threads.


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
    def unpatchable_reason(self) -> str:
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
    _check_entries(entries, max_bytes)
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
    for size, read_chunk in _blobs(git, repository, oids):
        blobs.append(_read_all(min(size, limit) if limit else size, read_chunk))
    return blobs


def _read_all(size: int, read_chunk: Callable[[int], bytes]) -> bytes:
    content = bytearray()
    while len(content) < size:
        content += read_chunk(size - len(content))
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
        for entry, (size, read_chunk) in zip(files, blobs, strict=True):
            if entry.path in conversions and size <= _CONVERTED_BYTES:
                content = conversions[entry.path].smudge(_read_all(size, read_chunk))
                _write_file(
                    create_parent(entry), entry.mode, len(content), io.BytesIO(content).read
                )
            else:
                _write_file(create_parent(entry), entry.mode, size, read_chunk)
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


def _write_file(path: Path, mode: str, size: int, read_chunk: Callable[[int], bytes]) -> None:
    bits = 0o755 if mode == patch_rules.EXECUTABLE else 0o644
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits), "wb"
    ) as file:
        os.fchmod(file.fileno(), bits)  # the umask does not apply
        remaining = size
        while remaining:
            remaining -= file.write(read_chunk(remaining))


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


def _check_entries(entries: Sequence[TreeEntry], max_bytes: int) -> None:
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
    seen_paths: set[str] = set()
    for entry in entries:
        parents = [entry.path[:index] for index, char in enumerate(entry.path) if char == "/"]
        if entry.path in seen_paths or any(parent in leaves for parent in parents):
            raise RepositoryError(
                f"the repository can't be used: {entry.path[:200]!r} occurs twice"
            )
        seen_paths.add(entry.path)


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
