"""The history of a repository: the origin of a line, the commits of a branch, and what the shell
of a workspace reads of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moothall.domain.repository import ChangeRange
from moothall.errors import InvalidRequest, NotFound, RepositoryError
from moothall.repositories.bundle_transfer import shallow_commits
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import UNSET, GitResult, GitRunner, OutputCaps
from moothall.repositories.patch_rules import LEFT_OUT

# The commit that a line of a file comes from.


_TEXT_CHARS = 400


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """A line and the commit that added it; `path` is the name of the file in that commit."""

    commit: str
    path: str
    line: int
    text: str
    author: str
    time: str
    summary: str


async def read_message(git: GitRunner, git_dir: Path, commit: str) -> str:
    """Return the message of a commit."""
    result = await git.call(
        f"--git-dir={git_dir}", "show", "--no-patch", "--format=%B", commit, cwd=git_dir
    )
    return result.out.decode(errors="replace")


async def find_line_origin(
    git: GitRunner, git_dir: Path, commit: str, path: str, line: int
) -> LineOrigin:
    """Return the origin of line `line` (from 1) of `path` in `commit`. Raises `NotFound`,
    `InvalidRequest`.
    """
    if line < 1:
        raise InvalidRequest(f"lines are counted from 1; there is no line {line}")
    git_dir_option = f"--git-dir={git_dir}"
    listing = await git.call(
        git_dir_option, "ls-tree", "--full-tree", commit, "--", path, cwd=git_dir
    )
    if not path or not listing.out.startswith(b"100"):
        raise NotFound(
            f"{path!r} is not a file in commit {commit[:12]}; give its path from the repository's "
            "root"
        )
    result = await git.call(
        git_dir_option,
        "blame",
        "--no-textconv",
        "--porcelain",
        "-L",
        f"{line},{line}",
        commit,
        "--",
        path,
        cwd=git_dir,
    )
    if result.status:
        line_count = re.search(r"has only (\d+) lines?", result.err)
        reason = f"{path} has only {line_count[1]} lines" if line_count else result.reason
        raise NotFound(f"no line {line}: {reason}")
    lines = result.out.decode(errors="replace").splitlines()
    headers = dict(entry.partition(" ")[::2] for entry in lines[1:] if not entry.startswith("\t"))
    text = next((entry[1:] for entry in lines if entry.startswith("\t")), "")
    return LineOrigin(
        commit=lines[0].split()[0],
        path=headers.get("filename", path),
        line=line,
        text=text[:_TEXT_CHARS],
        author=headers.get("author", ""),
        time=datetime.fromtimestamp(int(headers.get("author-time", "0")), UTC).isoformat(),
        summary=headers.get("summary", "")[:_TEXT_CHARS],
    )


# The range of commits that a branch would bring into another one.


_MAX_COMMITS = 50


async def find_change(clone: TrustedClone, repository: str, *, tip: str, head: str) -> ChangeRange:
    """Return the commits of `head` that `tip` lacks, from their merge base. The clone has both.

    Raises `InvalidRequest` if they would change nothing, `RepositoryError` if they share no
    history.
    """
    result = await clone.call("merge-base", tip, head)
    base = result.out.decode().split()[0] if not result.status else ""
    if not base:
        raise RepositoryError(
            f"{head[:12]} and {tip[:12]} share no commit, so there is no base to judge on. A "
            "shallow clone lacks them: fetch its history (git fetch --unshallow)"
        )
    if base == head:
        raise InvalidRequest(f"there is nothing to judge: {tip[:12]} already contains {head[:12]}")
    await clone.call("update-ref", f"refs/moothall/bases/{base}", base)
    if await _tree_of(clone, base) == await _tree_of(clone, head):
        raise InvalidRequest(f"there is nothing to judge: {head[:12]} has the files of {base[:12]}")
    merged = await clone.call("merge-tree", "--write-tree", "--no-messages", tip, head)
    if not merged.status and merged.out.decode().strip() == await _tree_of(clone, tip):
        raise InvalidRequest(
            f"there is nothing to judge: merging {head[:12]} changes no file of {tip[:12]}"
        )
    log = await clone.call(
        "log",
        "--reverse",
        f"--max-count={_MAX_COMMITS}",
        "--no-merges",
        "--no-show-signature",
        "--format=%B",
        f"{base}..{head}",
    )
    return ChangeRange(
        repository,
        base,
        head,
        messages=log.out.decode(errors="replace").strip(),
    )


async def _tree_of(clone: TrustedClone, sha: str) -> str:
    return (await clone.call("rev-parse", f"{sha}^{{tree}}")).out.decode().strip()


# The git directory that the shell of a workspace reads: the history of one commit.
#
# It contains the objects that are reachable from the commit, the tags of its history, and an index
# that matches the checkout. It has no hooks, no remotes and no configuration of the source. Git
# runs on it here once, before untrusted code can write to it.


NAME = "history.git"
BRANCH = "work"
"""The branch of a workspace, also in the results of the `git.*` tools."""
# The checkout follows the attributes of the repository except these.
_ATTRIBUTES = "* -filter -ident\n"
# The index is written on the host: only sizes and times of files are the same in a sandbox.
_CONFIG = """[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tcheckStat = minimal
\ttrustctime = false
\thooksPath = /dev/null
\tquotePath = false
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
    max_bytes: int,
) -> bool:
    """Write the git directory `folder` of the commit whose files are in `tree`. Return whether
    older history was omitted.

    `commits` is the number of commits that it contains at most. Raises `RepositoryError`.
    """
    parents = await _newest_commits(git, clone, sha, commits, seconds)
    boundary = [
        commit for commit, parent_shas in parents.items() if not parent_shas <= parents.keys()
    ]
    boundary += [
        commit for commit in shallow_commits(clone) if commit in parents and commit not in boundary
    ]
    await asyncio.to_thread((folder / "objects" / "pack").mkdir, parents=True)
    tags = await _tags(clone, sha, parents)
    revisions = "".join(
        [
            *(f"--shallow {commit}\n" for commit in boundary),
            *(f"{name}\n" for name in (sha, *tags.values())),
        ]
    )
    _require_success(
        await git.call(
            "--shallow-file",
            "",  # the end of the history is in the revisions
            "pack-objects",
            "--quiet",
            "--revs",
            "--delta-base-offset",
            "--window=0",
            str(folder / "objects" / "pack" / "pack"),
            cwd=clone.path,
            stdin=revisions.encode(),
            seconds=seconds,
            caps=OutputCaps(file_bytes=max_bytes),
        )
    )
    await asyncio.to_thread(_write_files, folder, sha, boundary, tags)
    await _write_index(git, folder, tree, sha, seconds)
    return any(parent_shas - parents.keys() for parent_shas in parents.values())


