"""`moothall ask` on a terminal, without a question: a line to type one, and the next."""

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
from moothall.cli.ask_session import AskSession, open_door
from moothall.cli.runtime import on_interrupt, say
from moothall.cli.text import plain, teller
from moothall.domain.outcome import Outcome
from moothall.errors import MoothallError

_PROMPT = "> "
_READ = 65_536
_HELP = """A line is a question or a task; the next one goes on from its answer. End a line with \\ to write another one.
  /diff    the last change again
  /apply   put it into your files, with those before it as far as it needs them
  /new     begin another conversation
  /quit    leave, as the end of input does; Ctrl-C stops an answer"""  # noqa: E501 - a line of embedded text


class _Lines:
    """What is typed, line by line, while the event loop goes on. Lines that were pasted together
    are one.
    """

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()

    async def read(self) -> str | None:
        """Return the next line, without its end; None at the end of input."""
        if not self._waiting:
            click.echo(_PROMPT, nl=False, err=True)
            await self._take()
        if not self._waiting:
            return None
        lines = [self._waiting.popleft()]
        while not lines[-1].startswith("/"):
            if lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                if not self._waiting:
                    await self._take()
            if not self._waiting or self._waiting[0].startswith("/"):
                break
            lines.append(self._waiting.popleft())
        return "\n".join(lines).strip()

    async def _take(self) -> None:
        """Wait for what is typed; nothing more waits then at the end of input."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        fd = sys.stdin.fileno()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
        raw = b""
        while select.select([fd], [], [], 0)[0] and (more := os.read(fd, _READ)):
            raw += more
        self._waiting.extend(raw.decode("utf-8", "replace").splitlines())


async def talk(asking: AskOptions, *, asked: bool) -> int:
    """Answer questions until the end of input. Returns the exit code."""
    async with open_door(
        asking, teller(quiet=False), lambda words: say(plain(words)), asked=asked
    ) as door:
        say(f"{f'going on from {door.follows}; ' if door.follows else ''}/help says what there is")
        await _Talk(asking, door).run()
    return 0


class _Talk:
    def __init__(self, asking: AskOptions, door: AskSession) -> None:
        self._asking = asking
        self._door = door
        self._out = Console(highlight=False)
        self._last: Outcome | None = None
        self._commands: dict[str, Callable[[], object]] = {
            "/diff": self._diff,
            "/new": self._new,
            "/help": self._help,
        }

    async def run(self) -> None:
        """Take line after line."""
        lines = _Lines()
        with on_interrupt(
            lambda: click.echo(f"\n/quit or Ctrl-D leaves\n{_PROMPT}", nl=False, err=True)
        ):
            while (line := await lines.read()) not in {None, "/quit", "/exit"}:
                try:
                    await self._do(line or "")
                except MoothallError as error:
                    say(f"{plain(error.message, 1000)} [{error.code}]")

    async def _do(self, line: str) -> None:
        if line == "/apply":
            await self._apply()
        elif line.startswith("/"):
            self._commands.get(line, self._unknown)()
        elif line:
            await self._ask(line)

    async def _ask(self, question: str) -> None:
        """Answer; Ctrl-C stops the answer, and the conversation goes on."""
        door = self._door
        printer = self._asking.printer()
        answering = asyncio.create_task(door.put(question, printer), name="answer")
        with printer.watching(), on_interrupt(answering.cancel):
            try:
                self._last = await answering
            except asyncio.CancelledError:
                ending = asyncio.current_task()
                if not answering.cancelled() or (ending is not None and ending.cancelling()):
                    raise
                say("stopped; what you ask next goes on from here")
                return
            finally:
                if door.follows and not self._asking.server:
                    complete.remember(self._asking.settings.data_dir, door.follows)
        show_answer(self._out, self._last)
        if self._last.diff:
            say("/apply puts this into your files")

    async def _apply(self) -> None:
        door = self._door
        if not door.changes or door.files is None:
            said = (
                "there is no change to apply"
                if not door.changes
                else "the repository's files are not on this machine"
            )
            say(f"not applied: {said}")
            return
        paths = await take_over(self._asking.settings, door.files, *door.changes)
        say(f"applied to {', '.join(plain(path, 80) for path in paths)}")

    def _diff(self) -> None:
        if self._door.changes:
            click.echo(plain(self._door.changes[-1].diff, _READ))
        else:
            say("nothing was changed yet")

    def _new(self) -> None:
        self._door.begin()
        say("another conversation")

    def _help(self) -> None:
        say(_HELP)

    def _unknown(self) -> None:
        say("there is no such command; /help says which there are")
