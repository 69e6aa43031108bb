"""What approval does: a story merged into a branch that is checked out and has moved, one in conflict with it, one that its owner's work is
in the way of; and from a line of the merged file to its approver.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import make_command, served
from texts import TOKENS, Person, by_words, make_repository

from house import Command, git, scripted
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BRIEF = "As a writer, I want texts in upper and lower case, so that I need not retype them."
WHO = ("-c", "user.name=t", "-c", "user.email=t@localhost")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


@pytest_asyncio.fixture(loop_scope="session")
async def own(tmp_path: Path, repo: Path) -> AsyncIterator[Command]:
    async with scripted_model(scripted(by_words)) as server:
        command = make_command(tmp_path, server.base_url)
        command.extra["MOOTHALL_WEB__PORT"] = "0"
        (tmp_path / "tokens.toml").write_text(TOKENS, encoding="utf-8")
        added = await command("repo", "add", str(repo), "--id", "project", "--tenant", "team-p", "--on-approval", "merge")
        assert added.code == 0, added.err
        yield command


def commit(repo: Path, path: str, text: str) -> None:
    (repo / path).write_text(text, encoding="utf-8")
    git(repo, "add", path)
    git(repo, *WHO, "commit", "-qm", f"change {path}")


async def in_docs(person: Person, brief: str) -> None:
    """Bring the story to its last gate."""
    await person.create(brief)
    await person.move("refine", "submit")
    await person.move_once_allowed("accept_design")
    await person.stands("test")
    await person.move_once_allowed("accept_test")


async def test_a_story_is_merged_into_a_branch_that_moved(own: Command, repo: Path) -> None:
    async with served(own) as house:
        person = Person(house)
        await in_docs(person, BRIEF)
        commit(repo, "other.txt", "meanwhile\n")
        (repo / "other.txt").write_text("not committed\n", encoding="utf-8")
        (repo / "new.txt").write_text("not known\n", encoding="utf-8")
        before = git(repo, "rev-parse", "HEAD")
        await person.move("accept")
        told = await person.delivered()
        assert (told["status"], told["branch"]) == ("merged", "main")
        head = git(repo, "rev-parse", "HEAD")
        assert (head, git(repo, "rev-parse", "HEAD^1")) == (told["commit_sha"], before)
        assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
        said = git(repo, "log", "-1", "--format=%B")
        assert said.startswith("Merge story: Texts in both cases")
        assert f"Story: {person.story_id}\n" in said
        assert f"Deliberation: {person.story_id}\n" in said
        assert said.count("Deliberation: task-") == 3
        assert said.endswith("Approved-by: pat")
        assert git(repo, "status", "--porcelain") == "M other.txt\n?? new.txt"  # git() strips
        for part in ("one", "two", "both"):
            assert (repo / f"tools/{part}.py").read_text(encoding="utf-8").startswith(f"def {part}")
        asked = await own(
            *("graph", "query", "provenance", "tenant=team-p", "--json"),
            *("--repo", str(repo), "--file", "tools/two.py", "--line", "1"),
        )
        assert asked.code == 0, asked.err
        (row,) = asked.document["proposals"]
        assert row["story"]["story_id"] == person.story_id
        assert row["task"]["description"].startswith("the second")
        assert any(check["check"] == "tests" and check["verdict"] == "passed" for check in row["evidence"])
        assert row["model_calls"]
        assert [(each["approver"], each["decision"]) for each in row["decisions"]] == [("pat", "approved")] * 3


async def test_a_conflict_with_the_branch_goes_back_to_the_council(own: Command, repo: Path) -> None:
    async with served(own) as house:
        person = Person(house)
        await in_docs(person, BRIEF + " ALONE MODE")
        text = (repo / "tools/texts.py").read_text(encoding="utf-8")
        commit(repo, "tools/texts.py", text.replace('"old"', '"moved"'))
        moved = git(repo, "rev-parse", "HEAD")
        await person.move("accept")
        told = await person.delivered()
        assert told["status"] == "failed"
        assert "tools/texts.py" in told["why"]
        assert git(repo, "rev-parse", "HEAD") == moved
        await person.stands("test")
        await person.move_once_allowed("accept_test")
        await person.move("accept")
        assert (await person.delivered())["status"] == "merged"
        assert git(repo, "merge-base", "HEAD", moved) == moved
        assert 'mode = "both"' in (repo / "tools/texts.py").read_text(encoding="utf-8")
        assert git(repo, "status", "--porcelain") == ""


async def test_what_its_owner_has_not_committed_stays(own: Command, repo: Path) -> None:
    async with served(own) as house:
        person = Person(house)
        await in_docs(person, BRIEF)
        head = git(repo, "rev-parse", "HEAD")
        (repo / "tools/one.py").write_text("mine\n", encoding="utf-8")
        await person.move("accept")
        told: dict[str, Any] = await person.delivered()
        assert told["status"] == "left"
        assert "changes of your own in tools/one.py" in told["why"]
        assert (repo / "tools/one.py").read_text(encoding="utf-8") == "mine\n"
        assert git(repo, "rev-parse", "HEAD") == head
        assert git(repo, "rev-parse", told["branch"]) == told["commit_sha"]
