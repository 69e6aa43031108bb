"""`moothall acp` with the client of the protocol's own SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp.helpers import embedded_text_resource, image_block, resource_block, text_block
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AllowedOutcome,
    DeniedOutcome,
    FileEditToolCallContent,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    UserMessageChunk,
)

from command import QUICK, Command, answer_turns_with, by_task, git, task_of, turn
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import Answer, Fault, scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


@dataclass
class Editor:
    """An editor: it keeps what it is sent, and answers each permission request with `allows`."""

    allows: bool = True
    updates: list[Any] = field(default_factory=list)
    permission_requests: list[ToolCallUpdate] = field(default_factory=list)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        self.permission_requests.append(tool_call)
        option = next(option for option in options if option.kind == "allow_once")
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=option.option_id)
            if self.allows
            else DeniedOutcome(outcome="cancelled")
        )

    def text(self, kind: type[AgentMessageChunk | AgentThoughtChunk] = AgentMessageChunk) -> str:
        return "".join(update.content.text for update in self.updates if isinstance(update, kind))


def edit_of(call: ToolCallUpdate) -> FileEditToolCallContent:
    """Return the only changed file of an offered answer."""
    assert call.content is not None
    (change,) = call.content
    assert isinstance(change, FileEditToolCallContent)
    return change


@asynccontextmanager
async def connect_editor(
    editor: Editor, command: Command, *args: str
) -> AsyncIterator[acp.core.ClientSideConnection]:
    """Yield a connection to a new process of the agent, initialized."""
    async with acp.spawn_agent_process(
        cast("acp.Client", editor),
        sys.executable,
        *("-m", "moothall", *args, "acp"),
        env=command.environment(),
        transport_kwargs={"limit": 1 << 24, "shutdown_timeout": 30},
    ) as (connection, _process):
        answer = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert answer.protocol_version == 1
        assert answer.agent_info is not None
        assert answer.agent_info.name == "moothall"
        yield connection


@asynccontextmanager
async def quick_command(data_dir: Path, answer: Answer) -> AsyncIterator[Command]:
    async with scripted_model(answer_turns_with(answer)) as model:
        yield Command(data_dir, model.base_url, extra=dict(QUICK))


async def test_a_prompt_ends_with_a_proven_change_of_the_files(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    (repo / "notes.txt").write_text("not committed\n", encoding="utf-8")
    editor = Editor()
    async with (
        quick_command(tmp_path / "data", by_task) as command,
        connect_editor(editor, command) as agent,
    ):
        session = await agent.new_session(cwd=str(repo / "src"), mcp_servers=[])
        assert session.modes is not None
        assert [mode.id for mode in session.modes.available_modes] == ["council", "ask"]
        response = await agent.prompt(session_id=session.session_id, prompt=[text_block(TASK)])
        assert response.stop_reason == "end_turn"
    assert "wins, proven" in editor.text()
    assert "a test of the repository failed before and passes now" in editor.text()
    assert "notes.txt" in editor.text(AgentThoughtChunk)
    plans = [update for update in editor.updates if isinstance(update, AgentPlanUpdate)]
    assert {entry.status for entry in plans[0].entries} == {"pending", "in_progress"}
    assert {entry.status for entry in plans[-1].entries} == {"completed"}
    assert len(plans[-1].entries) == 5
    calls = [update for update in editor.updates if isinstance(update, ToolCallStart)]
    tool = next(call for call in calls if call.title.endswith("files.append"))
    assert (tool.kind, tool.status) == ("edit", "completed")
    assert any(call.title.startswith("Clean re-check of") for call in calls)
    (offer,) = editor.permission_requests
    change = edit_of(offer)
    assert change.path == str(repo / "src/utils.py")
    assert change.old_text is not None
    assert "hello_world" not in change.old_text
    assert change.new_text == (repo / "src/utils.py").read_text(encoding="utf-8")
    assert "hello_world" in change.new_text
    last = [update for update in editor.updates if isinstance(update, ToolCallProgress)][-1]
    assert (last.tool_call_id, last.status) == (offer.tool_call_id, "completed")
    assert git(repo, "status", "--porcelain").split("\n") == ["M src/utils.py", "?? notes.txt"]


def _converse(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    """Append a greeting or a farewell, or say what was added, as the prompt asks."""
    task = task_of(body)
    if "What was" in task:
        return json.dumps({"thought": "", "finish": "Both: **hello** and bye."})
    if "bye()" in task:
        return turn("files.append", path="src/utils.py", content="\n\ndef bye():\n    return 1\n")
    return by_task(body, headers)


async def test_prompts_of_a_session_form_a_conversation_about_the_current_files(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    file = repo / "src/utils.py"
    editor = Editor(allows=False)
    async with (
        quick_command(tmp_path / "data", _converse) as command,
        connect_editor(editor, command) as agent,
    ):
        session_id = (await agent.new_session(cwd=str(repo), mcp_servers=[])).session_id
        await agent.set_session_mode(mode_id="ask", session_id=session_id)
        await agent.prompt(session_id=session_id, prompt=[text_block(TASK)])
        assert "Not applied. Later: `moothall apply " in editor.text()
        assert "hello_world" not in file.read_text(encoding="utf-8")
        # The next prompt begins on files without the refused answer, and with the applied one.
        editor.allows = True
        await agent.prompt(session_id=session_id, prompt=[text_block(TASK)])
        change = edit_of(editor.permission_requests[-1])
        assert "hello_world" not in str(change.old_text)
        await agent.prompt(session_id=session_id, prompt=[text_block("Now add bye() there")])
        change = edit_of(editor.permission_requests[-1])
        assert "hello_world" in str(change.old_text)
        assert "bye" in file.read_text(encoding="utf-8")
        assert "hello_world" in file.read_text(encoding="utf-8")
        question: list[Any] = [
            text_block("What was added to "),
            resource_block(embedded_text_resource(file.as_uri(), "def old(): ...")),
        ]
        await agent.prompt(session_id=session_id, prompt=question)
        assert editor.text().endswith("Both: **hello** and bye.")
        assert len(editor.permission_requests) == 3
        # Changes of the user's own are never overwritten.
        git(repo, "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qam", "both")
        file.write_text("# mine\n", encoding="utf-8")
        await agent.prompt(session_id=session_id, prompt=[text_block("Again bye() please")])
        assert "there are uncommitted changes in src/utils.py" in editor.text()
        assert file.read_text(encoding="utf-8") == "# mine\n"


async def test_a_cancelled_prompt_stops_its_deliberation(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    model_called = asyncio.Event()

    async def slowly(_body: dict[str, Any], _headers: Mapping[str, str]) -> str | Fault:
        model_called.set()
        return Fault("silent", delay=120)

    editor = Editor()
    async with quick_command(tmp_path / "data", slowly) as command:
        async with connect_editor(editor, command) as agent:
            session_id = (await agent.new_session(cwd=str(repo), mcp_servers=[])).session_id
            pending = asyncio.ensure_future(
                agent.prompt(session_id=session_id, prompt=[text_block(TASK)])
            )
            async with asyncio.timeout(60):
                await model_called.wait()
            with pytest.raises(acp.RequestError, match="is running"):
                await agent.prompt(session_id=session_id, prompt=[text_block("And this?")])
            await agent.cancel(session_id=session_id)
            async with asyncio.timeout(30):
                assert (await pending).stop_reason == "cancelled"
            # The same, by an editor that is closed.
            model_called.clear()
            pending = asyncio.ensure_future(
                agent.prompt(session_id=session_id, prompt=[text_block(TASK)])
            )
            async with asyncio.timeout(60):
                await model_called.wait()
        with pytest.raises(ConnectionError):
            await pending
        tasks = (await command("list", "--json")).document["tasks"]
    assert [task["status"] for task in tasks] == ["CANCELLED", "CANCELLED"]
    assert editor.permission_requests == []


async def test_an_invalid_request_is_an_error_with_the_reason(tmp_path: Path) -> None:
    repo, other_folder = tmp_path / "repo", tmp_path / "other"
    await make_sample_repository(repo)
    other_folder.mkdir()
    config = tmp_path / "settings.toml"
    async with quick_command(tmp_path / "data", by_task) as command:
        config.write_text(f'[llm]\nbase_url = "{command.model_url}"\n', encoding="utf-8")
        command.model_url = ""
        async with connect_editor(Editor(), command, "--config", str(config)) as agent:
            with pytest.raises(acp.RequestError, match="is in no git repository; run `git init`"):
                await agent.new_session(cwd=str(other_folder), mcp_servers=[])
            with pytest.raises(acp.RequestError, match="no session 'nobodys'"):
                await agent.prompt(session_id="nobodys", prompt=[text_block(TASK)])
            session_id = (await agent.new_session(cwd=str(repo), mcp_servers=[])).session_id
            with pytest.raises(acp.RequestError, match="unknown mode 'boss': council or ask"):
                await agent.set_session_mode(mode_id="boss", session_id=session_id)
            with pytest.raises(acp.RequestError, match="cannot have image content"):
                await agent.prompt(session_id=session_id, prompt=[image_block("aGk=", "image/png")])
    command.model_url = "http://127.0.0.1:9/v1"
    async with connect_editor(Editor(), command) as agent:
        with pytest.raises(acp.RequestError, match=r"127\.0\.0\.1:9"):
            await agent.new_session(cwd=str(repo), mcp_servers=[])


async def test_an_agent_continues_after_another_agent_stopped_their_shared_server(
    tmp_path: Path,
) -> None:
    """Two windows of an editor share a data directory, and the first one is closed."""
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    editor = Editor()
    async with (
        quick_command(tmp_path / "data", by_task) as command,
        AsyncExitStack() as second_window,
    ):
        async with connect_editor(Editor(), command) as first:
            await first.new_session(cwd=str(repo), mcp_servers=[])
            agent = await second_window.enter_async_context(connect_editor(editor, command))
            session_id = (await agent.new_session(cwd=str(repo), mcp_servers=[])).session_id
            await agent.set_session_mode(mode_id="ask", session_id=session_id)
        with pytest.raises(acp.RequestError, match="cannot be reached"):
            await agent.prompt(session_id=session_id, prompt=[text_block("A HAIKU, please")])
        await agent.prompt(session_id=session_id, prompt=[text_block("A HAIKU, please")])
    assert editor.text().startswith("An old silent pond")


async def test_a_session_is_continued_in_a_new_process(tmp_path: Path) -> None:
    repo, other_repo = tmp_path / "repo", tmp_path / "other"
    await make_sample_repository(repo)
    await make_sample_repository(other_repo)
    editor = Editor()
    async with quick_command(tmp_path / "data", _converse) as command:
        async with connect_editor(Editor(), command) as agent:
            session_id = (await agent.new_session(cwd=str(repo), mcp_servers=[])).session_id
            await agent.set_session_mode(mode_id="ask", session_id=session_id)
            await agent.prompt(session_id=session_id, prompt=[text_block(TASK)])
        async with connect_editor(editor, command) as agent:
            with pytest.raises(acp.RequestError, match="session/load, or start one"):
                await agent.prompt(session_id=session_id, prompt=[text_block("Now add bye()")])
            with pytest.raises(acp.RequestError, match=f"belongs to {repo}, not to {other_repo}"):
                await agent.load_session(cwd=str(other_repo), session_id=session_id, mcp_servers=[])
            for invalid_id in ("task-unknown", "../../token"):
                with pytest.raises(acp.RequestError, match=r"no session .* is stored in"):
                    await agent.load_session(cwd=str(repo), session_id=invalid_id, mcp_servers=[])
            assert editor.updates == []
            loaded = await agent.load_session(cwd=str(repo), session_id=session_id, mcp_servers=[])
            assert loaded.modes is not None
            assert loaded.modes.current_mode_id == "ask"
            prompt, answer = editor.updates
            assert isinstance(prompt, UserMessageChunk)
            assert prompt.content.text == TASK
            assert isinstance(answer, AgentMessageChunk)
            assert "agent-dev-001" in answer.content.text
            # The applied answer, which is not committed, is a part of the conversation.
            await agent.prompt(session_id=session_id, prompt=[text_block("Now add bye() there")])
            change = edit_of(editor.permission_requests[-1])
            assert "hello_world" in str(change.old_text)
            assert "bye" in (repo / "src/utils.py").read_text(encoding="utf-8")


async def test_a_prompt_without_an_answer_is_shown_as_such(tmp_path: Path) -> None:
    """The process of the agent is killed while a council works."""
    repo = tmp_path / "repo"
    await make_sample_repository(repo)
    model_called = asyncio.Event()

    async def slowly(_body: dict[str, Any], _headers: Mapping[str, str]) -> str | Fault:
        model_called.set()
        return Fault("silent", delay=120)

    editor = Editor()
    async with quick_command(tmp_path / "data", slowly) as command:
        async with acp.spawn_agent_process(
            cast("acp.Client", Editor()),
            sys.executable,
            *("-m", "moothall", "acp"),
            env=command.environment(),
            transport_kwargs={"limit": 1 << 24, "shutdown_timeout": 30},
        ) as (agent, process):
            await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
            session_id = (await agent.new_session(cwd=str(repo), mcp_servers=[])).session_id
            pending = asyncio.ensure_future(
                agent.prompt(session_id=session_id, prompt=[text_block(TASK)])
            )
            async with asyncio.timeout(60):
                await model_called.wait()
            process.kill()
            with pytest.raises(ConnectionError):
                await pending
        async with connect_editor(editor, command) as agent:
            await agent.load_session(cwd=str(repo), session_id=session_id, mcp_servers=[])
    assert editor.text().startswith("This prompt has no answer")
