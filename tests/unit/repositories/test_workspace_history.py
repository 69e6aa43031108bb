"""The git directory that shells read: its contents and its omissions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.errors import RepositoryError
from moothall.ports import NOTHING
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.history import export_history
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Four commits on main with a merge and a tag, and a branch with a distinct word."""
    repo = make_repo(tmp_path / "repo", {"a.txt": "1\n"})
    repo.git("checkout", "--quiet", "-b", "side")
    repo.commit({"b.txt": "side\n"}, "side")
    repo.git("checkout", "--quiet", "main")
    repo.commit({"a.txt": "2\n"}, "second")
    repo.git("tag", "-a", "v1", "-m", "a release")
    repo.git("merge", "--quiet", "--no-ff", "-m", "merge", "side")
    repo.git("checkout", "--quiet", "-b", "hidden", "HEAD~1")
    repo.commit({"secret.txt": "the-secret\n"}, "the-secret")
    repo.git("tag", "-a", "hidden-tag", "-m", "the-secret")
    repo.git("checkout", "--quiet", "main")
    return repo


async def exported(
    tmp_path: Path, source: Path, *, commits: int = 100, instead: Mapping[str, str] = NOTHING
) -> tuple[Repo, bool]:
    """Return a work tree with the history of main of `source`, and whether some was left out.
    `instead`: the contents of its files.
    """
    clone = TrustedClone(tmp_path / "clones" / "x.git", WorkspaceSettings())
    if source == tmp_path / "repo":
        await clone.fetch(str(source), "refs/heads/hidden", tags=True)
    sha = await clone.fetch(str(source), "refs/heads/main", tags=True)
    tree = tmp_path / "tree"
    await clone.checkout(sha, tree)
    Repo(tree).write(instead)
    cut = await export_history(
        GitRunner(tmp_path),
        clone,
        sha,
        tree / ".git",
        tree,
        commits=commits,
        seconds=60,
        max_bytes=1_000_000,
    )
    return Repo(tree), cut


async def test_the_export_contains_the_history_with_its_tags_and_nothing_else(
    tmp_path: Path, repo: Repo
) -> None:
    exported_repo, cut = await exported(tmp_path, repo.path)
    assert not cut
    assert exported_repo.git("fsck", "--full", "--strict") == ""
    assert sorted(exported_repo.git("log", "--format=%s").split()) == [
        "first",
        "merge",
        "second",
        "side",
    ]
    assert exported_repo.git("for-each-ref", "--format=%(refname) %(objecttype)").splitlines() == [
        "refs/heads/work commit",
        "refs/tags/v1 tag",
    ]
    assert exported_repo.git("describe") == f"v1-2-g{repo.head[:7]}"
    assert exported_repo.git("status", "--porcelain", "--branch") == "## work"
    objects = exported_repo.git(
        "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"
    ).split()
    expected = repo.git("rev-list", "--objects", "--no-object-names", "main", "v1").split()
    assert sorted(objects) == sorted(expected)
    assert not (exported_repo.path / ".git" / "hooks").exists()


async def test_git_names_files_with_other_letters_as_they_are(tmp_path: Path, repo: Repo) -> None:
    exported_repo, _ = await exported(tmp_path, repo.path)
    exported_repo.write({"gr\u00f6\u00dfe.txt": "x\n"})
    assert exported_repo.git("status", "--porcelain") == "?? gr\u00f6\u00dfe.txt"


@pytest.mark.parametrize(
    ("commits", "subjects"), [(1, ["merge"]), (4, ["first", "merge", "second", "side"])]
)
async def test_the_history_ends_after_a_limited_number_of_commits(
    tmp_path: Path, repo: Repo, commits: int, subjects: list[str]
) -> None:
    exported_repo, cut = await exported(tmp_path, repo.path, commits=commits)
    assert cut is (commits == 1)
    assert sorted(exported_repo.git("log", "--format=%s").split()) == subjects
    assert exported_repo.git("fsck", "--full") == ""
    assert exported_repo.git("tag") == ("v1" if commits > 1 else "")


async def test_a_shallow_source_exports_its_available_history(tmp_path: Path, repo: Repo) -> None:
    repo.git("clone", "--quiet", "--depth=1", f"file://{repo.path}", str(tmp_path / "shallow"))
    exported_repo, cut = await exported(tmp_path, tmp_path / "shallow")
    assert (cut, exported_repo.git("log", "--format=%s"), exported_repo.git("fsck", "--full")) == (
        False,
        "merge",
        "",
    )


async def test_files_converted_at_checkout_are_unchanged(tmp_path: Path, repo: Repo) -> None:
    repo.commit(
        {
            ".gitattributes": "*.txt text eol=crlf\n*.bin filter=lfs\n*.id ident\n",
            "c.txt": "1\n2\n",
            "c.id": "$Id$\n",
            "d.bin": b"x",
        }
    )
    exported_repo, _ = await exported(tmp_path, repo.path)
    assert (exported_repo.path / "c.txt").read_bytes() == b"1\r\n2\r\n"
    assert exported_repo.git("status", "--porcelain") == ""


async def test_files_with_content_stored_outside_git_are_unchanged(
    tmp_path: Path, repo: Repo
) -> None:
    exported_repo, _ = await exported(
        tmp_path, repo.path, instead={"a.txt": "the content that a pointer of LFS stands for"}
    )
    assert exported_repo.git("status", "--porcelain") == ""
    exported_repo.write({"b.txt": "changed\n"})
    assert exported_repo.git("status", "--porcelain") == "M b.txt"


async def test_a_history_over_the_size_limit_is_refused(tmp_path: Path, repo: Repo) -> None:
    repo.commit({"large.bin": os.urandom(2_000_000)}, "large")
    with pytest.raises(RepositoryError, match="history for workspaces cannot be written"):
        await exported(tmp_path, repo.path)
