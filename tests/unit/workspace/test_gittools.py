from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moothall.config import WorkspaceSettings
from moothall.errors import AlreadyExists, InvalidRequest, PatchRefused, Refused
from moothall.repositories.changes import NewPaths, WorkspaceChanges
from moothall.repositories.clone import TrustedClone
from moothall.repositories.git_objects import Change
from moothall.workspace.gittools import GitState, git_tool
from support.repos import SAMPLE, SOLUTION, make_sample

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

UTILS = "src/utils.py"
SOLVED = Change(UTILS, "100644", (SAMPLE[UTILS] + SOLUTION).encode())
NEW = Change("new.txt", "100644", b"new\n")
GONE = Change("README.md", "100644", None)


class Files:
    """The files of a workspace that differ from the base."""

    def __init__(self, clone: TrustedClone, sha: str) -> None:
        self.clone = clone
        self.state = GitState(sha)
        self.now: list[Change] = []

    async def changes(self) -> WorkspaceChanges:
        base_files = await self.clone.files(self.state.base_sha)
        ignored = await self.clone.ignored(
            self.state.base_sha,
            NewPaths((), [change.path for change in self.now if change.path not in base_files], {}),
        )
        return WorkspaceChanges(
            [change for change in self.now if change.path not in ignored], ignored
        )

    async def restore(self, changes: Sequence[Change]) -> None:
        self.now = list(changes)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return await git_tool(
            self.clone, self.state, tool, arguments, self.changes, restore=self.restore
        )


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the clone `c.git` of the sample, and the sha that was fetched."""
    folder = tmp_path_factory.mktemp("fetched")
    repo = make_sample(folder / "sample")
    clone = TrustedClone(folder / "repos" / "c.git", WorkspaceSettings())
    return folder / "repos", asyncio.run(clone.fetch(str(repo.path), "HEAD"))


@pytest.fixture
def files(fetched: tuple[Path, str], tmp_path: Path) -> Files:
    repos, sha = fetched
    shutil.copytree(repos, tmp_path / "repos")
    return Files(TrustedClone(tmp_path / "repos" / "c.git", WorkspaceSettings()), sha)


async def test_status_lists_the_changes(files: Files) -> None:
    assert (await files.call("git.status"))["clean"]
    files.now = [SOLVED, NEW, GONE, Change("__pycache__/x.pyc", "100644", b"x")]
    status = await files.call("git.status")
    assert {item["path"]: item["change"] for item in status["changed"]} == {
        UTILS: "modified",
        "new.txt": "added",
        "README.md": "deleted",
    }
    assert status["head"] == files.state.base_sha


async def test_a_new_ignored_file_is_named(files: Files) -> None:
    files.now = [SOLVED, Change("build/x.py", "100644", b"x")]
    status = await files.call("git.status")
    assert status["ignored"] == ["build/x.py"]
    assert [item["path"] for item in status["changed"]] == [UTILS]
    with pytest.raises(
        InvalidRequest, match=r"'build/x.py' is ignored \(line 2 of .gitignore, /build/\)"
    ):
        await files.call("git.add", paths=["build/x.py"])


async def test_add_commit_and_log(files: Files) -> None:
    files.now = [SOLVED, NEW]
    assert await files.call("git.add", paths=["src"]) == {"added": [UTILS]}
    commit = await files.call("git.commit", message="Add hello_world()")
    assert commit["files"] == [UTILS]
    assert [item["path"] for item in (await files.call("git.status"))["changed"]] == ["new.txt"]
    files.now = [NEW]  # the solution was taken back
    assert {item["path"] for item in (await files.call("git.status"))["changed"]} == {
        UTILS,
        "new.txt",
    }
    second = await files.call("git.commit", message="all")
    assert second["files"] == ["new.txt", UTILS]
    log = (await files.call("git.log", limit=2))["commits"]
    assert [entry["subject"] for entry in log] == ["all", "Add hello_world()"]
    assert len((await files.call("git.log"))["commits"]) == 3
    assert await files.clone.changes(files.state.base_sha, second["commit"]) == [NEW]
    with pytest.raises(InvalidRequest, match="nothing to commit"):
        await files.call("git.commit", message="again")


async def test_the_messages_of_the_workspaces_commits_are_recorded(files: Files) -> None:
    assert files.state.message == ""
    files.now = [SOLVED]
    await files.call("git.commit", message="feat: add hello_world()\n\nIt greets.\n")
    await files.call("git.branch", name="aside")
    files.now = [SOLVED, NEW]
    await files.call("git.commit", message="docs: say so")
    assert files.state.message == "feat: add hello_world()\n\nIt greets.\n\ndocs: say so"
    await files.call("git.checkout", ref="aside")
    assert files.state.message == "feat: add hello_world()\n\nIt greets."
    await files.call("git.checkout", ref=files.state.base_sha)
    assert files.state.message == ""


async def test_diff_against_head_and_older_commits(files: Files) -> None:
    files.now = [SOLVED]
    diff = await files.call("git.diff")
    assert "+def hello_world() -> str:" in diff["diff"]
    first = (await files.call("git.commit", message="one"))["commit"]
    assert (await files.call("git.diff"))["diff"] == ""
    for ref in ("HEAD~1", "HEAD^", "HEAD~", files.state.base_sha[:8]):
        assert (await files.call("git.diff", ref=ref))["diff"] == diff["diff"]
    for ref in ("HEAD", first, "work", "@"):
        assert (await files.call("git.diff", ref=ref))["diff"] == ""


async def test_branches_are_created_and_checked_out(files: Files) -> None:
    await files.call("git.branch", name="try/one")
    files.now = [SOLVED]
    await files.call("git.commit", message="one")
    assert (await files.call("git.checkout", ref="try/one"))["commit"] == files.state.base_sha
    assert files.now == []
    files.now = [NEW]
    with pytest.raises(InvalidRequest, match="commit them"):
        await files.call("git.checkout", ref="work")
    await files.call("git.commit", message="two")
    await files.call("git.checkout", ref="work")
    assert files.now == [SOLVED]
    with pytest.raises(AlreadyExists):
        await files.call("git.branch", name="try/one")


async def test_without_restore_only_the_same_commit_can_be_checked_out(files: Files) -> None:
    await files.call("git.branch", name="same")
    files.now = [NEW]
    await git_tool(files.clone, files.state, "git.checkout", {"ref": "same"}, files.changes)
    assert files.state.branch == "same"
    await files.call("git.commit", message="m")
    with pytest.raises(InvalidRequest, match="cannot check out"):
        await git_tool(files.clone, files.state, "git.checkout", {"ref": "work"}, files.changes)


@pytest.mark.parametrize(
    "ref",
    [
        "--output=/tmp/x",
        "-p",
        "main",
        "HEAD~999",
        "HEAD@{1}",
        "0" * 40,
        ":/x",
        "refs/heads/main",
        "a..b",
        "HEAD\n",
        "HEAD:src",
    ],
)
async def test_a_ref_outside_the_workspace_is_refused(files: Files, ref: str) -> None:
    for tool in ("git.diff", "git.checkout"):
        with pytest.raises(InvalidRequest, match="no commit"):
            await files.call(tool, ref=ref)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("git.add", {"paths": ["nowhere"]}, "nothing to add"),
        ("git.add", {"paths": "new.txt"}, "list"),
        ("git.add", {"paths": ["--all"]}, "nothing to add"),
        ("git.commit", {"message": "  "}, "message"),
        ("git.branch", {"name": "-D"}, "branch name"),
        ("git.branch", {"name": "a..b"}, "branch name"),
        ("git.branch", {"name": "x.lock"}, "branch name"),
        ("git.branch", {"name": 5}, "must be a text"),
        ("git.log", {"limit": 0}, "1 to 200"),
        ("git.log", {"limit": "--all"}, "1 to 200"),
        ("git.gc", {}, "no tool"),
    ],
)
async def test_invalid_arguments_are_refused(
    files: Files, tool: str, arguments: dict[str, Any], message: str
) -> None:
    files.now = [NEW]
    with pytest.raises(InvalidRequest, match=message):
        await files.call(tool, **arguments)


@pytest.mark.parametrize("tool", ["git.clone", "git.pull", "git.push"])
async def test_a_workspace_without_a_remote_reaches_nothing(files: Files, tool: str) -> None:
    files.now = [NEW]
    await files.call("git.commit", message="m")
    with pytest.raises(Refused, match="has no access to other repositories"):
        await files.call(tool, branch="work", url="https://host.example/x.git")


async def test_a_bad_change_is_reported_at_the_commit(files: Files) -> None:
    files.now = [Change(".git/hooks/pre-commit", "100755", b"x")]
    with pytest.raises(PatchRefused, match="git's own"):
        await files.call("git.commit", message="m")
