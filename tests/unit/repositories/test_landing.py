"""Delivery of an approved commit to its origin, by the repository's policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, Refused
from moothall.repositories.git_objects import Change
from moothall.repositories.registry import Approval
from moothall.repositories.service import RepositoryService
from support.repos import Repo, make_repo

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

OUTPUT_TEXT = "Merge story: new\n\nApproved-by: pat\n"
BRANCH = "moothall/story-1"


async def prepare(base: Base, _announce: object = None) -> Prepared:
    return Prepared(base, base.sha, ())


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return make_repo((tmp_path / "repo").resolve(), {"a.txt": "a\n", "b.txt": "b\n"})


@pytest.fixture
def trusted(tmp_path: Path) -> RepositoryService:
    return RepositoryService(tmp_path / "data", WorkspaceSettings(), prepare)


async def register_with(
    trusted: RepositoryService, repo: Repo, policy: Approval, base: str = ""
) -> RepositoryRef:
    return RepositoryRef(
        id=(await trusted.register(str(repo.path), on_approval=policy, base=base)).id
    )


async def work(
    trusted: RepositoryService, ref: RepositoryRef, path: str = "new.txt", text: str = "new\n"
) -> str:
    """Return a commit on top of the newest one that changes a file."""
    base = await trusted.resolve(ref)
    change = Change(path, "100644", text.encode())
    return (
        await trusted.clone(base.repository).commit_changes(base.sha, [change], "work")
    ).commit_sha


async def test_the_default_policy_leaves_the_commit(trusted: RepositoryService, repo: Repo) -> None:
    ref = RepositoryRef(id=(await trusted.register(str(repo.path))).id)
    head, sha = repo.head, await work(trusted, ref)
    assert (await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")).status == "left"
    assert (repo.head, repo.git("branch", "--list", BRANCH)) == (head, "")


async def test_the_push_policy_creates_the_branch_even_if_nothing_else_is_delivered(
    trusted: RepositoryService, repo: Repo
) -> None:
    entry = await trusted.register(str(repo.path), push="none", on_approval="push")
    ref = RepositoryRef(id=entry.id)
    sha = await work(trusted, ref)
    for _ in range(2):
        assert (await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")).status == "pushed"
    assert repo.git("rev-parse", BRANCH) == sha


async def test_a_person_may_merge_under_any_approval_policy_but_not_against_the_push_policy(
    trusted: RepositoryService, repo: Repo
) -> None:
    ref = RepositoryRef(id=(await trusted.register(str(repo.path))).id)
    head, sha = repo.head, await work(trusted, ref)
    await trusted.register(str(repo.path), push="none")
    with pytest.raises(Refused, match="its push policy is none"):
        await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local", merge=True)
    assert repo.head == head
    await trusted.register(str(repo.path), push="local-branch")
    landed = await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local", merge=True)
    assert (landed.status, landed.branch) == ("merged", repo.git("branch", "--show-current"))
    assert repo.git("rev-parse", "HEAD^1", "HEAD^2").split() == [head, sha]


@pytest.mark.parametrize("at", ["checked out", "elsewhere"])
async def test_the_merge_policy_creates_one_merge_commit_on_the_branch(
    trusted: RepositoryService, repo: Repo, at: str
) -> None:
    ref = await register_with(trusted, repo, "merge")
    main, head, sha = repo.git("branch", "--show-current"), repo.head, await work(trusted, ref)
    if at == "elsewhere":
        repo.git("switch", "--quiet", "--create", "side")
    (repo.path / "b.txt").write_text("mine\n", encoding="utf-8")
    landed = await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")
    assert (landed.status, landed.branch) == ("merged", main)
    assert repo.git("rev-parse", f"{main}^1", f"{main}^2").split() == [head, sha]
    assert repo.git("log", "-1", "--format=%B", main).strip() == OUTPUT_TEXT.strip()
    assert (repo.path / "new.txt").exists() == (at == "checked out")
    assert repo.git("status", "--porcelain").split() == ["M", "b.txt"]
    # A caller that was killed in between repeats the request.
    second_landing = await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")
    assert (second_landing.status, second_landing.commit_sha) == (
        "merged",
        repo.git("rev-parse", main),
    )


async def test_a_moved_branch_is_reported_with_what_the_commit_changes(
    trusted: RepositoryService, repo: Repo
) -> None:
    ref = await register_with(trusted, repo, "merge")
    sha = await work(trusted, ref)
    repo.commit({"b.txt": "moved\n"})
    landed = await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")
    assert (landed.status, landed.tip) == ("moved", repo.head)
    assert "+new\n" in landed.diff
    assert "moved" not in landed.diff


async def test_a_commit_based_on_another_branch_is_not_merged(
    trusted: RepositoryService, repo: Repo
) -> None:
    ref = await register_with(trusted, repo, "merge")
    main, head = repo.git("branch", "--show-current"), repo.head
    repo.git("switch", "--quiet", "--create", "side")
    repo.commit({"secret.txt": "of the side alone\n"})
    landed = await trusted.land(ref, await work(trusted, ref), BRANCH, OUTPUT_TEXT, "local")
    assert (landed.status, repo.git("rev-parse", main)) == ("left", head)
    assert "does not have" in landed.why


@pytest.mark.parametrize(
    ("path", "ignored", "reason"),
    [
        ("a.txt", "", "uncommitted changes in a.txt"),
        ("new.txt", "", "uncommitted changes in new.txt"),
        ("new.txt", "new.txt\n", "uncommitted changes in new.txt"),
        ("", "", "through a filter"),
        ("", "", "2 work trees"),
    ],
    ids=["changed", "unknown", "ignored", "filter", "two trees"],
)
async def test_files_of_the_owner_are_not_touched(
    trusted: RepositoryService, repo: Repo, path: str, ignored: str, reason: str
) -> None:
    if ignored:
        (repo.path / ".git/info").mkdir(exist_ok=True)
        (repo.path / ".git/info/exclude").write_text(ignored, encoding="utf-8")
    if "filter" in reason:
        repo.git("config", "filter.up.smudge", "touch RAN; cat")
        repo.commit({".gitattributes": "*.txt filter=up\n"})
    ref = await register_with(trusted, repo, "merge")
    sha = await work(trusted, ref, path or "new.txt", "theirs\n")
    if "trees" in reason:
        repo.git(
            "worktree",
            "add",
            "--quiet",
            "--force",
            str(repo.path.parent / "second"),
            repo.git("branch", "--show-current"),
        )
    if path:
        (repo.path / path).write_text("mine\n", encoding="utf-8")
    head, status = repo.head, repo.git("status", "--porcelain")
    landed = await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")
    assert landed.status == "left"
    assert reason in landed.why
    assert (repo.head, repo.git("status", "--porcelain")) == (head, status)
    assert not path or (repo.path / path).read_text(encoding="utf-8") == "mine\n"
    assert not (repo.path / "RAN").exists()


async def test_no_hook_is_run(trusted: RepositoryService, repo: Repo) -> None:
    hook = repo.path / ".git/hooks/post-merge"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch RAN\n", encoding="utf-8")
    hook.chmod(0o755)
    ref = await register_with(trusted, repo, "merge")
    assert (
        await trusted.land(ref, await work(trusted, ref), BRANCH, OUTPUT_TEXT, "local")
    ).status == "merged"
    assert not (repo.path / "RAN").exists()


async def test_a_commit_is_merged_into_the_configured_branch(
    trusted: RepositoryService, repo: Repo
) -> None:
    repo.git("branch", "release")
    ref = await register_with(trusted, repo, "merge", "release")
    head, sha = repo.head, await work(trusted, ref)
    assert (await trusted.land(ref, sha, BRANCH, OUTPUT_TEXT, "local")).branch == "release"
    assert (repo.head, repo.git("rev-parse", "release^2")) == (head, sha)


async def test_the_merge_policy_requires_a_branch(trusted: RepositoryService, repo: Repo) -> None:
    repo.git("checkout", "--quiet", "--detach")
    with pytest.raises(InvalidRequest, match="--base"):
        await register_with(trusted, repo, "merge")
    with pytest.raises(InvalidRequest, match="--base"):
        await trusted.register("https://example.org/app", on_approval="merge")
