"""Looking at a path as text, before anything looks at the disk. The executor resolves links
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from moothall.sandbox_runtime.confinement import ROOT


def relative_path(path: str) -> str:
    """Return an absolute path below the workspace's root (as `pwd` and tracebacks in the sandbox
    print it) as a relative one.

    Other paths are returned as they are. Only text is looked at: the result has to pass
    `refuse_path`.
    """
    file, separator, case = path.partition("::")
    if not file.startswith("/"):
        return path
    parts = [part for part in file.split("/") if part not in {"", "."}]
    if parts[:1] != [ROOT.strip("/")]:
        return path
    return ("/".join(parts[1:]) or ".") + separator + case


def refuse_path(path: str) -> str:
    """Return why a path may not be used, or nothing if it may. `tests/a.py::test_b` is read as
    tests/a.py.
    """
    shown = repr(path[:80])
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):  # noqa: PLR2004  # ASCII control characters
        return f"path {shown} holds a control character"
    file = path.partition("::")[0]
    if file.startswith(("/", "~", "\\")) or file[1:2] == ":":
        return f"path {shown} is absolute; paths are relative to the workspace, as in src/utils.py"
    if file.startswith("-"):
        return f"path {shown} looks like an option; write ./{file[:80]}"
    parts = path.replace("\\", "/").split("/")  # the file system knows no "::"
    if ".." in parts:
        return (
            f"path {shown} leaves the workspace by '..'; paths are relative to it, as in "
            "src/utils.py"
        )
    if any(part.rstrip(". ").casefold() == ".git" for part in parts):
        return f"path {shown} is inside .git; use git.status, git.diff or git.log"
    return ""


def covers(pattern: str, path: str) -> bool:
    """Whether a gitignore-style pattern (no negation) covers a path or a folder above it.

    A pattern without an inner slash matches at any depth; `**` stands for any number of folders.
    """
    wanted = [part for part in pattern.split("/") if part not in {"", "."}]
    given = [part for part in path.split("/") if part not in {"", "."}]
    if not wanted:
        return False
    if "/" not in pattern.rstrip("/"):
        wanted = ["**", *wanted]
    return _covers(wanted, given)


def first_covered(patterns: Iterable[str], paths: Iterable[str]) -> str:
    """Return the first of the paths that a pattern covers, or ''."""
    known = tuple(patterns)
    return next((path for path in paths if any(covers(pattern, path) for pattern in known)), "")


def _covers(wanted: list[str], given: list[str]) -> bool:
    below = wanted[-1] == "**"  # `docs/**` is what lies below docs, not docs itself
    # Where in the path the pattern read so far can end: linear in both, whatever the pattern.
    ends = {0}
    for part in wanted[:-1] if below else wanted:
        if part == "**":
            ends = set(range(min(ends), len(given) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(given) and fnmatchcase(given[end], part)}
        if not ends:
            return False
    return not below or min(ends) < len(given)
