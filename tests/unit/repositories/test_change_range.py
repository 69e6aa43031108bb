from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, RepositoryError
from moothall.repositories.service import RepositoryService
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests


async def prepare(base: Base, _announce: object = None) -> Prepared:
    return Prepared(base, base.sha, ())


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_repo((tmp_path / "repo").resolve(), {"a.txt": "a\n", "b.txt": "b\n"})


@pytest.fixture
def trusted(tmp_path: Path, repo: Repo) -> RepositoryService:
    return RepositoryService(tmp_path / "data", WorkspaceSettings(), prepare, roots=(repo.path,))


def reference(repo: Repo, ref: str = "main") -> RepositoryRef:
    return RepositoryRef(url=str(repo.path), ref=ref)


async def test_a_change_behind_its_target_starts_at_the_merge_base(
    trusted: RepositoryService, repo: Repo
) -> None:
    base = repo.git("rev-parse", "HEAD").strip()
    repo.git("checkout", "--quiet", "-b", "feature")
    repo.commit({"a.txt": "A\n"})
    head = repo.commit({"c.bin": "\0", "b.txt": "B\n"})
    repo.git("checkout", "--quiet", "main")
    repo.commit({"d.txt": "d\n"})
    change = await trusted.resolve_change(reference(repo), "feature")
    assert (change.base_sha, change.head_sha) == (base, head)
    assert change.messages
    pinned = await trusted.resolve(reference(repo, base))
    patch = await trusted.merge(pinned, (head,))
    assert patch.paths == ("a.txt", "b.txt", "c.bin")


@pytest.mark.parametrize("kind", ["same", "merged", "squashed", "reverted"])
async def test_an_empty_change_is_refused(
    trusted: RepositoryService, repo: Repo, kind: str
) -> None:
    repo.git("checkout", "--quiet", "-b", "feature")
    repo.commit({"a.txt": "A\n"})
    if kind == "reverted":
        repo.commit({"a.txt": "a\n"})
    repo.git("checkout", "--quiet", "main")
    if kind == "merged":
        repo.git("merge", "--quiet", "--no-ff", "--no-edit", "feature")
    if kind == "squashed":
        repo.commit({"a.txt": "A\n", "d.txt": "d\n"})
    head = "main" if kind == "same" else "feature"
    with pytest.raises(InvalidRequest, match="there is nothing to judge"):
        await trusted.resolve_change(reference(repo), head)


async def test_a_change_without_a_common_commit_is_refused(
    trusted: RepositoryService, repo: Repo
) -> None:
    repo.git("checkout", "--quiet", "--orphan", "other")
    repo.commit({"a.txt": "another history\n"})
    with pytest.raises(RepositoryError, match="share no commit"):
        await trusted.resolve_change(reference(repo), "other")
