"""`moothall judge`: a verdict on a change that somebody else made. The change and the task that
the URL of a pull request or an issue names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO
from urllib.parse import urlsplit

import click

from moothall.app.preflight import NamedRepository, check_early, check_request
from moothall.cli import options
from moothall.cli.options import SEED, SettingRange, example, json_option, verbose_option
from moothall.cli.runtime import EXIT_NONE, EXIT_UNPROVEN, exit_code, stderr_reporter, with_settings
from moothall.cli.verdict import LEVELS, JudgementLog, VerdictDocument, make_verdict
from moothall.cli.verdict_formats import findings, headline, verdict_markdown
from moothall.config import ForgeSettings, Settings
from moothall.domain.ids import LOCAL
from moothall.domain.outcome import Outcome
from moothall.domain.task import Constraints, DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound, Refused

if TYPE_CHECKING:
    from moothall.cli.council import ProgressPrinter
    from moothall.domain.event import Recorded


# The change and the task that the URL of a pull request or an issue names.


_ROOT, _NAME, _GROUPS = (
    r"^(?P<root>https?://[^/?#@\s]+)/",
    r"(?P<name>[^/?#\s]+/[^/?#\s]+)/",
    r"(?P<name>[^/?#\s]+(?:/[^/?#\s]+)+)/-/",  # on GitLab
)
_PULLS = (
    re.compile(rf"{_ROOT}{_GROUPS}merge_requests/(?P<number>\d+)"),
    re.compile(rf"{_ROOT}{_NAME}pulls?/(?P<number>\d+)"),
)
_ISSUES = (
    re.compile(rf"{_ROOT}{_GROUPS}(?:issues|work_items)/(?P<number>\d+)"),
    re.compile(rf"{_ROOT}{_NAME}issues/(?P<number>\d+)"),
)


_STATUS_CONTEXT, _STATUS_CHARS, _SUMMARY_CHARS = "moothall/judge", 140, 60_000
_MAX_ANNOTATIONS = 50  # of a request; GitHub refuses more
_ANNOTATION_LEVELS = {"error": "failure", "warning": "warning", "note": "notice"}


@dataclass(frozen=True, slots=True)
class JudgedPull:
    """A pull request: its repository (an id or URL), the refs of base and head, and its text."""

    repository: str
    base: str
    head: str
    task: str


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an issue or pull request: its forge, its repository (owner/name), its number."""

    forge: ForgeSettings
    name: str
    number: int


async def read_pull(settings: Settings, url: str) -> JudgedPull:
    """Return the pull request at a URL. Raises `InvalidRequest`, and errors of the forge."""
    from moothall.forge.client import forge_client

    place = _locate(settings, _PULLS, url, "a pull request, such as https://HOST/OWNER/NAME/pull/7")
    async with forge_client(place.forge, anonymous=True) as client:
        pull = await client.pull(place.name, place.number)
        return JudgedPull(
            await _register(settings, place),
            pull.onto,
            # The branch of a fork is in another repository; the forge offers it here too.
            client.pull_ref(place.number),
            _text(pull.title, pull.body),
        )


async def set_status(settings: Settings, url: str, verdict: VerdictDocument) -> None:
    """Publish the verdict on the pull request at a URL: as a check run with annotations, if the
    forge has these and the token may create them, else as a commit status. Raises
    `ConfigurationError` without a token for its forge, and errors of the forge.
    """
    from moothall.forge.client import forge_client

    place = _locate(settings, _PULLS, url, "a pull request")
    conclusion, title = "success" if verdict.accepted else "failure", headline(verdict)
    async with forge_client(place.forge) as client:
        if place.forge.kind == "github":
            output = {
                "title": title[:_STATUS_CHARS],
                "summary": verdict_markdown(verdict)[:_SUMMARY_CHARS],
                "annotations": list(_annotations(verdict))[:_MAX_ANNOTATIONS],
            }
            # Only the tokens of a GitHub App may create check runs, not those of a person.
            with suppress(Refused, NotFound):
                await client.create_check_run(
                    place.name,
                    verdict.head,
                    name=_STATUS_CONTEXT,
                    conclusion=conclusion,
                    output=output,
                )
                return
        await client.set_status(
            place.name, verdict.head, conclusion, _STATUS_CONTEXT, title[:_STATUS_CHARS]
        )


