"""Sessions of `moothall ask`: at a server of this machine or a remote one, and as a conversation
on a terminal.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from moothall.app.command_repository import (
    Diff,
    apply_conversation,
    describe_uncommitted,
    files_here,
    files_of,
    find_repository,
    kernel_of,
    names,
)
from moothall.cli import options as complete
from moothall.cli.ask import AskOptions, show_answer
from moothall.cli.council import ProgressPrinter, run_deliberation
from moothall.cli.runtime import on_interrupt, plain, print_status, stderr_reporter
from moothall.concurrency import report_if_slow
from moothall.domain.event import EventType, Recorded
from moothall.domain.ids import LOCAL, TaskId
from moothall.domain.outcome import Outcome
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, NotFound

if TYPE_CHECKING:
    from moothall.api.kernel_client import RemoteKernel
    from moothall.app.tasks import Tasks
    from moothall.orchestrator.service import DeliberationService


# Sessions of `moothall ask` at a server of this machine or a remote one. Consecutive questions are
# a conversation.


@dataclass(slots=True)
class AskSession:
    """A conversation. `request` is the template of its questions, `home` the files that it is
    about. `files` is where diffs can be applied, `follows` the task before the next question.
    `own_base`: the next question still begins on the base that `request` names. `changes` are the
    diffs of the conversation so far.
    """

    deliberations: DeliberationService | RemoteKernel
    request: DeliberationRequest
    home: Path | None
    files: Path | None = None
    follows: TaskId = TaskId("")
    own_base: bool = False
    changes: list[Diff] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a new conversation."""
        self.files, self.follows = self.home, TaskId("")
        self.changes.clear()

    async def ask(self, prompt: str, printer: ProgressPrinter) -> Outcome:
        """Ask a question and wait for its outcome. An unfinished earlier question is awaited first.
        If interrupted, the question is cancelled, and the next one continues from there.
        """
        if self.follows:
            with report_if_slow(printer.print_note, f"{self.follows}, which is under way"):
                previous_diff = (await self.deliberations.wait(self.follows, LOCAL)).diff
            if previous_diff and previous_diff not in {change.diff for change in self.changes}:
                self.changes.append(Diff(previous_diff))
        request, base = replace(self.request, description=prompt, follows=self.follows), ""
        if self.follows and not self.own_base:
            request = replace(request, repository=None, about_text=False)

        def handle_event(recorded: Recorded) -> None:
            nonlocal base
            if recorded.event.type is EventType.DELIBERATION_REQUESTED:
                base, self.follows = (
                    str(recorded.event.data.get("base_sha") or ""),
                    TaskId(recorded.event.subject),
                )
                self.request, self.own_base = replace(self.request, task_id=""), False
            printer.show_event(recorded)

        outcome = await run_deliberation(self.deliberations, request, handle_event)
        if outcome.diff:
            self.changes.append(Diff(outcome.diff, base))
        return outcome


@asynccontextmanager
async def open_ask_session(
    options: AskOptions,
    report_progress: Callable[[str], None],
    note: Callable[[str], None],
    *,
    model_checked: bool,
) -> AsyncIterator[AskSession]:
    """Open a session. `report_progress` receives preparation steps, `note` what should not be
    missed; `model_checked` as in `open_app`.

    Raises `NotFound` if there is no conversation to continue.
    """
    if options.server:
        async with _open_remote_session(options) as session:
            yield session
        return
    from moothall.app.server import open_app
    from moothall.app.tasks import tasks_of

    settings, named = options.settings, options.named
    repository = await find_repository(settings, named)
    is_new = options.continued_task is None or bool(named.ref)
    if repository is None and is_new and not named.text:
        note("the current folder is not in a repository: questions are about text only")
    elif (
        repository is not None
        and is_new
        and (warning := await describe_uncommitted(settings, repository))
    ):
        note(warning)
    # The configured default repository is not used: a question is about the current folder.
    request = replace(options.request, repository=repository, about_text=repository is None)
    async with open_app(settings, report_progress, model_checked=model_checked) as app:
        yield await _open_local_session(
            options, request, app.deliberations, tasks_of(settings, app)
        )


async def _open_local_session(
    options: AskOptions,
    request: DeliberationRequest,
    deliberations: DeliberationService,
    tasks: Tasks,
) -> AskSession:
    """Return a session at this machine's server, with the conversation to continue."""
    from moothall.app.tasks import files_for

    repository = request.repository
    files = files_of(options.settings, repository) if repository else None
    if options.continued_task is None:
        return AskSession(deliberations, request, files, files)
    follows = await _find_previous_task(request, tasks, options.continued_task)
    await tasks.check_not_paused(follows)
    own_base = bool(options.named.ref or options.named.text)
    target_files = (
        files if own_base else await files_for(options.settings, await tasks.repository(follows))
    )
    return AskSession(
        deliberations,
        request,
        files,
        target_files,
        follows,
        own_base,
        list(await tasks.changes(follows)),
    )


async def _find_previous_task(request: DeliberationRequest, tasks: Tasks, task_name: str) -> TaskId:
    """Return the named task, or the last one about this repository. For a repeated question, return
    the task before it.
    """
    task_id = TaskId(request.task_id)
    if task_id and (thread := await tasks.thread(task_id)) and thread[-1].follows:
        return thread[-1].follows
    if task_name:
        return await tasks.find(task_name)
    subject = request.repository.id if request.repository else ""
    if not (latest := await tasks.latest_question(subject, request.task_id)):
        raise NotFound(
            f"there is no earlier question about {subject or 'text'}: leave --continue out, or "
            "name a task (--continue TASK)"
        )
    return latest


