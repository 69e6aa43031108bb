"""Taking a winner's diff over into the files that its owner works on: all of it or nothing, and never over their own changes."""

from __future__ import annotations

from moothall.errors import RepositoryError
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.sources import Local

_SHOWN = 5
_FROM_ELSEWHERE = (b" rename ", b" copy ")
_FILTERS = ("clean=", "smudge=", "process=", "required=false")
_NOWHERE = {"GIT_DIR": "/dev/null"}
"""In no repository: what is applied then is text to files, without attributes and so without filters."""


async def apply_to_files(git: GitRunner, local: Local, diff: str, base: str = "") -> tuple[str, ...]:
    """Apply a diff to the work tree and return the paths that it changed. Index, branches and other files stay as they are,
    and no hook or filter runs. A file that is as in the commit `base`, on which the diff was made, has no changes of its owner's.

    Raises `RepositoryError` where there is no work tree, where a file that it changes has changes of its owner's, and where
    it does not fit; nothing is changed then.
    """
    if local.top == local.git_dir:
        raise RepositoryError(f"{str(local.top)!r} has no files to apply a diff to: it is a bare repository")
    raw = diff.encode("utf-8", "surrogateescape")
    counted = await git.call("apply", "--numstat", "-z", "-", cwd=local.top, stdin=raw, env=_NOWHERE)
    if counted.status:
        raise RepositoryError(f"this is no diff that git can apply: {counted.reason}")
    told = await git.call("apply", "--summary", "-", cwd=local.top, stdin=raw, env=_NOWHERE)
    if any(line.startswith(_FROM_ELSEWHERE) for line in told.out.splitlines()):
        # Their other end is in no list of paths, and may be a file that git ignores: a secret would come where all can read it.
        raise RepositoryError(
            "the diff renames or copies files: ask for one without (git diff --no-renames); nothing was applied"
        )
    rows = [row.split(b"\t", 2) for row in counted.out.split(b"\0") if row]
    paths = tuple(dict.fromkeys(row[-1].decode(errors="surrogateescape") for row in rows))
    changed = await changed_files(git, local, paths, ignored=True)
    if own := [path for path in changed if not (base and await _is_as_in(git, local, base, path))]:
        more = ", …" if len(own) > _SHOWN else ""
        raise RepositoryError(
            f"there are changes of your own in {', '.join(own[:_SHOWN])}{more}: nothing was applied; commit or stash them first"
        )
    done = await git.call("apply", "--whitespace=nowarn", "-", cwd=local.top, stdin=raw, env=_NOWHERE)
    if done.status:
        raise RepositoryError(f"it does not fit the files as they are now, so nothing was applied: {done.reason}")
    return paths


async def _is_as_in(git: GitRunner, local: Local, commit: str, path: str) -> bool:
    """Whether a file is, byte for byte, as a commit has it; not where there is no such commit here."""
    at = f"--git-dir={local.git_dir}"
    there = await git.call(at, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}:{path}", cwd=local.top)
    here = await git.call(at, "hash-object", "--no-filters", "--", path, cwd=local.top)
    return not (there.status or here.status) and there.out == here.out


async def changed_files(git: GitRunner, local: Local, paths: tuple[str, ...] = (), *, ignored: bool = False) -> list[str]:
    """Return those of the paths (none: of all files) that are not as they were committed, or are there without being known.

    No filter of the repository's runs. `ignored`: what git ignores counts too.
    """
    where = (f"--git-dir={local.git_dir}", f"--work-tree={local.top}")
    known = await git.call(*where, "config", "--null", "--name-only", "--get-regexp", r"^filter\.", cwd=local.top)
    drivers = {name.decode(errors="replace").rpartition(".")[0] for name in known.out.split(b"\0") if name}
    none = [word for driver in sorted(drivers) for what in _FILTERS for word in ("-c", f"{driver}.{what}")]
    status = ["status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"]
    changed = await git.run(*where, *none, *status, *(["--ignored"] if ignored else []), "--", *paths, cwd=local.top)
    return [item[3:].decode(errors="replace") for item in changed.split(b"\0") if item]
