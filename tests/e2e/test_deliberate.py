"""`moothall deliberate` as a person or a pipeline uses it: real bus, Ray, git, pytest and sandbox;
a scripted model over HTTP.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from command import Command, git

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


async def test_a_proven_winner_is_delivered_as_a_branch(command: Command, repo: Path) -> None:
    (repo / "src/utils.py").write_text("# my unfinished work\n", encoding="utf-8")
    result = await command("deliberate", "--repo", str(repo), "--agents", "3", "--json", TASK)
    assert result.code == 0, result.err
    document = result.document
    assert document["status"] == "COMPLETED"
    assert document["proven"] is True
    assert document["final_state"] == "committed"
    assert len(document["results"]) == 3
    first = document["results"][0]
    assert (first["seat"], first["rank"]) == (document["winner_id"], 1)
    assert first["checks"]["tests"] == "passed"
    assert first["reasons"]
    assert "hello_world" in first["diff"]
    assert {operation["tool"] for operation in first["operations"]} >= {"files.append"}
    assert document["usage"]["calls"] >= 3
    branch = f"moothall/{document['task_id']}"
    assert document["branch"] == branch
    assert "hello_world" in git(repo, "show", f"{branch}:src/utils.py")
    assert git(repo, "rev-parse", branch) == document["commit_sha"]
    assert (repo / "src/utils.py").read_text(encoding="utf-8") == "# my unfinished work\n"
    assert git(repo, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(repo, "worktree", "list").count("\n") == 0


async def test_failing_tests_leave_no_winner(command: Command, repo: Path) -> None:
    result = await command(
        "deliberate", "--repo", str(repo), "--turns", "2", "--json", f"WRONG: {TASK}"
    )
    assert result.code == 1, result.err
    assert result.document["winner_id"] == ""
    assert result.document["final_state"] == "no_winner"
    assert result.document["error_message"]
    assert git(repo, "branch", "--list", "moothall/*") == ""


async def test_a_winner_without_a_proving_test_is_reported_as_unproven(
    command: Command, repo: Path
) -> None:
    test = repo / "tests/test_utils.py"
    test.write_text(test.read_text(encoding="utf-8").split("def test_hello")[0], encoding="utf-8")
    git(
        repo,
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "commit",
        "-qam",
        "only what passes",
    )
    result = await command(
        "deliberate", "--repo", str(repo), "--agents", "2", "--json", "Write NOTES down"
    )
    assert result.code == 3, result.err
    assert result.document["winner_id"]
    assert result.document["proven"] is False


async def test_a_deliberation_about_text_needs_no_repository(command: Command) -> None:
    result = await command(
        "deliberate",
        "--text",
        "--agents",
        "2",
        "--rubric",
        "seventeen syllables",
        "--json",
        "Write a HAIKU",
    )
    assert result.code == 3, result.err  # no test can prove an answer in text
    assert result.document["results"][0]["content"] == "An old silent pond"
    assert result.document["final_state"] == "answered"


async def test_a_relative_path_with_spaces_works_from_another_folder(
    command: Command, repo: Path
) -> None:
    spaced = repo.parent / "a folder with spaces" / "my repo"
    spaced.parent.mkdir()
    repo.rename(spaced)
    result = await command(
        "deliberate", "--repo", "my repo", "--protocol", "single", "--json", TASK, cwd=spaced.parent
    )
    assert result.code == 0, result.err
    assert len(result.document["results"]) == 1
    assert git(spaced, "branch", "--list", result.document["branch"])


async def test_two_deliberations_run_concurrently(command: Command, repo: Path) -> None:
    first_run, second_run = await asyncio.gather(
        *(command("deliberate", "--repo", str(repo), "--json", TASK) for _ in range(2))
    )
    assert (first_run.code, second_run.code) == (0, 0), first_run.err + second_run.err
    assert first_run.document["task_id"] != second_run.document["task_id"]
    assert len(git(repo, "branch", "--list", "moothall/*").splitlines()) == 2


async def test_the_same_task_id_is_the_same_deliberation(command: Command, repo: Path) -> None:
    args = (
        "deliberate",
        "--repo",
        str(repo),
        "--task-id",
        f"again-{repo.parent.name[-8:].replace('_', '-').lower()}",
        "--json",
    )
    first = await command(*args, TASK)
    second = await command(*args, TASK)
    assert first.code == second.code == 0, first.err + second.err
    assert first.document == second.document
    conflicting = await command(*args, "Something else")
    assert conflicting.code == 2
    assert "taken by another deliberation" in conflicting.err


async def test_verbose_output_shows_seats_turns_checks_and_the_ranking(
    command: Command, repo: Path
) -> None:
    result = await command("deliberate", "-v", "--repo", str(repo), TASK)
    assert result.code == 0, result.err
    for text in (
        "agent-dev-001",
        "agent-dev-003",
        "turn 1: files.append success",
        "clean re-check",
        "tokens",
    ):
        assert text in result.err
    for text in ("Ranking", "Winner: agent-dev-", "+def hello_world", "Branch moothall/"):
        assert text in result.out


@pytest.mark.parametrize("protocol", ["vote", "debate"])
async def test_the_other_protocols_work(command: Command, repo: Path, protocol: str) -> None:
    completed = await command(
        "deliberate",
        "--repo",
        str(repo),
        "--protocol",
        protocol,
        "--agents",
        "2",
        "--json",
        f"VARIED: {TASK}",
    )
    assert completed.code == 0, completed.err
    if protocol == "debate":
        assert any(result["reviews"] for result in completed.document["results"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--role", "wizard", TASK), "unknown role 'wizard'; the roles are dev, qa"),
        (("--agents", "10000", TASK), "'--agents': 10000 is not in the range 1 to 16"),
        (("--rounds", "99", TASK), "'--rounds': 99 is not in the range 0<=x<=8"),
        (("--protocol", "votes", TASK), "did you mean vote?"),
        (("  ",), "the task is empty"),
        (("x" * 20_001,), "20001 characters; at most 20000"),
        (("--task-id", "../x", TASK), "is not an id"),
    ],
)
async def test_an_invalid_request_is_reported(
    command: Command, args: tuple[str, ...], message: str
) -> None:
    result = await command("deliberate", *args)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


async def test_an_unusable_repository_is_reported(
    command: Command, tmp_path: Path, repo: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    unborn = tmp_path / "unborn"
    git(tmp_path, "init", "-q", str(unborn))
    for repository, ref, message in (
        (str(tmp_path / "nowhere"), "", "nowhere"),
        (str(empty), "", "not a git repository"),
        (str(unborn), "", "no commits"),
        (str(repo), "v9.9", "v9.9"),
        ("gopher://example.test/x.git", "", "gopher"),
    ):
        result = await command("deliberate", "--repo", repository, "--ref", ref, TASK)
        assert result.code == 2, (repository, result.err)
        assert message in result.err
        assert "Traceback" not in result.err


async def test_a_failing_setup_is_reported_as_a_broken_part_and_not_as_a_lost_task(
    command: Command, repo: Path
) -> None:
    config = """setup = ["sh -c 'echo it broke here; exit 3'"]\n[checks]\ntests = "true"\n"""
    (repo / ".moothall.toml").write_text(config, encoding="utf-8")
    git(repo, "add", "--all")
    git(
        repo,
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "commit",
        "-qm",
        "a set-up that fails",
    )
    result = await command("deliberate", "--repo", str(repo), "--agents", "1", "--json", TASK)
    assert result.code == 2, result.err
    assert {seat["error_code"] for seat in result.document["seats"]} == {"REPOSITORY_UNUSABLE"}
    assert "it broke here" in result.out
    assert result.document["usage"]["calls"] == 0
