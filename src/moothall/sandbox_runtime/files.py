"""The tools `files.*`, on one folder. Standard library only: they run in the executor.

Each tool takes a descriptor of the workspace's root and checked arguments, and returns a JSON
object. Errors are `ToolFailure`s with a message that helps the model.
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
from moothall.sandbox_runtime.file_access import (
    UTF_8,
    Encoding,
    IsFolder,
    TextLimits,
    ToolFailure,
    clean,
    clean_for_writing,
    convert_line_ends,
    cut_text,
    failure,
    line_end,
    make_folders,
    open_beneath,
    open_parent,
    read_bytes,
    read_encoded,
    read_text,
    split_rows,
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
"""The number of names that `files.read` lists for a folder."""
_COUNTED_ENTRIES = 20_000
MAX_MATCHES = 200
MAX_LINE = 300
MAX_DEPTH = 64
_HIDDEN = frozenset(
    {".git", "__pycache__", ".pytest_cache", "node_modules", ".venv", ".mypy_cache", ".ruff_cache"}
)


def read(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Read lines. `content` is lines `start` to `start + lines - 1`, unchanged. `encoding` is set
    if it is not plain UTF-8. For a folder, the failure lists its names.
    """
    path = clean(args["path"])
    try:
        text, encoding = read_encoded(root, path, limits)
    except IsFolder as failure_error:
        raise IsFolder(path, _list_folder(root, path, limits)) from failure_error
    rows = split_rows(text)
    start, line_count = args.get("start", 1), args.get("lines", 2000)
    if start > max(1, len(rows)):
        raise ToolFailure(
            f"{path!r} has {len(rows)} lines; start {start} is behind its end", "invalid"
        )
    part = rows[start - 1 : start - 1 + line_count]
    content, is_cut = cut_text("".join(part), limits.output_bytes)
    return {
        "path": path,
        "content": content,
        "start": start,
        "total_lines": len(rows),
        "truncated": is_cut or start - 1 + len(part) < len(rows),
        **({} if encoding.name == UTF_8.name else {"encoding": encoding.name}),
    }


def _list_folder(root: int, path: str, limits: TextLimits) -> Result:
    """Return a folder's names (`entries`, folders with a '/' at the end), within limits, and their
    number (`total`).
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
    listed: list[str] = []
    size = 0
    for name in names[:SHOWN_ENTRIES]:
        size += len(name) + 4
        if size > limits.output_bytes:
            break
        listed.append(name)
    return {
        "path": path or ".",
        "entries": listed,
        "total": len(names),
        "truncated": len(listed) < len(names),
    }


def write(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Replace or create a file, with its folders. An existing text file keeps its encoding and line
    ends.
    """
    path = clean_for_writing(args["path"])
    content = args["content"]
    try:
        before, encoding = read_encoded(root, path, limits)
    except ToolFailure:
        before, encoding = "", UTF_8  # absent, or not a text
    content = convert_line_ends(content, line_end(before))
    return {"path": path, "bytes": write_text(root, path, content, limits, encoding=encoding)}


