"""What every command shares: settings, the event loop, and what is said when something is wrong."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TextIO, TypeVar

import click

from moothall.cli.exit_codes import EXIT_INTERRUPTED, EXIT_WRONG
from moothall.cli.options import check_ranges
from moothall.cli.text import plain
from moothall.concurrency import leaves
from moothall.config import Settings, default_file, secret_values
from moothall.errors import ConfigurationError, MoothallError
from moothall.telemetry import configure_logs

_LONGEST = 20_000  # characters of an error
_DEPTH = 100  # of exception groups within each other

P = ParamSpec("P")
T = TypeVar("T")


def settings_of(context: click.Context, *, narrated: bool = False) -> Settings:
    """Return the effective settings of this command and switch its logs on.

    `narrated`: the command says itself what happens, so that only warnings are logged beside it.
    """
    from moothall.settings import load_settings

    settings = load_settings(file_of(context))
    check_ranges(context, settings)
    with suppress(OSError):  # who needs it says what is wrong
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    quiet = narrated and settings.log.level == "info"
    log = settings.log.model_copy(update={"level": "warning"}) if quiet else settings.log
    configure_logs(log, secrets=secret_values(settings))
    return settings


def file_of(context: click.Context) -> Path | None:
    """Return the file of settings: the one that --config names, or the user's own where it is
    there.
    """
    named: Path | None = context.obj
    return named or (default_file() if default_file().is_file() else None)


def with_settings(
    waits: str = "", *, narrated: bool = True
) -> Callable[
    [Callable[Concatenate[Settings, P], Coroutine[Any, Any, int | None]]], Callable[P, None]
]:
    """Make a command of a coroutine function, which is given the settings before the command's
    parameters and returns the exit code, None for 0. `waits` as in `result_of`, `narrated` as in
    `settings_of`.
    """

    def command(
        main: Callable[Concatenate[Settings, P], Coroutine[Any, Any, int | None]],
    ) -> Callable[P, None]:
        @click.pass_context
        @speak_errors
        @functools.wraps(main)
        def start(context: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> None:
            sys.exit(
                result_of(main(settings_of(context, narrated=narrated), *args, **kwargs), waits)
            )

        return start

    return command


def say(line: str) -> None:
    """Say a line on stderr, beside what is printed."""
    click.echo(line, err=True)


def print_json(document: object, file: TextIO | None = None) -> None:
    """Print the one document of `--json`."""
    click.echo(json.dumps(document, indent=2), file=file)


def speak_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn our errors into a sentence on stderr and exit code 2. A bug keeps its traceback, but
    ends with 2 too:
    1 would say that there was no winner.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except MoothallError as error:
            refuse(error)
        except (BrokenPipeError, click.ClickException, click.Abort):
            raise  # click says what a wrong parameter is, and ends quietly when nobody reads on
        except OSError as error:
            refuse(
                ConfigurationError(
                    f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
                )
            )
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - told in full, with the exit code that says so
            first = _first_of_ours(error) if isinstance(error, BaseExceptionGroup) else None
            if first is None:
                # Groups lie in groups: what it comes from is in the innermost, which a traceback
                # leaves out by default.
                click.echo(
                    "".join(
                        traceback.TracebackException.from_exception(
                            error, max_group_depth=_DEPTH
                        ).format()
                    ),
                    err=True,
                )
                sys.exit(EXIT_WRONG)
            refuse(first)

    return run


def refuse(error: MoothallError) -> NoReturn:
    """Say what was wrong and end."""
    click.echo(f"moothall: {plain(error.message, _LONGEST)} [{error.code}]", err=True)
    sys.exit(EXIT_WRONG)


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> MoothallError | None:
    ours, others = group.split(MoothallError)
    if ours is None or (
        others is not None
        and others.split((asyncio.CancelledError, KeyboardInterrupt))[1] is not None
    ):
        return None
    return next(leaves(ours))


_INTERRUPTS: list[Callable[[], object]] = []


@contextmanager
def on_interrupt(do: Callable[[], object]) -> Iterator[None]:
    """Let Ctrl-C do this, and not end the command, until the block ends."""
    _INTERRUPTS.append(do)
    try:
        yield
    finally:
        _INTERRUPTS.remove(do)


def result_of(main: Coroutine[Any, Any, T], waits: str = "", after: float = 2.0) -> T:
    """Run to the end and return its result. What it `waits` for is said on stderr, once, where that
    takes `after` seconds.

    SIGINT and SIGTERM cancel it once, so that everything is closed; then this exits.
    """
    interrupted = False

    async def watch() -> T:
        nonlocal interrupted
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for mypy: we are inside a coroutine

        def stop(number: signal.Signals) -> None:
            nonlocal interrupted
            if number is signal.SIGINT and _INTERRUPTS:
                _INTERRUPTS[-1]()
                return
            # Ray's own handler, while Ray starts, aborts a process that has not ended 3 seconds
            # after a SIGTERM.
            signal.alarm(0)
            if not interrupted:
                interrupted = True
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        return await main

    # A thread's, since modules that are loaded hold the loop up.
    speaking = threading.Timer(after, lambda: click.echo(f"{waits} …", err=True)) if waits else None
    gc.freeze()  # what was imported stays
    gc.enable()
    try:
        if speaking:
            speaking.daemon = True
            speaking.start()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(watch())
    except (asyncio.CancelledError, KeyboardInterrupt):
        if not interrupted:
            raise
        click.echo(
            "moothall: interrupted; everything was stopped and nothing is left behind", err=True
        )
        sys.exit(EXIT_INTERRUPTED)
    finally:
        if speaking:
            speaking.cancel()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop
