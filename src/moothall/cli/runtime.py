"""The shared code of all commands: settings, the event loop, and error messages. The exit codes of
commands, by a deliberation's outcome. Foreign text, made safe for a terminal.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TextIO, TypeVar

import click

from moothall.cli.options import check_ranges
from moothall.concurrency import leaves, loop_factory
from moothall.config import Settings, find_default_file, secret_values
from moothall.errors import ConfigurationError, MoothallError
from moothall.telemetry import configure_logs

if TYPE_CHECKING:
    from moothall.domain.outcome import Outcome


# The exit codes of commands, by a deliberation's outcome.


EXIT_NONE, EXIT_WRONG, EXIT_UNPROVEN, EXIT_INTERRUPTED = 1, 2, 3, 130

BROKEN = frozenset(
    {
        "AUDIT_UNAVAILABLE",
        "BUS_UNAVAILABLE",
        "CONFIGURATION",  # a wrong URL or model name, a key that the server refuses
        "INTERNAL",
        "INVALID_REQUEST",
        "MODEL_REPLY_INVALID",
        "MODEL_UNAVAILABLE",
        "NOTHING_TO_JUDGE",
        "POLICY_UNAVAILABLE",
        "REPOSITORY_UNUSABLE",
        "SANDBOX_UNAVAILABLE",
        "WORKSPACE_FAILED",
    }
)
"""Error codes of seats for failures of the system; other codes (no change, malformed replies, out
of turns) are failures of the model.
"""


def exit_code(outcome: Outcome, *, answers: bool = False) -> int:
    """Return the exit code of an outcome.

    0: the winner is proven or reproduced, or the task is already done. 3: another winner. 1: none.
    2: a part was broken: the winner could not be delivered, or no seat could work at all.
    answers: an answer in words needs no proof.
    """
    if outcome.winner_id:
        if outcome.final_state == "failed":
            return EXIT_WRONG
        if outcome.final_state == "already_done":
            return 0
        return (
            0
            if outcome.level.independent or (answers and outcome.final_state == "answered")
            else EXIT_UNPROVEN
        )
    seats = [seat for seat in outcome.seats if seat.status != "unstarted" or seat.error_code]
    broken = bool(seats) and all(
        seat.status == "failed" and seat.error_code in BROKEN for seat in seats
    )
    return EXIT_WRONG if broken and not outcome.results else EXIT_NONE


# Foreign text, made safe for a terminal.


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str, limit: int = 400) -> str:
    """Return foreign text without colours, control and direction characters, cut to `limit`."""
    cleaned = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR.sub("", text))
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def stderr_reporter(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line on stderr. It is used before a progress printer exists,
    whose imports take longer than refusing an invalid address.
    """
    return lambda line: None if quiet else click.echo(f"{'':<16}{plain(line)}", err=True)


# The shared code of all commands: settings, the event loop, and error messages.


_MAX_ERROR_CHARS = 20_000
_MAX_GROUP_DEPTH = 100  # of nested exception groups

P = ParamSpec("P")
T = TypeVar("T")


def settings_of(context: click.Context, *, narrated: bool = False) -> Settings:
    """Load the effective settings of a command and configure its logs.

    `narrated`: the command reports its own progress, so only warnings are logged.
    """
    from moothall.settings import load_settings

    settings = load_settings(file_of(context))
    check_ranges(context, settings)
    with suppress(OSError):  # the first user of the directory reports the error
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    quiet = narrated and settings.log.level == "info"
    log = settings.log.model_copy(update={"level": "warning"}) if quiet else settings.log
    configure_logs(log, secrets=secret_values(settings))
    return settings


def file_of(context: click.Context) -> Path | None:
    """Return the settings file: the one that --config names, or the default one if it exists."""
    configured: Path | None = context.obj
    return configured or find_default_file()


