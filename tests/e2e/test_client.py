"""The Python client: against the shared `moothall serve`, and with a server in the test's own
process.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from command import QUICK, Command, answer_turns_with, git, turn
from moothall import AsyncClient, Client
from moothall.client import ConfigurationOptions, DeliberationStatus, EventType, EvidenceLevel
from moothall.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidRequest,
    NotFound,
    Refused,
    Temporary,
)
from moothall.testing.model import Answer, scripted_model
from support.history import PROJECTS, make_history
from support.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

DOCS = Path(__file__).parents[2] / "docs" / "client.md"
TASK = "Add hello_world() function to src/utils.py"
SOLVED = '\n\ndef hello_world():\n    return "Hello, World!"\n'


def _propose(_body: object, _headers: object) -> str:
    return turn("files.append", path="src/utils.py", content=SOLVED)


@pytest_asyncio.fixture(loop_scope="session")
async def registered(command: Command, repo: Path) -> Path:
    """A repository that the server's operator has registered."""
    added = await command("repo", "add", str(repo))
    assert added.code == 0, added.err
    return repo


@pytest.fixture
def token(command: Command) -> str:
    return (command.data_dir / "token").read_text(encoding="utf-8").strip()


async def test_a_deliberation_runs_from_submission_to_its_branch(
    command: Command, registered: Path, token: str
) -> None:
    steps: list[str] = []
    async with AsyncClient(command.served_at, token=token) as client:
        outcome = await client.deliberate(
            TASK,
            repository=registered,
            agents=2,
            on_update=lambda update: steps.append(update.step),
        )
        result = await client.result(outcome.task_id)
        updates = [update async for update in client.watch(outcome.task_id)]
        rest = [
            update.seq async for update in client.watch(outcome.task_id, after_seq=updates[-2].seq)
        ]
    assert (outcome.status, outcome.level) == (
        DeliberationStatus.COMPLETED,
        EvidenceLevel.PROVEN,
    )
    assert "hello_world" in git(registered, "show", f"{outcome.branch}:src/utils.py")
    assert "hello_world" in outcome.diff
    assert len(outcome.results) == 2
    assert steps[-1]
    assert result == outcome
    assert [update.seq for update in updates] == sorted({update.seq for update in updates})
    assert updates[-1].type is EventType.DELIBERATION_DECIDED
    assert (updates[-1].status, updates[-1].progress_percent) == ("COMPLETED", 100)
    assert rest == [updates[-1].seq]


async def test_a_running_task_is_steered_paused_and_cancelled(
    command: Command, registered: Path, token: str
) -> None:
    async with AsyncClient(command.served_at, token=token) as client:
        task_id = await client.submit(f"HANG: {TASK}", repository=registered, agents=1)
        assert (await client.result(task_id)).status in {
            DeliberationStatus.PENDING,
            DeliberationStatus.IN_PROGRESS,
        }
        async for update in client.watch(task_id):
            if update.type is EventType.DELIBERATION_STARTED:
                break
        await client.steer(task_id, "keep it short")
        assert await client.pause(task_id)
        assert not await client.pause(task_id)
        assert await client.resume(task_id)
        assert await client.cancel(task_id, "enough") is DeliberationStatus.CANCELLED
        assert (await client.wait(task_id)).status is DeliberationStatus.CANCELLED
        with pytest.raises(InvalidRequest, match="ended"):
            await client.steer(task_id, "too late")


async def test_an_abandoned_wait_cancels_its_task(
    command: Command, registered: Path, token: str
) -> None:
    async with AsyncClient(command.served_at, token=token) as client:
        waiting = asyncio.ensure_future(
            client.deliberate(
                f"HANG: {TASK}",
                repository=registered,
                agents=1,
                task_id="abandoned-1",
            )
        )
        while True:
            try:
                await client.status("abandoned-1")
                break
            except NotFound:
                await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.wait("abandoned-1")).status is DeliberationStatus.CANCELLED


async def test_errors_of_the_server_are_raised(
    command: Command, registered: Path, token: str
) -> None:
    async with AsyncClient(command.served_at, token=token, retries=0) as client:
        with pytest.raises(NotFound, match="no-such-task"):
            await client.result("no-such-task")
        with pytest.raises(InvalidRequest, match="unknown role 'boss'"):
            await client.submit(TASK, repository=registered, role="boss")
        with pytest.raises(InvalidRequest, match="needs a repository"):
            await client.submit(TASK, ref="main")
        task_id = await client.submit("HAIKU", task_id="haiku-of-the-client")
        assert await client.submit("HAIKU", task_id=task_id) == task_id
        with pytest.raises(AlreadyExists):
            await client.submit("Another HAIKU", task_id=task_id)
        assert (await client.wait(task_id)).results[0].content.startswith("An old silent pond")
    async with AsyncClient(command.served_at, token="wrong", retries=0) as client:
        with pytest.raises(Refused) as refused:
            await client.status("any")
    assert refused.value.code == "UNAUTHENTICATED"
    async with AsyncClient(f"127.0.0.1:{free_port()}", token=token, retries=1) as client:
        with pytest.raises(Temporary, match="cannot be reached"):
            await client.status("any")
    with pytest.raises(ConfigurationError, match="is not the HOST:PORT"):
        async with AsyncClient("nonsense", token=token):
            pass
    with pytest.raises(ConfigurationError, match="needs a token"):
        async with AsyncClient("moothall.example.org:50055"):
            pass
    with pytest.raises(InvalidRequest, match="context manager"):
        await AsyncClient(token=token).status("any")


