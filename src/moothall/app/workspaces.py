"""The workspaces of a host, with the repositories that it prepares for them. The kinds of
workspaces: how their executors are created, and what `moothall doctor` checks.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from moothall.app.repositories import create_service, fetch_repositories
from moothall.concurrency import run_in_background
from moothall.config import SandboxSettings, Settings, WorkspaceSections
from moothall.deliberation.context import PARALLEL_CHECKS
from moothall.domain.ids import digest
from moothall.domain.repository import Prepared
from moothall.domain.status import Finding
from moothall.domain.tool import PYTHON_WINDOW, CodeBlock, ToolResult, ToolStatus
from moothall.errors import ConfigurationError, MoothallError, WorkspaceFailed
from moothall.ports import Bus, RunCode, Workspace, Workspaces
from moothall.repositories.clone import TrustedClone
from moothall.repositories.service import Remote, RepositoryService
from moothall.telemetry import configure_logs
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup
from moothall.workspace.node_executor import executors_on
from moothall.workspace.pool import CreateExecutor, ExecutorPool
from moothall.workspace.prepare import Preparer
from moothall.workspace.runner import LocalRunner, can_run_blocks
from moothall.workspace.workspace import OverlayWorkspaces

# Workspaces in a Kubernetes cluster: how they are created, who owns them, and how they are tested.


_JOB = "workspace job"
_BLOCK_SECONDS = 60.0
_MISSING = "workspace.kind is kubernetes: pip install 'moothall[kubernetes]'"


def _bus_of_pods(settings: Settings) -> str:
    return settings.jobs.bus_url or settings.bus.url or ""


def _link_environment(settings: Settings, link: str) -> dict[str, str]:
    """Return the environment with which a link reaches the bus. Raises `ConfigurationError`."""
    bus, jobs = settings.bus, settings.jobs
    variables = {"MOOTHALL_BUS__URL": _bus_of_pods(settings)}
    if jobs.link_keys:
        from moothall.events.adapter import accounts

        keys = jobs.link_keys.get_secret_value()
        return variables | {"MOOTHALL_BUS__CREDENTIALS": accounts.mint(keys, link, jobs.seconds)}
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
    from moothall.events.adapter import accounts

    account = accounts.read_account(settings.jobs.link_keys.get_secret_value())
    return digest(*servers, account)[:16]


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
        from moothall.workspace.kubernetes.link import Transport
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
            setup: ExecutorSetup, folder: Path, neighbour: ExecutorClient | None
        ) -> ExecutorClient:
            if isinstance(neighbour, JobExecutor):
                return CodeExecutor(setup, folder, settings, neighbour)
            return JobExecutor(setup, folder, settings, pods)

        async with run_in_background(
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
        async with cluster(settings.ray), sandboxes_on_nodes(settings) as refusals_by_node:
            refusals = refusals_by_node
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


# Checks of a sandbox on this machine, and of a workspace in a Job.


async def examine_local(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the findings about sandboxes of this machine."""
    async for finding in _check_sandbox_layers(settings.sandbox):
        yield finding
    yield await _check_python(settings)