def with_settings(
    activity: str = "", *, narrated: bool = True
) -> Callable[
    [Callable[Concatenate[Settings, P], Coroutine[Any, Any, int | None]]], Callable[P, None]
]:
    """Make a command of a coroutine function. It receives the settings before the command's
    parameters and returns the exit code, None for 0. `activity` as in `result_of`, `narrated` as in
    `settings_of`.
    """

    def command(
        main: Callable[Concatenate[Settings, P], Coroutine[Any, Any, int | None]],
    ) -> Callable[P, None]:
        @click.pass_context
        @report_errors
        @functools.wraps(main)
        def start(context: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> None:
            sys.exit(
                result_of(main(settings_of(context, narrated=narrated), *args, **kwargs), activity)
            )

        return start

    return command


def print_status(line: str) -> None:
    """Print a line on stderr."""
    click.echo(line, err=True)


def print_json(document: object, file: TextIO | None = None) -> None:
    """Print the JSON document of `--json`."""
    click.echo(json.dumps(document, indent=2), file=file)


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn our errors into a message on stderr and exit code 2. A bug keeps its traceback and also
    ends with 2, because 1 means that there was no winner.
    """

    @functools.wraps(command)
    def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except MoothallError as error:
            exit_with_error(error)
        except (BrokenPipeError, click.ClickException, click.Abort):
            raise  # click reports wrong parameters, and ends quietly on a closed pipe
        except OSError as error:
            exit_with_error(
                ConfigurationError(
                    f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
                )
            )
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - printed in full, with the exit code of a failure
            expected_error = (
                _find_expected_error(error) if isinstance(error, BaseExceptionGroup) else None
            )
            if expected_error is None:
                # The cause is in the innermost of nested groups, which tracebacks omit by default.
                click.echo(
                    "".join(
                        traceback.TracebackException.from_exception(
                            error, max_group_depth=_MAX_GROUP_DEPTH
                        ).format()
                    ),
                    err=True,
                )
                sys.exit(EXIT_WRONG)
            exit_with_error(expected_error)

    return run_command


def exit_with_error(error: MoothallError) -> NoReturn:
    """Print an error and exit."""
    click.echo(f"moothall: {plain(error.message, _MAX_ERROR_CHARS)} [{error.code}]", err=True)
    sys.exit(EXIT_WRONG)


def _find_expected_error(group: BaseExceptionGroup[BaseException]) -> MoothallError | None:
    expected, unexpected = group.split(MoothallError)
    if expected is None or (
        unexpected is not None
        and unexpected.split((asyncio.CancelledError, KeyboardInterrupt))[1] is not None
    ):
        return None
    return next(leaves(expected))


_INTERRUPT_HANDLERS: list[Callable[[], object]] = []


@contextmanager
def on_interrupt(handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` on Ctrl-C, instead of ending the command, until the block ends."""
    _INTERRUPT_HANDLERS.append(handler)
    try:
        yield
    finally:
        _INTERRUPT_HANDLERS.remove(handler)


def result_of(main: Coroutine[Any, Any, T], activity: str = "", after: float = 2.0) -> T:
    """Run a coroutine and return its result. If it takes more than `after` seconds, print the
    `activity` once.

    SIGINT and SIGTERM cancel it once, so that everything is closed; then the process exits.
    """
    interrupted = False

    async def watch() -> T:
        nonlocal interrupted
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for mypy: we are inside a coroutine

        def stop(number: signal.Signals) -> None:
            nonlocal interrupted
            if number is signal.SIGINT and _INTERRUPT_HANDLERS:
                _INTERRUPT_HANDLERS[-1]()
                return
            # While Ray starts, its own handler aborts a process that is still running 3 seconds
            # after a SIGTERM.
            signal.alarm(0)
            if not interrupted:
                interrupted = True
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        return await main

    # A thread, because loading modules blocks the event loop.
    notice_timer = (
        threading.Timer(after, lambda: click.echo(f"{activity} …", err=True)) if activity else None
    )
    gc.freeze()  # imported modules are never collected
    gc.enable()
    try:
        if notice_timer:
            notice_timer.daemon = True
            notice_timer.start()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(watch())
    except (asyncio.CancelledError, KeyboardInterrupt):
        if not interrupted:
            raise
        click.echo(
            "moothall: interrupted; everything was stopped and nothing is left behind", err=True
        )
        sys.exit(EXIT_INTERRUPTED)
    finally:
        if notice_timer:
            notice_timer.cancel()
