"""The workspaces of a host, with the repositories that it prepares for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from moothall.app.jobs import open_jobs
from moothall.app.repositories import create_service, fetch_repositories
from moothall.config import Settings
from moothall.domain.repository import Prepared
from moothall.ports import Bus, RunCode, Workspace, Workspaces
from moothall.repositories.clone import TrustedClone
from moothall.repositories.service import Remote, RepositoryService
from moothall.workspace.local import LocalWorkspaces
from moothall.workspace.prepare import Preparer
from moothall.workspace.runner import LocalRunner, can_run_blocks


@dataclass(frozen=True, slots=True)
class WorkspaceServices:
    """The repositories and workspaces of a host, and its code runner: None if `runner.enabled` is
    off or Monty is not installed.
    """

    repositories: RepositoryService
    workspaces: LocalWorkspaces
    run_code: RunCode | None


@asynccontextmanager
async def open_workspace_services(
    settings: Settings, remote_bus: Bus | None = None
) -> AsyncIterator[WorkspaceServices]:
    """Open repositories that can be prepared, and their workspaces. `remote_bus`: the bus to the
    server, if its repositories are on another disk.
    """

    def clone_of(repository: str) -> TrustedClone:
        return repositories.clone(repository)

    def remote_of(repository: str) -> Remote:
        return repositories.remote(repository)

    repositories: RepositoryService
    async with AsyncExitStack() as stack:
        create_executor = (
            await stack.enter_async_context(open_jobs(settings))
            if settings.workspace.kind == "kubernetes"
            else None
        )
        workspaces = LocalWorkspaces(settings, clone_of, remote_of, create_executor)
        preparer = Preparer(settings, clone_of, workspaces)
        if remote_bus is None:
            repositories = create_service(settings, preparer.prepare, RepositoryService)
        else:
            from moothall.repositories.remote import RemoteRepositories

            repositories = remote_repositories = create_service(
                settings, preparer.prepare, RemoteRepositories
            )
            await stack.enter_async_context(
                fetch_repositories(settings, remote_bus, remote_repositories)
            )
        await stack.enter_async_context(workspaces)
        yield WorkspaceServices(
            repositories,
            workspaces,
            LocalRunner(settings, workspaces.pool).run if can_run_blocks(settings.runner) else None,
        )


class NotifyingWorkspaces:
    """Workspaces that call `on_close` with their id when they end, because tools may have created
    something outside them. See `ports.Workspaces`.
    """

    def __init__(self, workspaces: Workspaces, on_close: Callable[[str], Awaitable[None]]) -> None:
        self._workspaces, self._on_close = workspaces, on_close

    @asynccontextmanager
    async def open(self, prepared: Prepared, name: str, **options: Any) -> AsyncIterator[Workspace]:
        """Open a workspace."""
        async with self._workspaces.open(prepared, name, **options) as workspace:
            try:
                yield workspace
            finally:
                await self._on_close(workspace.id)
