"""`moothall ask`: one agent, for a question or a change."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from moothall.cli import complete
from moothall.cli.exits import exit_code
from moothall.cli.options import example, json_option, repository_options, text_option, verbose_option
from moothall.cli.plain import plain, teller
from moothall.cli.run import errors_spoken, result_of, settings_of
from moothall.config import Settings
from moothall.domain.outcome import Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest
from moothall.wiring.early import Named, check_early

if TYPE_CHECKING:  # imported once the model server has answered
    from rich.console import Console

_LONG = 20_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """What came of it; `files` is where its diff can be applied."""

    outcome: Outcome
    files: Path | None


@click.command(epilog=example('moothall ask "What does the retry decorator do?"'))
@click.argument("prompt")
@repository_options
@text_option
@click.option(
    "--role",
    default="DEV",
    show_default=True,
    shell_complete=complete.roles,
    help="Whose eyes: dev, qa, architect, devops, data, po.",
)
@click.option(
    "--server", default="", help="HOST:PORT of a `moothall serve` to ask, by its kernel; --repo is then a name or path of its."
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Where the token for --server lies; this machine's own by default."
)
@click.option("--yes", is_flag=True, help="Apply the diff to your files without asking.")
@click.option("--timeout", type=int, default=0, help="Seconds for all of it.")
@click.option("--turns", type=int, default=0, help="Turns that the agent may take; limits.turns by default.")
@click.option("--model", default="", help="Of the settings: a name in [models], default, or small, medium, large.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Base of the sampling seeds.")
@click.option("--task-id", default="", help="An id of your own; the same id and prompt are the same task.")
@json_option
@verbose_option
@click.pass_context
@errors_spoken
def ask(
    context: click.Context,
    *,
    prompt: str,
    repo: str,
    ref: str,
    profile: Path | None,
    text: bool,
    role: str,
    server: str,
    token_file: Path | None,
    yes: bool,
    timeout: int,
    turns: int,
    model: str,
    seed: int | None,
    task_id: str,
    as_json: bool,
    verbose: bool,
) -> None:
    """Let one agent answer PROMPT: a question with words, a task with a diff that you may apply.

    It is about the last commit of the repository that you are in, of another one (--repo), or of none (--text).

    Exit codes: 0 an answer or a proven change, 3 an unproven change, 1 nothing, 2 wrong use, a broken part or a diff that
    --yes could not apply. A change is left as branch moothall/<task_id>, too.
    """
    request = DeliberationRequest(
        description=prompt,
        role=role,
        task_id=task_id,
        constraints=Constraints(max_iterations=turns, timeout_seconds=timeout),
        num_agents=1,
        protocol="ask",
        model=model,
        seed=seed,
    )
    settings, out = settings_of(context, narrated=True), sys.stdout
    named = Named(repo, ref, text, profile)
    if server and model:
        raise InvalidRequest("a server elsewhere chooses the model itself, by the role; leave --model out")
    if server and profile:
        raise InvalidRequest("a server elsewhere reads no --profile from here; register the repository with its commands there")
    if server:
        asked = result_of(_ask_server(settings, request, named, server, token_file, quiet=as_json, verbose=verbose))
    else:
        asked = result_of(_ask(settings, request, named, quiet=as_json, verbose=verbose))
    outcome, diff = asked.outcome, _diff(asked.outcome)
    if not server:
        complete.remember(settings.data_dir, outcome.task_id)
    if not as_json:
        from rich.console import Console

        show_answer(Console(file=out, highlight=False), outcome)
    applied: tuple[str, ...] = ()
    try:
        if diff and asked.files is None:
            click.echo("not applied: the repository's files are not on this machine", err=True)
        elif diff and asked.files is not None and _is_wanted(yes=yes, quiet=as_json):
            applied = _apply(settings, asked.files, diff)
    finally:
        if as_json:
            _document(out, outcome, applied)
    sys.exit(exit_code(outcome, answers=True))


async def _ask(settings: Settings, request: DeliberationRequest, named: Named, *, quiet: bool, verbose: bool) -> _Asked:
    asked = await check_early(settings, request, named, teller(quiet=quiet))
    # Only now, as in `deliberate`.
    from moothall.cli.council import hold_council
    from moothall.cli.narrator import Narrator
    from moothall.wiring.asking import asked_about, files_of, unseen
    from moothall.wiring.house import open_house

    narrator = Narrator(quiet=quiet, verbose=verbose, thoughts=True)
    repository = await asked_about(settings, named)
    if repository is not None:
        if said := await unseen(settings, repository, named.profile):
            narrator.note(said)
    elif not named.text:
        narrator.note("you are in no repository: this is about text alone")
    # Not on the configured default repository either: what is asked about is where one is.
    request = replace(request, repository=repository, about_text=repository is None)
    with narrator.watching():
        async with open_house(settings, narrator.say, asked=asked) as house:
            outcome = await hold_council(house.desk, request, narrator.take)
    return _Asked(outcome, files_of(settings, repository) if repository else None)


async def _ask_server(
    settings: Settings,
    request: DeliberationRequest,
    named: Named,
    server: str,
    token_file: Path | None,
    *,
    quiet: bool,
    verbose: bool,
) -> _Asked:
    """Ask a server elsewhere. What it has is not what is here: its diff is applied to the files that one is in, if it fits."""
    from moothall.cli.council import hold_council
    from moothall.cli.narrator import Narrator
    from moothall.wiring.asking import files_here, kernel_of, names

    named.check()
    narrator = Narrator(quiet=quiet, verbose=verbose, thoughts=True)
    files = None if named.text else await files_here(settings, named.repo)
    repository = None if named.text else names(RepositoryRef(url=named.repo, ref=named.ref), files)
    request = replace(request, repository=repository, about_text=repository is None)
    async with kernel_of(settings, server, token_file) as kernel:
        with narrator.watching():
            return _Asked(await hold_council(kernel, request, narrator.take), files)


def _is_wanted(*, yes: bool, quiet: bool) -> bool:
    """Whether the diff is to be applied; without a terminal nobody can be asked."""
    if yes or quiet:
        return yes
    if not sys.stdin.isatty():
        click.echo("not applied: there is no terminal to ask on; --yes applies without asking", err=True)
        return False
    try:
        return click.confirm("Apply this to your files?", default=False, err=True)
    except click.Abort:  # Ctrl-C or the end of input is a no
        click.echo("\nnot applied", err=True)
        return False


def _apply(settings: Settings, files: Path, diff: str) -> tuple[str, ...]:
    from moothall.wiring.asking import take_over

    paths = result_of(take_over(settings, files, diff))
    click.echo(f"applied to {', '.join(plain(path, 80) for path in paths)}", err=True)
    return paths


def _diff(outcome: Outcome) -> str:
    return outcome.results[0].diff if outcome.winner_id and outcome.results else ""


def _document(out: TextIO, outcome: Outcome, applied: tuple[str, ...]) -> None:
    from moothall.cli.documents import answer_document

    click.echo(json.dumps(answer_document(outcome, applied), indent=2), file=out)


def show_answer(console: Console, outcome: Outcome) -> None:
    """Print the answer and the diff, without their control characters; or why there is none."""
    from rich.syntax import Syntax
    from rich.text import Text

    from moothall.cli.show import changed_lines

    if not outcome.winner_id or not outcome.results:
        console.print(Text(f"No answer. {plain(outcome.error_message)}", style="bold red"))
        for seat in outcome.seats:
            if seat.error_code:
                console.print(Text(plain(f"{seat.error_message} [{seat.error_code}]"), style="yellow"))
        return
    winner = outcome.results[0]
    console.print(Text(plain(winner.content, _LONG)))
    if winner.diff:
        readable = "\n".join(line for line in winner.diff.splitlines() if not line.startswith("index "))
        console.print(Syntax(plain(readable, _LONG), "diff", background_color="default", word_wrap=True))
        added, removed = changed_lines(winner.diff)
        paths = [line.split(" b/", 1)[-1] for line in winner.diff.splitlines() if line.startswith("diff --git ")]
        console.print(Text(f"{len(paths)} files, +{added} -{removed}: {', '.join(plain(path, 80) for path in paths)}"))
        if len(readable) > _LONG:
            console.print(Text(f"Only the first {_LONG} characters of the diff are shown.", style="bold yellow"))
        proven = "a test that failed before passes" if outcome.proven else "no test proves it"
        checks = ", ".join(f"{plain(name, 40)} {verdict}" for name, verdict in winner.checks.items() if name != "applies")
        console.print(Text(f"{proven}; {checks}" if checks else proven, style="green" if outcome.proven else "yellow"))
    if outcome.branch:
        console.print(Text(f"Branch {outcome.branch} at {outcome.commit_sha[:12]}", style="bold"))
    if outcome.error_message:
        console.print(Text(plain(outcome.error_message), style="yellow"))
