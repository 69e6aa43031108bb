"""Workspaces of tasks for callers. They are opened on the task's own commit at the first call."""

from __future__ import annotations

from contextlib import aclosing

from moothall.domain.codec import load
from moothall.domain.event import EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import TaskId, check_task_id, own_id
from moothall.domain.outcome import DeliberationStatus
from moothall.domain.task import Deliberation, RepositoryRef
from moothall.errors import InvalidRequest, NotFound, Refused
from moothall.ports import Deliberations
from moothall.tool_sessions.manager import Find, PendingWorkspace


def of_tasks(deliberations: Deliberations) -> Find:
    """Return a function that finds the workspace named after a task, with the task's repository and
    role.
    """

    async def find(workspace: str, principal: Principal) -> PendingWorkspace | None:
        try:
            task_id = check_task_id(own_id(workspace, principal.tenant))
            deliberation = await _request_of(deliberations, task_id, principal)
            outcome = await deliberations.result(task_id, principal)
        except (NotFound, InvalidRequest):
            return None
        if deliberation.principal != principal.name:
            return None
        if outcome.status is DeliberationStatus.CANCELLED:
            raise Refused(f"task {task_id} was cancelled: nothing acts for it any more")
        if deliberation.repository is None or deliberation.base_sha is None:
            raise InvalidRequest(f"task {task_id} has no repository, so it has no workspace")
        # Prefer the registry's id, because a URL would be fetched and checked again.
        url = "" if deliberation.repository.id else deliberation.repository.url
        return PendingWorkspace(
            RepositoryRef(id=deliberation.repository.id, url=url, ref=deliberation.base_sha),
            deliberation.role,
        )

    return find


async def _request_of(
    deliberations: Deliberations, task_id: TaskId, principal: Principal
) -> Deliberation:
    """Return a deliberation as it was requested. Raises `NotFound`."""
    async with aclosing(deliberations.watch(task_id, 0, principal)) as events:
        async for recorded in events:
            if recorded.event.type is EventType.DELIBERATION_REQUESTED:
                return load(Deliberation, recorded.event.data)
    raise NotFound(f"no task {task_id!r}")
