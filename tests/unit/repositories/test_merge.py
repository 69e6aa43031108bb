from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import MergeConflict
from moothall.repositories.git_objects import Change
from moothall.repositories.service import RepositoryService
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

LINES = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


async def prepare(base: Base, _announce: object = None) -> Prepared:
    return Prepared(base, base.sha, ())


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_repo((tmp_path / "repo").resolve(), {"a.txt": LINES, "b.txt": "b\n"})


@pytest.fixture
def trusted(tmp_path: Path, repo: Repo) -> RepositoryService:
    return RepositoryService(tmp_path / "data", WorkspaceSettings(), prepare, roots=(repo.path,))


async def pin(trusted: RepositoryService, repo: Repo, ref: str = "") -> Base:
    return await trusted.resolve(RepositoryRef(url=str(repo.path), ref=ref))


async def commit_file(trusted: RepositoryService, base: Base, path: str, text: str) -> str:
    change = Change(path, "100644", text.encode())
    return (
        await trusted.clone(base.repository).commit_changes(base.sha, [change], "work")
    ).commit_sha


async def test_several_commits_are_merged(trusted: RepositoryService, repo: Repo) -> None:
    base = await pin(trusted, repo)
    first = await commit_file(trusted, base, "a.txt", LINES.replace("one", "ONE"))
    second = await commit_file(trusted, base, "a.txt", LINES.replace("seven", "SEVEN"))
    third = await commit_file(trusted, base, "c/new.txt", "new\n")
    merged = await trusted.merge(base, (first, second, third))
    assert merged.paths == ("a.txt", "c/new.txt")
    clone = trusted.clone(base.repository)
    assert (await clone.read(merged.commit_sha, "a.txt", 1000)).decode() == LINES.replace(
        "one", "ONE"
    ).replace("seven", "SEVEN")
    assert await trusted.merge(base, (first, second, third)) == merged
    assert (await trusted.merge(base, (first,))).diff == await clone.diff(base.sha, first)


async def test_changes_of_a_moved_base_are_kept(trusted: RepositoryService, repo: Repo) -> None:
    old = await pin(trusted, repo)
    work = await commit_file(trusted, old, "a.txt", LINES.replace("one", "ONE"))
    repo.commit({"b.txt": "moved\n"})
    new = await pin(trusted, repo)
    merged = await trusted.merge(new, (work,))
    assert new.sha != old.sha
    assert merged.paths == ("a.txt",)
    assert (await trusted.clone(new.repository).read(merged.commit_sha, "b.txt", 100)) == b"moved\n"


async def test_a_conflict_is_shown(trusted: RepositoryService, repo: Repo) -> None:
    base = await pin(trusted, repo)
    first = await commit_file(trusted, base, "a.txt", LINES.replace("four", "4"))
    second = await commit_file(trusted, base, "a.txt", LINES.replace("four", "IV"))
    with pytest.raises(MergeConflict, match=r"nothing was merged: a.txt") as caught:
        await trusted.merge(base, (first, second))
    assert "\n4\n=======\nIV\n" in caught.value.message


async def test_a_commit_known_only_to_the_origin_is_fetched(
    trusted: RepositoryService, repo: Repo
) -> None:
    base = await pin(trusted, repo)
    repo.git("switch", "--quiet", "--create", "side")
    repo.commit({"side.txt": "side\n"})
    sha = repo.head
    assert (await trusted.merge(base, (sha,))).paths == ("side.txt",)