def append(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Append to a file, with its line ends. If its last line has no end, a newline is added first,
    because a new line was meant.
    """
    path = clean_for_writing(args["path"])
    content = args["content"]
    before, encoding = _existing_text(root, path, limits)
    if before and not before.endswith(("\n", "\r")) and not content.startswith(("\n", "\r")):
        content = "\n" + content
    content = convert_line_ends(content, line_end(before))
    return {
        "path": path,
        "bytes": write_text(root, path, content, limits, encoding=encoding, append=True),
    }


def _existing_text(root: int, path: str, limits: TextLimits) -> tuple[str, Encoding]:
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
    """Return whether a relative path matches a glob: `**` for any folders, `*` within a name. A
    glob without '/' matches a name in any folder.
    """
    pattern = tuple(part for part in glob.split("/") if part)
    if len(pattern) == 1 and pattern[0] != "**":
        pattern = ("**", *pattern)
    if pattern and pattern[-1] == "**":
        pattern = (*pattern, "*")
    paths = tuple(
        part
        for index, part in enumerate(pattern)
        if part != "**" or index == 0 or pattern[index - 1] != "**"
    )
    return _matches(tuple(path.split("/")), paths)


def _walk(root: int, path: str, *, hidden: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, lstat) for everything beneath `path`, sorted, folders before their content.
    Symlinks are not followed.
    """
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = sorted(os.listdir(descriptor))  # noqa: PTH208 - by descriptor, so that nobody can replace a parent
        for name in names:
            if not hidden and name in _HIDDEN:
                continue
            try:
                file_stat = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
            inner_path = f"{path}/{name}" if path else name
            yield inner_path, file_stat
            if stat.S_ISDIR(file_stat.st_mode) and inner_path.count("/") < MAX_DEPTH:
                try:
                    yield from _walk(root, inner_path, hidden=hidden)
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
    before, encoding = _existing_text(root, path, limits)
    definition = definer.define(before, language, args["name"], args["content"])
    write_text(root, path, definition.text, limits, encoding=encoding)
    return {
        "path": path,
        "name": args["name"],
        "replaced": definition.replaced,
        "start": definition.start,
        "end": definition.end,
    }


def survey(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Return the parts of the repository that are relevant to a task. Not in the catalogue: the
    trusted side uses it for a council's first prompt.
    """
    from moothall.sandbox_runtime import repo_map as surveyor  # costs start time

    files = [
        (path, file_stat.st_size)
        for path, file_stat in _walk(root, "")
        if stat.S_ISREG(file_stat.st_mode)
    ]
    return surveyor.survey(root, files, args, limits)


def list_(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """List paths, folders with a '/' at the end. Caches and dependencies are not listed."""
    path, glob = clean(args.get("path", ".")), args.get("glob", "**")
    entries: list[str] = []
    size = 0
    for entry_path, file_stat in _walk(root, path):
        relative_path = entry_path[len(path) + 1 :] if path else entry_path
        if not glob_matches(relative_path, glob):
            continue
        entry = f"{entry_path}/" if stat.S_ISDIR(file_stat.st_mode) else entry_path
        size += len(entry) + 4
        if len(entries) == MAX_ENTRIES or size > limits.output_bytes:
            return {"path": path or ".", "entries": entries, "truncated": True}
        entries.append(entry)
    return {"path": path or ".", "entries": entries, "truncated": False}


def search(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Search by a regular expression. `matches` are {path, line, text}. The caller limits the time,
    because a pattern may take forever.
    """
    try:
        pattern = re.compile(args["pattern"])
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailure(f"pattern is not a regular expression: {error}", "invalid") from error
    path, glob = clean(args.get("path", ".")), args.get("glob", "**")
    matches: list[Result] = []
    size = 0
    for file_path in _files(root, path, glob):
        try:
            text = read_text(root, file_path, limits)
        except ToolFailure:
            continue  # binary, too large or gone
        for number, line in enumerate(split_rows(text), 1):
            row = line.rstrip("\r\n")
            if pattern.search(row):
                size += len(file_path) + min(len(row), MAX_LINE) + 32
                if len(matches) == MAX_MATCHES or size > limits.output_bytes:
                    return {"matches": matches, "truncated": True}
                matches.append({"path": file_path, "line": number, "text": row[:MAX_LINE]})
    return {"matches": matches, "truncated": False}


def _files(root: int, path: str, glob: str) -> Iterator[str]:
    descriptor = open_beneath(root, path, os.O_PATH)
    try:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    if not is_folder:
        yield path
        return
    for file_path, file_stat in _walk(root, path):
        if stat.S_ISREG(file_stat.st_mode) and glob_matches(
            file_path[len(path) + 1 :] if path else file_path, glob
        ):
            yield file_path


def delete(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Delete a file, a symlink (not what it points to) or an empty folder."""
    del limits
    path = clean_for_writing(args["path"])
    parent, name = open_parent(root, path)
    try:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        if is_folder:
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
    """Return a path's type, size, number of lines for text, and target of a symlink."""
    path = clean(args["path"])
    if not path:
        return {"path": ".", "type": "folder"}
    parent, name = open_parent(root, path)
    try:
        file_stat = os.stat(name, dir_fd=parent, follow_symlinks=False)
        target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(file_stat.st_mode) else ""
    except OSError as error:
        raise failure(error.errno or 0, path) from error
    finally:
        os.close(parent)
    type_name = next((word for is_kind, word in _KINDS if is_kind(file_stat.st_mode)), "other")
    result: Result = {
        "path": path,
        "type": type_name,
        "bytes": file_stat.st_size,
        "executable": bool(file_stat.st_mode & 0o100),
    }
    if type_name == "symlink":
        result["target"] = target
    if type_name == "file":
        try:
            result["lines"] = len(split_rows(read_text(root, path, limits)))
        except ToolFailure:
            result["lines"] = None
    return result


def diff(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Return a unified diff from `path` to `other`."""
    import difflib  # costs start time

    path, other = clean(args["path"]), clean(args["other"])
    rows = difflib.unified_diff(
        split_rows(read_text(root, path, limits)),
        split_rows(read_text(root, other, limits)),
        path,
        other,
    )
    text, is_cut = cut_text(
        "".join(
            row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows
        ),
        limits.output_bytes,
    )
    return {"diff": text, "truncated": is_cut}


def store(root: int, args: Mapping[str, Any], limits: TextLimits) -> Result:
    """Create a file from bytes in base64. Not in the catalogue: only tools of the trusted side use
    it, and `load`.
    """
    path = clean_for_writing(args["path"])
    try:
        content = base64.b64decode(args["content"], validate=True)
    except ValueError as error:
        raise ToolFailure("content is not base64", "invalid") from error
    return {"path": path, "bytes": write_bytes(root, path, content, limits)}


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

# Their run time depends on their arguments, so the executor runs them in a child with a deadline.
SLOW = frozenset(
    {"files.define", "files.edit", "files.list", "files.search", "files.survey", "files.diff"}
)