def _annotations(verdict: VerdictDocument) -> Iterator[Mapping[str, Any]]:
    """Yield the findings that are about lines of a file, or about the whole file, as annotations
    of a check run.
    """
    for finding in findings(verdict):
        for location in finding.get("locations", ()):
            place = location["physicalLocation"]
            region = place.get("region", {"startLine": 1, "endLine": 1})
            yield {
                "path": place["artifactLocation"]["uri"],
                "start_line": region["startLine"],
                "end_line": region["endLine"],
                "annotation_level": _ANNOTATION_LEVELS[finding["level"]],
                "message": finding["message"]["text"],
            }


async def read_issue(settings: Settings, url: str) -> str:
    """Return the text of the issue at a URL. Raises `InvalidRequest` and what the forge's client
    raises.
    """
    from moothall.forge.client import forge_client

    place = _locate(settings, _ISSUES, url, "an issue, such as https://HOST/OWNER/NAME/issues/7")
    async with forge_client(place.forge, anonymous=True) as client:
        issue = await client.issue(place.name, place.number)
    return _text(issue.title, issue.body)


def _text(title: str, body: str) -> str:
    return "\n\n".join(part.strip() for part in (title, body) if part.strip())


def _locate(
    settings: Settings, patterns: Sequence[re.Pattern[str]], url: str, expected: str
) -> _Place:
    """Return the place that a URL names. Only the configured forge receives the token."""
    configured = settings.forge
    root = configured.url.rstrip("/")
    prefix, path = (root, url[len(root) :]) if url.startswith(f"{root}/") else ("", "")
    matched = f"https://forge{path}" if prefix else url
    match = next((candidate for pattern in patterns if (candidate := pattern.match(matched))), None)
    if match is None:
        raise InvalidRequest(f"{url[:200]!r} is not the URL of {expected}")
    if prefix:
        return _Place(configured, match["name"], int(match["number"]))
    host = urlsplit(match["root"]).hostname
    kind: Literal["github", "gitea", "gitlab"] = (
        "github" if host == "github.com" else "gitlab" if match.re is patterns[0] else "gitea"
    )
    forge = ForgeSettings(kind=kind, url=match["root"])
    return _Place(forge, match["name"], int(match["number"]))


async def _register(settings: Settings, place: _Place) -> str:
    """Return the id of the repository at the configured forge, which may need a credential, or the
    URL of another one.
    """
    from moothall.app.repositories import trusted_repositories
    from moothall.cli.serve import credential_of

    url = f"{place.forge.url.rstrip('/')}/{place.name}.git"
    if place.forge is not settings.forge or settings.forge.token is None:
        return url
    registry = trusted_repositories(settings)
    registered = registry.registry.of_origin(url, LOCAL.tenant)
    credential = (registered.credential if registered else "") or credential_of(settings.forge)
    return (await registry.register(url, credential=credential)).id


# `moothall judge`: a verdict on a change that somebody else made.