async def _newest_commits(
    git: GitRunner, clone: TrustedClone, sha: str, limit: int, seconds: float
) -> Mapping[str, frozenset[str]]:
    """Return the newest commits of a history with their parents."""
    output = await git.run(
        "rev-list", "--parents", f"--max-count={limit}", sha, cwd=clone.path, seconds=seconds
    )
    rows = [line.split() for line in output.decode("ascii").splitlines()]
    return {row[0]: frozenset(row[1:]) for row in rows}


async def _tags(clone: TrustedClone, sha: str, commits: Iterable[str]) -> Mapping[str, str]:
    """Return the tags of these commits: name → object."""
    shas = frozenset(commits)
    result = await clone.call(
        "for-each-ref",
        "--format=%(refname) %(objectname) %(*objectname)",
        f"--merged={sha}",
        "refs/tags",
    )
    rows = [line.split(" ") for line in result.out.decode(errors="surrogateescape").splitlines()]
    return {
        name: tag for name, tag, *commit in rows if (commit[-1:] or [""])[0] in shas or tag in shas
    }


async def _write_index(git: GitRunner, folder: Path, tree: Path, sha: str, seconds: float) -> None:
    """Write the index of a fresh checkout. Files that the checkout has in another form, such as LFS
    files, count as unchanged.
    """
    # Line endings follow the attributes of the checkout; no filter is configured.
    env = {"GIT_ATTR_SOURCE": UNSET}

    async def call(*args: str, stdin: bytes = b"") -> GitResult:
        location = (f"--git-dir={folder}", f"--work-tree={tree}")
        return await git.call(*location, *args, cwd=tree, stdin=stdin, env=env, seconds=seconds)

    _require_success(await call("read-tree", sha))
    await call("update-index", "-q", "--refresh")  # fails if a file differs
    modified = await call("diff-files", "--name-only", "-z")
    _require_success(modified)
    if modified.out:
        _require_success(
            await call("update-index", "--assume-unchanged", "-z", "--stdin", stdin=modified.out)
        )


def _write_files(folder: Path, sha: str, boundary: Iterable[str], tags: Mapping[str, str]) -> None:
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
    if shallow := "".join(f"{commit}\n" for commit in boundary):
        (folder / "shallow").write_text(shallow, encoding="ascii")


def _require_success(result: GitResult) -> None:
    if result.status:
        raise RepositoryError(f"the history for workspaces cannot be written: {result.reason}")