@asynccontextmanager
async def _open_remote_session(options: AskOptions) -> AsyncIterator[AskSession]:
    """Open a session at a remote server. Its diffs are applied to the current files, if they
    fit.
    """
    named, settings = options.named, options.settings
    named.check()
    if options.continued_task == "":
        raise InvalidRequest(
            "a remote server does not report the last task: name it (--continue TASK)"
        )
    files = None if named.text else await files_here(settings, named.repo)
    repository = None if named.text else names(RepositoryRef(url=named.repo, ref=named.ref), files)
    request = replace(options.request, repository=repository, about_text=repository is None)
    async with kernel_of(settings, options.server, options.token_file) as kernel:
        yield AskSession(
            kernel,
            request,
            files,
            files,
            TaskId(options.continued_task or ""),
            bool(named.ref or named.text),
        )


# `moothall ask` on a terminal without a question: a conversation, line by line.


_PROMPT = "> "
_READ_BYTES = 65_536
_HELP = """Type a question or a task; the next one continues from its answer.
End a line with \\ to continue it on the next line.
  /diff    show the last change again
  /apply   apply it to your files, with the earlier changes that it needs
  /new     start another conversation
  /quit    leave, as the end of input does; Ctrl-C stops an answer"""


class _InputLines:
    """Typed lines, read while the event loop runs. Lines that were pasted together are one."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()

    async def read(self) -> str | None:
        """Return the next line, without its end; None at the end of input."""
        if not self._waiting:
            click.echo(_PROMPT, nl=False, err=True)
            await self._wait_for_input()
        if not self._waiting:
            return None
        lines = [self._waiting.popleft()]
        while not lines[-1].startswith("/"):
            if lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                if not self._waiting:
                    await self._wait_for_input()
            if not self._waiting or self._waiting[0].startswith("/"):
                break
            lines.append(self._waiting.popleft())
        return "\n".join(lines).strip()

    async def _wait_for_input(self) -> None:
        """Wait for input. At the end of input, no line is added."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        fd = sys.stdin.fileno()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
        received = b""
        while select.select([fd], [], [], 0)[0] and (chunk := os.read(fd, _READ_BYTES)):
            received += chunk
        self._waiting.extend(received.decode("utf-8", "replace").splitlines())


async def run_conversation(options: AskOptions, *, model_checked: bool) -> int:
    """Answer questions until the end of input, and return the exit code."""
    async with open_ask_session(
        options,
        stderr_reporter(quiet=False),
        lambda note: print_status(plain(note)),
        model_checked=model_checked,
    ) as session:
        print_status(
            f"{f'continuing {session.follows}; ' if session.follows else ''}/help lists the "
            "commands"
        )
        await _Conversation(options, session).read_questions()
    return 0


class _Conversation:
    def __init__(self, options: AskOptions, session: AskSession) -> None:
        self._options = options
        self._session = session
        self._out = Console(highlight=False)
        self._last: Outcome | None = None
        self._commands: dict[str, Callable[[], object]] = {
            "/diff": self._diff,
            "/new": self._new,
            "/help": self._help,
        }

    async def read_questions(self) -> None:
        """Read and handle lines until the end of input."""
        lines = _InputLines()
        with on_interrupt(
            lambda: click.echo(f"\n/quit or Ctrl-D leaves\n{_PROMPT}", nl=False, err=True)
        ):
            while (line := await lines.read()) not in {None, "/quit", "/exit"}:
                try:
                    await self._handle_line(line or "")
                except MoothallError as error:
                    print_status(f"{plain(error.message, 1000)} [{error.code}]")

    async def _handle_line(self, line: str) -> None:
        if line == "/apply":
            await self._apply_changes()
        elif line.startswith("/"):
            self._commands.get(line, self._unknown)()
        elif line:
            await self._answer_question(line)

    async def _answer_question(self, question: str) -> None:
        """Answer a question. Ctrl-C stops the answer, and the conversation continues."""
        session = self._session
        printer = self._options.printer()
        answer_task = asyncio.create_task(session.ask(question, printer), name="answer")
        with printer.live_display(), on_interrupt(answer_task.cancel):
            try:
                self._last = await answer_task
            except asyncio.CancelledError:
                current_task = asyncio.current_task()
                if not answer_task.cancelled() or (
                    current_task is not None and current_task.cancelling()
                ):
                    raise
                print_status("stopped; the next question continues from here")
                return
            finally:
                if session.follows and not self._options.server:
                    complete.remember(self._options.settings.data_dir, session.follows)
        show_answer(self._out, self._last)
        if self._last.diff:
            print_status("/apply puts this into your files")

    async def _apply_changes(self) -> None:
        session = self._session
        if not session.changes or session.files is None:
            reason = (
                "there is no change to apply"
                if not session.changes
                else "the repository's files are not on this machine"
            )
            print_status(f"not applied: {reason}")
            return
        paths = await apply_conversation(self._options.settings, session.files, *session.changes)
        print_status(f"applied to {', '.join(plain(path, 80) for path in paths)}")

    def _diff(self) -> None:
        if self._session.changes:
            click.echo(plain(self._session.changes[-1].diff, _READ_BYTES))
        else:
            print_status("nothing has been changed yet")

    def _new(self) -> None:
        self._session.begin()
        print_status("another conversation")

    def _help(self) -> None:
        print_status(_HELP)

    def _unknown(self) -> None:
        print_status("unknown command; /help lists the commands")
