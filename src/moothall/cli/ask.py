"""`moothall ask`: one agent, for a question or a change."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from moothall.app.preflight import NamedRepository, check_early
from moothall.cli import options as complete
from moothall.cli.options import (
    SEED,
    SettingRange,
    example,
    json_option,
    repository_options,
    text_option,
    verbose_option,
)
from moothall.cli.runtime import (
    exit_code,
    plain,
    print_status,
    report_errors,
    result_of,
    settings_of,
    stderr_reporter,
)
from moothall.config import Settings
from moothall.domain.ids import is_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import Constraints, DeliberationRequest
from moothall.domain.text import count_of
from moothall.errors import InvalidRequest

if TYPE_CHECKING:  # imported once the model server has answered
    from rich.console import Console

    from moothall.app.command_repository import Diff
    from moothall.cli.council import ProgressPrinter


# The options, and the output of an answer.


_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class AskOptions:
    """The options of a question. `request` is common to all questions of a conversation.
    `continued_task` is '' for the last task, None for a new conversation.
    """

    settings: Settings
    request: DeliberationRequest
    named: NamedRepository
    continued_task: str | None = None
    server: str = ""
    token_file: Path | None = None
    quiet: bool = False
    verbose: bool = False

    def printer(self) -> ProgressPrinter:
        """Create the progress printer of one question."""
        from moothall.cli.council import ProgressPrinter

        return ProgressPrinter(quiet=self.quiet, verbose=self.verbose, thoughts=True)


def show_answer(console: Console, outcome: Outcome) -> None:
    """Print the answer and the diff, without control characters, or why there is no answer."""
    from rich.syntax import Syntax
    from rich.text import Text

    from moothall.cli.show import count_changes

    if not outcome.winner_id or not outcome.results:
        console.print(Text(f"No answer. {plain(outcome.error_message)}", style="bold red"))
        for seat in outcome.seats:
            if seat.error_code:
                console.print(
                    Text(plain(f"{seat.error_message} [{seat.error_code}]"), style="yellow")
                )
        return
    winner = outcome.results[0]
    console.print(Text(plain(winner.content, _MAX_CHARS)))
    if winner.diff:
        readable = "\n".join(
            line for line in winner.diff.splitlines() if not line.startswith("index ")
        )
        console.print(
            Syntax(plain(readable, _MAX_CHARS), "diff", background_color="default", word_wrap=True)
        )
        added, removed = count_changes(winner.diff)
        paths = [
            line.split(" b/", 1)[-1]
            for line in winner.diff.splitlines()
            if line.startswith("diff --git ")
        ]
        console.print(
            Text(
                f"{count_of(len(paths), 'file')}, +{added} -{removed}: "
                f"{', '.join(plain(path, 80) for path in paths)}"
            )
        )
        if len(readable) > _MAX_CHARS:
            console.print(
                Text(
                    f"Only the first {_MAX_CHARS} characters of the diff are shown.",
                    style="bold yellow",
                )
            )
        level = outcome.level.words
        checks = ", ".join(
            f"{plain(name, 40)} {verdict}"
            for name, verdict in winner.checks.items()
            if name != "applies"
        )
        console.print(
            Text(
                f"{level}; {checks}" if checks else level,
                style="green" if outcome.level.independent else "yellow",
            )
        )
    if outcome.branch:
        console.print(Text(f"Branch {outcome.branch} at {outcome.commit_sha[:12]}", style="bold"))
    if outcome.error_message:
        console.print(Text(plain(outcome.error_message), style="yellow"))


# The command.


_LAST_TASK = "\0"  # the value of --continue without a task


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a question. `files` is where its diff, the last of `changes`, can be
    applied.
    """

    outcome: Outcome
    files: Path | None
    changes: Sequence[Diff]


