"""Which commit a line of a file comes from."""

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
    """A line and the commit that brought it; `path` is the file's name in that commit."""

    commit: str
    path: str
    line: int
    text: str
    author: str
    time: str
    summary: str


async def read_message(git: GitRunner, git_dir: Path, commit: str) -> str:
    """Return the message of a commit."""
    answer = await git.call(
        f"--git-dir={git_dir}", "show", "--no-patch", "--format=%B", commit, cwd=git_dir
    )
    return answer.out.decode(errors="replace")


async def find_line_origin(
    git: GitRunner, git_dir: Path, commit: str, path: str, line: int
) -> LineOrigin:
    """Return where line `line` (from 1) of `path` in `commit` comes from. Raises `NotFound`,
    `InvalidRequest`.
    """
    if line < 1:
        raise InvalidRequest(f"lines are counted from 1; {line} is none")
    at = f"--git-dir={git_dir}"
    found = await git.call(at, "ls-tree", "--full-tree", commit, "--", path, cwd=git_dir)
    if not path or not found.out.startswith(b"100"):
        raise NotFound(
            f"{path!r} is not a file in commit {commit[:12]}; give its path from the repository's "
            "root"
        )
    answer = await git.call(
        at,
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
    if answer.status:
        many = re.search(r"has only (\d+) lines?", answer.err)
        said = f"{path} has only {many[1]} lines" if many else answer.reason
        raise NotFound(f"no line {line}: {said}")
    lines = answer.out.decode(errors="replace").splitlines()
    facts = dict(entry.partition(" ")[::2] for entry in lines[1:] if not entry.startswith("\t"))
    text = next((entry[1:] for entry in lines if entry.startswith("\t")), "")
    return LineOrigin(
        commit=lines[0].split()[0],
        path=facts.get("filename", path),
        line=line,
        text=text[:_TEXT_CHARS],
        author=facts.get("author", ""),
        time=datetime.fromtimestamp(int(facts.get("author-time", "0")), UTC).isoformat(),
        summary=facts.get("summary", "")[:_TEXT_CHARS],
    )
