"""The tools `files.*`, on one folder. Standard library only: they run in the executor.

Each takes a descriptor of the workspace's root and checked arguments, and returns a JSON object;
what goes wrong is a `ToolFailure` whose message helps the model on.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice

from moothall.sandbox_runtime.edits import edit
from moothall.sandbox_runtime.paths import (
    IsFolder,
    ToolFailure,
    clean,
    clean_for_writing,
    failure,
    make_folders,
    open_beneath,
    open_parent,
)
from moothall.sandbox_runtime.text_encodings import UTF_8, Encoding, line_end, with_ends
from moothall.sandbox_runtime.texts import (
    TextLimits,
    cut_text,
    read_bytes,
    read_encoded,
    read_text,
    rows_of,
    write_bytes,
    write_text,
)

TYPE_CHECKING = False  # the real one is in `typing`, which costs the executor start time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Result = dict[str, Any]

MAX_ENTRIES = 2000
SHOWN_ENTRIES = 400
"""Names of a folder that `files.read` was asked for."""
_COUNTED_ENTRIES = 20_000
MAX_MATCHES = 200
MAX_LINE = 300
MAX_DEPTH = 64
_HIDDEN = frozenset(
    {".git", "__pycache__", ".pytest_cache", "node_modules", ".venv", ".mypy_cache", ".ruff_cache"}
)


def read(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """`content` is lines `start` to `start + lines - 1`, unchanged. `encoding` is set if it is not
    plain UTF-8. The failure for a folder has the names in it.
    """
    path = clean(args["path"])
    try:
        text, encoding = read_encoded(root, path, limits)
    except IsFolder as failed:
        raise IsFolder(path, _list_folder(root, path, limits)) from failed
    rows = rows_of(text)
    start, wanted = args.get("start", 1), args.get("lines", 2000)
    if start > max(1, len(rows)):
        raise ToolFailure(
            f"{path!r} has {len(rows)} lines; start {start} is behind its end", "invalid"
        )
    part = rows[start - 1 : start - 1 + wanted]
    content, cut = cut_text("".join(part), limits.output_bytes)
    return {
        "path": path,
        "content": content,
        "start": start,
        "total_lines": len(rows),
        "truncated": cut or start - 1 + len(part) < len(rows),
        **({} if encoding.name == UTF_8.name else {"encoding": encoding.name}),
    }


def _list_folder(root: int, path: str, limits: TextLimits) -> Result:
    """Return the names in a folder (`entries`, folders with a '/' at the end), within limits, and
    how many there are (`total`).
    """
    names: list[str] = []
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            names = sorted(
                f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in islice(entries, _COUNTED_ENTRIES)
                if entry.name not in _HIDDEN
            )
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(descriptor)
    shown: list[str] = []
    size = 0
    for name in names[:SHOWN_ENTRIES]:
        size += len(name) + 4
        if size > limits.output_bytes:
            break
        shown.append(name)
    return {
        "path": path or ".",
        "entries": shown,
        "total": len(names),
        "truncated": len(shown) < len(names),
    }


def write(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Replace or create a file, with its folders. An existing text keeps its encoding and its line
    ends.
    """
    path = clean_for_writing(args["path"])
    content = args["content"]
    try:
        before, encoding = read_encoded(root, path, limits)
    except ToolFailure:
        before, encoding = "", UTF_8  # absent, or not a text
    content = with_ends(content, line_end(before))
    return {"path": path, "bytes": write_text(root, path, content, limits, encoding=encoding)}


