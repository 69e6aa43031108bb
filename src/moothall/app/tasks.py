"""The stories and tasks of a data directory, for commands. They are read from the log only, of the
serving process or without one.

Listing tasks needs only the log, and is done often: what else is needed is imported where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.app import preflight
from moothall.app.bus import Bus, ReportProgress, is_served, open_log
from moothall.collector.fold import DeliberationState, fold
from moothall.collector.overview import Overview
from moothall.collector.timeline import ModelCall, Timeline
from moothall.config import Settings
from moothall.domain.event import Channel, deliberation_topics
from moothall.domain.ids import LOCAL, TaskId, check_task_id, find_seat, is_id, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.status import TaskView
from moothall.domain.task import RepositoryRef
from moothall.errors import ConfigurationError, GraphUnavailable, InvalidRequest, NotFound
from moothall.events.registry import EVENTS

if TYPE_CHECKING:
    from moothall.app.command_repository import Diff
    from moothall.app.server import App
    from moothall.authorization.budgets import StoryBudgets
    from moothall.orchestrator.service import DeliberationService
    from moothall.stories.board import Board
    from moothall.stories.planner import Planner

_CANCEL_SECONDS = 10.0
_MAX_TASKS = 200
_EVENTS_PER_TASK, _GROWTH = 10, 8  # events that are read at first, and the factor if too few
_NONE = TaskView(TaskId(""), DeliberationStatus.PENDING)


class Tasks:
    """The tasks of this machine's own tenant.

    active_states: returns the states of all active deliberations, if this process knows them;
    None: they are read from the log.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        *,
        served: bool,
        active_states: Callable[[], Sequence[DeliberationState]] | None = None,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._active_states = active_states
        self.served = served
        """Whether another process works on them."""

    @cached_property
    def deliberations(self) -> DeliberationService:
        """The deliberation service of this data directory."""
        from moothall.app.repositories import trusted_repositories
        from moothall.orchestrator.request_planning import Defaults
        from moothall.orchestrator.service import DeliberationService

        repositories = trusted_repositories(self._settings)
        return DeliberationService(self._bus, repositories, Defaults(self._settings.limits))

    async def latest(
        self, state: str = "", limit: int = 50, *, query: str = "", first: int = 0
    ) -> Sequence[TaskView]:
        """Return the latest tasks, active ones first. `state` narrows: live, ended, failed; `query`
        to those that contain its words. `first` is the index of the first one.
        """
        active = [] if state in {"ended", "failed"} else await self._list_active()
        last_seq = (await self._bus.state(EVENTS.name)).last_seq
        # Reading all outcomes of a long log takes seconds, and the latest are at its end.
        count = 0 if state == "live" else (first + limit) * _EVENTS_PER_TASK
        while True:
            after_seq = max(0, last_seq - count)
            overview = Overview(self._bus, lambda: active, after_seq)
            views = await overview.list_tasks(LOCAL, state, limit, query=query, first=first)
            if len(views) == limit or not after_seq or state == "live":
                return views
            count *= _GROWTH

    async def latest_question(self, repository: str, excluded_id: str = "") -> TaskId:
        """Return the id of the latest question to one agent about a repository ('': about text),
        except the task `excluded_id`; or an empty id.
        """
        views = [
            view
            for view in await self.latest(limit=_MAX_TASKS)
            if (view.protocol, view.repository) == ("ask", repository)
        ]
        return max(
            (view for view in views if view.task_id != excluded_id),
            key=lambda view: view.requested,
            default=_NONE,
        ).task_id

    async def check_not_paused(self, task_id: TaskId) -> None:
        """Raise `InvalidRequest` if the task is paused, because it would not end."""
        state = await self._state(task_id)
        if state is not None and state.decided is None and state.pauses.is_paused:
            raise InvalidRequest(
                f"{task_id} is paused: resume it (its page, ResumeDeliberation, `moothall agents "
                f"resume`), or run `moothall cancel {task_id}`"
            )

    async def thread(self, task_id: TaskId) -> Sequence[TaskView]:
        """Return the tasks of a conversation up to this one, oldest first; empty if the task is
        unknown.
        """
        active = await self._list_active()
        try:
            return await Overview(self._bus, lambda: active).get_conversation(task_id, LOCAL)
        except NotFound:
            return ()

    async def timeline(self, task_id: TaskId) -> Timeline:
        """Return the timeline of a task. Raises `NotFound`."""
        return (await Overview(self._bus, list).get_details(task_id, LOCAL))[1]

    async def model_calls(self, task_id: TaskId) -> Mapping[str, ModelCall]:
        """Return the model calls of a task by step. Raises `NotFound`."""
        return await Overview(self._bus, list).get_model_calls(task_id, LOCAL)

    async def changes(self, task_id: TaskId) -> Sequence[Diff]:
        """Return the diffs of the task's conversation, oldest first."""
        from moothall.app.command_repository import Diff

        outcomes = [
            (await self.outcome(view.task_id), view.base_sha) for view in await self.thread(task_id)
        ]
        return [Diff(diff, base) for outcome, base in outcomes if (diff := outcome.diff)]

    async def views(self, task_ids: Sequence[TaskId]) -> Mapping[TaskId, TaskView]:
        """Return the views of tasks by id. Unknown tasks are left out."""
        active = await self._list_active() if task_ids else []
        return await Overview(self._bus, lambda: active).find_tasks(task_ids, LOCAL)

    async def ids(self) -> Sequence[TaskId]:
        """Return the ids of all tasks of this tenant in the log."""
        return [TaskId(name) for name in await self._bus.list_ids(Channel.RESULTS) if is_id(name)]

    async def find(self, reference: str, *, exact: bool = False) -> TaskId:
        """Return the id of a task, given as a whole id or, unless `exact`, a unique prefix.

        Raises `InvalidRequest` if `reference` is not an id (the empty text, for example), and
        `NotFound`.
        """
        task_id = check_task_id(reference, "the task")
        if await self._exists(task_id):
            return task_id
        matches = [task for task in await self.ids() if task.startswith(reference)]
        if len(matches) == 1 and not exact:
            return matches[0]
        hint = (
            f"did you mean {', '.join(matches[:5])}?" if matches else "`moothall list` shows them"
        )
        raise NotFound(f"no task {reference!r}; {hint}")

    async def find_or_latest(self, reference: str | None) -> TaskId:
        """Return the id as `find` does, or for None the id of the latest task. Raises what `find`
        raises.
        """
        if reference is not None:
            return await self.find(reference)
        views = await self.latest(limit=1)
        if not views:
            raise NotFound("there are no tasks yet; `moothall deliberate` starts one")
        return views[0].task_id

    async def choose(self, reference: str | None, seat: str = "") -> tuple[TaskId, Result]:
        """Return a task's id and the result of its winner, or of `seat` (a name, the end of one, or
        a number).

        If `reference` is a seat of the latest task and not a task, that seat is meant. Raises
        `NotFound`, and `InvalidRequest` while the task is running.
        """
        task = reference
        if reference and not seat and await self._is_seat_of_latest(reference):
            task, seat = None, reference
        try:
            task_id = await self.find_or_latest(task)
        except NotFound as error:
            if reference and reference.isdecimal():
                raise NotFound(
                    f"{error.message}. A seat's number follows the task: TASK {reference}"
                ) from error
            raise
        outcome = await self.outcome(task_id)
        if not outcome.status.ended:
            raise InvalidRequest(await self._describe_running(task_id))
        return task_id, choose_result(outcome, seat)

    async def _exists(self, task_id: TaskId) -> bool:
        topic = Channel.RESULTS.of(key_of(task_id, LOCAL.tenant))
        return await self._bus.first(topic) is not None

    async def _is_seat_of_latest(self, reference: str) -> bool:
        if is_id(reference) and await self._exists(TaskId(reference)):
            return False
        if not (views := await self.latest(limit=1)):
            return False
        seats = {seat.seat for seat in views[0].seats}
        if views[0].status.ended:
            seats |= {result.seat for result in (await self.outcome(views[0].task_id)).results}
        return find_seat(reference, sorted(seats)) is not None

    async def _describe_running(self, task_id: TaskId) -> str:
        view = (await self.views([task_id])).get(task_id, _NONE)
        text = (
            f"{task_id} is {'paused' if view.paused else 'still running'} ({view.progress} %); it "
            "has no result yet. "
        )
        if not self.served:
            text += "No process works on it: `moothall serve` resumes it. "
        return text + (
            f"`moothall show {task_id}` shows its seats, `moothall log tail --task {task_id} "
            "--follow` its events"
        )

    async def outcome(self, task_id: TaskId) -> Outcome:
        """Return the outcome of a task so far. Raises `NotFound`."""
        return await self.deliberations.result(task_id, LOCAL)

    async def repository(self, task_id: TaskId) -> RepositoryRef | None:
        """Return the repository of a task; None for text."""
        topic = Channel.RESULTS.of(key_of(task_id, LOCAL.tenant))
        recorded = await self._bus.first(topic)
        reference = recorded.event.data.get("repository") if recorded else None
        return (
            RepositoryRef(id=str(reference["id"]))
            if isinstance(reference, dict) and reference.get("id")
            else None
        )

    async def forget(self, task_id: TaskId) -> None:
        """Remove the task's events and its status document. Raises `InvalidRequest` while it is
        active.
        """
        if not (await self.outcome(task_id)).status.ended:
            raise InvalidRequest(
                f"{task_id} is still running; run `moothall cancel {task_id}` first"
            )
        task_key = key_of(task_id, LOCAL.tenant)
        for topic in deliberation_topics(task_key):
            await self._bus.forget(topic)
        await self._bus.remove(task_key)

    async def _list_active(self) -> Sequence[DeliberationState]:
        if self._active_states is not None:
            return self._active_states()
        answered_ids, task_ids = await asyncio.gather(
            self._bus.list_ids(Channel.RESPONSES), self.ids()
        )
        active = set(task_ids).difference(answered_ids)
        states = await asyncio.gather(*(self._state(task) for task in sorted(active)))
        return [state for state in states if state is not None]

    async def _state(self, task_id: TaskId) -> DeliberationState | None:
        state: DeliberationState | None = None
        async for recorded in self._bus.replay(deliberation_topics(key_of(task_id, LOCAL.tenant))):
            try:
                state = fold(state, recorded.event)
            except InvalidRequest:
                continue  # the collector has logged it
        return state