@click.command(
    epilog=example(
        'moothall ask "What does the retry decorator do?"',
        'moothall ask --continue "And where is it used?"',
    )
)
@click.argument("prompt", default="")
@click.option(
    "--continue",
    "continued_task",
    is_flag=False,
    flag_value=_LAST_TASK,
    default=None,
    metavar="[TASK]",
    shell_complete=complete.tasks,
    help="Continue TASK, or the last question about this repository, with its "
    "conversation and its files.",
)
@repository_options
@text_option
@click.option(
    "--role",
    default="DEV",
    show_default=True,
    shell_complete=complete.roles,
    help="Role of the agent: dev, qa, architect, devops, data, po.",
)
@click.option(
    "--server",
    default="",
    help="HOST:PORT of a `moothall serve`. --repo is then a name or path on that server.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token for --server; by default the token of this machine.",
)
@click.option("--yes", is_flag=True, help="Apply the diff to your files without asking.")
@click.option(
    "--timeout",
    type=SettingRange(1, "limits.deliberation_seconds"),
    help="Time limit in seconds; limits.deliberation_seconds by default.",
)
@click.option(
    "--turns",
    type=SettingRange(1, "limits.turns"),
    help="Maximum number of turns; limits.turns by default.",
)
@click.option(
    "--model",
    default="",
    help="Model from the settings: a name in [models], default, small, medium or large.",
)
@click.option("--seed", type=SEED, help="Base of the sampling seeds.")
@click.option(
    "--task-id", default="", help="Id of the task. The same id and prompt continue the same task."
)
@json_option
@verbose_option
@click.pass_context
@report_errors
def ask(
    context: click.Context,
    *,
    prompt: str,
    continued_task: str | None,
    repo: str,
    ref: str,
    profile: Path | None,
    text: bool,
    role: str,
    server: str,
    token_file: Path | None,
    yes: bool,
    timeout: int | None,
    turns: int | None,
    model: str,
    seed: int | None,
    task_id: str,
    as_json: bool,
    verbose: bool,
) -> None:
    """Let one agent answer PROMPT: a question in text, a task with a diff that you may apply.
    Without PROMPT, on a terminal, you are asked for it, and for the next.

    It works on the last commit of the current repository or of another one (--repo), or without a
    repository (--text).

    Exit codes: 0 an answer or a proven or reproduced change, 3 another change, 1 nothing, 2 wrong
    use, a broken part or a diff that --yes could not apply. A change is also left as branch
    moothall/<task_id>.
    """
    settings = settings_of(context, narrated=True)
    named = NamedRepository(repo, ref, text, profile)
    prompt, continued_task = _read_prompt(prompt, continued_task)
    request = DeliberationRequest(
        description=prompt,
        role=role,
        task_id=task_id,
        constraints=Constraints(max_iterations=turns or 0, timeout_seconds=timeout or 0),
        num_agents=1,
        protocol="ask",
        model=model,
        seed=seed,
    )
    options = AskOptions(
        settings, request, named, continued_task, server, token_file, as_json, verbose
    )
    if server:
        _check_remote(options)
    if not prompt:
        if as_json or yes or task_id or not sys.stdin.isatty():
            raise InvalidRequest(
                'there is no question: pass it (moothall ask "…"), or type it on a terminal, '
                "without --json, --yes and --task-id"
            )
        sys.exit(result_of(_converse(options)))
    _answer_once(options, yes=yes)


def _check_remote(options: AskOptions) -> None:
    """Raise `InvalidRequest` for an option that a remote server does not support."""
    if options.request.model:
        raise InvalidRequest(
            "a remote server chooses the model itself, by the role; leave --model out"
        )
    options.named.check_remote()


def _read_prompt(prompt: str, continued_task: str | None) -> tuple[str, str | None]:
    """Return the question and the task to continue. The value of --continue is the question if it
    is not an id and no question follows.
    """
    if continued_task is None or continued_task == _LAST_TASK:
        return prompt, None if continued_task is None else ""
    return (prompt, continued_task) if prompt or is_id(continued_task) else (continued_task, "")


async def _ask_once(options: AskOptions) -> _Answer:
    model_checked = await _check_early(options, options.request)
    # Imported late, as in `deliberate`.
    from moothall.cli.ask_session import open_ask_session

    printer = options.printer()
    with printer.live_display():
        async with open_ask_session(
            options, printer.report, printer.print_note, model_checked=model_checked
        ) as session:
            outcome = await session.ask(options.request.description, printer)
    return _Answer(outcome, session.files, session.changes)


def _answer_once(options: AskOptions, *, yes: bool) -> NoReturn:
    """Answer one question, apply the diff if the user wants it, and exit."""
    out = sys.stdout
    answer = result_of(_ask_once(options))
    outcome, diff = answer.outcome, answer.outcome.diff
    if not options.server:
        complete.remember(options.settings.data_dir, outcome.task_id)
    if not options.quiet:
        from rich.console import Console

        show_answer(Console(file=out, highlight=False), outcome)
    applied_paths: tuple[str, ...] = ()
    try:
        if diff and answer.files is None:
            print_status("not applied: the repository's files are not on this machine")
        elif diff and answer.files is not None and _is_wanted(yes=yes, quiet=options.quiet):
            applied_paths = _apply_changes(options.settings, answer.files, answer.changes)
    finally:
        if options.quiet:
            _document(out, outcome, applied_paths)
    sys.exit(exit_code(outcome, answers=True))


async def _converse(options: AskOptions) -> int:
    model_checked = await _check_early(options, replace(options.request, description="?"))
    from moothall.cli.ask_session import run_conversation

    return await run_conversation(options, model_checked=model_checked)


async def _check_early(options: AskOptions, request: DeliberationRequest) -> bool:
    if options.server:
        options.named.check()
        return False
    return await check_early(
        options.settings, request, options.named, stderr_reporter(quiet=options.quiet)
    )


def _is_wanted(*, yes: bool, quiet: bool) -> bool:
    """Return whether to apply the diff. Without a terminal, nobody can be asked."""
    if yes or quiet:
        return yes
    if not sys.stdin.isatty():
        print_status("not applied: there is no terminal to ask on; --yes applies without asking")
        return False
    try:
        return click.confirm("Apply this to your files?", default=False, err=True)
    except click.Abort:  # Ctrl-C or the end of input is a no
        print_status("\nnot applied")
        return False


def _apply_changes(settings: Settings, files: Path, changes: Sequence[Diff]) -> tuple[str, ...]:
    from moothall.app.command_repository import apply_conversation

    paths = result_of(apply_conversation(settings, files, *changes))
    print_status(f"applied to {', '.join(plain(path, 80) for path in paths)}")
    return paths


def _document(out: TextIO, outcome: Outcome, applied_paths: tuple[str, ...]) -> None:
    from moothall.cli.documents import answer_document

    click.echo(json.dumps(answer_document(outcome, applied_paths), indent=2), file=out)