_NO_MODEL = "none"


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a verdict is written to."""

    sarif: Path | None
    statement: Path | None
    key: Path | None
    summary: Path | None


@click.command(
    epilog=example(
        "moothall judge --base main --head feature",
        "moothall judge --head feature --require reproduced --statement verdict.json",
        "moothall judge --pr https://git.example/owner/name/pulls/7 --model none",
    )
)
@click.option(
    "--base",
    default="main",
    show_default=True,
    help="Branch, tag or commit that the change goes into. It is judged on their merge base.",
)
@click.option(
    "--head", default="HEAD", show_default=True, help="Branch, tag or commit with the change."
)
@click.option("--task", default="", help="What the change should do; by default its messages.")
@click.option("--issue", default="", metavar="URL", help="Issue whose text is the task.")
@click.option(
    "--pr",
    "pull",
    default="",
    metavar="URL",
    help="Pull request to judge: it names repository, base, head and task.",
)
@click.option(
    "--repo",
    default="",
    shell_complete=options.repositories,
    help="Path, URL or id of a registered repository; by default that of the current folder.",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File like .moothall.toml to use instead of the repository's own.",
)
@click.option(
    "--require",
    "required",
    type=click.Choice(LEVELS),
    default=LEVELS[0],
    show_default=True,
    help="Lowest level of evidence for exit code 0; unproven: nothing is broken.",
)
@click.option(
    "--rivals",
    type=SettingRange(0, "limits.agents"),
    default=0,
    help="Seats that solve the same task, as a comparison; 0 by default.",
)
@click.option(
    "--model",
    default="",
    help="Model from the settings; none for tests alone, which is the default without a server.",
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
    help="Tests that the author has not seen, as in `moothall deliberate`; repeatable.",
)
@click.option(
    "--timeout",
    "seconds",
    type=SettingRange(1, "limits.deliberation_seconds"),
    help="Time limit in seconds; limits.deliberation_seconds by default.",
)
@click.option("--seed", type=SEED, help="Base of the sampling seeds.")
@click.option("--task-id", default="", help="Id of the judgement.")
@click.option(
    "--server",
    default="",
    help="HOST:PORT of a `moothall serve`, which judges with its model. --repo is then a URL, or "
    "the id of a repository that is registered there.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token for --server; by default grpc.token or the token of this machine.",
)
@click.option("--sarif", type=click.Path(path_type=Path), help="Write the findings as SARIF 2.1.0.")
@click.option(
    "--statement",
    type=click.Path(path_type=Path),
    help="Write the verdict as a signed in-toto statement, which `moothall verify` checks.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Private Ed25519 key (PEM) of the statement; by default one in the data directory.",
)
@click.option(
    "--summary", type=click.Path(path_type=Path), help="Append the verdict to a Markdown file."
)
@click.option(
    "--status",
    is_flag=True,
    help="With --pr: set the commit status moothall/judge, or on GitHub a check run with "
    "annotations if the token may; needs the token of [forge].",
)
@json_option
@verbose_option
@with_settings()
async def judge(
    settings: Settings,
    *,
    base: str,
    head: str,
    task: str,
    issue: str,
    pull: str,
    repo: str,
    profile: Path | None,
    required: str,
    rivals: int,
    model: str,
    checks: tuple[str, ...],
    hidden: tuple[str, ...],
    seconds: int | None,
    seed: int | None,
    task_id: str,
    server: str,
    token_file: Path | None,
    sarif: Path | None,
    statement: Path | None,
    key: Path | None,
    summary: Path | None,
    status: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Judge a change that somebody else made, as the answers of a council are judged: the checks on
    a clean checkout with the tests of the base, a canary, screening, and the change's own tests.
    With a model also a test writer that sees only the task, and a review. Nothing is changed or
    delivered.

    Exit codes: 0 nothing is broken and the level of evidence is at least --require, 3 otherwise, 1
    no verdict, 2 wrong use or a broken part.
    """
    _check_options(key, statement, pull, status=status)
    change = _Change(NamedRepository(repo, base, profile=profile), head, task)
    change = await _find_change(settings, change, pull, issue)
    asks_model = model != _NO_MODEL and bool(model or server or _has_model(settings))
    request = replace(
        _request(change, rivals, checks, seed, seconds),
        task_id=task_id,
        model=model if asks_model else "",
        tests_only=not asks_model,
        hidden_tests=await _read_hidden(settings, change.named, hidden) if hidden else {},
    )
    out = sys.stdout  # kept, because later prints go to stderr
    watcher = _Watcher(quiet=as_json, verbose=verbose)
    outcome = await _judge(settings, request, change.named, watcher, server, token_file=token_file)
    verdict = make_verdict(outcome, watcher.log, required)
    _write_files(settings, verdict, _Files(sarif, statement, key, summary))
    _print(verdict, out, as_json=as_json)
    if status:
        await set_status(settings, pull, verdict)
    if verdict.finding == "none":
        return exit_code(outcome) or EXIT_NONE
    return 0 if verdict.accepted else EXIT_UNPROVEN


def _check_options(key: Path | None, statement: Path | None, pull: str, *, status: bool) -> None:
    """Raise `InvalidRequest` for an option that needs another one."""
    if key is not None and statement is None:
        raise InvalidRequest("--key signs the statement; name its file with --statement")
    if status and not pull:
        raise InvalidRequest("--status sets the status of a pull request; name it with --pr")


async def _find_change(settings: Settings, change: _Change, pull: str, issue: str) -> _Change:
    """Return the change with what a pull request and an issue of a forge add."""
    if pull:
        judged = await read_pull(settings, pull)
        named = replace(change.named, repo=change.named.repo or judged.repository, ref=judged.base)
        change = _Change(named, judged.head, change.task or judged.task)
    if issue and not change.task:
        change = replace(change, task=await read_issue(settings, issue))
    return change


@dataclass(frozen=True, slots=True)
class _Change:
    """The change to judge: its repository with the base, its head, and its task."""

    named: NamedRepository
    head: str
    task: str


def _request(
    change: _Change, rivals: int, checks: tuple[str, ...], seed: int | None, seconds: int | None
) -> DeliberationRequest:
    return DeliberationRequest(
        description=change.task,
        role="dev",
        protocol="judge",
        head=change.head,
        num_agents=rivals + 1,
        checks=checks,
        seed=seed,
        constraints=Constraints(timeout_seconds=seconds or 0),
    )


def _has_model(settings: Settings) -> bool:
    """Return whether a model server is configured. The embedded model is too small to judge."""
    return any(llm.base_url is not None for _, llm in settings.choice.items())


