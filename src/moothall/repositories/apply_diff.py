"""Applying a winner's diff to the work tree of its owner: completely or not at all, and never over
uncommitted changes.
"""

from __future__ import annotations

import asyncio

from moothall.domain.secrets import is_masked
from moothall.errors import RepositoryError
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.scratch import scratch
from moothall.repositories.sources import Local
from moothall.repositories.worktree import (
    ATTRIBUTES_OF_FILES,
    OwnSettings,
    copy_back,
    copy_stored,
    find_work_tree_conversions,
    read_own_settings,
)

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
            f"there are changes of your own in {', '.join(uncommitted[:_SHOWN_PATHS])}{ellipsis}: "
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
        raise RepositoryError(f"this is no diff that git can apply: {numstat.reason}")
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
