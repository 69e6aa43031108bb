"""Where `moothall ask` puts its questions: a server of this machine, or a server elsewhere. One
after the other they are a conversation.
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
from moothall.cli.council import hold_council
from moothall.cli.progress import ProgressPrinter
from moothall.concurrency import say_if_slow
from moothall.domain.event import EventType, Recorded
from moothall.domain.identity import LOCAL
from moothall.domain.outcome import Outcome
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from moothall.api.remote import RemoteKernel
    from moothall.app.tasks import Tasks
    from moothall.orchestrator.service import DeliberationService


@dataclass(slots=True)
class AskSession:
    """Where questions are put. `request` is the first of a conversation about the files `home`.
    `files` is where diffs can be applied, `follows` the task before the next question, `own_base`
    whether that begins on what `request` names all the same; `changes` are the diffs of the
    conversation so far.
    """

    deliberations: DeliberationService | RemoteKernel
    request: DeliberationRequest
    home: Path | None
    files: Path | None = None
    follows: str = ""
    own_base: bool = False
    changes: list[Diff] = field(default_factory=list)

    def begin(self) -> None:
        """Begin another conversation."""
        self.files, self.follows = self.home, ""
        self.changes.clear()

    async def put(self, prompt: str, printer: ProgressPrinter) -> Outcome:
        """Put a question and follow it to its end. One before it that has not ended is waited for.
        Interrupted, it is cancelled, and the next goes on from there.
        """
        if self.follows:
            with say_if_slow(printer.note, f"{self.follows}, which is under way"):
                before = (await self.deliberations.wait(self.follows, LOCAL)).diff
            if before and before not in {change.diff for change in self.changes}:
                self.changes.append(Diff(before))
        request, base = replace(self.request, description=prompt, follows=self.follows), ""
        if self.follows and not self.own_base:
            request = replace(request, repository=None, about_text=False)

        def take(recorded: Recorded) -> None:
            nonlocal base
            if recorded.event.type is EventType.DELIBERATION_REQUESTED:
                base, self.follows = (
                    str(recorded.event.data.get("base_sha") or ""),
                    recorded.event.subject,
                )
                self.request, self.own_base = replace(self.request, task_id=""), False
            printer.take(recorded)

        outcome = await hold_council(self.deliberations, request, take)
        if outcome.diff:
            self.changes.append(Diff(outcome.diff, base))
        return outcome


@asynccontextmanager
async def open_door(
    asking: AskOptions,
    report_progress: Callable[[str], None],
    note: Callable[[str], None],
    *,
    asked: bool,
) -> AsyncIterator[AskSession]:
    """Open where the questions are put. `report_progress` hears what is being set up, `note` what
    should not
    be missed; `asked` as of `open_house`.

    Raises `NotFound` where there is no conversation that could go on.
    """
    if asking.server:
        async with _server(asking) as door:
            yield door
        return
    from moothall.app.server import open_app
    from moothall.app.tasks import tasks_of

    settings, named = asking.settings, asking.named
    repository = await find_repository(settings, named)
    begins = asking.goes_on is None or bool(named.ref)
    if repository is None and begins and not named.text:
        note("you are in no repository: this is about text alone")
    elif (
        repository is not None
        and begins
        and (words := await unseen(settings, repository, named.profile))
    ):
        note(words)
    # Not on the configured default repository either: what is asked about is where one is.
    request = replace(asking.request, repository=repository, about_text=repository is None)
    async with open_app(settings, report_progress, model_checked=asked) as app:
        yield await _local(asking, request, app.deliberations, tasks_of(settings, app))


async def _local(
    asking: AskOptions,
    request: DeliberationRequest,
    deliberations: DeliberationService,
    tasks: Tasks,
) -> AskSession:
    """Return the door to a server of this machine, with the conversation that goes on."""
    from moothall.app.tasks import files_for

    repository = request.repository
    files = files_of(asking.settings, repository) if repository else None
    if asking.goes_on is None:
        return AskSession(deliberations, request, files, files)
    follows = await _before(request, tasks, asking.goes_on)
    await tasks.check_not_paused(follows)
    own_base = bool(asking.named.ref or asking.named.text)
    there = files if own_base else await files_for(asking.settings, await tasks.repository(follows))
    return AskSession(
        deliberations, request, files, there, follows, own_base, list(await tasks.changes(follows))
    )


async def _before(request: DeliberationRequest, tasks: Tasks, named: str) -> str:
    """Return the task that was named, or the last one about this repository; of a question that was
    put before, what came before that.
    """
    if request.task_id and (known := await tasks.thread(request.task_id)) and known[-1].follows:
        return known[-1].follows
    if named:
        return await tasks.find(named)
    about = request.repository.id if request.repository else ""
    if not (last := await tasks.latest_question(about, request.task_id)):
        raise NotFound(
            f"nothing was asked about {about or 'text'} yet: leave --continue out, or name a task "
            "(--continue TASK)"
        )
    return last


@asynccontextmanager
async def _server(asking: AskOptions) -> AsyncIterator[AskSession]:
    """A server elsewhere. What it has is not what is here: its diffs are applied to the files that
    one is in, if they fit.
    """
    named, settings = asking.named, asking.settings
    named.check()
    if asking.goes_on == "":
        raise InvalidRequest(
            "a server elsewhere does not say which task was the last: name it, --continue TASK"
        )
    files = None if named.text else await files_here(settings, named.repo)
    repository = None if named.text else names(RepositoryRef(url=named.repo, ref=named.ref), files)
    request = replace(asking.request, repository=repository, about_text=repository is None)
    async with kernel_of(settings, asking.server, asking.token_file) as kernel:
        yield AskSession(
            kernel, request, files, files, asking.goes_on or "", bool(named.ref or named.text)
        )