def tasks_of(settings: Settings, app: App) -> Tasks:
    """Return the tasks of a server."""
    return Tasks(settings, app.bus, served=True)


@asynccontextmanager
async def open_tasks(settings: Settings, report_progress: ReportProgress) -> AsyncIterator[Tasks]:
    """Open the tasks of this data directory. Needs no Ray and no model."""
    async with open_log(settings, report_progress) as bus:
        yield Tasks(settings, bus, served=await is_served(settings, bus))


async def cancel(
    settings: Settings, reference: str, reason: str, report_progress: ReportProgress
) -> tuple[TaskId, DeliberationStatus]:
    """Cancel a task and return its id and status. If no process serves, a collector runs here until
    the task is decided.
    """
    from moothall.app.repositories import trusted_repositories
    from moothall.app.server import collector_of
    from moothall.concurrency import run_in_background

    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(open_log(settings, report_progress))
        served = preflight.find(settings.data_dir) is not None
        tasks = Tasks(settings, bus, served=served)
        task_id = await tasks.find(reference)
        if (before := await tasks.outcome(task_id)).status.ended:
            return task_id, before.status
        if not served:
            collector = collector_of(settings, bus, trusted_repositories(settings))
            await stack.enter_async_context(run_in_background(collector.run(), "collector"))
        status = await tasks.deliberations.cancel(task_id, reason, LOCAL)
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                status = (await tasks.deliberations.wait(task_id, LOCAL)).status
        except TimeoutError:
            report_progress("it is cancelled, but its process has not confirmed that yet")
        return task_id, status


