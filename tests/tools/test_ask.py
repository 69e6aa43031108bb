"""`moothall ask` as a person uses it, beside one real `moothall serve`; a scripted model over
HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import ALICE, make_command, run_server

from command import Command, answer_turns_with, by_task, git, turn
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import Fault, ScriptedModel, scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TASK = "Add hello_world() function to src/utils.py"
ANSWER = "add returns the sum of two numbers.\x1b[2J"


def by_question(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    """Look at the file, then answer a question; handle other tasks as in the other tests."""
    prompt = "\n".join(str(message["content"]) for message in body["messages"])
    if "What does add do?" not in prompt:
        return by_task(body, headers)
    if "files.read: success" not in prompt:
        return turn("files.read", path="src/utils.py")
    return json.dumps({"thought": "I have seen it", "finish": ANSWER})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ScriptedModel]:
    async with scripted_model(answer_turns_with(by_question)) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def command(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Command]:
    command = make_command(tmp_path_factory.mktemp("ask"), model.base_url)
    command.extra["MOOTHALL_WORKSPACE__ALLOWED_ROOTS"] = f'["{tmp_path_factory.getbasetemp()}"]'
    async with run_server(command):
        yield command


@pytest_asyncio.fixture(loop_scope="module")
async def repo(tmp_path: Path) -> Path:
    await make_sample_repository(tmp_path / "repo")
    return tmp_path / "repo"


async def test_a_question_is_answered_and_nothing_is_changed(command: Command, repo: Path) -> None:
    result = await command("ask", "-v", "What does add do?", cwd=repo / "src")
    assert result.code == 0, result.err
    assert "add returns the sum of two numbers." in result.out
    assert "\x1b[2J" not in result.out + result.err  # a model's text moves no cursor
    assert "files.read success" in result.err
    assert git(repo, "branch", "--list", "moothall/*") == ""
    assert git(repo, "status", "--porcelain") == ""


async def test_a_diff_is_shown_and_applied_with_yes(command: Command, repo: Path) -> None:
    (repo / "notes.txt").write_text("mine\n", encoding="utf-8")
    result = await command("ask", "--repo", str(repo), "--yes", "--json", TASK)
    assert result.code == 0, result.err
    assert (
        result.document["final_state"],
        result.document["proven"],
        result.document["applied"],
    ) == (
        "committed",
        True,
        ["src/utils.py"],
    )
    assert "def hello_world" in (repo / "src/utils.py").read_text(encoding="utf-8")
    assert (repo / "notes.txt").read_text(encoding="utf-8") == "mine\n"
    assert git(repo, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(repo, "branch", "--list", result.document["branch"])


async def test_without_a_terminal_nothing_is_applied_with_a_notice(
    command: Command, repo: Path
) -> None:
    result = await command("ask", "--repo", str(repo), TASK)
    assert result.code == 0, result.err
    assert "+def hello_world" in result.out
    assert "Branch moothall/" in result.out
    assert "not applied: there is no terminal" in result.err
    assert git(repo, "status", "--porcelain") == ""


async def test_uncommitted_changes_prevent_applying_the_diff(command: Command, repo: Path) -> None:
    (repo / "src/utils.py").write_text("# my unfinished work\n", encoding="utf-8")
    result = await command("ask", "--repo", str(repo), "--yes", "--json", TASK)
    assert result.code == 2
    assert "uncommitted changes in src/utils.py" in result.err
    assert (result.document["applied"], bool(result.document["branch"])) == ([], True)
    assert (repo / "src/utils.py").read_text(encoding="utf-8") == "# my unfinished work\n"


@pytest.mark.parametrize(("typed", "applied"), [("y\n", True), ("n\n", False), ("\x04", False)])
async def test_on_a_terminal_the_user_is_asked_for_confirmation(
    command: Command, repo: Path, typed: str, *, applied: bool
) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "moothall",
        "ask",
        "--repo",
        str(repo),
        TASK,
        env=command.environment(),
        stdin=theirs,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(theirs)
    try:
        assert process.stderr is not None
        output = b""
        async with asyncio.timeout(180):
            while b"Apply this to your files?" not in output:
                output += await process.stderr.read(4096) or pytest.fail(output.decode())
            os.write(ours, typed.encode())
            _, rest = await process.communicate()
    finally:
        os.close(ours)
    assert process.returncode == 0, (output + rest).decode()
    assert ("hello_world" in (repo / "src/utils.py").read_text(encoding="utf-8")) is applied


async def test_a_failing_change_is_not_an_answer(command: Command, repo: Path) -> None:
    result = await command("ask", "--repo", str(repo), "--turns", "1", "--yes", f"WRONG {TASK}")
    assert result.code == 1, result.err
    assert "No answer." in result.out
    assert git(repo, "status", "--porcelain") == ""


async def test_ctrl_c_cancels_the_task(command: Command, model: ScriptedModel, repo: Path) -> None:
    args = ("ask", "--repo", str(repo), "--task-id", "interrupted-1", "--json", f"HANG {TASK}")
    process = await command.start(*args)
    async with asyncio.timeout(120):
        while not model.in_flight:
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert (process.returncode, out) == (130, b""), err.decode()
    async with asyncio.timeout(20):
        while model.in_flight:
            await asyncio.sleep(0.05)
    repeated = await command(*args)
    assert (repeated.code, repeated.document["status"]) == (1, "CANCELLED"), repeated.err


async def test_a_question_outside_a_repository_is_about_text(
    command: Command, tmp_path: Path
) -> None:
    result = await command("ask", "--json", "Write a HAIKU", cwd=tmp_path)
    assert result.code == 0, result.err
    assert (result.document["final_state"], result.document["results"][0]["content"]) == (
        "answered",
        "An old silent pond",
    )


async def test_a_question_is_sent_to_a_remote_servers_kernel(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    """From a data directory of its own, as on another machine: the token is all that it has."""
    (tmp_path / "token").write_text(ALICE, encoding="ascii")
    client = Command(tmp_path / "mine", extra={"MOOTHALL_LOG__LEVEL": "error"})
    arguments = ("ask", "--server", command.served_at, "--token-file", str(tmp_path / "token"))
    result = await client(*arguments, "-v", "What does add do?", cwd=repo)
    assert result.code == 0, result.err
    assert "add returns the sum of two numbers." in result.out
    assert "files.read success" in result.err
    changed = await client(*arguments, "--repo", str(repo), "--yes", "--json", TASK)
    assert (changed.code, changed.document["applied"]) == (0, ["src/utils.py"]), changed.err
    assert "def hello_world" in (repo / "src/utils.py").read_text(encoding="utf-8")
    (tmp_path / "token").write_text("x" * 20, encoding="ascii")
    refused = await client(*arguments, "What does add do?", cwd=repo)
    assert (refused.code, "UNAUTHENTICATED" in refused.err) == (2, True)
    assert not (tmp_path / "mine" / "lock").exists()  # no server was started