async def _read_hidden(
    settings: Settings, named: NamedRepository, arguments: tuple[str, ...]
) -> dict[str, str]:
    from moothall.app.command_repository import files_here
    from moothall.cli.deliberate import read_hidden_tests

    return read_hidden_tests(arguments, await files_here(settings, named.repo))


class _Watcher:
    """Shows the events of a judgement, and stores what the verdict needs of them.

    The modules that it works with are imported late: this takes a second, and an invalid request is
    reported before.
    """

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self.quiet, self.log = quiet, JudgementLog()
        self._verbose = verbose

    def open(self) -> tuple[ProgressPrinter, Callable[[Recorded], None]]:
        """Return the printer, and the function that takes events."""
        from moothall.cli.council import ProgressPrinter

        printer = ProgressPrinter(quiet=self.quiet, verbose=self._verbose)

        def on_event(recorded: Recorded) -> None:
            self.log.add_event(recorded)
            printer.show_event(recorded)

        return printer, on_event


async def _judge(
    settings: Settings,
    request: DeliberationRequest,
    named: NamedRepository,
    watcher: _Watcher,
    server: str,
    *,
    token_file: Path | None,
) -> Outcome:
    if not server:
        return await _judge_here(settings, request, named, watcher)
    return await _judge_remotely(settings, request, named, watcher, server, token_file=token_file)


async def _judge_here(
    settings: Settings, request: DeliberationRequest, named: NamedRepository, watcher: _Watcher
) -> Outcome:
    report_progress = stderr_reporter(quiet=watcher.quiet)
    if request.tests_only:
        check_request(settings, request)
        model_checked = True
    else:
        model_checked = await check_early(settings, request, named, report_progress)
    from moothall.app.command_repository import find_repository
    from moothall.app.server import open_app
    from moothall.cli.council import run_deliberation

    repository = await find_repository(settings, named)
    if repository is None:
        raise InvalidRequest("the current folder is not in a git repository: name one with --repo")
    request = replace(request, repository=repository)
    printer, on_event = watcher.open()
    with printer.live_display():
        async with open_app(
            settings,
            printer.report,
            model_checked=model_checked,
            asks_model=not request.tests_only,
        ) as app:
            outcome = await run_deliberation(app.deliberations, request, on_event)
            printer.stop_live()
            options.remember(settings.data_dir, outcome.task_id)
    return outcome


async def _judge_remotely(
    settings: Settings,
    request: DeliberationRequest,
    named: NamedRepository,
    watcher: _Watcher,
    server: str,
    *,
    token_file: Path | None,
) -> Outcome:
    named.check_remote()
    from moothall.app.command_repository import files_here, kernel_of, names
    from moothall.cli.council import run_deliberation

    files = await files_here(settings, named.repo)
    reference = RepositoryRef.from_name(named.repo, named.ref)
    if files is not None or not reference.id:
        named_here = names(RepositoryRef(url=named.repo, ref=named.ref), files)
        if named_here is None:
            raise InvalidRequest("name the repository that the server knows with --repo")
        reference = named_here
    printer, on_event = watcher.open()
    async with kernel_of(settings, server, token_file) as kernel:
        with printer.live_display():
            return await run_deliberation(kernel, replace(request, repository=reference), on_event)


def _write_files(settings: Settings, verdict: VerdictDocument, files: _Files) -> None:
    """Write the requested files. Raises `InvalidRequest` if one cannot be written."""
    try:
        if files.sarif is not None:
            from moothall.cli.verdict_formats import sarif_document

            files.sarif.write_text(sarif_document(verdict), encoding="utf-8")
        if files.statement is not None:
            from moothall.cli.verdict_formats import load_signing_key, sign_verdict

            key = load_signing_key(files.key, settings.data_dir)
            files.statement.write_text(sign_verdict(verdict, key), encoding="utf-8")
        if files.summary is not None:
            from moothall.cli.verdict_formats import verdict_markdown

            with files.summary.open("a", encoding="utf-8") as file:
                file.write(verdict_markdown(verdict))
    except OSError as error:
        raise InvalidRequest(f"{error.filename} cannot be written: {error.strerror}") from error


def _print(verdict: VerdictDocument, out: TextIO, *, as_json: bool) -> None:
    if as_json:
        from moothall.cli.runtime import print_json
        from moothall.domain.codec import dump

        print_json(dump(verdict), out)
        return
    from rich.console import Console

    from moothall.cli.verdict_formats import show_verdict

    show_verdict(Console(file=out, highlight=False), verdict)
