from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.repositories.checkout import write_history
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests


async def write_snapshot(tmp_path: Path, repo: Repo) -> tuple[Repo, str]:
    """Write the history of HEAD over a checkout, as set-up sees both."""
    clone = TrustedClone(tmp_path / "repos" / "r.git", WorkspaceSettings())
    sha = await clone.fetch(str(repo.path), "HEAD", tags=True)
    tree = tmp_path / "tree"
    await clone.checkout(sha, tree)
    version = await write_history(GitRunner(tmp_path / "repos"), clone, sha, tree, tree)
    return Repo(tree), version


async def test_the_nearest_tag_is_reachable_and_the_work_tree_is_clean(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a.txt": b"a\r\n", ".gitattributes": "*.txt text eol=lf\n"})
    repo.git("tag", "v1.2.0")
    for number in range(3):
        repo.commit({"b": str(number)})
    repo.git("tag", "-a", "-m", "two", "v1.3.0", "HEAD~1")
    repo.git("config", "core.fsmonitor", "/bin/false")
    snapshot, version = await write_snapshot(tmp_path, repo)
    assert version == ""
    assert snapshot.git("describe", "--tags", "--dirty", "--long") == repo.git(
        "describe", "--tags", "--long"
    )
    assert snapshot.git("status", "--porcelain") == ""
    assert snapshot.head == repo.head
    assert snapshot.git("remote") == ""
    assert not (snapshot.path / ".git/hooks").exists()
    assert "fsmonitor" not in (snapshot.path / ".git/config").read_text()
    assert snapshot.git("tag").split() == ["v1.3.0"]


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"a": ""}, "0.1.0"),
        ({"releasenotes/x": "", "NEWS": "1.4.0"}, "1.4.0"),
        (
            {"PKG-INFO": "Metadata-Version: 2.1\nName: x\nVersion: 4.5.6\n", "CHANGES": "9.9.9"},
            "4.5.6",
        ),
        (
            {"CHANGELOG.md": "# Changes\n\n## Unreleased\n\n## v2.10.1 (2024-01-02)\n\n## 2.0\n"},
            "2.10.1",
        ),
    ],
)
async def test_without_a_tag_a_version_tag_is_created(
    tmp_path: Path, files: dict[str, str], version: str
) -> None:
    snapshot, described = await write_snapshot(tmp_path, make_repo(tmp_path / "r", files))
    assert described == version
    assert snapshot.git("describe", "--tags", "--dirty") == f"v{version}"
