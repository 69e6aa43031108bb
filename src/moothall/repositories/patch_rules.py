"""The rules for the content of patches and repositories. Pure: from names, modes and targets to a
refusal.

Names are refused in every form that some file system treats as `.git`. A symlink in a patch may
contain '..' only at the beginning of its target and only up to the root, so that no chain of such
links leaves the tree. A base may contain other links and odd names. They stay as they are, and
`check_links` keeps a patch from using them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import lru_cache

from moothall.errors import PatchRefused
from moothall.ranking.test_cases import EXPECTED_RESULTS

FILE, EXECUTABLE, SYMLINK, SUBMODULE, ABSENT = "100644", "100755", "120000", "160000", "000000"
MODES = (FILE, EXECUTABLE, SYMLINK)
MAX_PATCH_BYTES = 2_000_000
MAX_PATCH_FILES = 1000
MAX_FILE_BYTES = 5_000_000
"""The maximum size of one file in a patch, or of a file that a tool reads."""
MAX_CHANGE_BYTES = 4 * MAX_FILE_BYTES
"""The maximum size of all files of a patch together."""
_NAME_BYTES = 255
_PATH_BYTES = 4096
_TARGET_BYTES = 4096
_MAX_HOPS, _MAX_STEPS = 40, 4096
_ENDLESS = "…"
_BINARY_SIZE = re.compile(rb"^(?:literal|delta) ([0-9]+)\r?$", re.MULTILINE)

# HFS+ ignores these when it compares names.
_IGNORED_CHARACTERS = dict.fromkeys(
    [
        *range(0x200C, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x206A, 0x2070),
        0xFEFF,
        0x00AD,
        0x200B,
        0x2060,
    ]
)
_SHORT_NAME = re.compile(r"(git|gitmod|gi[0-9a-f]{4})~[0-9]+", re.IGNORECASE)

TEST_PATTERNS: tuple[str, ...] = (
    "tests/**",
    "test/**",
    "**/tests/**",
    "**/test/**",
    "**/__tests__/**",
    "**/test_*.py",
    "**/*_test.py",
    "**/tests.py",
    "**/*_test.go",
    "**/tests.rs",
    "**/*_test.rs",
    "**/*_tests.rs",
    *(
        f"**/*.{word}.{kind}{script}{more}"
        for word in ("test", "spec")
        for kind in ("", "c", "m")
        for script in "jt"
        for more in ("s", "sx")
    ),
    *(
        f"{name}.{kind}js"
        for name in ("/test", "**/test-*", "**/*-test", "**/*_test")
        for kind in ("", "c", "m")
    ),
    *(f"**/spec/**/*.{kind}{script}s" for kind in ("", "c", "m") for script in "jt"),
    *EXPECTED_RESULTS,
)
"""Test files and their expected results, by the conventions of Python, Node, Go and Rust."""


LEFT_OUT = (
    "__pycache__",
    "*.py[co]",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".coverage",
    "node_modules",
    ".venv",
    "*.egg-info",
)
"""Leftovers of tools and set-ups: never part of a patch unless the base has them."""
_LEFT_OUT = re.compile("|".join(map(translate, LEFT_OUT)))
ADVICE = "Delete what a build or a test left behind, or name it in .gitignore."
_SHOWN_PATHS, _SHOWN_CHARS = 3, 200


@dataclass(frozen=True, slots=True)
class RawChange:
    """The change of one path.

    old_mode, new_mode: git modes; 000000 if absent.
    target, old_target: the target of a symlink after and before the change.
    size: in bytes.
    """

    path: str
    old_mode: str = ABSENT
    new_mode: str = FILE
    target: str | None = None
    size: int = 0
    old_target: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeLimits:
    """The limits of one patch."""

    files: int = MAX_PATCH_FILES
    file_bytes: int = MAX_FILE_BYTES
    total_bytes: int = MAX_CHANGE_BYTES


def is_left_out(name: str) -> bool:
    """Return whether the name of a file or folder matches one of the `LEFT_OUT` patterns."""
    return _LEFT_OUT.match(name) is not None


def largest_paths(
    amounts: Mapping[str, int], base_folders: AbstractSet[str]
) -> list[tuple[str, int]]:
    """Return the new folders, or files in folders of the base, with the largest sums of these
    amounts, and the sums.
    """
    sums: Counter[str] = Counter()
    for path, amount in amounts.items():
        parts = path.split("/")
        folders = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        new_folder = next((folder for folder in folders if folder not in base_folders), None)
        sums[path[:_SHOWN_CHARS] if new_folder is None else f"{new_folder[:_SHOWN_CHARS]}/"] += (
            amount
        )
    return sums.most_common(_SHOWN_PATHS)


def check_changes(changes: Sequence[RawChange], limits: ChangeLimits = ChangeLimits()) -> None:
    """Raise `PatchRefused` with path and reason if a change is not allowed."""
    if len(changes) > limits.files:
        folders = {
            change.path.rpartition("/")[0] for change in changes if change.old_mode != ABSENT
        }
        base_folders: set[str] = set()
        for folder in folders:
            parts = folder.split("/")
            base_folders.update("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        excerpt = ", ".join(
            f"{path} ({count} files)"
            for path, count in largest_paths({change.path: 1 for change in changes}, base_folders)
        )
        raise PatchRefused(
            f"the patch changes {len(changes)} files; at most {limits.files} "
            f"are allowed. Most are in {excerpt}. {ADVICE}"
        )
    total = 0
    for change in changes:
        reason = invalid_path_reason(change.path) or _invalid_change_reason(change, limits)
        if reason:
            raise PatchRefused(f"the patch may not change {change.path[:200]!r}: {reason}.")
        total += change.size
    if total > limits.total_bytes:
        raise PatchRefused(
            f"the patch brings {total} bytes; at most {limits.total_bytes} are allowed."
        )


def check_submodules(submodules: Iterable[str], paths: Sequence[str]) -> None:
    """Raise `PatchRefused` if one of `paths` is in a submodule."""
    for path in paths:
        submodule = next(
            (
                submodule
                for submodule in submodules
                if path == submodule or path.startswith(f"{submodule}/")
            ),
            None,
        )
        if submodule is not None:
            raise PatchRefused(
                f"the patch may not change {path[:200]!r}: it lies in the submodule "
                f"{submodule[:200]!r}, a repository of its own; leave what is there as it was."
            )


def check_binaries(diff: bytes) -> None:
    """Raise `PatchRefused` if a git diff contains a binary file of more than `MAX_FILE_BYTES`,
    regardless of the size of the diff.
    """
    for match in _BINARY_SIZE.finditer(diff):
        if len(match[1]) > 15 or int(match[1]) > MAX_FILE_BYTES:  # noqa: PLR2004 - digits
            raise PatchRefused(
                f"the patch holds a binary file of more than {MAX_FILE_BYTES} bytes."
            )


def _invalid_change_reason(change: RawChange, limits: ChangeLimits) -> str:
    if change.path.rsplit("/", 1)[-1].casefold() == ".gitmodules":
        return "submodules are not supported"
    if SUBMODULE in {change.old_mode, change.new_mode}:
        return "it is a submodule"
    if change.new_mode not in {*MODES, ABSENT}:
        return f"mode {change.new_mode[:12]} is not one of {', '.join(MODES)}"
    if SYMLINK in {change.old_mode, change.new_mode}:
        return _invalid_link_reason(change)
    if change.size > limits.file_bytes:
        return f"{change.size} bytes are more than the {limits.file_bytes} allowed for a file"
    return ""


def _invalid_link_reason(change: RawChange) -> str:
    if change.old_mode == SYMLINK and (
        reason := invalid_target_reason(change.path, change.old_target)
    ):
        return f"the existing symlink is one that no patch may create ({reason}); leave it as it is"
    return invalid_target_reason(change.path, change.target) if change.new_mode == SYMLINK else ""


def invalid_path_reason(path: str) -> str:
    """Return why `path` is not a plain relative path inside a tree, or ''."""
    if not path:
        return "the path is empty"
    if path.startswith("/"):
        return "the path is absolute"
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "the path is not UTF-8"
    if len(raw) > _PATH_BYTES:
        return f"the path is longer than {_PATH_BYTES} bytes"
    return next((reason for part in path.split("/") if (reason := _why_name(part))), "")


def unsafe_path_reason(path: str) -> str:
    """Return why not even a base may contain `path`, or '': git itself would not check it out."""
    if not path:
        return "the path is empty"
    for name in path.split("/"):
        if name in {"", ".", ".."}:
            return f"{name!r} is not a file name"
        if _looks_like_git(name):
            return "it would write into git's own folder"
    return ""


@lru_cache(maxsize=65536)
def _why_name(name: str) -> str:
    if name in {"", ".", ".."}:
        return f"{name!r} is not a file name"
    if len(name.encode()) > _NAME_BYTES:
        return f"a name is longer than {_NAME_BYTES} bytes"
    if "\\" in name:
        return "a name contains a backslash"
    if any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} for char in name):
        return "a name contains a control character"
    if _looks_like_git(name):
        return "it would write into git's own folder"
    return ""


def _looks_like_git(name: str) -> bool:
    folded_name = unicodedata.normalize("NFKC", name.translate(_IGNORED_CHARACTERS)).casefold()
    folded_name = folded_name.split(":", 1)[0].rstrip(
        ". "
    )  # NTFS: streams, trailing dots and spaces
    return folded_name == ".git" or _SHORT_NAME.fullmatch(folded_name) is not None


def invalid_target_reason(path: str, target: str | None) -> str:
    """Return why a symlink at `path` may not point to `target`, or ''."""
    if not target or len(target) > _TARGET_BYTES:
        return "a symlink needs a target of 1 to 4096 characters"
    try:
        target.encode()
    except UnicodeEncodeError:
        return "the symlink's target is not UTF-8"
    if target.startswith("/"):
        return "the symlink points to an absolute path"
    parts = [part for part in target.split("/") if part not in {"", "."}]
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if climbs > path.count("/"):
        return "the symlink leaves the tree"
    if ".." in parts[climbs:]:
        return "the symlink's target has '..' after its beginning"
    return next(
        (
            f"the symlink's target: {reason}"
            for part in parts[climbs:]
            if (reason := _why_name(part))
        ),
        "",
    )


def check_links(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise `PatchRefused` if a patch makes a symlink lead out of the tree.

    `old` and `new` are all symlinks before and after: path → target. Links of the base that lead
    out may stay. Every link is resolved, because a harmless one may pass through one of these.
    """
    if all(not invalid_target_reason(path, target) for path, target in old.items()):
        return  # no link of the base leads out, so the rules for each link are enough
    for path, target in new.items():
        exit_ = _find_exit(path, new)
        if exit_ and (old.get(path) != target or _find_exit(path, old) != exit_):
            raise PatchRefused(
                f"the patch may not change where {path[:200]!r} leads: the symlink would leave the "
                "tree."
            )


