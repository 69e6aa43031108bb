"""The tools `files.*`, on one folder. Standard library only: they run in the executor.

Each takes a descriptor of the workspace's root and checked arguments, and returns a JSON object;
what goes wrong is a `ToolFailure` whose message helps the model on.
"""

from __future__ import annotations

import base64
import io
import os
import re
import stat
from fnmatch import fnmatchcase
from functools import lru_cache

from moothall.tools.paths import ToolFailure, clean, clean_for_writing, failure, make_folders, open_beneath, open_parent

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Result = dict[str, Any]

MAX_ENTRIES = 2000
MAX_MATCHES = 200
MAX_LINE = 300
MAX_DEPTH = 64
_HIDDEN = frozenset({".git", "__pycache__", ".pytest_cache", "node_modules", ".venv", ".mypy_cache", ".ruff_cache"})


class Limits:
    """Bytes of one file, and of the text of one result. No dataclass: what makes those costs start time."""

    __slots__ = ("file_bytes", "output_bytes")

    def __init__(self, file_bytes: int, output_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.output_bytes = output_bytes


def _read_bytes(root: int, path: str, limits: Limits) -> bytes:
    # Without O_NONBLOCK a FIFO would hold the executor for ever.
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise ToolFailure(f"{path or '.'!r} is a folder; files.list shows what is in it")
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file")
        if found.st_size > limits.file_bytes:
            raise ToolFailure(f"{path!r} has {found.st_size} bytes; at most {limits.file_bytes} are read")
        return _whole(descriptor, limits.file_bytes)
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)