@dataclass(frozen=True, slots=True)
class Removed:
    """The removed parts of a task. `branch` is empty if none was removed. `remaining_branch`
    names a branch that stays, with the reason.
    """

    task_id: TaskId
    branch: str
    remaining_branch: str


async def remove(
    settings: Settings, reference: str, *, force: bool, report_progress: ReportProgress
) -> Removed:
    """Remove a task that has ended: its branch, if merged or with `force`, its events and its
    status document.

    The graph reads the events first. Audit and graph keep what they know; `moothall log prune`
    removes patches that no event mentions. Raises `NotFound`, `InvalidRequest`, `RepositoryError`;
    then nothing is removed.
    """
    from moothall.app.graph import open_answers
    from moothall.app.repositories import trusted_repositories

    try:
        async with open_answers(settings):
            pass
    except (ConfigurationError, GraphUnavailable) as error:
        report_progress(f"the graph has not read the latest events: {error.message}")
    async with open_tasks(settings, report_progress) as tasks:
        task_id = await tasks.find(reference, exact=True)
        outcome = await tasks.outcome(task_id)
        if not outcome.status.ended:
            raise InvalidRequest(
                f"{task_id} is still running; run `moothall cancel {task_id}` first"
            )
        branch, remaining_branch = "", ""
        repository = await tasks.repository(task_id) if outcome.branch else None
        if repository is not None:
            try:
                branch, remaining_branch = await trusted_repositories(settings).drop_branch(
                    repository.id, outcome.branch, outcome.commit_sha, force=force
                )
            except NotFound:
                remaining_branch = (
                    f"the branch {outcome.branch}: its repository is not registered any more"
                )
        await tasks.forget(task_id)
    return Removed(task_id, branch, remaining_branch)


