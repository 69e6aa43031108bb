"""The workspaces of a host, with the repositories that it prepares for them. Workspaces in a
Kubernetes cluster: how they are created, who owns them, and how they are tested. Workspaces on the
nodes of a Ray cluster.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from moothall.app.repositories import create_service, fetch_repositories
from moothall.concurrency import beside
from moothall.config import Settings, WorkspaceSections
from moothall.deliberation.context import PARALLEL_CHECKS
from moothall.domain.ids import digest
from moothall.domain.repository import Prepared
from moothall.domain.status import Finding
from moothall.errors import ConfigurationError, MoothallError
from moothall.ports import Bus, RunCode, Workspace, Workspaces
from moothall.repositories.clone import TrustedClone
from moothall.repositories.service import Remote, RepositoryService
from moothall.telemetry import configure_logs
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup
from moothall.workspace.kubernetes.link import Transport
from moothall.workspace.node_executor import executors_on
from moothall.workspace.pool import CreateExecutor
from moothall.workspace.prepare import Preparer
from moothall.workspace.runner import LocalRunner, can_run_blocks
from moothall.workspace.workspace import OverlayWorkspaces

# Workspaces in a Kubernetes cluster: how they are created, who owns them, and how they are tested.


_MISSING = "workspace.kind is kubernetes: pip install 'moothall[kubernetes]'"


def _bus_of_pods(settings: Settings) -> str:
    return settings.jobs.bus_url or settings.bus.url or ""


def _link_environment(settings: Settings, link: str) -> dict[str, str]:
    """Return the environment with which a link reaches the bus. Raises `ConfigurationError`."""
    bus, jobs = settings.bus, settings.jobs
    variables = {"MOOTHALL_BUS__URL": _bus_of_pods(settings)}
    if jobs.link_keys:
        from moothall.events.nats.accounts import mint

        return variables | {
            "MOOTHALL_BUS__CREDENTIALS": mint(jobs.link_keys.get_secret_value(), link, jobs.seconds)
        }
    return variables | {
        f"MOOTHALL_BUS__{name.upper()}": secret.get_secret_value()
        for name, secret in (("token", bus.token), ("credentials", bus.credentials))
        if secret
    }


def deployment_id(settings: Settings) -> str:
    """Return an id of the processes that share a bus: its servers as pods reach them, and its
    account. Raises `ConfigurationError`.
    """
    servers = sorted(
        urlsplit(server if "://" in server else f"//{server}").netloc.rpartition("@")[2]
        for server in _bus_of_pods(settings).split(",")
    )
    if settings.jobs.link_keys is None:
        return digest(*servers)[:16]
    from moothall.events.nats.accounts import read_account

    return digest(*servers, read_account(settings.jobs.link_keys.get_secret_value()))[:16]


@asynccontextmanager
async def open_jobs(
    settings: Settings, *, orphan_seconds: float = 60.0
) -> AsyncIterator[CreateExecutor]:
    """Yield a function that creates workspaces in a cluster. Raises `ConfigurationError` if Jobs
    cannot be created there.
    """
    from moothall.events.adapter import open_core_messages

    app = deployment_id(settings)  # raises for invalid keys at the start
    try:
        from moothall.workspace.kubernetes.cluster import Cluster
        from moothall.workspace.kubernetes.job_executor import CodeExecutor, JobExecutor, Pods
        from moothall.workspace.kubernetes.preflight import Reconciler
    except ModuleNotFoundError as error:
        raise ConfigurationError(_MISSING) from error
    host = f"{socket.gethostname()[:40]}-{secrets.token_hex(4)}"
    async with (
        open_core_messages(settings.bus, settings.bus.url or "") as connection,
        Cluster(settings.jobs, host, app) as cluster,
    ):
        transport = Transport(connection.send, connection.listen)
        pods = Pods(cluster, transport, lambda name: _link_environment(settings, name))

        def create_executor(
            setup: ExecutorSetup, folder: Path, beside: ExecutorClient | None
        ) -> ExecutorClient:
            if isinstance(beside, JobExecutor):
                return CodeExecutor(setup, folder, settings, beside)
            return JobExecutor(setup, folder, settings, pods)

        async with beside(
            Reconciler(cluster, transport, orphan_seconds).run(),
            "jobs without a host",
        ):
            yield create_executor


async def examine_jobs(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the findings about Jobs for workspaces in the cluster."""
    try:
        from moothall.workspace.kubernetes.preflight import examine

        link_environment = _link_environment(settings, "moothall-doctor")
    except ModuleNotFoundError:
        yield Finding(
            "cluster",
            ok=False,
            detail="the package kubernetes is missing",
            mend="pip install 'moothall[kubernetes]'",
        )
        return
    except ConfigurationError as error:
        yield Finding(
            "cluster",
            ok=False,
            detail=error.message,
            mend="set MOOTHALL_JOBS__LINK_KEYS_FILE to a links.json",
        )
        return
    async for finding in examine(settings, link_environment):
        yield finding


