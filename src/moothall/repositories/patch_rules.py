"""What a patch, or a repository, may hold. Pure: names, modes and targets in, a refusal out.

Names are refused in every form that some file system takes for `.git`. A symlink of a patch may
climb only at the beginning of its target and only as far as the root: then no chain of such links
can leave the tree. A base may hold other links and odd names; they stay as they are, and
`check_links` keeps a patch from leading through them.
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
from moothall.ranking.test_authorship import EXPECTED_RESULTS

FILE, EXECUTABLE, SYMLINK, SUBMODULE, ABSENT = "100644", "100755", "120000", "160000", "000000"
MODES = (FILE, EXECUTABLE, SYMLINK)
_NAME_BYTES = 255
_PATH_BYTES = 4096
_TARGET_BYTES = 4096
_HOPS, _STEPS = 40, 4096
_ENDLESS = "…"
_INFLATED = re.compile(rb"^(?:literal|delta) ([0-9]+)\r?$", re.MULTILINE)

# Ignored by HFS+ when it compares names.
_INVISIBLE = dict.fromkeys(
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
"""Files of tests, and what they compare with, by the conventions of Python, Node, Go and Rust."""


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
"""What tools and set-ups leave in a work tree: never part of a patch unless the base has it."""
_LEFT_OUT = re.compile("|".join(map(translate, LEFT_OUT)))
ADVICE = "Delete what a build or a test left behind, or name it in .gitignore."
_MOST, _SHOWN_CHARS = 3, 200


@dataclass(frozen=True, slots=True)
class RawChange:
    """One changed path: git modes before and after (000000 if absent), a link's targets after and
    before, size in bytes.
    """

    path: str
    old_mode: str = ABSENT
    new_mode: str = FILE
    target: str | None = None
    size: int = 0
    old_target: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeLimits:
    """How much one patch may bring."""

    files: int = 1000
    file_bytes: int = 5_000_000
    total_bytes: int = 20_000_000


def is_left_out(name: str) -> bool:
    """Whether one of the `LEFT_OUT` patterns matches the name of a file or folder."""
    return _LEFT_OUT.match(name) is not None


def most_of(amounts: Mapping[str, int], base_folders: AbstractSet[str]) -> list[tuple[str, int]]:
    """Return which new folders, or files in a folder of the base, have most of these amounts, with
    the sum of each.
    """
    sums: Counter[str] = Counter()
    for path, amount in amounts.items():
        parts = path.split("/")
        folders = ("/".join(parts[:end]) for end in range(1, len(parts)))
        new = next((folder for folder in folders if folder not in base_folders), None)
        sums[path[:_SHOWN_CHARS] if new is None else f"{new[:_SHOWN_CHARS]}/"] += amount
    return sums.most_common(_MOST)


def check_changes(changes: Sequence[RawChange], limits: ChangeLimits = ChangeLimits()) -> None:
    """Raise `PatchRefused`, naming path and reason, unless every change may enter a repository."""
    if len(changes) > limits.files:
        folders = {
            change.path.rpartition("/")[0] for change in changes if change.old_mode != ABSENT
        }
        above = {
            "/".join(parts[:end])
            for folder in folders
            for parts in [folder.split("/")]
            for end in range(1, len(parts) + 1)
        }
        shown = ", ".join(
            f"{path} ({count} files)"
            for path, count in most_of({change.path: 1 for change in changes}, above)
        )
        raise PatchRefused(
            f"the patch changes {len(changes)} files; at most {limits.files} "
            f"(workspace.max_patch_files) are allowed. Most are in {shown}. {ADVICE}"
        )
    total = 0
    for change in changes:
        reason = why_path(change.path) or _why_change(change, limits)
        if reason:
            raise PatchRefused(f"the patch may not change {change.path[:200]!r}: {reason}.")
        total += change.size
    if total > limits.total_bytes:
        raise PatchRefused(
            f"the patch brings {total} bytes; at most {limits.total_bytes} (4 times "
            "workspace.max_file_bytes) are allowed."
        )


def check_outside(submodules: Iterable[str], paths: Sequence[str]) -> None:
    """Raise `PatchRefused` where one of `paths` lies in a submodule."""
    for path in paths:
        module = next(
            (module for module in submodules if path == module or path.startswith(f"{module}/")),
            None,
        )
        if module is not None:
            raise PatchRefused(
                f"the patch may not change {path[:200]!r}: it lies in the submodule "
                f"{module[:200]!r}, a repository of its own; leave what is there as it was."
            )


def check_binaries(diff: bytes, limit: int) -> None:
    """Raise `PatchRefused` where a git diff holds a binary file of more than `limit` bytes,
    whatever its own size.
    """
    for match in _INFLATED.finditer(diff):
        if len(match[1]) > 15 or int(match[1]) > limit:  # noqa: PLR2004 - digits
            raise PatchRefused(
                f"the patch holds a binary file of more than {limit} bytes "
                "(workspace.max_file_bytes)."
            )


def _why_change(change: RawChange, limits: ChangeLimits) -> str:
    if change.path.rsplit("/", 1)[-1].casefold() == ".gitmodules":
        return "submodules are not supported"
    if SUBMODULE in {change.old_mode, change.new_mode}:
        return "it is a submodule"
    if change.new_mode not in {*MODES, ABSENT}:
        return f"mode {change.new_mode[:12]} is not one of {', '.join(MODES)}"
    if SYMLINK in {change.old_mode, change.new_mode}:
        return _why_link(change)
    too_large = change.size > limits.file_bytes
    return (
        f"{change.size} bytes are more than the {limits.file_bytes} (workspace.max_file_bytes) "
        "allowed for a file"
        if too_large
        else ""
    )


def _why_link(change: RawChange) -> str:
    if change.old_mode == SYMLINK and (reason := why_target(change.path, change.old_target)):
        return f"the existing symlink is one that no patch may create ({reason}); leave it as it is"
    return why_target(change.path, change.target) if change.new_mode == SYMLINK else ""


def why_path(path: str) -> str:
    """Return why `path` is not a plain relative path inside a tree, or nothing."""
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


def why_unsafe(path: str) -> str:
    """Return why not even a base may hold `path`, or nothing: git itself would not check it out."""
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
        return "a name holds a backslash"
    if any(unicodedata.category(char) in {"Cc", "Zl", "Zp"} for char in name):
        return "a name holds a control character"
    if _looks_like_git(name):
        return "it would write into git's own folder"
    return ""


def _looks_like_git(name: str) -> bool:
    seen = unicodedata.normalize("NFKC", name.translate(_INVISIBLE)).casefold()
    seen = seen.split(":", 1)[0].rstrip(". ")  # NTFS: streams, trailing dots and spaces
    return seen == ".git" or _SHORT_NAME.fullmatch(seen) is not None


def why_target(path: str, target: str | None) -> str:
    """Return why a symlink at `path` may not point to `target`, or nothing."""
    if not target or len(target) > _TARGET_BYTES:
        return "a symlink needs a target of 1 to 4096 characters"
    try:
        target.encode()
    except UnicodeEncodeError:
        return "the symlink's target is not UTF-8"
    if target.startswith("/"):
        return "the symlink points to an absolute path"
    parts = [part for part in target.split("/") if part not in {"", "."}]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if up > path.count("/"):
        return "the symlink leaves the tree"
    if ".." in parts[up:]:
        return "the symlink's target has '..' after its beginning"
    return next(
        (f"the symlink's target: {reason}" for part in parts[up:] if (reason := _why_name(part))),
        "",
    )


def check_links(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise `PatchRefused` if a patch makes a symlink lead out of the tree.

    `old` and `new` are all symlinks before and after, path → target. Those of the base that lead
    out may stay. Every link is followed, since a harmless one may pass through one of these.
    """
    if all(not why_target(path, target) for path, target in old.items()):
        return  # the rules for each link are enough
    for path, target in new.items():
        exit_ = _find_exit(path, new)
        if exit_ and (old.get(path) != target or _find_exit(path, old) != exit_):
            raise PatchRefused(
                f"the patch may not change where {path[:200]!r} leads: the symlink would leave the "
                "tree."
            )


