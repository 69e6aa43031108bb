"""The agent of `moothall acp`. The sessions of `moothall acp` on disk, so that they survive its
process.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import acp
from acp.helpers import (
    ContentBlock,
    SessionUpdate,
    start_tool_call,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    AgentCapabilities,
    AllowedOutcome,
    FileEditToolCallContent,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptCapabilities,
    PromptResponse,
    SessionMode,
    SessionModeState,
    SetSessionModeResponse,
    ToolCallUpdate,
)

import moothall
from moothall.app.command_repository import (
    Diff,
    apply_conversation,
    describe_uncommitted,
    file_versions,
    files_here,
    head_commit,
    register,
)
from moothall.app.preflight import NamedRepository, check_early
from moothall.cli.acp_updates import TaskReport, describe_outcome, read_prompt
from moothall.cli.runtime import print_status
from moothall.client import AsyncClient, DeliberationStatus, Outcome, TaskOptions, Update
from moothall.config import Settings
from moothall.domain.codec import dump, load
from moothall.domain.ids import check_id, new_task_id
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, NotFound, RepositoryError, Temporary
from moothall.processes import write_private

# The sessions of `moothall acp` on disk, so that they survive its process.
#
# `<data_dir>/acp/<session>.json` contains the state for the next prompt of a session, and the
# conversation, which an editor shows again.


_MAX_AGE_SECONDS = 90 * 86400.0
_NO_ANSWER = "This prompt has no answer: it was cancelled, failed, or the agent was stopped."


@dataclass(slots=True)
class Turn:
    """A prompt, and its answer or ''."""

    prompt: str
    answer: str = ""


@dataclass(slots=True)
class SessionState:
    """The stored part of a session.

    top: the root of the repository's files.
    follows: the id of the previous task.
    head: the checked-out commit on which the conversation is based.
    changes: the applied diffs of the conversation, which are not committed.
    """

    top: str
    mode: str
    follows: str = ""
    head: str = ""
    changes: list[Diff] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def history(self) -> Iterator[SessionUpdate]:
        """Yield the conversation as an editor shows it."""
        for turn in self.turns:
            yield update_user_message_text(turn.prompt)
            yield update_agent_message_text(turn.answer or _NO_ANSWER)


class SessionStore:
    """Reads and writes sessions below a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "acp"

    def save(self, session_id: str, state: SessionState) -> None:
        """Store the current state of a session."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path(session_id), json.dumps(dump(state)))

    def load(self, session_id: str) -> SessionState:
        """Return a session. Raises `NotFound`, also if its file cannot be read."""
        try:
            text = self._path(session_id).read_text(encoding="utf-8")
            return load(SessionState, json.loads(text))
        except (OSError, ValueError, InvalidRequest) as error:
            raise NotFound(
                f"no session {session_id[:80]!r} is stored in {self._folder}; start one with "
                "session/new"
            ) from error

    def remove_old(self) -> None:
        """Remove the sessions that were not used for 90 days."""
        oldest = time.time() - _MAX_AGE_SECONDS
        for path in self._folder.glob("*.json"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _path(self, session_id: str) -> Path:
        return self._folder / f"{check_id(session_id, 'session')}.json"


# The agent of `moothall acp`. Each prompt of an editor's session starts a deliberation.


P = ParamSpec("P")
T = TypeVar("T")

_COUNCIL, _ASK, _APPLY = "council", "ask", "apply"
_MODES = (
    SessionMode(
        id=_COUNCIL,
        name="Council",
        description="Several agents work on the task; the answer is selected by evidence.",
    ),
    SessionMode(id=_ASK, name="Ask", description="One agent answers, or makes a small change."),
)
_OPTIONS = (
    PermissionOption(option_id=_APPLY, name="Apply to your files", kind="allow_once"),
    PermissionOption(option_id="leave", name="Leave it on its branch", kind="reject_once"),
)
_INVALID_PARAMS, _INTERNAL_ERROR = -32602, -32603  # of JSON-RPC


async def serve(settings: Settings, config: Path | None) -> None:
    """Serve on stdin and stdout until the editor disconnects. `config`: the settings file."""
    async with AsyncExitStack() as stack:
        agent = CouncilAgent(settings, config, stack)
        # Optional methods of `acp.Agent` are missing.
        await acp.run_agent(cast("acp.Agent", agent))


def _report_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Wrap a method so that the editor receives Moothall's errors as errors of the protocol."""

    @functools.wraps(method)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except MoothallError as error:
            is_request = isinstance(error, InvalidRequest | NotFound | RepositoryError)
            raise acp.RequestError(
                _INVALID_PARAMS if is_request else _INTERNAL_ERROR,
                f"{error.message} [{error.code}]",
            ) from error

    return answer


@dataclass(slots=True)
class _Session:
    """A conversation about one repository.

    repository: its registered reference.
    top: the root of its files.
    state: the stored part.
    work: the running prompt.
    notices: messages to the user, shown with the next prompt.
    """

    repository: RepositoryRef
    top: Path
    state: SessionState
    work: asyncio.Task[PromptResponse] | None = None
    notices: list[str] = field(default_factory=list)


