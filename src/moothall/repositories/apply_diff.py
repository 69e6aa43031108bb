"""Taking a winner's diff over into the files that its owner works on: all of it or nothing, and
never over their own changes.
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
    copy_stored,
    find_conversions_here,
    read_own_settings,
    take_back,
)

_SHOWN = 5
_FROM_ELSEWHERE = (b" rename ", b" copy ")
_FILTERS = ("clean=", "smudge=", "process=", "required=false")
_NOWHERE = {"GIT_DIR": "/dev/null"}
"""In no repository: what is applied then is text to files, without attributes and so without
filters.
"""


async def apply_to_files(
    git: GitRunner, local: Local, diff: str, base: str = ""
) -> tuple[str, ...]:
    """Apply a diff to the work tree and return the paths that it changed. Index, branches and other
    files stay as they are, and no hook or filter runs. Line ends and encodings follow the owner's
    git settings and
    attributes. A file that equals that of `base`, the commit of the diff, has no changes of its
    owner's.

    Raises `RepositoryError` if there is no work tree, if the event log masked a secret in the diff,
    if a file that it changes has changes of its owner's, and if it does not fit; nothing is changed
    then.
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
    counted = await git.call(
        "apply", "--numstat", "-z", "-", cwd=local.top, stdin=raw, env=_NOWHERE
    )
    if counted.status:
        raise RepositoryError(f"this is no diff that git can apply: {counted.reason}")
    told = await git.call("apply", "--summary", "-", cwd=local.top, stdin=raw, env=_NOWHERE)
    if any(line.startswith(_FROM_ELSEWHERE) for line in told.out.splitlines()):
        # Their other end is in no list of paths, and may be a file that git ignores: a secret would
        # come where all can read it.
        raise RepositoryError(
            "the diff renames or copies files: ask for one without (git diff --no-renames); "
            "nothing was applied"
        )
    rows = [row.split(b"\t", 2) for row in counted.out.split(b"\0") if row]
    paths = tuple(dict.fromkeys(row[-1].decode(errors="surrogateescape") for row in rows))
    settings = await read_own_settings(git, local)
    changed = await changed_files(git, local, paths, ignored=True)
    if own := [
        path for path in changed if not (base and await _is_as_in(git, local, settings, base, path))
    ]:
        more = ", …" if len(own) > _SHOWN else ""
        raise RepositoryError(
            f"there are changes of your own in {', '.join(own[:_SHOWN])}{more}: nothing was "
            "applied; commit or stash them first"
        )
    how = await find_conversions_here(git, local, settings, paths)
    with scratch() as folder:
        tree = folder / "tree"
        before = await asyncio.to_thread(copy_stored, local.top, tree, paths, how)
        done = await git.call(
            "apply", "--whitespace=nowarn", "-", cwd=tree, stdin=raw, env=_NOWHERE
        )
        if done.status:
            raise RepositoryError(
                f"it does not fit the files as they are now, so nothing was applied: {done.reason}"
            )
        try:
            await asyncio.to_thread(take_back, local.top, tree, before, how)
        except OSError as error:
            raise RepositoryError(
                f"the files in {str(local.top)!r} cannot be written: {error.strerror}"
            ) from error
    return paths


async def _is_as_in(git: GitRunner, local: Local, own: OwnSettings, commit: str, path: str) -> bool:
    """Whether git would store a file as it is in a commit; False if the commit is not here."""
    at = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    there = await git.call(
        *at,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{commit}:{path}",
        cwd=local.top,
    )
    none = await _no_filters(git, local)
    here = await git.call(
        *at,
        *own.options,
        *own.attributes,
        *none,
        "hash-object",
        "--path",
        path,
        "--",
        path,
        cwd=local.top,
        env=ATTRIBUTES_OF_FILES,
    )
    return not (there.status or here.status) and there.out == here.out


async def _no_filters(git: GitRunner, local: Local) -> list[str]:
    """Return the options that disable the repository's filters."""
    known = await git.call(
        f"--git-dir={local.git_dir}",
        "config",
        "--null",
        "--name-only",
        "--get-regexp",
        r"^filter\.",
        cwd=local.top,
    )
    drivers = {
        name.decode(errors="replace").rpartition(".")[0] for name in known.out.split(b"\0") if name
    }
    return [
        word
        for driver in sorted(drivers)
        for what in _FILTERS
        for word in ("-c", f"{driver}.{what}")
    ]


async def changed_files(
    git: GitRunner, local: Local, paths: tuple[str, ...] = (), *, ignored: bool = False
) -> list[str]:
    """Return those of the paths (none: of all files) that are not as they were committed, or are
    there without being known.

    No filter of the repository's runs. `ignored`: what git ignores counts too.
    """
    where = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    own = await read_own_settings(git, local)
    options = (*own.options, *own.attributes, *await _no_filters(git, local))
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
        *where, *options, *status, "--", *paths, cwd=local.top, env=ATTRIBUTES_OF_FILES
    )
    return [item[3:].decode(errors="replace") for item in changed.split(b"\0") if item]