async def test_the_blocking_client_manages_stories(command: Command, token: str) -> None:
    def use() -> None:
        with Client(command.served_at, token=token) as client:
            created = client.create_story(
                "Greet the world", brief="A greeting", criteria=["it says hello"]
            )
            assert created.story_id in {story.story_id for story in client.stories()}
            story = client.story(created.story_id)
            assert (story.summary.title, story.criteria) == ("Greet the world", ("it says hello",))
            assert (story.task_ids, story.checked) == ((), False)
            client.comment_story(created.story_id, "soon, please")
            move = client.move_story(created.story_id, "refine")
            assert (move.story_id, move.blocked) == (created.story_id, False)
            assert client.story(created.story_id).summary.state == move.state != created.state
            with pytest.raises(NotFound):
                client.story("no-such-story")
        with pytest.raises(InvalidRequest, match="context manager"):
            client.stories()

    await asyncio.to_thread(use)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of the test alone, and an empty data directory."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "data"


EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```", DOCS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_the_examples_of_the_documentation_run(
    command: Command, registered: Path, environment: Path, tmp_path: Path, number: int
) -> None:
    """Each in a process of its own, with the settings of the server's machine; the local one with
    an empty data directory, in a folder with a repository.
    """
    example = EXAMPLES[number]
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "repo").symlink_to(registered)
    if "evaluate(" in example:
        make_history(PROJECTS["python"], folder / "shop")
    (entry,) = [
        item
        for item in (await command("repo", "list", "--json")).document
        if str(registered) in json.dumps(item)
    ]
    script = folder / "example.py"
    script.write_text(
        example.replace("http://localhost:8000/v1", command.model_url)
        .replace("qwen3-coder", "scripted")
        .replace('"sample"', json.dumps(entry["id"])),
        encoding="utf-8",
    )
    variables = command.environment() | (
        QUICK | {"MOOTHALL_DATA_DIR": str(environment)}
        if "local(" in example
        else {"MOOTHALL_GRPC__PORT": command.served_at.rpartition(":")[2]}
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        cwd=folder,
        env=variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, ""), err.decode()
    assert out.decode().strip()
    if "evaluate(" in example:
        assert "one: 0 of 1" in out.decode()
    if "outcome.level" in example:
        assert "proven" in out.decode()


async def test_a_local_client_runs_the_server_in_its_own_process(
    environment: Path, repo: Path
) -> None:
    async with scripted_model(answer_turns_with(_propose)) as model:
        local = AsyncClient.local(
            base_url=model.base_url, model="scripted", data_dir=environment, ray={"mode": "process"}
        )
        async with local as client:
            outcome = await client.deliberate(TASK, repository=repo, agents=1)
            # A second client on the same data directory uses the same server.
            second = AsyncClient.local(
                base_url=model.base_url,
                model="scripted",
                data_dir=environment,
                ray={"mode": "process"},
            )
            async with second as other_client:
                assert await other_client.result(outcome.task_id) == outcome
            with pytest.raises(ConfigurationError, match=r"with other settings: .*llm\.model"):
                async with AsyncClient.local(
                    base_url=model.base_url, model="another", data_dir=environment
                ):
                    pass
        assert outcome.level is EvidenceLevel.PROVEN
        assert "hello_world" in git(repo, "show", f"{outcome.branch}:src/utils.py")

        def ask_again() -> str:
            with Client.local(
                base_url=model.base_url, model="scripted", data_dir=environment
            ) as client:
                return client.result(outcome.task_id).branch

        assert await asyncio.to_thread(ask_again) == outcome.branch, "tasks are kept on disk"


@pytest.mark.evidence
async def test_an_evaluation_measures_configurations_on_a_history(
    environment: Path, tmp_path: Path, token: str, command: Command
) -> None:
    project = PROJECTS["python"]
    repo = make_history(project, tmp_path / "shop")
    first = git(repo.path, "rev-list", "--max-parents=0", "HEAD")
    lines: list[str] = []

    def write(text: str) -> Answer:
        return answer_turns_with(
            lambda _body, _headers: turn("files.write", path="shop.py", content=text)
        )

    async with (
        scripted_model(write(project.right_source)) as right,
        scripted_model(write(project.wrong_source)) as wrong_model,
    ):
        settings_file = tmp_path / "wrong.toml"
        settings_file.write_text(f'[llm]\nbase_url = "{wrong_model.base_url}"\n', encoding="utf-8")
        options: ConfigurationOptions = {"agents": 1, "protocol": "single"}
        async with AsyncClient.local(base_url=right.base_url, data_dir=environment) as client:
            report = await client.evaluate(
                repo.path,
                tasks=1,
                configurations={"right": options, "wrong": {**options, "settings": settings_file}},
                on_progress=lines.append,
            )
            calls = len(right.requests)
            second_report = await client.evaluate(
                repo.path, tasks=1, configurations={"right": options}
            )
            assert len(right.requests) == calls, "a result is not measured twice"
            with pytest.raises(NotFound, match=r"no commit of 1 became a task: it has no parent"):
                await client.evaluate(repo.path, ref=first, tasks=1, folder=tmp_path / "evaluation")
            with pytest.raises(InvalidRequest, match=r"configuration '\.\./up': a name has"):
                await client.evaluate(repo.path, configurations={"../up": options})
    assert [
        (summary.config, summary.solved.count, summary.solved.total)
        for summary in report.configurations
    ] == [("right", 1, 1), ("wrong", 0, 1)]
    assert report.tasks[0].text.startswith("Fix the discount")
    assert Path(report.folder, "report.html").is_file()
    assert second_report.results == report.results
    assert any("the council begins" in line for line in lines)
    async with AsyncClient(command.served_at, token=token) as served:
        with pytest.raises(InvalidRequest, match=r"use AsyncClient\.local"):
            await served.evaluate(repo.path)


async def test_the_settings_file_is_read_and_its_key_is_sent_only_to_its_own_server(
    environment: Path, repo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "config" / "moothall" / "config.toml"
    file.parent.mkdir(parents=True)
    async with (
        scripted_model(answer_turns_with(_propose)) as first,
        scripted_model(answer_turns_with(_propose)) as second,
    ):
        first.api_key = "sk-of-first"
        file.write_text(
            f'[llm]\nbase_url = "{first.base_url}"\nmodel = "scripted"\napi_key = "sk-of-first"\n',
            encoding="utf-8",
        )
        async with AsyncClient.local(data_dir=environment) as client:
            outcome = await client.deliberate(TASK, repository=repo, agents=1)
            assert outcome.level is EvidenceLevel.PROVEN
        assert first.requests
        named = tmp_path / "named.toml"
        named.write_text(f'[llm]\nbase_url = "{second.base_url}"\n', encoding="utf-8")
        async with AsyncClient.local(data_dir=environment, config=named) as client:
            await client.deliberate("HAIKU")
        assert second.requests
        async with AsyncClient.local(
            data_dir=environment, base_url=second.base_url, model="scripted"
        ) as client:
            await client.deliberate(TASK, repository=repo, agents=1)
        assert second.requests
        assert "sk-of-first" not in str([call.headers for call in second.requests])


async def test_errors_of_a_local_client_are_raised_unchanged(environment: Path) -> None:
    async with scripted_model(answer_turns_with(_propose)) as model:
        with pytest.raises(NotFound):
            async with AsyncClient.local(base_url=model.base_url, data_dir=environment) as client:
                await client.result("no-such-task")
        with pytest.raises(ZeroDivisionError):
            async with AsyncClient.local(base_url=model.base_url, data_dir=environment) as client:
                1 / 0  # noqa: B018 - the error of a program
        async with AsyncClient.local(base_url=model.base_url, data_dir=environment) as client:
            server = client._embedded
            assert server is not None
            assert server._task is not None
            server._task.cancel()  # like a failing part of the server
            await asyncio.wait({server._task}, timeout=30)
            with pytest.raises(ConfigurationError, match="has ended"):
                await client.stories()


async def test_an_interrupt_cancels_the_deliberation_of_a_blocking_client(
    command: Command, registered: Path, token: str, tmp_path: Path
) -> None:
    script = tmp_path / "example.py"
    script.write_text(
        f"""
from moothall import Client

with Client({command.served_at!r}, token={token!r}) as client:
    def show(update):
        print(update.step, flush=True)
        try:
            client.stories()
        except Exception as error:
            print(error, flush=True)

    client.deliberate("HANG: {TASK}", repository={str(registered)!r}, agents=1,
                      task_id="interrupted-1", on_update=show)
""",
        encoding="utf-8",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        env=command.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    assert b"a callback of the client cannot call it" in await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _out, err = await process.communicate()
    assert b"KeyboardInterrupt" in err
    async with AsyncClient(command.served_at, token=token) as client:
        assert (await client.wait("interrupted-1")).status is DeliberationStatus.CANCELLED
