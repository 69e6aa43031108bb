"""Conversion between a person's work tree and the form that git stores, by their own git settings
and attributes.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moothall.errors import RepositoryError
from moothall.repositories import patch_rules
from moothall.repositories.conversion import (
    NAMES,
    UNCONVERTED,
    Conversion,
    Settings,
    read_conversions,
)
from moothall.repositories.gitcmd import UNSET, GitRunner
from moothall.repositories.sources import Local

_OWN = {"GIT_CONFIG_GLOBAL": UNSET, "GIT_CONFIG_NOSYSTEM": UNSET, "GIT_CONFIG_SYSTEM": UNSET}
_TRUE = {"", "true", "yes", "on", "1"}
ATTRIBUTES_OF_FILES = {"GIT_ATTR_SOURCE": UNSET}
"""Attributes are read from the work tree."""


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """A person's configuration of line ends: as options of a git command, and parsed.

    attributes: options that name their own attributes file, which may name filters too.
    """

    options: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)


async def read_own_settings(git: GitRunner, local: Local) -> OwnSettings:
    """Return the settings of the repository and of the person who runs this. The rest of their
    configuration is ignored.
    """
    told = await git.call(
        f"--git-dir={local.git_dir}",
        "config",
        "--null",
        "--show-scope",
        "--get-regexp",
        r"^core\.(autocrlf|eol|attributesfile)$",
        cwd=local.top,
        env=_OWN,
    )
    words = told.out.decode(errors="surrogateescape").split("\0")
    said: dict[str, str] = {}
    for scope, pair in zip(words[::2], words[1::2], strict=False):
        key, _, value = pair.partition("\n")
        if scope != "command":  # those are ours
            said[key.lower()] = value
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    attributes = (
        "-c",
        f"core.attributesFile={said.pop('core.attributesfile', home / 'git/attributes')}",
    )
    options = tuple(
        word for key, value in said.items() for word in ("-c", f"{key}={value or 'true'}")
    )
    crlf = said.get("core.autocrlf", "false").lower()
    autocrlf: Literal["false", "true", "input"] = (
        "input" if crlf == "input" else "true" if crlf in _TRUE else "false"
    )
    return OwnSettings(options, attributes, Settings(autocrlf, said.get("core.eol", "").lower()))


async def find_conversions_here(
    git: GitRunner, local: Local, own: OwnSettings, paths: Sequence[str]
) -> dict[str, Conversion]:
    """Return git's conversions of `paths` in this work tree. Raises `RepositoryError`."""
    output = await git.run(
        f"--git-dir={local.git_dir}",
        f"--work-tree={local.top}",
        *own.options,
        *own.attributes,
        "check-attr",
        "-z",
        "--stdin",
        *NAMES,
        cwd=local.top,
        stdin="".join(f"{path}\0" for path in paths).encode(errors="surrogateescape"),
        env=ATTRIBUTES_OF_FILES,
    )
    return read_conversions(output, own.settings)


@dataclass(frozen=True, slots=True)
class _File:
    """A file or symlink as git stores it; None: there is none."""

    content: bytes | None = None
    mode: str = patch_rules.ABSENT


def copy_stored(
    top: Path, target: Path, paths: Sequence[str], how: Mapping[str, Conversion]
) -> dict[str, _File]:
    """Copy the files at `paths` below `top` into the new folder `target`, in the form that git
    stores, and return them.

    Raises `RepositoryError` for a path that leads out of `top`.
    """
    target.mkdir(parents=True)
    copied = {}
    for path in paths:
        _check_way(top, path)
        found = copied[path] = _read(top / path, how.get(path, UNCONVERTED))
        if (top / path).is_dir() and not (top / path).is_symlink():
            (target / path).mkdir(parents=True, exist_ok=True)  # git reports that it is in the way
        elif found.content is not None:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            _write(target / path, found)
    return copied


def take_back(
    top: Path, source: Path, before: Mapping[str, _File], how: Mapping[str, Conversion]
) -> None:
    """Copy the files of `source` that differ from `before` to `top`, in the form of the work tree.
    Removals come first.

    New contents are written beside the old files before any of them is removed.
    """
    after = {path: _read(source / path, UNCONVERTED) for path in before}
    changed = {path: file for path, file in after.items() if file != before[path]}
    made: list[tuple[Path, Path]] = []
    try:
        for path in (path for path, file in changed.items() if file.content is None):
            _check_way(top, path)
        for path, file in changed.items():
            if file.content is not None and not _parent_goes(path, changed):
                made.append(
                    (_write_beside(top / path, file, how.get(path, UNCONVERTED)), top / path)
                )
        for path, file in changed.items():
            if file.content is None:
                _remove(top, path)
        for making, final in made:
            making.replace(final)
        made.clear()
        for path, file in changed.items():
            if file.content is not None and _parent_goes(path, changed):
                _write_beside(top / path, file, how.get(path, UNCONVERTED)).replace(top / path)
    finally:
        for making, _ in made:
            making.unlink(missing_ok=True)


def _parent_goes(path: str, changed: Mapping[str, _File]) -> bool:
    """Whether a file has to be removed before this one's folder can be created."""
    parents = (path[:at] for at, char in enumerate(path) if char == "/")
    return any(parent in changed for parent in parents)


def _check_way(top: Path, path: str) -> None:
    if reason := patch_rules.unsafe_path_reason(path):
        raise RepositoryError(f"the diff changes {path[:200]!r}: {reason}; nothing was applied")
    for at in (at for at, char in enumerate(path) if char == "/"):
        if (top / path[:at]).is_symlink():
            raise RepositoryError(
                f"{path[:200]!r} lies behind the symlink {path[:at][:200]!r}; nothing was applied"
            )


def _read(path: Path, how: Conversion) -> _File:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return _File()
    if stat.S_ISLNK(status.st_mode):
        return _File(os.fsencode(os.readlink(path)), patch_rules.SYMLINK)  # noqa: PTH115 - a Path drops "./"
    if not stat.S_ISREG(status.st_mode):
        return _File()
    mode = patch_rules.EXECUTABLE if status.st_mode & 0o100 else patch_rules.FILE
    return _File(how.clean(path.read_bytes()), mode)


def _write(path: Path, file: _File) -> None:
    if file.mode == patch_rules.SYMLINK:
        path.symlink_to(os.fsdecode(file.content or b""))
        return
    bits = 0o777 if file.mode == patch_rules.EXECUTABLE else 0o666  # less the umask, as git has it
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, bits), "wb"
    ) as out:
        out.write(file.content or b"")


def _write_beside(path: Path, file: _File, how: Conversion) -> Path:
    making = path.with_name(f".{secrets.token_hex(8)}.moothall")
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = file.mode == patch_rules.SYMLINK
    _write(making, file if plain else _File(how.smudge(file.content or b""), file.mode))
    return making


def _remove(top: Path, path: str) -> None:
    (top / path).unlink()
    folder = (top / path).parent
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
