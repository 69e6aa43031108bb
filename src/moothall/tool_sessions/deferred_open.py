"""Workspaces of tasks for callers: opened when they are first called, on the task's own commit."""

from __future__ import annotations

from contextlib import aclosing

from moothall.domain.codec import load
from moothall.domain.event import EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import own_id
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import InvalidRequest, NotFound, Refused
from moothall.ports import Deliberations
from moothall.tool_sessions.manager import Find, PendingWorkspace


def of_tasks(deliberations: Deliberations) -> Find:
    """Return what finds the workspace that is called like a task: of that task's repository and
    role.
    """

    async def find(workspace: str, who: Principal) -> PendingWorkspace | None:
        task_id = own_id(workspace, who.tenant)
        try:
            d = await _request_of(deliberations, task_id, who)
            outcome = await deliberations.result(task_id, who)
        except (NotFound, InvalidRequest):
            return None
        if d.principal != who.name:
            return None
        if outcome.status is DeliberationStatus.CANCELLED:
            raise Refused(f"task {task_id} was cancelled: nothing acts for it any more")
        if d.repository is None or d.base_sha is None:
            raise InvalidRequest(f"task {task_id} has no repository, so it has no workspace")
        # The registry's id where it has one: a URL would be fetched and checked again.
        url = "" if d.repository.id else d.repository.url
        return PendingWorkspace(RepositoryRef(id=d.repository.id, url=url, ref=d.base_sha), d.role)

    return find


async def _request_of(deliberations: Deliberations, task_id: str, who: Principal) -> Deliberation:
    """Return a deliberation as it was asked for. Raises `NotFound`."""
    async with aclosing(deliberations.watch(task_id, 0, who)) as events:
        async for recorded in events:
            if recorded.event.type is EventType.DELIBERATION_REQUESTED:
                return load(Deliberation, recorded.event.data)
    raise NotFound(f"no task {task_id!r}")
