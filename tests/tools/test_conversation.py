"""Conversations and forks as a person uses them, beside one real `moothall serve`; a scripted model
over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from served import ALICE, make_command, run_server

from command import SOLVED, Command, answer_turns_with, git, task_of, turn
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import Fault, ScriptedModel, scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

TASK = "Add hello_world() function to src/utils.py"
SECOND = "Now write GREETING down in NOTES.md"
NOTES = "# Notes on hello_world\n"


def finish(text: str) -> str:
    return json.dumps({"thought": "that is it", "finish": text})


def by_conversation(body: dict[str, Any], _headers: Mapping[str, str]) -> str | Fault:
    """Act by the task; an answer repeats what the prompt shows of earlier questions."""
    prompt, task = "\n".join(str(message["content"]) for message in body["messages"]), task_of(body)
    if "HANG" in task:
        return Fault("silent", delay=0.1)
    if "SLOWLY" in task and "files.read: success" not in prompt:
        return turn("files.read", path="src/utils.py")
    if "SLOWLY" in task:  # the contents, if there are words
        texts = re.findall(r"SAY (\w+)", prompt)
        return turn(
            "files.append",
            path="src/utils.py",
            content=f"{SOLVED}\n# {texts[-1]}\n" if texts else SOLVED,
        )
    if "GREETING" in task:
        has_notes = "NOTES.md" in prompt.replace(task, "")
        return (
            finish("Written down.")
            if has_notes
            else turn("files.write", path="NOTES.md", content=NOTES)
        )
    if "before" in task:
        questions = re.findall(r"--- asked \[\w+\] ---\n(.*)\n", prompt)
        return finish(
            f"You asked: {'; '.join(questions)}. hello_world is "
            f"{'' if 'def hello_world' in prompt else 'not '}there."
        )
    return turn("files.append", path="src/utils.py", content=SOLVED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ScriptedModel]:
    async with scripted_model(answer_turns_with(by_conversation)) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def command(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Command]:
    command = make_command(tmp_path_factory.mktemp("talk"), model.base_url)
    command.extra["MOOTHALL_WORKSPACE__ALLOWED_ROOTS"] = f'["{tmp_path_factory.getbasetemp()}"]'
    async with run_server(command):
        yield command


@pytest_asyncio.fixture(loop_scope="module")
async def repo(tmp_path: Path) -> Path:
    await make_sample_repository(tmp_path / "repo")
    return tmp_path / "repo"


async def test_the_next_question_knows_the_conversation_and_starts_from_its_files(
    command: Command, repo: Path
) -> None:
    first = await command("ask", "--json", "--yes", TASK, cwd=repo)
    assert first.document["applied"] == ["src/utils.py"], first.err
    second = await command("ask", "--json", "--yes", "--continue", SECOND, cwd=repo)
    assert second.document["applied"] == ["NOTES.md"], second.err
    assert "hello_world" not in second.document["results"][0]["diff"].replace(NOTES.strip(), "")
    assert (
        git(repo, "show", f"{second.document['branch']}:src/utils.py").count("def hello_world") == 1
    )
    third = await command("ask", "--continue", "What did I ask before?", cwd=repo)
    assert third.code == 0, third.err
    assert " ".join(third.out.split()) == f"You asked: {TASK}; {SECOND}. hello_world is there."
    details = await command("show", cwd=repo)
    assert details.out.startswith(
        f"after {first.document['task_id']}: {TASK}\nafter {second.document['task_id']}: {SECOND}\n"
    )
    (last,) = (await command("list", "--json", "--limit", "1")).document["tasks"]
    assert last["follows"] == second.document["task_id"]
    follow_up = await command(
        "ask", "--json", "--continue", first.document["task_id"], "And before that?", cwd=repo
    )
    assert (
        follow_up.document["results"][0]["content"] == f"You asked: {TASK}. hello_world is there."
    ), follow_up.err


async def test_a_change_not_yet_applied_is_applied_with_its_follow_up(
    command: Command, repo: Path
) -> None:
    await command("ask", TASK, cwd=repo)
    follow_up = await command("ask", "--json", "--yes", "--continue", f"{TASK} SLOWLY", cwd=repo)
    assert follow_up.document["applied"] == ["src/utils.py"], follow_up.err
    # Both changes: the second one alone does not fit files that lack the first.
    branch_text = git(repo, "show", f"{follow_up.document['branch']}:src/utils.py")
    assert (repo / "src/utils.py").read_text(encoding="utf-8").strip() == branch_text
    assert branch_text.count("def hello_world") > 1


async def test_nothing_is_reported_for_work_that_can_go_on(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    for args, message in (
        (("--continue", "What did I ask before?"), "there is no earlier question about"),
        (("--continue", "task-nowhere", "What?"), "no task 'task-nowhere'"),
        (("--continue", "task-nowhere"), "there is no question"),
        ((), "there is no question"),
        (("--server", "127.0.0.1:9", "--continue", "What did I ask?"), "name it (--continue TASK)"),
    ):
        result = await command("ask", *args, cwd=repo)
        assert (result.code, message in result.err) == (2, True), result.err
    text = await command("ask", "--continue", "What did I ask before?", cwd=tmp_path)
    assert "there is no earlier question about text" in text.err


async def test_a_conversation_continues_on_a_remote_server(
    command: Command, repo: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(ALICE, encoding="ascii")
    client = Command(tmp_path / "mine", extra={"MOOTHALL_LOG__LEVEL": "error"})
    at = ("--server", command.served_at, "--token-file", str(tmp_path / "token"), "--json")
    first = await client("ask", *at, TASK, cwd=repo)
    assert first.code == 0, first.err
    second = await client(
        "ask", *at, "--continue", first.document["task_id"], "What did I ask before?", cwd=repo
    )
    assert (
        second.document["results"][0]["content"] == f"You asked: {TASK}. hello_world is there."
    ), second.err
    forked = await client(
        "fork", *at, "--turn", "1", first.document["task_id"], "SAY nothing", cwd=repo
    )
    assert forked.document["task_id"] == f"{first.document['task_id']}-f1", forked.err


async def test_a_killed_question_is_finished_before_the_next(
    command: Command, model: ScriptedModel, repo: Path
) -> None:
    args = ("ask", "--repo", str(repo), "--task-id", "killed-1", "--json", f"SLOWLY {TASK}")

    def calls() -> list[str]:
        return [call.call_id for call in model.requests if call.call_id.startswith("killed-1/")]

    process = await command.start(*args)
    async with asyncio.timeout(120):
        while not calls():
            await asyncio.sleep(0.05)
    process.kill()
    await process.communicate()
    resumed = await command(*args)
    assert resumed.code == 0, resumed.err
    assert len(calls()) == len(set(calls())) == 2
    later_answer = await command("ask", "--json", "--continue", "What did I ask before?", cwd=repo)
    assert "SLOWLY" in later_answer.document["results"][0]["content"]


@dataclass
class Terminal:
    """A command on a terminal of its own, with its input and output."""

    ours: int
    process: asyncio.subprocess.Process
    output: str = ""
    _chunks: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    async def until(self, text: str) -> str:
        """Return the output up to these words, starting after the previous match."""
        async with asyncio.timeout(180):
            while text not in self.output:
                self.output += (
                    (await self._chunks.get()).decode(errors="replace").replace("\r\n", "\n")
                )
        text_before, _, self.output = self.output.partition(text)
        return text_before

    def take(self) -> None:
        try:
            self._chunks.put_nowait(os.read(self.ours, 65_536))
        except OSError:
            self._chunks.put_nowait(b"\n(gone)\n")
            asyncio.get_running_loop().remove_reader(self.ours)


@asynccontextmanager
async def terminal(command: Command, *args: str, cwd: Path) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "moothall",
        *args,
        cwd=cwd,
        env=command.environment() | {"TERM": "dumb", "NO_COLOR": "1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    opened = Terminal(ours, process)
    asyncio.get_running_loop().add_reader(ours, opened.take)
    try:
        yield opened
        async with asyncio.timeout(60):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_a_terminal_accepts_one_question_after_another(
    command: Command, model: ScriptedModel, repo: Path
) -> None:
    async with terminal(command, "ask", cwd=repo) as person:
        await person.until("/help lists the commands")
        await person.until("> ")
        person.type("/apply\n/nonsense\n")
        await person.until("there is no change to apply")
        await person.until("unknown command")
        person.type(f"{TASK}\n")
        assert "+def hello_world" in await person.until("/apply puts this into your files")
        person.type("/diff\n")
        await person.until("+def hello_world")
        person.type("HANG for ever\n")
        async with asyncio.timeout(120):
            while not model.in_flight:
                await asyncio.sleep(0.05)
        person.process.send_signal(signal.SIGINT)
        await person.until("stopped; the next question continues from here")
        person.process.send_signal(signal.SIGINT)
        await person.until("/quit or Ctrl-D leaves")
        person.type("/apply\n")
        await person.until("applied to src/utils.py")
        assert "def hello_world" in (repo / "src/utils.py").read_text(encoding="utf-8")
        person.type("What did I ask\\\nbefore?\n")
        answer = " ".join((await person.until("is there.")).split())
        assert f"You asked: {TASK}; HANG for ever. hello_world" in answer
        person.type("/new\nWhat did I ask before?\n")
        assert "You asked: ." in " ".join((await person.until("not there.")).split())
        person.type("\x04")
    assert person.process.returncode == 0


async def test_a_terminal_continues_an_earlier_conversation(command: Command, repo: Path) -> None:
    first = await command("ask", "--json", TASK, cwd=repo)
    async with terminal(command, "ask", "--continue", cwd=repo) as person:
        await person.until(f"continuing {first.document['task_id']}")
        person.type("/apply\n")
        await person.until("applied to src/utils.py")
        person.type("/quit\n")
    assert person.process.returncode == 0


async def test_a_run_is_forked_without_repeating_its_calls(
    command: Command, model: ScriptedModel, repo: Path
) -> None:
    first = await command(
        "ask", "--repo", str(repo), "--task-id", "long-1", "--json", f"SLOWLY {TASK}"
    )
    assert first.code == 0, first.err
    count_before = len(model.requests)
    forked = await command("fork", "--turn", "1", "--json", "long-1", "SAY otherwise", cwd=repo)
    assert forked.code == 0, forked.err
    document = forked.document
    assert (document["task_id"], document["usage"]["calls"]) == ("long-1-f1", 1)
    assert "+# otherwise" in document["results"][0]["diff"]
    assert [call.call_id for call in model.requests[count_before:]] == [
        "long-1-f1/agent-dev-001/propose/0.2"
    ]
    assert git(repo, "branch", "--list", "moothall/long-1*").split() == [
        "moothall/long-1",
        "moothall/long-1-f1",
    ]
    details = await command("show", "long-1-f1")
    assert "another run of long-1" in details.out
    second_fork = await command("fork", "--turn", "2", "--json", "long-1", "SAY more", cwd=repo)
    assert (
        second_fork.document["task_id"],
        "+# more" in second_fork.document["results"][0]["diff"],
    ) == (
        "long-1-f2",
        True,
    ), second_fork.err
    for args, message in (
        (("--turn", "9", "long-1"), "has no turn 9 to fork from; its turns: 1 to 2"),
        (
            ("--turn", "1", "--seat", "7", "long-1"),
            "no seat '7' in long-1; the seats are agent-dev-001",
        ),
        (("--turn", "1", "nowhere"), "no task 'nowhere'"),
    ):
        result = await command("fork", *args)
        assert (result.code, message in result.err) == (2, True), result.err


async def killed_and_again(
    command: Command, model: ScriptedModel, name: str, *args: str, cwd: Path
) -> list[str]:
    """Kill a command after its first call, run it again to its end, and return the calls of its
    task.
    """

    def calls() -> list[str]:
        return [call.call_id for call in model.requests if call.call_id.startswith(f"{name}/")]

    process = await command.start(*args, cwd=cwd)
    try:
        async with asyncio.timeout(180):
            while not calls():
                await asyncio.sleep(0.05)
            # The next call follows once the first is recorded, and starts with its result.
            while len(calls()) < 2 and name == "second":
                await asyncio.sleep(0.05)
    finally:
        process.kill()
        await process.communicate()
    resumed = await command(*args, cwd=cwd)
    assert (resumed.code, resumed.document["task_id"]) == (0, name), resumed.err
    return calls()


async def test_a_killed_server_resumes_the_question_and_the_fork(
    model: ScriptedModel, repo: Path, tmp_path: Path
) -> None:
    command = make_command(tmp_path, model.base_url)
    first = await command("ask", "--json", "What did I ask before?", cwd=repo)
    assert first.code == 0, first.err
    seat = "agent-dev-001/propose"
    ask = ("ask", "--json", "--task-id", "second", f"SLOWLY {TASK}", "--continue")
    call_ids = await killed_and_again(command, model, "second", *ask, cwd=repo)
    assert call_ids.count(f"second/{seat}/0.1") == 1
    details = await command("show", "second")
    assert details.out.startswith(f"after {first.document['task_id']}: ")
    fork = ("fork", "--json", "--task-id", "third", "--turn", "1", "second", "SAY otherwise")
    forked = await killed_and_again(command, model, "third", *fork, cwd=repo)
    assert set(forked) == {f"third/{seat}/0.2"}
