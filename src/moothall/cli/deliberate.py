"""`moothall deliberate`: a council on a task in a repository. `moothall fork`: run a task again
from one of its turns.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from moothall.app.preflight import NamedRepository, check_early
from moothall.cli import options
from moothall.cli.options import (
    SEED,
    SettingRange,
    example,
    json_option,
    repository_options,
    task_argument,
    text_option,
    verbose_option,
)
from moothall.cli.runtime import stderr_reporter, with_settings
from moothall.config import Settings
from moothall.domain.ids import check_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import (
    MAX_REQUEST_ROUNDS,
    Constraints,
    DeliberationRequest,
    Fork,
    RepositoryRef,
)
from moothall.errors import InvalidRequest

# `moothall deliberate`: a council on a task in a repository.
#
# `--hidden-tests` names files and folders of tests that no seat sees. They are copied over the
# repository.


_SKIPPED_NAMES = frozenset({".git", "__pycache__", "node_modules", ".pytest_cache"})
_MAX_FILES, _MAX_BYTES = 500, 3_000_000
PrintOutcome = Callable[[Outcome], int]
"""A function that prints an outcome and returns the exit code."""


@dataclass(frozen=True, slots=True)
class _Output:
    """The printer of the outcome, and the level of detail of the progress."""

    report_outcome: PrintOutcome
    quiet: bool
    verbose: bool


def read_hidden_tests(arguments: Sequence[str], top: Path | None) -> dict[str, str]:
    """Return tests by their path in the repository.

    arguments: `PATH` or `PATH:DEST`. A folder mirrors the repository's tree, below DEST if that is
    given. A file keeps its path below `top`, the work tree on this machine, unless DEST names
    another
    one; a DEST that ends with a slash is a folder. Raises `InvalidRequest`.
    """
    tests: dict[str, str] = {}
    remaining_bytes = _MAX_BYTES
    for argument in arguments:
        is_empty = True
        for path, target in _files(argument, top):
            content = _read_file(path, remaining_bytes)
            remaining_bytes -= len(content)
            if remaining_bytes < 0 or len(tests) == _MAX_FILES:
                raise InvalidRequest(
                    f"--hidden-tests {argument}: more than {_MAX_FILES} files or {_MAX_BYTES:,} "
                    "bytes. Name the folder or the files that hold tests"
                )
            tests[target] = _decode(path, content)
            is_empty = False
        if is_empty:
            raise InvalidRequest(f"--hidden-tests {argument} has no file; name a folder with tests")
    return tests


def _files(argument: str, top: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the files that an argument names, each with its path in the repository."""
    if ":" in argument and not Path(argument).exists():
        name, _, dest = argument.rpartition(":")
    else:
        name, dest = argument, ""
    path = Path(name)
    if path.is_dir():
        yield from _files_below(path, dest.strip("/"))
    elif not path.is_file():
        raise InvalidRequest(f"--hidden-tests {argument}: there is no file or folder {name!r}")
    elif dest:
        yield path, f"{dest}{path.name}" if dest.endswith("/") else dest
    elif top is None or not path.resolve().is_relative_to(top.resolve()):
        raise InvalidRequest(
            f"--hidden-tests {argument}: the file is outside the repository; say where it goes "
            f"with {argument}:tests/{path.name}"
        )
    else:
        yield path, path.resolve().relative_to(top.resolve()).as_posix()


def _files_below(path: Path, dest: str) -> Iterator[tuple[Path, str]]:
    """Yield the regular files of a folder without caches, compiled files and links."""
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_NAMES)
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink() and not name.endswith((".pyc", ".pyo")):
                inner = file.relative_to(path).as_posix()
                yield file, inner if dest in {"", "."} else f"{dest}/{inner}"


def _read_file(path: Path, limit: int) -> bytes:
    """Return the bytes of a file, at most one more than `limit`."""
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise InvalidRequest(f"--hidden-tests: {path} cannot be read: {error.strerror}") from error


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"--hidden-tests: {path} is not UTF-8 text: {error}") from error


