"""The commit that a line of a file comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moothall.errors import InvalidRequest, NotFound
from moothall.repositories.gitcmd import GitRunner

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
        raise InvalidRequest(f"lines are counted from 1; {line} is none")
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
