"""Effects of approval: a story merged into a checked-out branch that has moved, a story in conflict
with it, and one blocked by its owner's uncommitted work; and the path from a merged line to its
approver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import make_command, run_server
from texts import METADATA, TOKENS, Person, by_words, make_repository

from command import Command, answer_turns_with, git
from moothall.pb.context.v1 import context_pb2 as context
from moothall.pb.context.v1.context_pb2_grpc import ContextServiceStub
from moothall.testing.model import scripted_model
from support.neo4j import Address, Missing, some_server

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BRIEF = "As a writer, I want texts in upper and lower case, so that I need not retype them."
WHO = ("-c", "user.name=t", "-c", "user.email=t@localhost")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


@pytest_asyncio.fixture(loop_scope="session")
async def own_command(tmp_path: Path, repo: Path) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(by_words)) as server:
        command = make_command(tmp_path, server.base_url)
        command.extra["MOOTHALL_WEB__PORT"] = "0"
        (tmp_path / "tokens.toml").write_text(TOKENS, encoding="utf-8")
        added = await command(
            "repo",
            "add",
            str(repo),
            "--id",
            "project",
            "--tenant",
            "team-p",
            "--on-approval",
            "merge",
        )
        assert added.code == 0, added.err
        yield command


@pytest.fixture
def neo4j(tmp_path: Path) -> Iterator[Address]:
    try:
        with some_server(tmp_path / "neo4j") as address:
            yield address
    except Missing as missing:
        pytest.skip(str(missing))


def commit(repo: Path, path: str, text: str) -> None:
    (repo / path).write_text(text, encoding="utf-8")
    git(repo, "add", path)
    git(repo, *WHO, "commit", "-qm", f"change {path}")


async def move_to_last_gate(person: Person, brief: str) -> None:
    """Bring the story to its last gate."""
    await person.create(brief)
    await person.move("refine", "submit")
    await person.move_once_allowed("accept_design")
    await person.wait_for_state("test")
    await person.move_once_allowed("accept_test")


async def test_a_story_is_merged_into_a_moved_branch(own_command: Command, repo: Path) -> None:
    async with run_server(own_command) as app:
        person = Person(app)
        await move_to_last_gate(person, BRIEF)
        commit(repo, "other.txt", "meanwhile\n")
        (repo / "other.txt").write_text("not committed\n", encoding="utf-8")
        (repo / "new.txt").write_text("not known\n", encoding="utf-8")
        head_before = git(repo, "rev-parse", "HEAD")
        await person.move("accept")
        delivery = await person.delivery_record()
        assert (delivery["status"], delivery["branch"]) == ("merged", "main")
        head = git(repo, "rev-parse", "HEAD")
        assert (head, git(repo, "rev-parse", "HEAD^1")) == (delivery["commit_sha"], head_before)
        assert git(repo, "symbolic-ref", "HEAD") == "refs/heads/main"
        message = git(repo, "log", "-1", "--format=%B")
        assert message.startswith("Merge story: Texts in both cases")
        assert f"Story: {person.story_id}\n" in message
        assert f"Deliberation: {person.story_id}\n" in message
        assert message.count("Deliberation: task-") == 3
        assert message.endswith("Approved-by: pat")
        assert git(repo, "status", "--porcelain") == "M other.txt\n?? new.txt"  # git() strips
        for part in ("one", "two", "both"):
            assert (repo / f"tools/{part}.py").read_text(encoding="utf-8").startswith(f"def {part}")
        query = await own_command(
            "graph",
            "query",
            "provenance",
            "tenant=team-p",
            "--json",
            "--repo",
            str(repo),
            "--file",
            "tools/two.py",
            "--line",
            "1",
        )
        assert query.code == 0, query.err
        (row,) = query.document["proposals"]
        assert row["story"]["story_id"] == person.story_id
        assert row["task"]["description"].startswith("the second")
        assert any(
            check["check"] == "tests" and check["verdict"] == "passed" for check in row["evidence"]
        )
        assert row["model_calls"]
        assert [(decision["approver"], decision["decision"]) for decision in row["decisions"]] == [
            ("pat", "approved")
        ] * 3


async def test_neo4j_leads_from_a_merged_line_to_its_approver_for_its_tenant_only(
    own_command: Command, repo: Path, neo4j: Address, tmp_path: Path
) -> None:
    own_command.extra |= {
        "MOOTHALL_GRAPH__URL": neo4j.url,
        "MOOTHALL_GRAPH__PASSWORD": neo4j.password,
    }
    outsider = (
        '[[principals]]\ntoken = "a-token-of-somebody-elsewhere"\nname = "eve"\ntenant = "team-e"\n'
    )
    (tmp_path / "tokens.toml").write_text(TOKENS + outsider, encoding="utf-8")
    async with run_server(own_command) as app:
        person = Person(app)
        await move_to_last_gate(person, BRIEF + " ALONE")
        await person.move("accept", comment="It reads well.")
        assert (await person.delivery_record())["status"] == "merged"
        place = ("--repo", str(repo), "--file", "tools/both.py", "--line", "1")
        async with asyncio.timeout(240):
            while True:  # the graph lags behind the answer
                query = await own_command(
                    "graph", "query", "provenance", "tenant=team-p", "--json", *place
                )
                if query.code == 0 and len(query.document["proposals"][0]["decisions"]) == 3:
                    break
                assert query.code in {0, 1}, query.err
        (row,) = query.document["proposals"]
        assert row["story"]["story_id"] == person.story_id
        assert {(decision["approver"], decision["decision"]) for decision in row["decisions"]} == {
            ("pat", "approved")
        }
        pack = context.GetContextRequest(story_id=person.story_id, role="dev", phase="build")
        response = await ContextServiceStub(app.channel).GetContext(pack, metadata=METADATA)
        assert "Texts in both cases" in response.context
        assert "It reads well." in response.context
        other_caller = (("authorization", "Bearer a-token-of-somebody-elsewhere"),)
        foreign_context = await ContextServiceStub(app.channel).GetContext(
            pack, metadata=other_caller
        )
        assert "Texts" not in foreign_context.context
        assert "reads well" not in foreign_context.context


async def test_a_conflict_with_the_branch_goes_back_to_the_council(
    own_command: Command, repo: Path
) -> None:
    async with run_server(own_command) as app:
        person = Person(app)
        await move_to_last_gate(person, BRIEF + " ALONE MODE")
        text = (repo / "tools/texts.py").read_text(encoding="utf-8")
        commit(repo, "tools/texts.py", text.replace('"old"', '"moved"'))
        moved = git(repo, "rev-parse", "HEAD")
        await person.move("accept")
        delivery = await person.delivery_record()
        assert delivery["status"] == "failed"
        assert "tools/texts.py" in delivery["why"]
        assert git(repo, "rev-parse", "HEAD") == moved
        await person.wait_for_state("test")
        await person.move_once_allowed("accept_test")
        await person.move("accept")
        assert (await person.delivery_record())["status"] == "merged"
        assert git(repo, "merge-base", "HEAD", moved) == moved
        assert 'mode = "both"' in (repo / "tools/texts.py").read_text(encoding="utf-8")
        assert git(repo, "status", "--porcelain") == ""


async def test_uncommitted_files_of_the_owner_are_kept(own_command: Command, repo: Path) -> None:
    async with run_server(own_command) as app:
        person = Person(app)
        await move_to_last_gate(person, BRIEF)
        head = git(repo, "rev-parse", "HEAD")
        (repo / "tools/one.py").write_text("mine\n", encoding="utf-8")
        await person.move("accept")
        delivery: dict[str, Any] = await person.delivery_record()
        assert delivery["status"] == "left"
        assert "uncommitted changes in tools/one.py" in delivery["why"]
        assert (repo / "tools/one.py").read_text(encoding="utf-8") == "mine\n"
        assert git(repo, "rev-parse", "HEAD") == head
        assert git(repo, "rev-parse", delivery["branch"]) == delivery["commit_sha"]
