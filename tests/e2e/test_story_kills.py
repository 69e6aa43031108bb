"""`serve` is killed at every stage of a story: nothing is lost, the board is unchanged, and the
story reaches done.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from served import Served, make_command, run_server
from texts import CHECK, PERSON, TOKENS, Person, by_words, make_repository

from command import Command, answer_turns_with, git, task_of
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.kills, pytest.mark.asyncio(loop_scope="session")]


class Model:
    """A model that answers by the words of a task. It records calls that contain the words `held`
    and does not answer them.
    """

    def __init__(self) -> None:
        self.held = ""
        self.came = asyncio.Event()

    def hold(self, text: str) -> None:
        self.held, self.came = text, asyncio.Event()

    async def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> str:
        if self.held and self.held in task_of(body):
            self.came.set()
            await asyncio.Event().wait()
        return by_words(body, headers)

    async def wait_for_call(self) -> None:
        async with asyncio.timeout(60):
            await self.came.wait()
        self.held = ""


@pytest.fixture
def model() -> Model:
    return Model()


@pytest_asyncio.fixture(loop_scope="session")
async def own_command(tmp_path: Path, model: Model) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(model.answer)) as server:
        command = make_command(tmp_path, server.base_url)
        command.extra["MOOTHALL_WEB__PORT"] = "0"
        (tmp_path / "tokens.toml").write_text(TOKENS, encoding="utf-8")
        yield command


async def wait_until_running(app: Served, task_id: str) -> None:
    """Wait until a deliberation runs: its check takes a second, and half of that is over."""
    request = orchestrator.GetDeliberationResultRequest(task_id=task_id)
    stub, result = app.stub(PERSON), None
    async with asyncio.timeout(60):
        while result is None:
            await asyncio.sleep(0.02)
            with suppress(grpc.aio.AioRpcError):  # the request follows in a moment
                result = await stub.GetDeliberationResult(request)
    await asyncio.sleep(0.5)
    assert (
        await stub.GetDeliberationResult(request)
    ).status != orchestrator.DELIBERATION_STATUS_COMPLETED


async def test_a_story_survives_a_kill_at_every_stage(  # noqa: PLR0915 - stage by stage
    own_command: Command, repo: Path, model: Model
) -> None:
    added = await own_command(
        "repo", "add", str(repo), "--id", "project", "--tenant", "team-p", "--on-approval", "merge"
    )
    assert added.code == 0, added.err
    story_id = ""
    last_board: Any = None

    async def stage(app: Served) -> Person:
        """Return the story's owner; the board is the same as when the server was killed."""
        person = Person(app, story_id)
        if last_board is not None:
            assert await person.current_board() == last_board
        return person

    async with run_server(
        own_command, signal.SIGKILL
    ) as app:  # the design's council has its request
        person = await stage(app)
        await person.create(
            "As a writer, I want texts in upper and lower case, so that I need not retype them."
        )
        story_id = person.story_id
        model.hold("Divide this story")
        await person.move("refine", "submit")
        await model.wait_for_call()
        last_board = await person.current_board()
    async with run_server(own_command, signal.SIGKILL) as app:  # its tasks are in progress
        person = await stage(app)
        model.hold("the first")
        await person.move_once_allowed("accept_design")
        await model.wait_for_call()
        last_board = await person.current_board()
    # The last task, based on the merged work of two others.
    async with run_server(own_command, signal.SIGKILL) as app:
        person = await stage(app)
        model.hold("the last")
        await model.wait_for_call()
        last_board = await person.current_board()
    async with run_server(own_command, signal.SIGKILL) as app:  # the whole story is checked
        person = await stage(app)
        await person.wait_for_state("test")
        await wait_until_running(app, story_id)
        last_board = await person.current_board()
    async with run_server(own_command, signal.SIGKILL) as app:  # a move is acknowledged
        person = await stage(app)
        await person.move_once_allowed("accept_test")
        last_board = await person.current_board()
    async with run_server(own_command, signal.SIGKILL) as app:  # it is done, and about to be merged
        person = await stage(app)
        assert (await person.move("accept")).state == "done"
        last_board = await person.current_board()
    async with run_server(own_command) as app:
        person = await stage(app)
        check = (await person.wait_for_state("done")).check
        assert (await person.delivery_record())["status"] == "merged"
    assert check.passed
    assert check.branch == f"moothall/team-p_{story_id}"
    for part in ("one", "two", "both"):
        assert (repo / f"tools/{part}.py").read_text(encoding="utf-8").startswith(f"def {part}")
    assert len(git(repo, "rev-list", "--first-parent", "main").split()) == 2  # merged once
    assert git(repo, "rev-parse", "main^2") == check.commit_sha
    assert git(repo, "status", "--porcelain") == ""
    (branch,) = git(
        repo, "branch", "--list", "moothall/team-p_story-*", "--format=%(refname:short)"
    ).split()
    assert branch == check.branch


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    slow = CHECK + 'import pathlib, time\ntime.sleep(pathlib.Path("tools/both.py").exists())\n'
    return make_repository(tmp_path / "project", slow)