def _whole(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(descriptor, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _rows(text: str) -> list[str]:
    """Return the lines, each with its end. Only a newline ends one: so count editors, compilers and pytest."""
    return list(io.StringIO(text, newline="\n"))


def _read_text(root: int, path: str, limits: Limits) -> str:
    raw = _read_bytes(root, path, limits)
    if b"\0" in raw:
        raise ToolFailure(f"{path!r} is binary ({len(raw)} bytes); only text can be read")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailure(f"{path!r} is not UTF-8 text (byte {error.start})") from error


def _write_text(root: int, path: str, content: str, limits: Limits, *, append: bool = False) -> int:
    try:
        raw = content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolFailure(
            f"content has half a surrogate pair at character {error.start}; send whole characters", "invalid"
        ) from error
    return _write_bytes(root, path, raw, limits, append=append)


def _write_bytes(root: int, path: str, raw: bytes, limits: Limits, *, append: bool = False) -> int:
    if len(raw) > limits.file_bytes:
        raise ToolFailure(f"content has {len(raw)} bytes; a file may have {limits.file_bytes}", "invalid")
    parent = path.rpartition("/")[0]
    if parent:
        make_folders(root, parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if append else 0)
    descriptor = open_beneath(root, path, flags, 0o644)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailure(f"{path!r} is not a regular file")
        if append and found.st_size + len(raw) > limits.file_bytes:
            raise ToolFailure(f"{path!r} would have {found.st_size + len(raw)} bytes; a file may have {limits.file_bytes}")
        if not append:
            os.ftruncate(descriptor, 0)
        view = memoryview(raw)
        while view:
            view = view[os.write(descriptor, view) :]
        return os.fstat(descriptor).st_size
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)


def _cut(text: str, limit: int) -> tuple[str, bool]:
    raw = text.encode("utf-8", "replace")
    return (text, False) if len(raw) <= limit else (raw[:limit].decode("utf-8", "ignore"), True)


def read(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """`content` is lines `start` to `start + lines - 1`, as they are in the file."""
    path = clean(args["path"])
    rows = _rows(_read_text(root, path, limits))
    start, wanted = args.get("start", 1), args.get("lines", 2000)
    if start > max(1, len(rows)):
        raise ToolFailure(f"{path!r} has {len(rows)} lines; start {start} is behind its end", "invalid")
    part = rows[start - 1 : start - 1 + wanted]
    content, cut = _cut("".join(part), limits.output_bytes)
    return {
        "path": path,
        "content": content,
        "start": start,
        "total_lines": len(rows),
        "truncated": cut or start - 1 + len(part) < len(rows),
    }


def write(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Replace or make a file, with its folders."""
    path = clean_for_writing(args["path"])
    return {"path": path, "bytes": _write_text(root, path, args["content"], limits)}


def append(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Add at the end. A file that ends within a line gets a newline first: a new line was meant."""
    path = clean_for_writing(args["path"])
    content = args["content"]
    try:
        before = _read_text(root, path, limits)
    except ToolFailure as missing:
        if "does not exist" not in str(missing):
            raise
        before = ""
    if before and not before.endswith("\n") and not content.startswith("\n"):
        content = "\n" + content
    return {"path": path, "bytes": _write_text(root, path, content, limits, append=True)}


def edit(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Replace `old`, which must occur exactly `count` times."""
    path = clean_for_writing(args["path"])
    text = _read_text(root, path, limits)
    old, new, count = args["old"], args["new"], args.get("count", 1)
    if not old:
        raise ToolFailure("old is empty; use files.append or files.write to add text", "invalid")
    found = text.count(old)
    if found == 0:
        raise ToolFailure(_not_found(path, text, old))
    if found != count:
        raise ToolFailure(
            f"old text occurs {found} times in {path!r}, count is {count}: send more of the lines around it so that it "
            f"occurs {count} times, or count={found} to replace all"
        )
    _write_text(root, path, text.replace(old, new), limits)
    return {"path": path, "replaced": found}


def _not_found(path: str, text: str, old: str) -> str:
    rows = _rows(text)
    message = f"old text not found in {path!r}; the file has {len(rows)} lines"
    first = next((row.strip() for row in old.splitlines() if row.strip()), "")
    near = [number for number, row in enumerate(rows, 1) if first and row.strip() == first]
    if near:
        return f"{message}; line {near[0]} differs only in its spaces or in the lines after it: {rows[near[0] - 1].rstrip()[:MAX_LINE]!r}"
    return f"{message}; read it with files.read and copy the text exactly"


@lru_cache(maxsize=4096)
def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def glob_matches(path: str, glob: str) -> bool:
    """Whether a relative path matches: `**` any folders, `*` within a name; without '/' a name anywhere."""
    pattern = tuple(part for part in glob.split("/") if part)
    if len(pattern) == 1 and pattern[0] != "**":
        pattern = ("**", *pattern)
    if pattern and pattern[-1] == "**":
        pattern = (*pattern, "*")
    squeezed = tuple(part for at, part in enumerate(pattern) if part != "**" or at == 0 or pattern[at - 1] != "**")
    return _matches(tuple(path.split("/")), squeezed)


def _walk(root: int, path: str, *, hidden: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, lstat) of everything beneath, folders before what is in them, sorted; no symlink is followed."""
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = sorted(os.listdir(descriptor))  # noqa: PTH208 - of a descriptor, so that no one can change the way there
        for name in names:
            if not hidden and name in _HIDDEN:
                continue
            try:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
            below = f"{path}/{name}" if path else name
            yield below, found
            if stat.S_ISDIR(found.st_mode) and below.count("/") < MAX_DEPTH:
                try:
                    yield from _walk(root, below, hidden=hidden)
                except ToolFailure:
                    continue  # unreadable or gone meanwhile
    finally:
        os.close(descriptor)


def list_(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """`entries` are paths, folders with a '/' at the end; caches and dependencies are not shown."""
    path, glob = clean(args.get("path", ".")), args.get("glob", "**")
    entries: list[str] = []
    size = 0
    for below, found in _walk(root, path):
        inner = below[len(path) + 1 :] if path else below
        if not glob_matches(inner, glob):
            continue
        shown = f"{below}/" if stat.S_ISDIR(found.st_mode) else below
        size += len(shown) + 4
        if len(entries) == MAX_ENTRIES or size > limits.output_bytes:
            return {"path": path or ".", "entries": entries, "truncated": True}
        entries.append(shown)
    return {"path": path or ".", "entries": entries, "truncated": False}


def search(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """`matches` are {path, line, text}. The caller bounds the time: a pattern may take for ever."""
    try:
        pattern = re.compile(args["pattern"])
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailure(f"pattern is not a regular expression: {error}", "invalid") from error
    path, glob = clean(args.get("path", ".")), args.get("glob", "**")
    matches: list[Result] = []
    size = 0
    for below in _files(root, path, glob):
        try:
            text = _read_text(root, below, limits)
        except ToolFailure:
            continue  # binary, too large or gone
        for number, line in enumerate(_rows(text), 1):
            row = line.rstrip("\r\n")
            if pattern.search(row):
                size += len(below) + min(len(row), MAX_LINE) + 32
                if len(matches) == MAX_MATCHES or size > limits.output_bytes:
                    return {"matches": matches, "truncated": True}
                matches.append({"path": below, "line": number, "text": row[:MAX_LINE]})
    return {"matches": matches, "truncated": False}


def _files(root: int, path: str, glob: str) -> Iterator[str]:
    descriptor = open_beneath(root, path, os.O_PATH)
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if not folder:
        yield path
        return
    for below, found in _walk(root, path):
        if stat.S_ISREG(found.st_mode) and glob_matches(below[len(path) + 1 :] if path else below, glob):
            yield below


def delete(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Delete a file, a symlink (not what it points to) or an empty folder."""
    del limits
    path = clean_for_writing(args["path"])
    parent, name = open_parent(root, path)
    try:
        folder = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        if folder:
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(parent)
    return {"path": path, "deleted": True}


def mkdir(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Make a folder and its parents; one that exists is fine."""
    del limits
    path = clean_for_writing(args["path"])
    make_folders(root, path)
    return {"path": path}


_KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"), (stat.S_ISLNK, "symlink"))


def info(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """What a path is: type, bytes, lines of a text file, target of a symlink."""
    path = clean(args["path"])
    if not path:
        return {"path": ".", "type": "folder"}
    parent, name = open_parent(root, path)
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(found.st_mode) else ""
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(parent)
    kind = next((word for is_kind, word in _KINDS if is_kind(found.st_mode)), "other")
    result: Result = {"path": path, "type": kind, "bytes": found.st_size, "executable": bool(found.st_mode & 0o100)}
    if kind == "symlink":
        result["target"] = target
    if kind == "file":
        try:
            result["lines"] = len(_rows(_read_text(root, path, limits)))
        except ToolFailure:
            result["lines"] = None
    return result


def diff(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """A unified diff from `path` to `other`."""
    import difflib  # costs start time

    path, other = clean(args["path"]), clean(args["other"])
    rows = difflib.unified_diff(
        _rows(_read_text(root, path, limits)),
        _rows(_read_text(root, other, limits)),
        path,
        other,
    )
    text, cut = _cut(
        "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows), limits.output_bytes
    )
    return {"diff": text, "truncated": cut}


def store(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Make a file of bytes in base64. Not in the catalogue: only tools of the trusted side ask for it, and for `load`."""
    path = clean_for_writing(args["path"])
    try:
        raw = base64.b64decode(args["content"], validate=True)
    except ValueError as error:
        raise ToolFailure("content is not base64", "invalid") from error
    return {"path": path, "bytes": _write_bytes(root, path, raw, limits)}


def load(root: int, args: Mapping[str, Any], limits: Limits) -> Result:
    """Return a file's bytes in base64."""
    path = clean(args["path"])
    return {"path": path, "content": base64.b64encode(_read_bytes(root, path, limits)).decode()}


TOOLS: Mapping[str, Callable[[int, Mapping[str, Any], Limits], Result]] = {
    "files.read": read,
    "files.write": write,
    "files.append": append,
    "files.edit": edit,
    "files.list": list_,
    "files.search": search,
    "files.delete": delete,
    "files.mkdir": mkdir,
    "files.info": info,
    "files.diff": diff,
    "files.store": store,
    "files.load": load,
}

# Their time depends on what they are given: the executor runs them in a child with a deadline.
SLOW = frozenset({"files.list", "files.search", "files.diff"})