class CouncilAgent:
    """An agent of the protocol. Its methods have the names and arguments of `acp.Agent`."""

    def __init__(self, settings: Settings, config: Path | None, stack: AsyncExitStack) -> None:
        self._settings, self._config, self._stack = settings, config, stack
        self._sessions: dict[str, _Session] = {}
        self._store = SessionStore(settings.data_dir)
        self._opening = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._editor: acp.Client | None = None

    def on_connect(self, conn: acp.Client) -> None:
        """Receive the connection to the editor."""
        self._editor = conn

    async def initialize(self, **_: Any) -> InitializeResponse:
        """Return what this agent supports."""
        return InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True, prompt_capabilities=PromptCapabilities(embedded_context=True)
            ),
            agent_info=Implementation(
                name="moothall", title="Moothall", version=moothall.__version__
            ),
        )

    @_report_errors
    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> NewSessionResponse:
        """Begin a session about the repository that contains a folder. Raises a protocol error if
        the folder is in no repository, or if the server or its model does not start.
        """
        top = await self._find_files(cwd)
        session_id = new_task_id()
        session = await self._begin_session(top, SessionState(str(top), _COUNCIL), mcp_servers)
        self._sessions[session_id] = session
        await asyncio.to_thread(self._store.remove_old)
        await self._save_session(session_id)
        return NewSessionResponse(session_id=session_id, modes=_modes(session))

    @_report_errors
    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        """Continue a session of this or an earlier process, and show its conversation. Raises the
        errors of `new_session`, and protocol errors if the session is not stored, belongs to
        another repository, or has a running prompt.
        """
        session_state = self._sessions.get(session_id)
        if session_state is not None and session_state.work is not None:
            raise InvalidRequest("a prompt of this session is running; cancel it first")
        state = await asyncio.to_thread(self._store.load, session_id)
        top = await self._find_files(cwd)
        if str(top) != state.top:
            raise InvalidRequest(
                f"session {session_id} belongs to {state.top}, not to {top}; load it there, or "
                "start one with session/new"
            )
        session = await self._begin_session(top, state, mcp_servers)
        self._sessions[session_id] = session
        await self._send_updates(session_id, *state.history())
        return LoadSessionResponse(modes=_modes(session))

    async def _find_files(self, cwd: str) -> Path:
        """Return the root of the files of the repository that contains a folder."""
        top = await files_here(self._settings, cwd) if Path(cwd).is_absolute() else None
        if top is None:
            raise InvalidRequest(
                f"{cwd[:200]!r} is in no git repository; run `git init` and commit something there "
                "first"
            )
        return top

    async def _begin_session(
        self, top: Path, state: SessionState, mcp_servers: Sequence[Any] | None
    ) -> _Session:
        session = _Session(await register(self._settings, str(top), ""), top, state)
        if mcp_servers:
            names = ", ".join(str(server.name)[:80] for server in mcp_servers)
            session.notices.append(
                f"The editor's MCP servers are not used ({names}): tools come from Moothall's "
                "settings."
            )
        await self._open_client()
        return session

    async def _save_session(self, session_id: str) -> None:
        await asyncio.to_thread(self._store.save, session_id, self._sessions[session_id].state)

    @_report_errors
    async def set_session_mode(
        self, mode_id: str, session_id: str, **_: Any
    ) -> SetSessionModeResponse:
        """Select whether a council or one agent works on the next prompts."""
        if mode_id not in {mode.id for mode in _MODES}:
            raise InvalidRequest(f"unknown mode {mode_id[:80]!r}: council or ask")
        self._find_session(session_id).state.mode = mode_id
        await self._save_session(session_id)
        return SetSessionModeResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Cancel the running prompt and its deliberation."""
        session = self._sessions.get(session_id)
        if session is not None and session.work is not None:
            session.work.cancel()

    @_report_errors
    async def prompt(
        self, prompt: Sequence[ContentBlock], session_id: str, **_: Any
    ) -> PromptResponse:
        """Run a deliberation on a prompt, and apply its winner if the user allows it."""
        session = self._find_session(session_id)
        if session.work is not None:
            raise InvalidRequest("a prompt of this session is running; cancel it first")
        task = read_prompt(prompt)
        session.state.turns.append(Turn(task))
        session.work = asyncio.ensure_future(self._deliberate(session, session_id, task))
        try:
            return await session.work
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():  # the editor has disconnected
                raise
            return PromptResponse(stop_reason="cancelled")
        except Temporary:
            session.work = None
            await self._close_unused()
            raise
        finally:
            session.work = None

    def _find_session(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(
                f"no session {session_id[:80]!r}; load it with session/load, or start one with "
                "session/new"
            )
        return session

    async def _open_client(self) -> AsyncClient:
        """Return the client. It starts a server in this process unless another process serves."""
        async with self._opening:
            if self._client is None:
                # The server would start without its model server; the user learns of it now.
                request = DeliberationRequest("?", "dev", about_text=True)
                await check_early(self._settings, request, NamedRepository(text=True), print_status)
                client = AsyncClient.local(config=self._config)
                self._client = await self._stack.enter_async_context(client)
            return self._client

    async def _close_unused(self) -> None:
        """Close a failed client unless a prompt is running. The next prompt opens a new one, since
        the process that served the data directory may have ended.
        """
        async with self._opening:
            if not any(session.work for session in self._sessions.values()):
                self._client = None
                await self._stack.aclose()

    async def _send_updates(self, session_id: str, *updates: SessionUpdate) -> None:
        editor = self._editor
        assert editor is not None  # noqa: S101 - for mypy: requests arrive on a connection
        with suppress(ConnectionError):  # it has disconnected, and its prompts are being cancelled
            for update in updates:
                await editor.session_update(session_id, update)

    async def _deliberate(self, session: _Session, session_id: str, task: str) -> PromptResponse:
        client = await self._open_client()
        head = await head_commit(self._settings, session.top)
        if not session.state.changes or head != session.state.head:  # start from the last commit
            session.state.changes.clear()
            session.state.head = head
            if notice := await describe_uncommitted(self._settings, session.repository):
                session.notices.append(f"{notice}.")
        await self._save_session(session_id)
        await self._send_updates(session_id, *map(_notice, session.notices))
        session.notices.clear()
        report = TaskReport()

        async def show(update: Update) -> None:
            await self._send_updates(session_id, *report.read_update(update))

        outcome = await client.deliberate(
            task,
            repository="" if session.state.changes else session.top,
            on_update=show,
            **_options(session),
        )
        session.state.follows = outcome.task_id
        await self._answer(session_id, describe_outcome(outcome))
        if outcome.status is DeliberationStatus.CANCELLED:
            return PromptResponse(stop_reason="cancelled")
        if outcome.diff:
            await self._offer(session, session_id, outcome, report.base)
        return PromptResponse(stop_reason="end_turn")

    async def _offer(self, session: _Session, session_id: str, outcome: Outcome, base: str) -> None:
        """Show the winner's diff, and apply it to the files if the user allows it."""
        earlier, session.state.changes = session.state.changes, []
        call_id = f"apply-{outcome.task_id}"
        title = f"Apply the answer of {outcome.winner_id} ({outcome.level.words})"
        content = await self._show_changes(session.top, base, outcome.commit_sha)
        await self._send_updates(
            session_id,
            start_tool_call(call_id, title, kind="edit", status="pending", content=content),
        )
        call = ToolCallUpdate(tool_call_id=call_id, title=title, kind="edit", content=content)
        if not await self._is_allowed(session_id, call):
            await self._end_offer(session_id, call_id, f"Not applied. {_merge_hint(outcome)}")
            return
        change = Diff(outcome.diff, base)
        try:
            await apply_conversation(self._settings, session.top, *earlier, change)
        except RepositoryError as error:
            await self._end_offer(
                session_id, call_id, f"Not applied: {error.message}. {_merge_hint(outcome)}"
            )
            return
        session.state.changes = [*earlier, change]
        await self._save_session(session_id)
        await self._send_updates(session_id, update_tool_call(call_id, status="completed"))

    async def _show_changes(
        self, top: Path, base: str, commit: str
    ) -> list[FileEditToolCallContent]:
        """Return the files of a delivered commit as diffs that the editor shows."""
        if not commit:
            return []
        return [
            tool_diff_content(str(top / change.path), change.new or "", change.old)
            for change in await file_versions(self._settings, top, base, commit)
        ]

    async def _is_allowed(self, session_id: str, call: ToolCallUpdate) -> bool:
        """Ask the user. Anything but an explicit allow is a deny."""
        editor = self._editor
        assert editor is not None  # noqa: S101 - as in `_send`
        decision = (await editor.request_permission(session_id, call, list(_OPTIONS))).outcome
        return isinstance(decision, AllowedOutcome) and decision.option_id == _APPLY

    async def _end_offer(self, session_id: str, call_id: str, text: str) -> None:
        """Report that the winner was not applied."""
        await self._send_updates(session_id, update_tool_call(call_id, status="failed"))
        await self._answer(session_id, f"\n\n{text}")

    async def _answer(self, session_id: str, text: str) -> None:
        """Show a part of the answer, and store it for `session/load`."""
        self._sessions[session_id].state.turns[-1].answer += text
        await self._save_session(session_id)
        await self._send_updates(session_id, update_agent_message_text(text))


def _modes(session: _Session) -> SessionModeState:
    return SessionModeState(current_mode_id=session.state.mode, available_modes=list(_MODES))


def _options(session: _Session) -> TaskOptions:
    options = TaskOptions(follows=session.state.follows) if session.state.follows else TaskOptions()
    if session.state.mode == _ASK:
        options["protocol"], options["agents"] = "ask", 1
    return options


def _merge_hint(outcome: Outcome) -> str:
    return f"Later: `moothall apply {outcome.task_id}`" + (
        f" or `git merge {outcome.branch}`." if outcome.branch else "."
    )


def _notice(text: str) -> SessionUpdate:
    return update_agent_thought_text(f"{text}\n")