@click.command(
    epilog=example(
        'moothall deliberate "parse_date() must accept ISO weeks"',
        'moothall deliberate --repo ../other --agents 5 "Fix the failing tests"',
    )
)
@click.argument("task")
@repository_options
@text_option
@click.option(
    "--role",
    default="DEV",
    show_default=True,
    shell_complete=options.roles,
    help="Role of the council: dev, qa, architect, devops, data, po.",
)
@click.option(
    "--agents",
    type=SettingRange(1, "limits.agents"),
    help="Number of seats, at most limits.agents; by default that of the council, or 3.",
)
@click.option(
    "--rounds",
    type=click.IntRange(0, MAX_REQUEST_ROUNDS),
    help="Rounds of review and revision; by default those of the protocol.",
)
@click.option(
    "--protocol",
    default="",
    shell_complete=options.protocols,
    help="single, vote, debate, tests_then_verify (the default), tournament or ask: one seat, "
    "whose answer may be no change.",
)
@click.option(
    "--adaptive",
    is_flag=True,
    help="Start with two seats and add more while the evidence disagrees.",
)
@click.option("--peer-review", is_flag=True, help="Ask every seat for reviews, with any protocol.")
@click.option("--rubric", default="", help="Criteria for reviewers, as text.")
@click.option(
    "--require",
    "requirements",
    multiple=True,
    help="A requirement that reviewers judge as met or not; repeatable.",
)
@click.option(
    "--check",
    "checks",
    multiple=True,
    help="Command that must pass in addition to the repository's checks; repeatable.",
)
@click.option(
    "--hidden-tests",
    "hidden",
    multiple=True,
    metavar="PATH[:DEST]",
    help="Tests that no seat sees and that run on every answer: a folder with the repository's "
    "layout, or a file; repeatable.",
)
@click.option(
    "--timeout",
    "seconds",
    type=SettingRange(1, "limits.deliberation_seconds"),
    help="Time limit of the deliberation in seconds; limits.deliberation_seconds by default.",
)
@click.option(
    "--turns",
    type=SettingRange(1, "limits.turns"),
    help="Maximum number of turns of a seat; limits.turns by default.",
)
@click.option(
    "--model",
    default="",
    help="Model from the settings: a name in [models], default, small, medium or large. "
    "Several, separated by commas, are assigned to the seats in turn. auto: the two that "
    "complement each other best, by the results of earlier tasks.",
)
@click.option("--seed", type=SEED, help="Base of the sampling seeds.")
@click.option(
    "--task-id",
    default="",
    help="Id of the deliberation. The same id and request continue the same deliberation.",
)
@click.option(
    "--server",
    default="",
    help="HOST:PORT of a `moothall serve`. --repo is then a URL, or the id of a "
    "repository that is registered there.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token for --server; by default grpc.token or the token of this machine.",
)
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    help="Append the ranking to this file as Markdown, for example for the summary of a pipeline.",
)
@json_option
@verbose_option
@with_settings()
async def deliberate(
    settings: Settings,
    *,
    task: str,
    repo: str,
    ref: str,
    profile: Path | None,
    text: bool,
    role: str,
    agents: int | None,
    rounds: int | None,
    protocol: str,
    adaptive: bool,
    peer_review: bool,
    rubric: str,
    requirements: tuple[str, ...],
    checks: tuple[str, ...],
    hidden: tuple[str, ...],
    seconds: int | None,
    turns: int | None,
    model: str,
    seed: int | None,
    task_id: str,
    server: str,
    token_file: Path | None,
    summary: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Let a council work on TASK and leave the winner as branch moothall/<task_id>.

    TASK is about the last commit of the current repository or of another one (--repo), or about
    text only (--text).

    Exit codes: 0 a proven or reproduced winner, 3 another one, 1 none, 2 wrong use or a broken
    part.
    """
    named = NamedRepository(repo, ref, text, profile)
    request = DeliberationRequest(
        description=task,
        role=role,
        task_id=task_id,
        constraints=_constraints(rubric, requirements, turns, seconds),
        rounds=rounds,
        num_agents=agents or 0,
        protocol=protocol,
        adaptive=adaptive,
        peer_review=peer_review,
        model=model,
        checks=checks,
        seed=seed,
        hidden_tests=await _read_hidden_tests(settings, named, hidden) if hidden else {},
    )
    report_outcome = _outcome_reporter(request, summary, as_json=as_json)
    output = _Output(report_outcome, quiet=as_json, verbose=verbose)
    if not server:
        return await _deliberate(settings, request, named, output)
    return await _deliberate_remotely(
        settings, request, named, output, server, token_file=token_file
    )


def _constraints(
    rubric: str, requirements: tuple[str, ...], turns: int | None, seconds: int | None
) -> Constraints:
    return Constraints(
        rubric, requirements, max_iterations=turns or 0, timeout_seconds=seconds or 0
    )


async def _read_hidden_tests(
    settings: Settings, named: NamedRepository, arguments: Sequence[str]
) -> dict[str, str]:
    from moothall.app.command_repository import files_here

    top = None if named.text else await files_here(settings, named.repo)
    return await asyncio.to_thread(read_hidden_tests, arguments, top)


def _outcome_reporter(
    request: DeliberationRequest, summary: Path | None, *, as_json: bool
) -> PrintOutcome:
    out = sys.stdout  # kept, because later prints go to stderr

    def report_outcome(outcome: Outcome) -> int:
        from moothall.cli.council import print_outcome, summarize

        code = print_outcome(outcome, out, json_wanted=as_json)
        if summary is not None:
            summarize(outcome, request, summary)
        return code

    return report_outcome


async def _deliberate(
    settings: Settings, request: DeliberationRequest, named: NamedRepository, output: _Output
) -> int:
    report_progress = stderr_reporter(quiet=output.quiet)
    model_checked = await check_early(settings, request, named, report_progress)
    # Imported late: this takes a second, and an invalid address is reported before.
    from moothall.app.command_repository import describe_uncommitted, find_repository
    from moothall.app.server import open_app
    from moothall.cli.council import ProgressPrinter, run_deliberation

    printer = ProgressPrinter(quiet=output.quiet, verbose=output.verbose)
    repository = await find_repository(settings, named)
    if repository is not None:
        if warning := await describe_uncommitted(settings, repository):
            printer.print_note(warning)
    elif not (named.text or settings.repository):
        raise InvalidRequest(
            "the current folder is not in a git repository: name one with --repo, or pass --text "
            "for an answer in text"
        )
    request = replace(request, repository=repository, about_text=named.text)
    with printer.live_display():
        async with open_app(settings, printer.report, model_checked=model_checked) as app:
            outcome = await run_deliberation(app.deliberations, request, printer.show_event)
            printer.stop_live()
            options.remember(settings.data_dir, outcome.task_id)
            return output.report_outcome(outcome)


async def _deliberate_remotely(
    settings: Settings,
    request: DeliberationRequest,
    named: NamedRepository,
    output: _Output,
    server: str,
    *,
    token_file: Path | None,
) -> int:
    """Deliberate at a remote server, which fetches the repository itself."""
    named.check_remote()
    from moothall.app.command_repository import files_here, kernel_of, names
    from moothall.cli.council import ProgressPrinter, run_deliberation

    named.check()
    printer = ProgressPrinter(quiet=output.quiet, verbose=output.verbose)
    files = None if named.text else await files_here(settings, named.repo)
    is_registered_id = bool(named.repo) and files is None and not set(named.repo) & set(":/")
    reference = (
        RepositoryRef(id=named.repo, ref=named.ref)
        if is_registered_id
        else names(RepositoryRef(url=named.repo, ref=named.ref), files)
    )
    repository = None if named.text else reference
    request = replace(request, repository=repository, about_text=named.text)
    async with kernel_of(settings, server, token_file) as kernel:
        with printer.live_display():
            outcome = await run_deliberation(kernel, request, printer.show_event)
    return output.report_outcome(outcome)


# `moothall fork`: run a task again from one of its turns.


@click.command(epilog=example('moothall fork task-0123456789ab --turn 3 "Use a set instead."'))
@task_argument(required=True)
@click.argument("words", default="")
@click.option(
    "--turn",
    type=click.IntRange(1, 2**31 - 1),
    required=True,
    help="Last turn to keep; `log tail` and -v show the numbers.",
)
@click.option(
    "--seat",
    default="",
    help="Seat whose turns are kept, by name or number; by default the winner or the first.",
)
@click.option(
    "--seed", type=SEED, help="Base of the sampling seeds of new turns; a different one by default."
)
@click.option(
    "--task-id", default="", help="Id of the fork; TASK-f1, TASK-f2 and so on by default."
)
@click.option(
    "--server",
    default="",
    help="HOST:PORT of a `moothall serve` that has TASK; give the complete id.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token for --server; by default the token of this machine.",
)
@json_option
@verbose_option
@with_settings()
async def fork(
    settings: Settings,
    *,
    task: str,
    words: str,
    turn: int,
    seat: str,
    seed: int | None,
    task_id: str,
    server: str,
    token_file: Path | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run TASK again from turn N of a seat, with the message WORDS or, without it, another seed.

    The turns until then are taken from the log: no model call is repeated, and their actions are
    repeated in a new workspace. TASK itself is not changed. The fork is a new task with its own
    branch.

    Exit codes: those of `deliberate`.
    """
    from moothall.app.command_repository import kernel_of
    from moothall.app.server import open_app
    from moothall.app.tasks import tasks_of
    from moothall.cli.council import ProgressPrinter, print_outcome, run_deliberation

    check_id(task, "TASK")
    request = DeliberationRequest(
        "", "", task_id=task_id, seed=seed, fork=Fork(task, turn, seat, words)
    )
    out, printer = sys.stdout, ProgressPrinter(quiet=as_json, verbose=verbose, thoughts=True)
    with printer.live_display():
        if server:
            async with kernel_of(settings, server, token_file) as kernel:
                outcome = await run_deliberation(kernel, request, printer.show_event)
        else:
            async with open_app(settings, printer.report) as app:
                local_fork = Fork(await tasks_of(settings, app).find(task), turn, seat, words)
                outcome = await run_deliberation(
                    app.deliberations, replace(request, fork=local_fork), printer.show_event
                )
                options.remember(settings.data_dir, outcome.task_id)
    return print_outcome(outcome, out, json_wanted=as_json)
