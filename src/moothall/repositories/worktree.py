"""The work tree of a user: conversion to and from the form that git stores, and applying a
winner's diff to it, completely or not at all.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moothall.domain.text import is_masked
from moothall.errors import RepositoryError
from moothall.processes import scratch
from moothall.repositories import patch_rules
from moothall.repositories.git_objects import (
    NAMES,
    UNCONVERTED,
    Conversion,
    Settings,
    read_conversions,
)
from moothall.repositories.gitcmd import UNSET, GitRunner
from moothall.repositories.sources import Local

# Conversion between a user's work tree and the form that git stores, by the user's git settings and
# attributes.


_USER_CONFIG = {
    "GIT_CONFIG_GLOBAL": UNSET,
    "GIT_CONFIG_NOSYSTEM": UNSET,
    "GIT_CONFIG_SYSTEM": UNSET,
}
_TRUE_VALUES = {"", "true", "yes", "on", "1"}
ATTRIBUTES_OF_FILES = {"GIT_ATTR_SOURCE": UNSET}
"""Makes git read attributes from the work tree."""


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """A user's configuration of line endings: as options of a git command, and parsed.

    attributes: options that name the user's attributes file, which may name filters too.
    """

    options: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


async def read_own_settings(git: GitRunner, local: Local) -> OwnSettings:
    """Return the settings of the repository and of the current user that concern line endings."""
    output = await git.call(
        f"--git-dir={local.git_dir}",
        "config",
        "--null",
        "--show-scope",
        "--get-regexp",
        r"^core\.(autocrlf|eol|attributesfile)$",
        cwd=local.top,
        env=_USER_CONFIG,
    )
    fields = output.out.decode(errors="surrogateescape").split("\0")
    values: dict[str, str] = {}
    for scope, pair in zip(fields[::2], fields[1::2], strict=False):
        key, _, value = pair.partition("\n")
        if scope != "command":  # values from the command line are ours
            values[key.lower()] = value
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    attributes = (
        "-c",
        f"core.attributesFile={values.pop('core.attributesfile', home / 'git/attributes')}",
    )
    options = tuple(
        option for key, value in values.items() for option in ("-c", f"{key}={value or 'true'}")
    )
    crlf = values.get("core.autocrlf", "false").lower()
    autocrlf: Literal["false", "true", "input"] = (
        "input" if crlf == "input" else "true" if crlf in _TRUE_VALUES else "false"
    )
    return OwnSettings(options, attributes, Settings(autocrlf, values.get("core.eol", "").lower()))


async def find_work_tree_conversions(
    git: GitRunner, local: Local, own_settings: OwnSettings, paths: Sequence[str]
) -> dict[str, Conversion]:
    """Return git's conversions of `paths` in this work tree. Raises `RepositoryError`."""
    output = await git.run(
        f"--git-dir={local.git_dir}",
        f"--work-tree={local.top}",
        *own_settings.options,
        *own_settings.attributes,
        "check-attr",
        "-z",
        "--stdin",
        *NAMES,
        cwd=local.top,
        stdin="".join(f"{path}\0" for path in paths).encode(errors="surrogateescape"),
        env=ATTRIBUTES_OF_FILES,
    )
    return read_conversions(output, own_settings.settings)


@dataclass(frozen=True, slots=True)
class _File:
    """A file or symlink in the form that git stores; without content if there is none."""

    content: bytes | None = None
    mode: str = patch_rules.ABSENT


def copy_stored(
    top: Path, target: Path, paths: Sequence[str], conversions: Mapping[str, Conversion]
) -> dict[str, _File]:
    """Copy the files at `paths` below `top` to the new folder `target`, in the form that git
    stores, and return them.

    Raises `RepositoryError` for a path that leads out of `top`.
    """
    target.mkdir(parents=True)
    copied = {}
    for path in paths:
        _check_path(top, path)
        file = copied[path] = _read_file(top / path, conversions.get(path, UNCONVERTED))
        if (top / path).is_dir() and not (top / path).is_symlink():
            # Git then reports that the folder is in the way.
            (target / path).mkdir(parents=True, exist_ok=True)
        elif file.content is not None:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            _write_file(target / path, file)
    return copied