def _find_exit(path: str, links: Mapping[str, str]) -> str:
    """Return where a symlink leaves the tree, or '' if it does not; it is resolved as by the
    kernel.
    """
    place = path.split("/")[:-1]
    left = deque([path.rpartition("/")[2]])
    hops = 0
    for _ in range(_STEPS):
        if not left:
            return ""
        part = left.popleft()
        if part in {"", "."}:
            continue
        if part == "..":
            if not place:
                return "/".join(("..", *left))
            place.pop()
            continue
        place.append(part)
        target = links.get("/".join(place))
        if target is None:
            continue
        hops += 1
        if hops > _HOPS:
            return ""  # the kernel follows no more
        place.pop()
        if target.startswith("/"):
            return "/".join((target, *left))
        left.extendleft(reversed(target.split("/")))
    return _ENDLESS


def is_test(path: str) -> bool:
    """Whether a path is a test file by the usual conventions of Python, Node and Go."""
    return matches(TEST_PATTERNS, path)


def matches(patterns: Iterable[str], path: str) -> bool:
    """Whether one of the gitignore-style patterns matches. `*` stays within a name, `**` crosses
    folders; a
    pattern without a slash matches at any depth; one that matches a folder matches what is in it. A
    pattern
    that begins with `!` takes back what those before it matched.
    """
    parts = tuple(path.split("/"))
    found = False
    for pattern in patterns:
        taken_back = pattern.startswith("!")
        if found is taken_back and _matches(_segments(pattern.removeprefix("!")), parts):
            found = not taken_back
    return found


@lru_cache(maxsize=4096)
def _segments(pattern: str) -> tuple[str, ...]:
    body = pattern.rstrip("/")
    segments = tuple(part for part in body.split("/") if part)
    return segments if "/" in body or not segments else ("**", *segments)


def _matches(segments: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    # All positions in the pattern that the names so far can have led to: time grows with pattern
    # times path,
    # whatever a hostile pattern says.
    end = len(segments)
    places = _skip(segments, {0})
    for part in parts:
        reached = set()
        for place in places:
            if segments[place] == "**":
                reached |= {place, end} if place == end - 1 else {place}
            elif fnmatchcase(part, segments[place]):
                reached.add(place + 1)
        if end in reached:
            return bool(segments)
        places = _skip(segments, reached)
    return False


def _skip(segments: tuple[str, ...], places: set[int]) -> set[int]:
    """Add the places behind each `**`, which may stand for no folder at all (the last one may
    not).
    """
    for place in range(len(segments) - 1):
        if place in places and segments[place] == "**":
            places.add(place + 1)
    return {place for place in places if place < len(segments)}