def _find_exit(path: str, links: Mapping[str, str]) -> str:
    """Return where a symlink leaves the tree, or '' if it does not. It is resolved as by the
    kernel.
    """
    current = path.split("/")[:-1]
    remaining = deque([path.rpartition("/")[2]])
    hops = 0
    for _ in range(_MAX_STEPS):
        if not remaining:
            return ""
        part = remaining.popleft()
        if part in {"", "."}:
            continue
        if part == "..":
            if not current:
                return "/".join(("..", *remaining))
            current.pop()
            continue
        current.append(part)
        target = links.get("/".join(current))
        if target is None:
            continue
        hops += 1
        if hops > _MAX_HOPS:
            return ""  # the kernel resolves no more
        current.pop()
        if target.startswith("/"):
            return "/".join((target, *remaining))
        remaining.extendleft(reversed(target.split("/")))
    return _ENDLESS


def is_test(path: str) -> bool:
    """Return whether a path is a test file by the conventions of Python, Node, Go and Rust."""
    return matches(TEST_PATTERNS, path)


def matches(patterns: Iterable[str], path: str) -> bool:
    """Return whether one of the gitignore-style patterns matches.

    `*` stays within a name and `**` crosses folders. A pattern without a slash matches at any
    depth. A pattern that matches a folder matches its content. A pattern that begins with `!`
    reverts matches of earlier patterns.
    """
    parts = tuple(path.split("/"))
    matched = False
    for pattern in patterns:
        is_negated = pattern.startswith("!")
        if matched is is_negated and _matches(_segments(pattern.removeprefix("!")), parts):
            matched = not is_negated
    return matched


@lru_cache(maxsize=4096)
def _segments(pattern: str) -> tuple[str, ...]:
    body = pattern.rstrip("/")
    segments = tuple(part for part in body.split("/") if part)
    return segments if "/" in body or not segments else ("**", *segments)


def _matches(segments: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    # The set holds all positions in the pattern that the names so far can reach. That bounds the
    # time by pattern times path, even for hostile patterns.
    end = len(segments)
    positions = _skip(segments, {0})
    for part in parts:
        next_positions = set()
        for position in positions:
            if segments[position] == "**":
                next_positions |= {position, end} if position == end - 1 else {position}
            elif fnmatchcase(part, segments[position]):
                next_positions.add(position + 1)
        if end in next_positions:
            return bool(segments)
        positions = _skip(segments, next_positions)
    return False


def _skip(segments: tuple[str, ...], positions: set[int]) -> set[int]:
    """Add the positions after each `**`, which may match no folder at all. The last `**` must match
    something.
    """
    for position in range(len(segments) - 1):
        if position in positions and segments[position] == "**":
            positions.add(position + 1)
    return {position for position in positions if position < len(segments)}