def copy_back(
    top: Path, source: Path, stored: Mapping[str, _File], conversions: Mapping[str, Conversion]
) -> None:
    """Copy the files of `source` that differ from `stored` to `top`, in the form of the work tree.
    Deletions come first.

    New contents are written to temporary files beside the old ones before anything is deleted.
    """
    after = {path: _read_file(source / path, UNCONVERTED) for path in stored}
    changed = {path: file for path, file in after.items() if file != stored[path]}
    written: list[tuple[Path, Path]] = []
    try:
        for path in (path for path, file in changed.items() if file.content is None):
            _check_path(top, path)
        for path, file in changed.items():
            if file.content is not None and not _replaces_parent(path, changed):
                written.append(
                    (
                        _write_beside(top / path, file, conversions.get(path, UNCONVERTED)),
                        top / path,
                    )
                )
        for path, file in changed.items():
            if file.content is None:
                _remove(top, path)
        for temporary, final in written:
            temporary.replace(final)
        written.clear()
        for path, file in changed.items():
            if file.content is not None and _replaces_parent(path, changed):
                _write_beside(top / path, file, conversions.get(path, UNCONVERTED)).replace(
                    top / path
                )
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)


def _replaces_parent(path: str, changed: Mapping[str, _File]) -> bool:
    """Return whether a file must be deleted before the folder of this one can be created."""
    parents = (path[:index] for index, char in enumerate(path) if char == "/")
    return any(parent in changed for parent in parents)


def _check_path(top: Path, path: str) -> None:
    if reason := patch_rules.unsafe_path_reason(path):
        raise RepositoryError(f"the diff changes {path[:200]!r}: {reason}; nothing was applied")
    for index in (index for index, char in enumerate(path) if char == "/"):
        if (top / path[:index]).is_symlink():
            raise RepositoryError(
                f"{path[:200]!r} is behind the symlink {path[:index][:200]!r}; nothing was applied"
            )


def _read_file(path: Path, conversion: Conversion) -> _File:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return _File()
    if stat.S_ISLNK(status.st_mode):
        return _File(os.fsencode(os.readlink(path)), patch_rules.SYMLINK)  # noqa: PTH115 - a Path drops "./"
    if not stat.S_ISREG(status.st_mode):
        return _File()
    mode = patch_rules.EXECUTABLE if status.st_mode & 0o100 else patch_rules.FILE
    return _File(conversion.clean(path.read_bytes()), mode)


def _write_file(path: Path, file: _File) -> None:
    if file.mode == patch_rules.SYMLINK:
        path.symlink_to(os.fsdecode(file.content or b""))
        return
    bits = 0o777 if file.mode == patch_rules.EXECUTABLE else 0o666  # reduced by the umask
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits), "wb"
    ) as out:
        out.write(file.content or b"")


def _write_beside(path: Path, file: _File, conversion: Conversion) -> Path:
    temporary = path.with_name(f".{secrets.token_hex(8)}.moothall")
    path.parent.mkdir(parents=True, exist_ok=True)
    is_symlink = file.mode == patch_rules.SYMLINK
    _write_file(
        temporary, file if is_symlink else _File(conversion.smudge(file.content or b""), file.mode)
    )
    return temporary


def _remove(top: Path, path: str) -> None:
    (top / path).unlink()
    folder = (top / path).parent
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


# Applying a winner's diff to the work tree of its owner: completely or not at all, and never over
# uncommitted changes.


_SHOWN_PATHS = 5
_RENAMES_AND_COPIES = (b" rename ", b" copy ")
_FILTER_OPTIONS = ("clean=", "smudge=", "process=", "required=false")
_NO_REPOSITORY = {"GIT_DIR": "/dev/null"}
"""Outside a repository git applies text to files, without attributes and so without filters."""


