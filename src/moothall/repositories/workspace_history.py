"""The git directory that the shell of a workspace reads: the history of one commit, and nothing
else of the clone.

It holds the objects that are reachable from the commit, the tags of its history and an index that
matches the checkout. It has no hooks, no remotes and none of the source's configuration. Git runs
on it here once, before any code of others can have written to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from moothall.errors import RepositoryError
from moothall.repositories.bundles import shallow_commits
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import UNSET, GitResult, GitRunner, OutputCaps
from moothall.repositories.patch_rules import LEFT_OUT

NAME = "history.git"
BRANCH = "work"
"""What the tools `git.*` call the branch of a workspace, too."""
# The checkout follows the attributes of the repository but for these.
_ATTRIBUTES = "* -filter -ident\n"
# The index was made on the host: only sizes and times of files are the same in a sandbox.
_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tcheckStat = minimal
\ttrustctime = false
\thooksPath = /dev/null
[gc]
\tauto = 0
[maintenance]
\tauto = false
[user]
\tname = agent
\temail = agent@localhost
"""


async def export_history(
    git: GitRunner,
    clone: TrustedClone,
    sha: str,
    folder: Path,
    tree: Path,
    *,
    commits: int,
    seconds: float,
    most_bytes: int,
) -> bool:
    """Make `folder` the git directory of the commit whose files lie in `tree`; return whether older
    history was left out.

    `commits` is how many of the newest commits it holds. Raises `RepositoryError`.
    """
    parents = await _newest_commits(git, clone, sha, commits, seconds)
    ends = [commit for commit, above in parents.items() if not above <= parents.keys()]
    ends += [
        commit for commit in shallow_commits(clone) if commit in parents and commit not in ends
    ]
    await asyncio.to_thread((folder / "objects" / "pack").mkdir, parents=True)
    tags = await _tags(clone, sha, parents)
    orders = "".join(
        [
            *(f"--shallow {commit}\n" for commit in ends),
            *(f"{name}\n" for name in (sha, *tags.values())),
        ]
    )
    _require_success(
        await git.call(
            "--shallow-file",
            "",  # which commits are the last is said in the orders
            "pack-objects",
            "--quiet",
            "--revs",
            "--delta-base-offset",
            "--window=0",
            str(folder / "objects" / "pack" / "pack"),
            cwd=clone.path,
            stdin=orders.encode(),
            seconds=seconds,
            caps=OutputCaps(file_bytes=most_bytes),
        )
    )
    await asyncio.to_thread(_write_files, folder, sha, ends, tags)
    await _write_index(git, folder, tree, sha, seconds)
    return any(above - parents.keys() for above in parents.values())


async def _newest_commits(
    git: GitRunner, clone: TrustedClone, sha: str, most: int, seconds: float
) -> Mapping[str, frozenset[str]]:
    """Return the newest commits of a history with their parents."""
    listed = await git.run(
        "rev-list", "--parents", f"--max-count={most}", sha, cwd=clone.path, seconds=seconds
    )
    rows = [line.split() for line in listed.decode("ascii").splitlines()]
    return {row[0]: frozenset(row[1:]) for row in rows}


async def _tags(clone: TrustedClone, sha: str, commits: Iterable[str]) -> Mapping[str, str]:
    """Return the tags of these commits: name → object."""
    known = frozenset(commits)
    listed = await clone.call(
        "for-each-ref",
        "--format=%(refname) %(objectname) %(*objectname)",
        f"--merged={sha}",
        "refs/tags",
    )
    rows = [line.split(" ") for line in listed.out.decode(errors="surrogateescape").splitlines()]
    return {
        name: tag
        for name, tag, *commit in rows
        if (commit[-1:] or [""])[0] in known or tag in known
    }


async def _write_index(git: GitRunner, folder: Path, tree: Path, sha: str, seconds: float) -> None:
    """Make the index of a fresh checkout. What the checkout holds in another form, as files of LFS,
    counts as unchanged.
    """
    env = {
        "GIT_ATTR_SOURCE": UNSET
    }  # line ends are as the checkout's own attributes say; no filter is configured

    async def call(*args: str, stdin: bytes = b"") -> GitResult:
        place = (f"--git-dir={folder}", f"--work-tree={tree}")
        return await git.call(*place, *args, cwd=tree, stdin=stdin, env=env, seconds=seconds)

    _require_success(await call("read-tree", sha))
    await call("update-index", "-q", "--refresh")  # fails where a file differs
    differing = await call("diff-files", "--name-only", "-z")
    _require_success(differing)
    if differing.out:
        _require_success(
            await call("update-index", "--assume-unchanged", "-z", "--stdin", stdin=differing.out)
        )


def _write_files(folder: Path, sha: str, ends: Iterable[str], tags: Mapping[str, str]) -> None:
    refs = {f"refs/heads/{BRANCH}": sha, **tags}
    lines = "".join(f"{commit} {name}\n" for name, commit in sorted(refs.items()))
    (folder / "packed-refs").write_text(lines, encoding="utf-8", errors="surrogateescape")
    (folder / "HEAD").write_text(f"ref: refs/heads/{BRANCH}\n", encoding="ascii")
    (folder / "config").write_text(_CONFIG, encoding="ascii")
    for name in ("info", "refs"):
        (folder / name).mkdir()
    (folder / "info" / "attributes").write_text(_ATTRIBUTES, encoding="ascii")
    (folder / "info" / "exclude").write_text(
        "".join(f"{pattern}\n" for pattern in LEFT_OUT), encoding="ascii"
    )
    if last := "".join(f"{commit}\n" for commit in ends):
        (folder / "shallow").write_text(last, encoding="ascii")


def _require_success(answer: GitResult) -> None:
    if answer.status:
        raise RepositoryError(f"the history for workspaces cannot be written: {answer.reason}")
