"""`moothall ask` on a terminal without a question: a conversation, line by line."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections import deque
from collections.abc import Callable

import click
from rich.console import Console

from moothall.app.repository import take_over
from moothall.cli import complete
from moothall.cli.ask_options import AskOptions, show_answer
from moothall.cli.ask_session import AskSession, open_ask_session
from moothall.cli.runtime import on_interrupt, say
from moothall.cli.text import plain, stderr_reporter
from moothall.domain.outcome import Outcome
from moothall.errors import MoothallError

_PROMPT = "> "
_READ_BYTES = 65_536
_HELP = """A line is a question or a task; the next one goes on from its answer. End a line with \\ to write another one.
  /diff    the last change again
  /apply   put it into your files, with those before it as far as it needs them
  /new     begin another conversation
  /quit    leave, as the end of input does; Ctrl-C stops an answer"""  # noqa: E501 - a line of embedded text


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
        lambda note: say(plain(note)),
        model_checked=model_checked,
    ) as session:
        say(
            f"{f'going on from {session.follows}; ' if session.follows else ''}/help says what "
            "there is"
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
                    say(f"{plain(error.message, 1000)} [{error.code}]")

    async def _handle_line(self, line: str) -> None:
        if line == "/apply":
            await self._apply()
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
                say("stopped; what you ask next goes on from here")
                return
            finally:
                if session.follows and not self._options.server:
                    complete.remember(self._options.settings.data_dir, session.follows)
        show_answer(self._out, self._last)
        if self._last.diff:
            say("/apply puts this into your files")

    async def _apply(self) -> None:
        session = self._session
        if not session.changes or session.files is None:
            reason = (
                "there is no change to apply"
                if not session.changes
                else "the repository's files are not on this machine"
            )
            say(f"not applied: {reason}")
            return
        paths = await take_over(self._options.settings, session.files, *session.changes)
        say(f"applied to {', '.join(plain(path, 80) for path in paths)}")

    def _diff(self) -> None:
        if self._session.changes:
            click.echo(plain(self._session.changes[-1].diff, _READ_BYTES))
        else:
            say("nothing was changed yet")

    def _new(self) -> None:
        self._session.begin()
        say("another conversation")

    def _help(self) -> None:
        say(_HELP)

    def _unknown(self) -> None:
        say("there is no such command; /help says which there are")