# Workspaces on the nodes of a Ray cluster.


def sandboxes_on_nodes(
    settings: Settings, log_file: Path | None = None
) -> AbstractAsyncContextManager[Mapping[str, str]]:
    """Let the nodes serve sandboxes. They get the settings of sandboxes and no secrets.

    See `ray_nodes.serving_sandboxes`.
    """
    from moothall.workers.ray_nodes import serving_sandboxes  # Ray is an extra

    names = WorkspaceSections.model_fields.keys() - {"jobs"}
    sections = WorkspaceSections(**{name: getattr(settings, name) for name in names})
    return serving_sandboxes(sections, partial(configure_logs, settings.log, log_file))


async def examine_nodes(settings: Settings) -> AsyncIterator[Finding]:
    """Yield a finding for each node of the Ray cluster: whether it can run sandboxes."""
    from moothall.workers.ray_fleet import cluster

    try:  # what is written meanwhile would be Ray's
        async with cluster(settings.ray), sandboxes_on_nodes(settings) as found:
            refusals = found
    except MoothallError as error:
        mend = "run `moothall doctor` on each node"
        yield Finding("nodes", ok=False, detail=error.message, mend=mend)
        return
    for node, refusal in refusals.items():
        yield Finding(
            f"node {node[:12]}",
            ok=not refusal,
            detail=refusal or "it runs sandboxes",
            mend="run `moothall doctor` there" if refusal else "",
        )


# The workspaces of a host, with the repositories that it prepares for them.


@dataclass(frozen=True, slots=True)
class WorkspaceServices:
    """The repositories and workspaces of a host, and its code runner: None if `runner.enabled` is
    off or Monty is not installed. `count_parallel_checks`: see `CouncilRules`.
    """

    repositories: RepositoryService
    workspaces: OverlayWorkspaces
    run_code: RunCode | None
    count_parallel_checks: Callable[[], int]


@asynccontextmanager
async def open_workspace_services(
    settings: Settings, remote_bus: Bus | None = None, *, is_host: bool = False
) -> AsyncIterator[WorkspaceServices]:
    """Open repositories that can be prepared, and their workspaces. `remote_bus`: the bus to the
    server, if its repositories are on another disk. `is_host`: with workspace.kind ray, hosts use
    the nodes of their cluster, and other processes this machine.
    """

    def clone_of(repository: str) -> TrustedClone:
        return repositories.clone(repository)

    def remote_of(repository: str) -> Remote:
        return repositories.remote(repository)

    repositories: RepositoryService
    async with AsyncExitStack() as stack:
        create_executor, own_settings, nodes = None, settings, None
        if settings.workspace.kind == "kubernetes":
            create_executor = await stack.enter_async_context(open_jobs(settings))
        elif settings.workspace.kind == "ray" and is_host:
            from moothall.workers.ray_nodes import open_nodes  # Ray is an extra

            nodes = await stack.enter_async_context(open_nodes())
            create_executor = executors_on(nodes, settings)
            # The place of a workspace depends on its council, so none is started in advance.
            warm_none = settings.workspace.model_copy(update={"warm": 0})
            own_settings = settings.model_copy(update={"workspace": warm_none})
        workspaces = OverlayWorkspaces(own_settings, clone_of, remote_of, create_executor)
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
            lambda: PARALLEL_CHECKS * max(1, nodes.count if nodes else 1),
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