def append(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Append, with the file's line ends. If the last line has no end, a newline comes first: a new
    line was meant.
    """
    path = clean_for_writing(args["path"])
    content = args["content"]
    before, encoding = _text_before(root, path, limits)
    if before and not before.endswith(("\n", "\r")) and not content.startswith(("\n", "\r")):
        content = "\n" + content
    content = with_ends(content, line_end(before))
    return {
        "path": path,
        "bytes": write_text(root, path, content, limits, encoding=encoding, append=True),
    }


def _text_before(root: int, path: str, limits: TextLimits) -> tuple[str, Encoding]:
    """Return a file's text and encoding; '' and UTF-8 if there is no file yet."""
    try:
        return read_encoded(root, path, limits)
    except ToolFailure as missing:
        if "does not exist" not in str(missing):
            raise
        return "", UTF_8


@lru_cache(maxsize=4096)
def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def glob_matches(path: str, glob: str) -> bool:
    """Whether a relative path matches: `**` any folders, `*` within a name; without '/' a name
    anywhere.
    """
    pattern = tuple(part for part in glob.split("/") if part)
    if len(pattern) == 1 and pattern[0] != "**":
        pattern = ("**", *pattern)
    if pattern and pattern[-1] == "**":
        pattern = (*pattern, "*")
    squeezed = tuple(
        part
        for at, part in enumerate(pattern)
        if part != "**" or at == 0 or pattern[at - 1] != "**"
    )
    return _matches(tuple(path.split("/")), squeezed)


def _walk(root: int, path: str, *, hidden: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, lstat) of everything beneath, folders before what is in them, sorted; no symlink
    is followed.
    """
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


def define(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Replace or add a function, method or class by its name."""
    from moothall.sandbox_runtime import define as definer  # costs start time
    from moothall.sandbox_runtime.syntax import ENDINGS, language_of

    path = clean_for_writing(args["path"])
    language = language_of(path)
    if not language:
        raise ToolFailure(
            f"{path!r} is of no language that files.define knows ({' '.join(ENDINGS)}); use "
            "files.edit or files.write"
        )
    before, encoding = _text_before(root, path, limits)
    made = definer.define(before, language, args["name"], args["content"])
    write_text(root, path, made.text, limits, encoding=encoding)
    return {
        "path": path,
        "name": args["name"],
        "replaced": made.replaced,
        "start": made.start,
        "end": made.end,
    }


def survey(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Say what of the files bears on a task. Not in the catalogue: only the trusted side asks, for
    a council's first prompt.
    """
    from moothall.sandbox_runtime import repo_map as surveyor  # costs start time

    files = [
        (path, found.st_size) for path, found in _walk(root, "") if stat.S_ISREG(found.st_mode)
    ]
    return surveyor.survey(root, files, args, limits)


def list_(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
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


def search(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
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
            text = read_text(root, below, limits)
        except ToolFailure:
            continue  # binary, too large or gone
        for number, line in enumerate(rows_of(text), 1):
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
        if stat.S_ISREG(found.st_mode) and glob_matches(
            below[len(path) + 1 :] if path else below, glob
        ):
            yield below


def delete(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
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


def mkdir(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Make a folder and its parents; one that exists is fine."""
    del limits
    path = clean_for_writing(args["path"])
    make_folders(root, path)
    return {"path": path}


_KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISREG, "file"), (stat.S_ISLNK, "symlink"))


def info(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
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
    result: Result = {
        "path": path,
        "type": kind,
        "bytes": found.st_size,
        "executable": bool(found.st_mode & 0o100),
    }
    if kind == "symlink":
        result["target"] = target
    if kind == "file":
        try:
            result["lines"] = len(rows_of(read_text(root, path, limits)))
        except ToolFailure:
            result["lines"] = None
    return result


def diff(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """A unified diff from `path` to `other`."""
    import difflib  # costs start time

    path, other = clean(args["path"]), clean(args["other"])
    rows = difflib.unified_diff(
        rows_of(read_text(root, path, limits)),
        rows_of(read_text(root, other, limits)),
        path,
        other,
    )
    text, cut = cut_text(
        "".join(
            row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows
        ),
        limits.output_bytes,
    )
    return {"diff": text, "truncated": cut}


def store(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Make a file of bytes in base64. Not in the catalogue: only tools of the trusted side ask for
    it, and for `load`.
    """
    path = clean_for_writing(args["path"])
    try:
        raw = base64.b64decode(args["content"], validate=True)
    except ValueError as error:
        raise ToolFailure("content is not base64", "invalid") from error
    return {"path": path, "bytes": write_bytes(root, path, raw, limits)}


def load(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Return a file's bytes in base64."""
    path = clean(args["path"])
    return {"path": path, "content": base64.b64encode(read_bytes(root, path, limits)).decode()}


TOOLS: Mapping[str, Callable[[int, Mapping[str, Any], TextLimits], Result]] = {
    "files.read": read,
    "files.write": write,
    "files.append": append,
    "files.edit": edit,
    "files.define": define,
    "files.list": list_,
    "files.search": search,
    "files.delete": delete,
    "files.mkdir": mkdir,
    "files.info": info,
    "files.diff": diff,
    "files.survey": survey,
    "files.store": store,
    "files.load": load,
}

# Their time depends on what they are given: the executor runs them in a child with a deadline.
SLOW = frozenset(
    {"files.define", "files.edit", "files.list", "files.search", "files.survey", "files.diff"}
)