async def apply_to_files(
    git: GitRunner, local: Local, diff: str, base: str = ""
) -> tuple[str, ...]:
    """Apply a diff to the work tree and return the paths that it changed.

    The index, branches and other files do not change, and no hook or filter runs. Line endings and
    encodings follow the owner's git settings and attributes. `base` is the commit of the diff: a
    file that equals its version there counts as unchanged by the owner.

    Raises `RepositoryError`, without changing anything, if there is no work tree, if the event log
    masked a secret in the diff, if the owner changed a file that it changes, or if it does not
    apply.
    """
    if local.top == local.git_dir:
        raise RepositoryError(
            f"{str(local.top)!r} has no files to apply a diff to: it is a bare repository"
        )
    if is_masked(diff):
        raise RepositoryError(
            "the event log masks text of this diff that looks like a secret, so it is not the "
            "change that was tested; nothing was applied. If it won, its branch has the whole "
            "change: git merge moothall/TASK. `moothall diff` prints it with the masks"
        )
    raw = diff.encode("utf-8", "surrogateescape")
    paths = await _changed_paths(git, local, raw)
    settings = await read_own_settings(git, local)
    changed = await changed_files(git, local, paths, ignored=True)
    uncommitted = [
        path
        for path in changed
        if not (base and await _equals_commit(git, local, settings, base, path))
    ]
    if uncommitted:
        ellipsis = ", …" if len(uncommitted) > _SHOWN_PATHS else ""
        raise RepositoryError(
            f"there are uncommitted changes in {', '.join(uncommitted[:_SHOWN_PATHS])}{ellipsis}: "
            "nothing was applied; commit or stash them first"
        )
    conversions = await find_work_tree_conversions(git, local, settings, paths)
    with scratch() as folder:
        tree = folder / "tree"
        stored = await asyncio.to_thread(copy_stored, local.top, tree, paths, conversions)
        result = await git.call(
            "apply", "--whitespace=nowarn", "-", cwd=tree, stdin=raw, env=_NO_REPOSITORY
        )
        if result.status:
            raise RepositoryError(
                "it does not fit the files as they are now, so nothing was applied: "
                f"{result.reason}"
            )
        try:
            await asyncio.to_thread(copy_back, local.top, tree, stored, conversions)
        except OSError as error:
            raise RepositoryError(
                f"the files in {str(local.top)!r} cannot be written: {error.strerror}"
            ) from error
    return paths


async def _changed_paths(git: GitRunner, local: Local, diff: bytes) -> tuple[str, ...]:
    """Return the paths that a diff changes. Raises `RepositoryError`."""
    numstat = await git.call(
        "apply", "--numstat", "-z", "-", cwd=local.top, stdin=diff, env=_NO_REPOSITORY
    )
    if numstat.status:
        raise RepositoryError(f"this is not a diff that git can apply: {numstat.reason}")
    summary = await git.call(
        "apply", "--summary", "-", cwd=local.top, stdin=diff, env=_NO_REPOSITORY
    )
    if any(line.startswith(_RENAMES_AND_COPIES) for line in summary.out.splitlines()):
        # The other path is in no list of paths, and may be a file that git ignores: a secret would
        # be copied to where all can read it.
        raise RepositoryError(
            "the diff renames or copies files: ask for one without (git diff --no-renames); "
            "nothing was applied"
        )
    rows = [row.split(b"\t", 2) for row in numstat.out.split(b"\0") if row]
    return tuple(dict.fromkeys(row[-1].decode(errors="surrogateescape") for row in rows))


async def _equals_commit(
    git: GitRunner, local: Local, settings: OwnSettings, commit: str, path: str
) -> bool:
    """Return whether git would store a file as it is in a commit; False without that commit."""
    location = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    committed = await git.call(
        *location,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{commit}:{path}",
        cwd=local.top,
    )
    filter_options = await _no_filters(git, local)
    current = await git.call(
        *location,
        *settings.options,
        *settings.attributes,
        *filter_options,
        "hash-object",
        "--path",
        path,
        "--",
        path,
        cwd=local.top,
        env=ATTRIBUTES_OF_FILES,
    )
    return not (committed.status or current.status) and committed.out == current.out


async def _no_filters(git: GitRunner, local: Local) -> list[str]:
    """Return the options that disable the repository's filters."""
    config = await git.call(
        f"--git-dir={local.git_dir}",
        "config",
        "--null",
        "--name-only",
        "--get-regexp",
        r"^filter\.",
        cwd=local.top,
    )
    drivers = {
        name.decode(errors="replace").rpartition(".")[0] for name in config.out.split(b"\0") if name
    }
    return [
        option
        for driver in sorted(drivers)
        for value in _FILTER_OPTIONS
        for option in ("-c", f"{driver}.{value}")
    ]


async def changed_files(
    git: GitRunner, local: Local, paths: tuple[str, ...] = (), *, ignored: bool = False
) -> list[str]:
    """Return the paths that differ from the commit or are untracked, among `paths` (none: all
    files).

    No filter of the repository runs. With `ignored`, files that git ignores count too.
    """
    location = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    settings = await read_own_settings(git, local)
    options = (*settings.options, *settings.attributes, *await _no_filters(git, local))
    status = [
        "status",
        "--porcelain=v1",
        "-z",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=all",
    ]
    if ignored:
        status.append("--ignored")
    changed = await git.run(
        *location, *options, *status, "--", *paths, cwd=local.top, env=ATTRIBUTES_OF_FILES
    )
    return [item[3:].decode(errors="replace") for item in changed.split(b"\0") if item]
