"""Sessions of `moothall ask` at a server of this machine or a remote one. Consecutive questions are
a conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.app.repository import (
    Diff,
    files_here,
    files_of,
    find_repository,
    kernel_of,
    names,
    unseen,
)
from moothall.cli.ask_options import AskOptions
from moothall.cli.council import run_deliberation
from moothall.cli.progress import ProgressPrinter
from moothall.concurrency import say_if_slow
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import LOCAL
from moothall.domain.ids import TaskId
from moothall.domain.outcome import Outcome
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from moothall.api.remote import RemoteKernel
    from moothall.app.tasks import Tasks
    from moothall.orchestrator.service import DeliberationService


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
            with say_if_slow(printer.print_note, f"{self.follows}, which is under way"):
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
    is_new = options.goes_on is None or bool(named.ref)
    if repository is None and is_new and not named.text:
        note("you are in no repository: this is about text alone")
    elif (
        repository is not None
        and is_new
        and (warning := await unseen(settings, repository, named.profile))
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
    if options.goes_on is None:
        return AskSession(deliberations, request, files, files)
    follows = await _find_previous_task(request, tasks, options.goes_on)
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
            f"nothing was asked about {subject or 'text'} yet: leave --continue out, or name a "
            "task (--continue TASK)"
        )
    return latest


@asynccontextmanager
async def _open_remote_session(options: AskOptions) -> AsyncIterator[AskSession]:
    """Open a session at a remote server. Its diffs are applied to the current files, if they
    fit.
    """
    named, settings = options.named, options.settings
    named.check()
    if options.goes_on == "":
        raise InvalidRequest(
            "a remote server does not say which task was the last: name it, --continue TASK"
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
            TaskId(options.goes_on or ""),
            bool(named.ref or named.text),
        )
