"""The commit that a line comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moothall.errors import InvalidRequest, NotFound
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.history import find_line_origin


def git(repo: Path, *args: str) -> str:
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    return subprocess.run(
        ["git", *identity, *args], cwd=repo, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / "a file.py").write_text("one\ntwo\n", encoding="utf-8")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "first")
    git(repo, "mv", "a file.py", "b.py")
    git(repo, "commit", "-qm", "renamed")
    (repo / "b.py").write_text("one\n\tthree\ntwo\n", encoding="utf-8")
    git(repo, "commit", "-qam", "second: a change")
    return repo


@pytest.mark.parametrize(
    ("line", "expected"), [(1, ("HEAD~2", "a file.py", "one")), (2, ("HEAD", "b.py", "\tthree"))]
)
async def test_a_line_is_traced_to_the_commit_that_introduced_it(
    repo: Path, tmp_path: Path, line: int, expected: tuple[str, str, str]
) -> None:
    commit, path, text = expected
    runner = GitRunner(tmp_path)
    origin = await find_line_origin(
        runner, repo / ".git", git(repo, "rev-parse", "HEAD"), "b.py", line
    )
    assert (origin.commit, origin.path, origin.text) == (git(repo, "rev-parse", commit), path, text)
    assert origin.author == "Ann"
    assert origin.line == line


async def test_an_invalid_line_is_refused(repo: Path, tmp_path: Path) -> None:
    runner, head = GitRunner(tmp_path), git(repo, "rev-parse", "HEAD")
    with pytest.raises(NotFound, match="has only 3 lines"):
        await find_line_origin(runner, repo / ".git", head, "b.py", 4)
    with pytest.raises(InvalidRequest, match="counted from 1"):
        await find_line_origin(runner, repo / ".git", head, "b.py", 0)
    for path in ("nothing.py", "", "../b.py", "--contents=/etc/passwd", ":(glob)**"):
        with pytest.raises(NotFound, match="is not a file in commit"):
            await find_line_origin(runner, repo / ".git", head, path, 1)