def choose_result(outcome: Outcome, seat: str) -> Result:
    """Return the result of the winner, or of a seat (a name, the end of one, or a number). Raises
    `NotFound`.
    """
    proposed = ", ".join(result.seat for result in outcome.results)
    if not seat:
        winner = next(
            (result for result in outcome.results if outcome.winner_id and result.rank == 1), None
        )
        if winner is None:
            if proposed:
                raise NotFound(f"{outcome.task_id} has no winner; name a seat: {proposed}")
            cause = f": {outcome.error_message}" if outcome.error_message else ""
            raise NotFound(
                f"{outcome.task_id} ended ({outcome.status.value.lower()}) without a "
                f"proposal{cause}"
            )
        return winner
    seat_name = find_seat(seat, [result.seat for result in outcome.results])
    for result in outcome.results:
        if result.seat == seat_name:
            return result
    seat_name = find_seat(seat, [seat_outcome.seat for seat_outcome in outcome.seats])
    for seat_outcome in outcome.seats:
        if seat_outcome.seat == seat_name:
            raise NotFound(
                f"{seat_outcome.seat} of {outcome.task_id} proposed nothing: "
                f"{seat_outcome.error_message or seat_outcome.status.value}"
            )
    raise NotFound(
        f"no seat {seat!r} in {outcome.task_id}; seats with a proposal: {proposed or 'none'}"
    )


async def files_for(settings: Settings, repository: RepositoryRef | None) -> Path | None:
    """Return the work tree for a task's diff: that of its repository, or if that is not on this
    machine, the one around the current folder.
    """
    from moothall.app.command_repository import files_here, files_of

    if repository is None:
        return None
    try:
        files = files_of(settings, repository)
    except NotFound:
        files = None
    return files or await files_here(settings, "")


@dataclass(frozen=True, slots=True)
class Stories:
    """The board, plans and tasks of stories, and whether another process works on them."""

    board: Board
    accounts: StoryBudgets
    plans: Planner
    tasks: Tasks
    served: bool


@asynccontextmanager
async def open_stories(
    settings: Settings, report_progress: ReportProgress
) -> AsyncIterator[Stories]:
    """Open the stories of this data directory. Needs no Ray and no model."""
    from moothall.authorization.budgets import BUCKET, StoryBudgets
    from moothall.stories.board import Board
    from moothall.stories.planner import Planner

    async with open_log(settings, report_progress) as bus:
        served = await is_served(settings, bus)
        tasks = Tasks(settings, bus, served=served)
        accounts = StoryBudgets(bus.bucket(BUCKET), settings.limits)
        yield Stories(Board(bus), accounts, Planner(bus, settings.limits), tasks, served)


async def register_named(settings: Settings, reference: str) -> str:
    """Return the id of a repository that is named by its id, a path or a URL; a path or URL is
    registered. Raises what `register` raises, and `NotFound` for an unknown id.
    """
    from moothall.app.repositories import trusted_repositories

    repositories = trusted_repositories(settings)
    if is_id(reference):
        return (await asyncio.to_thread(repositories.registry.get, reference, LOCAL.tenant)).id
    return (await repositories.register(reference)).id
