"""A story on the board of a real server, from backlog to done: real bus, hosts, git, checks and
gRPC; only the model is scripted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from served import make_command, run_server
from texts import AC, TOKENS, Person, by_words, make_repository

from command import Command, answer_turns_with, git
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


@pytest_asyncio.fixture(loop_scope="session")
async def own_command(tmp_path: Path) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(by_words)) as server:
        command = make_command(tmp_path, server.base_url)
        (tmp_path / "tokens.toml").write_text(TOKENS, encoding="utf-8")
        yield command


async def test_a_story_is_built_rejected_and_completed_across_a_restart(
    own_command: Command, repo: Path
) -> None:
    added = await own_command("repo", "add", str(repo), "--id", "project", "--tenant", "team-p")
    assert added.code == 0, added.err
    async with run_server(own_command) as app:
        person = Person(app)
        await person.create(
            "As a writer, I want texts in upper and lower case, so that I need not retype them."
        )
        await person.move("refine", "submit")
        await person.move_once_allowed("accept_design")
        await person.wait_for_state("test")
    async with run_server(own_command) as app:  # the check of the whole story continues or starts
        person = Person(app, person.story_id)
        await person.move_once_allowed("accept_test")
        branch = f"moothall/team-p_{person.story_id}"
        # The architects' three tasks, the last of which depends on both others.
        for part in ("one", "two", "both"):
            assert git(repo, "show", f"{branch}:tools/{part}.py").startswith(f"def {part}")
        await person.move("reject", comment="Say it in French.")
        await person.wait_for_state("test")
        await person.move_once_allowed("accept_test")
        answer = await person.move("accept")
        assert answer.state == "done"
        assert "premier" in git(repo, "show", f"{branch}-2:tools/texts.py")
        assert git(repo, "show", f"{branch}-2:tools/both.py").startswith("def both")
        assert git(repo, "status", "--porcelain") == ""


@pytest.mark.parametrize("conflict", [False, True], ids=["apart", "in conflict"])
async def test_the_changes_of_two_tasks_are_merged(
    own_command: Command,
    repo: Path,
    conflict: bool,  # noqa: FBT001
) -> None:
    added = await own_command("repo", "add", str(repo), "--id", "project", "--tenant", "team-p")
    assert added.code == 0, added.err
    async with run_server(own_command) as app:
        person = Person(app)
        await person.create(
            "As a writer, I want texts in upper and lower case, so that I need not retype them."
            + (" MODE" if conflict else "")
        )
        await person.move("refine", "submit")
        await person.wait_for_state("design")
        strategy = orchestrator.DerivationStrategy(
            parallel_execution=True, max_tasks_per_role=2, auto_publish_to_nats=True
        )
        derived = await person.stub.DeriveSubtasks(
            orchestrator.DeriveSubtasksRequest(
                case_id=person.story_id, plan_id="plan-two", roles=["dev"], strategy=strategy
            )
        )
        assert [list(task.dependencies) for task in derived.tasks] == [[], []]
        await person.move_once_allowed("accept_design")
        await person.wait_for_state("test")
        await person.move_once_allowed("accept_test")
        check = (await person.wait_for_state("docs")).check
        branch = check.branch
        assert check.passed
        assert git(repo, "rev-parse", branch) == check.commit_sha
        assert branch.startswith(f"moothall/team-p_{person.story_id}")
        names = git(repo, "ls-tree", "-r", "--name-only", branch).split()
        if conflict:
            assert 'mode = "both"' in git(repo, "show", f"{branch}:tools/texts.py")
        else:
            assert {"tools/one.py", "tools/two.py"} <= set(names)


async def test_a_story_is_edited_archived_and_restored_on_the_command_line(
    own_command: Command,
) -> None:
    created = await own_command("story", "new", "Export", "--ac", AC[0])
    story = created.out.strip()
    edited = await own_command("story", "edit", story, "--title", "Export a month", "--rigor", "L0")
    assert edited.code == 0, edited.err
    assert "points by the coach" in edited.err
    details = await own_command("story", "show", story)
    assert details.out.startswith(f"Export a month\n- {AC[0]}\n")
    assert (await own_command("story", "archive", story)).out == "archived\n"
    assert (await own_command("story", "list")).out == ""
    assert story in (await own_command("story", "list", "--all")).out
    refused = await own_command("story", "edit", story, "--title", "Export a year")
    assert refused.code != 0
    assert "is in archived; it can be edited in backlog and draft" in refused.err
    assert (await own_command("story", "restore", story)).out == "backlog\n"
    stopped = await own_command("story", "stop", story)
    assert stopped.code != 0
    assert "'stop' is not possible for a story in backlog" in stopped.err
    retried = await own_command("story", "retry", story)
    assert "no task to retry" in retried.err
    merged = await own_command("story", "merge", story)
    assert "can be merged once it is accepted" in merged.err


async def test_a_story_is_completed_on_the_command_line(
    own_command: Command, repo: Path, tmp_path: Path
) -> None:
    async def once_allowed(story: str) -> str:
        async with asyncio.timeout(90):
            while (result := await own_command("story", "approve", story)).code:
                assert "moothall:" in result.err
                await asyncio.sleep(0.2)
        return result.out.strip()

    options = (
        "--brief",
        "As a writer, I want texts in upper and lower case, so that I need not retype them.",
    )
    criteria = [word for criterion in AC for word in ("--ac", criterion)]
    created = await own_command(
        "story", "new", "Texts in both cases", *options, *criteria, "--repo", str(repo)
    )
    assert created.code == 0, created.err
    story = created.out.strip()
    assert (await own_command("story", "approve", story)).out == "draft\n"
    submitted = await own_command("story", "approve", story)
    assert submitted.out == "design\n"
    assert "no process works on stories now" in submitted.err
    async with run_server(own_command):
        async with asyncio.timeout(90):
            while (planned := await own_command("story", "plan", story)).code:
                await asyncio.sleep(0.2)
        plan = json.loads(planned.out)
        for task in plan["tasks"]:
            task["description"] += " Gladly."
        (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        changed = await own_command("story", "plan", story, "--change", str(tmp_path / "plan.json"))
        assert changed.code == 0, changed.err
        assert json.loads(changed.out)["tasks"] == plan["tasks"]
        plan["tasks"].pop()
        (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        late = await own_command("story", "plan", story, "--change", str(tmp_path / "plan.json"))
        assert (late.code, "were changed by local since you saw them" in late.err) == (2, True)
        assert await once_allowed(story) == "build"
        early_approval = await own_command("story", "approve", story)
        async with asyncio.timeout(180):
            while early_approval.code == 2 and "councils are at work" in early_approval.err:
                early_approval = await own_command("story", "approve", story)
        assert "its tasks have ended" not in early_approval.err, (
            await own_command("story", "show", story)
        ).out
        assert (early_approval.out.strip() or await once_allowed(story)) == "docs"
        await own_command("story", "comment", story, "well done")
        of_line = await own_command("story", "comment", story, "good", "--line", "tools/one.py:1")
        assert of_line.code == 0, of_line.err
        refused = await own_command(
            "story", "comment", story, "what?", "--line", "tools/one.py:900"
        )
        assert (refused.code, "no such line 900" in refused.err) == (2, True)
        assert (await own_command("story", "approve", story)).out == "done\n"
    details = await own_command("story", "show", story)
    assert "checked as a whole: passed" in details.out
    assert "local says: well done" in details.out
    assert "local says of tools/one.py, line 1: good" in details.out
    assert re.search(r"(?m)^1\. task-\w+ \(dev\): won: agent-dev-\d+, ", details.out), details.out
    (row,) = json.loads((await own_command("story", "list", "--json")).out)
    assert (row["state"], row["branch"]) == ("done", f"moothall/{story}")
    assert git(repo, "rev-parse", row["branch"]) == row["commit_sha"]