async def examine_kubernetes(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the findings about the cluster, then about a workspace in it. They do not depend on
    this machine's sandbox.
    """
    findings = [finding async for finding in examine_jobs(settings)]
    for finding in findings:
        yield finding
    if not all(finding.ok for finding in findings):
        return
    results: list[Finding] = []
    try:
        async with open_jobs(settings) as make:
            results.append(await _check_job(settings, make))
            if results[0].ok:
                results.append(await _check_python(settings, make))
    except MoothallError as error:
        results = [_no_workspace(settings, error)]
    for finding in results:
        yield finding


async def _check_job(settings: Settings, make: CreateExecutor) -> Finding:
    start_time = time.monotonic()
    try:
        async with (
            ExecutorPool(settings, create_executor=make) as pool,
            pool.start(ExecutorSetup("doctor", ())),
        ):
            seconds = time.monotonic() - start_time
    except (MoothallError, OSError) as error:
        return _no_workspace(settings, error)
    return Finding(
        _JOB,
        ok=True,
        detail=f"ready after {seconds:.1f} s, of the images {settings.jobs.image} and "
        f"{settings.jobs.link_image}",
    )


def _no_workspace(settings: Settings, error: Exception) -> Finding:
    mend = (
        f"kubectl -n {settings.jobs.namespace} get jobs,pods,events; docs/operating.md, Workspaces "
        "as Jobs"
    )
    return Finding(_JOB, ok=False, detail=str(error), mend=mend)


async def _check_sandbox_layers(sandbox: SandboxSettings) -> AsyncIterator[Finding]:
    from moothall.sandbox.probe import probe

    for layer in await probe(sandbox):
        accepted = not layer.ok and layer.name in sandbox.allow_degraded
        detail = (
            f"{layer.detail} (missing, accepted by sandbox.allow_degraded)"
            if accepted
            else layer.detail
        )
        yield Finding(
            f"sandbox {layer.name}",
            ok=layer.ok or accepted,
            detail=detail,
            mend="" if layer.ok else layer.mend,
        )


async def _check_python(settings: Settings, make: CreateExecutor | None = None) -> Finding:
    """Run a code block, as a seat would."""
    if not settings.runner.enabled:
        return Finding("python blocks", ok=True, detail="off (runner.enabled)")
    if not can_run_blocks(settings.runner):
        return Finding(
            "python blocks",
            ok=True,
            detail="off: prompts offer no Python, and runner.v1 is not served; pip install "
            "'moothall[tools]' adds them",
        )
    try:
        detail = await _try_block(settings, make)
    except (MoothallError, OSError) as error:  # its folder may be unusable
        return Finding(
            "python blocks",
            ok=False,
            detail=str(error),
            mend="set MOOTHALL_RUNNER__ENABLED=false to go without",
        )
    users = (
        f"models without native tool calls and with a window of at least {PYTHON_WINDOW:,} tokens"
    )
    return Finding("python blocks", ok=True, detail=f"{detail}; offered to {users}")


async def _try_block(settings: Settings, make: CreateExecutor | None) -> str:
    """Run a code block that calls a tool, and return a description of the runner. Raises
    `ConfigurationError`, `WorkspaceFailed` with the reason.
    """

    async def answer_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(
            "", name, ToolStatus.SUCCESS, {"content": arguments["path"], "total_lines": 1}
        )

    deadline = datetime.now(UTC) + timedelta(seconds=_BLOCK_SECONDS)
    block = CodeBlock(
        "ws.read('a') + 'b'",
        {"files.read": ("path", "start", "lines")},
        deadline,
        "local",
        full=False,
    )
    async with ExecutorPool(settings, create_executor=make) as pool:
        result = await LocalRunner(settings, pool).run_in_monty(block, answer_call)
    if result.value != "ab":
        raise WorkspaceFailed(result.error or f"a block of Python returned {result.value!r}")
    return f"pydantic-monty {version('pydantic-monty')} in a sandbox of its own"


# The kinds of workspaces.


@dataclass(frozen=True, slots=True)
class Executors:
    """The place where the executors of workspaces run.

    create: creates an executor; None: in a sandbox of this machine.
    count_machines: how many machines run executors.
    start_early: whether `workspace.warm` applies.
    """

    create: CreateExecutor | None = None
    count_machines: Callable[[], int] = lambda: 1
    start_early: bool = True


@dataclass(frozen=True, slots=True)
class WorkspaceKind:
    """A `workspace.kind`.

    open: opens what its executors need. Raises `ConfigurationError`.
    examine: yields what `moothall doctor` reports.
    only_hosts: processes that are not hosts use sandboxes of this machine instead.
    """

    open: Callable[[Settings], AbstractAsyncContextManager[Executors]]
    examine: Callable[[Settings], AsyncIterator[Finding]]
    only_hosts: bool = False


@asynccontextmanager
async def _open_local(_settings: Settings) -> AsyncIterator[Executors]:
    yield Executors()


@asynccontextmanager
async def _open_ray(settings: Settings) -> AsyncIterator[Executors]:
    from moothall.workers.ray_nodes import open_nodes  # Ray is an extra

    async with open_nodes() as nodes:
        # The place of a workspace depends on its council, so none is started in advance.
        yield Executors(
            executors_on(nodes, settings), lambda: max(1, nodes.count), start_early=False
        )


@asynccontextmanager
async def _open_kubernetes(settings: Settings) -> AsyncIterator[Executors]:
    async with open_jobs(settings) as create_executor:
        yield Executors(create_executor)


WORKSPACE_KINDS: Final[Mapping[str, WorkspaceKind]] = {
    "local": WorkspaceKind(_open_local, examine_local),
    "ray": WorkspaceKind(_open_ray, examine_local, only_hosts=True),
    "kubernetes": WorkspaceKind(_open_kubernetes, examine_kubernetes),
}


def workspace_kind(
    settings: Settings, kinds: Mapping[str, WorkspaceKind] = WORKSPACE_KINDS
) -> WorkspaceKind:
    """Return the configured kind. Raises `ConfigurationError` if `kinds` lacks it."""
    name = settings.workspace.kind
    if name not in kinds:
        raise ConfigurationError(
            f"workspace.kind is {name}, which cannot be opened; use {', '.join(kinds)}"
        )
    return kinds[name]


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
    settings: Settings,
    remote_bus: Bus | None = None,
    *,
    is_host: bool = False,
    kinds: Mapping[str, WorkspaceKind] = WORKSPACE_KINDS,
) -> AsyncIterator[WorkspaceServices]:
    """Open repositories that can be prepared, and their workspaces. `remote_bus`: the bus to the
    server, if its repositories are on another disk. `is_host`: with workspace.kind ray, hosts use
    the nodes of their cluster, and other processes this machine. `kinds`: the known kinds of
    workspaces.
    """

    def clone_of(repository: str) -> TrustedClone:
        return repositories.clone(repository)

    def remote_of(repository: str) -> Remote:
        return repositories.remote(repository)

    repositories: RepositoryService
    async with AsyncExitStack() as stack:
        executors, own_settings = Executors(), settings
        kind = workspace_kind(settings, kinds)
        if is_host or not kind.only_hosts:
            executors = await stack.enter_async_context(kind.open(settings))
        if not executors.start_early:
            warm_none = settings.workspace.model_copy(update={"warm": 0})
            own_settings = settings.model_copy(update={"workspace": warm_none})
        workspaces = OverlayWorkspaces(own_settings, clone_of, remote_of, executors.create)
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
            lambda: PARALLEL_CHECKS * executors.count_machines(),
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
