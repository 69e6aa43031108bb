"""The trusted side's repositories, alone or with the workspaces that a host opens on them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from moothall.app.jobs import open_jobs
from moothall.authorization.keys import Keys, ensure_token, keys_of
from moothall.concurrency import beside
from moothall.config import ForgeSettings, OidcSettings, Settings, WebhookSettings, environment
from moothall.domain.ids import digest
from moothall.domain.repository import Base, Prepared
from moothall.domain.topic import HOUSE, Channel
from moothall.errors import ConfigurationError
from moothall.file_locks import write_private
from moothall.network.destinations import Destinations
from moothall.ports import Answerer, Bus, RunCode, Workspace, Workspaces
from moothall.repositories.clone import TrustedClone
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.service import Prepare, Remote, RepositoryService
from moothall.toolkits.web.family import WebFamily
from moothall.workspace.local import LocalWorkspaces
from moothall.workspace.prepare import Preparer
from moothall.workspace.runner import LocalRunner

if TYPE_CHECKING:  # nothing of it is needed on one machine
    from moothall.repositories.bundle_transfer import BundleServer
    from moothall.repositories.remote import RemoteRepositories
_MARK, _DISK_CHARS = "house.mark", 8


def trusted_repositories(settings: Settings) -> RepositoryService:
    """Repositories to register, pin, read and deliver to."""
    return _make_trusted(settings, _refuse_to_prepare, RepositoryService)


async def _refuse_to_prepare(base: Base, _on_progress: Callable[[str], None] | None) -> Prepared:
    raise ConfigurationError(f"repository {base.repository} is prepared by the hosts, not here")


_Kind = TypeVar("_Kind", bound=RepositoryService)


def _make_trusted(settings: Settings, prepare: Prepare, kind: type[_Kind]) -> _Kind:
    http = WebFamily().own(settings)
    destinations = Destinations.read(http.allow, only=http.only_allowed)
    return kind(
        settings.data_dir, settings.workspace, prepare, secrets=environment(), pin=destinations.pin
    )


@dataclass(frozen=True, slots=True)
class WorkspaceServices:
    """What a host works with."""

    repositories: RepositoryService
    workspaces: LocalWorkspaces
    run_code: RunCode | None


@asynccontextmanager
async def open_hands(
    settings: Settings, far: Bus | None = None
) -> AsyncIterator[WorkspaceServices]:
    """Repositories that can be prepared, and the workspaces on them. `far`: the bus over which the
    server lends them, where they lie on another disk.
    """

    def clone_of(repository: str) -> TrustedClone:
        return repositories.clone(repository)

    def remote_of(repository: str) -> Remote:
        return repositories.remote(repository)

    repositories: RepositoryService
    async with AsyncExitStack() as stack:
        make = (
            await stack.enter_async_context(open_jobs(settings))
            if settings.workspace.kind == "kubernetes"
            else None
        )
        workspaces = LocalWorkspaces(settings, clone_of, remote_of, make)
        preparer = Preparer(settings, clone_of, workspaces)
        if far is None:
            repositories = _make_trusted(settings, preparer.prepare, RepositoryService)
        else:
            from moothall.repositories.remote import RemoteRepositories

            repositories = borrower = _make_trusted(settings, preparer.prepare, RemoteRepositories)
            await stack.enter_async_context(open_borrowing(settings, far, borrower))
        await stack.enter_async_context(workspaces)
        yield WorkspaceServices(
            repositories,
            workspaces,
            LocalRunner(settings, workspaces.pool).run if settings.runner.enabled else None,
        )


class NotifyingWorkspaces:
    """Workspaces of which `left` hears the id when they end: tools may have left something
    elsewhere. See `ports.Workspaces`.
    """

    def __init__(self, workspaces: Workspaces, left: Callable[[str], Awaitable[None]]) -> None:
        self._workspaces, self._left = workspaces, left

    @asynccontextmanager
    async def open(self, prepared: Prepared, name: str, **how: Any) -> AsyncIterator[Workspace]:
        """Open a workspace."""
        async with self._workspaces.open(prepared, name, **how) as workspace:
            try:
                yield workspace
            finally:
                await self._left(workspace.id)


@dataclass(frozen=True, slots=True)
class Home:
    """What the server hands to hosts that may be anywhere: what lies on the disk of the
    repositories, and what such hosts sign with.
    """

    mark: str
    keys: Keys


def home_of(settings: Settings) -> Home | None:
    """Return what hosts are handed, None where all are processes of this machine. Leaves a mark in
    the data directory, a new one each
    time: a copy of the directory has an old one. Raises `ConfigurationError`.
    """
    if settings.ray.address is None:
        return None
    home = Home(secrets.token_hex(16), keys_of(settings.guard, settings.data_dir).of_hosts())
    write_private(settings.data_dir / _MARK, home.mark)
    return home


def sees(data_dir: Path, home: Home) -> bool:
    """Whether this process sees the data directory of the server."""
    try:
        return (data_dir / _MARK).read_text(encoding="ascii") == home.mark
    except FileNotFoundError:
        return False


def disk_of(data_dir: Path) -> str:
    """Name this data directory: the same for all that share it. Raises `ConfigurationError`."""
    return digest(ensure_token(data_dir, "disk.id"))[:_DISK_CHARS]


def for_hosts(settings: Settings) -> Settings:
    """Return the settings for hosts that may be anywhere: without the key of the server, and what
    only doors and people's commands need.
    """
    if settings.ray.address is None:
        return settings
    guard = settings.guard.model_copy(update={"key": None})
    bus = settings.bus.model_copy(
        update={"credentials": settings.ray.credentials or settings.bus.credentials}
    )
    return settings.model_copy(
        update={
            "guard": guard,
            "bus": bus,
            "forge": ForgeSettings(),
            "webhook": WebhookSettings(),
            "oidc": OidcSettings(),
        }
    )


@asynccontextmanager
async def open_lending(
    settings: Settings, bus: Bus, repositories: RepositoryService, *, lends: bool = True
) -> AsyncIterator[RepositoryService]:
    """Yield the repositories, which hosts on other disks are answered from where there may be such
    hosts, where it `lends`: who only runs the seats has credentials by which he is not asked. What
    they made is fetched from them.
    """
    if settings.ray.address is None:
        yield repositories
        return
    from moothall.repositories.remote import RepositoryServer, patches_of_hosts

    async with _bundle_server(settings) as bundle_server:
        app = RepositoryServer(repositories, bundle_server, bus.ask)
        patches_of_hosts(repositories, bundle_server, bus.ask)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_answer(bus, bundle_server, app.answer))
            if lends:
                await stack.enter_async_context(
                    beside(bus.answer(HOUSE, app.answer, shared=True), "repositories")
                )
            yield repositories


@asynccontextmanager
async def open_borrowing(
    settings: Settings, bus: Bus, repositories: RemoteRepositories
) -> AsyncIterator[None]:
    """Ask the server for repositories, and lend it what is made here."""
    from moothall.repositories.remote import HOSTS

    async with _bundle_server(settings) as bundle_server:
        repositories.far(bus.ask, bundle_server)
        async with (
            _answer(bus, bundle_server, repositories.answer),
            beside(bus.answer(HOSTS, repositories.answer), "patches"),
        ):
            yield


@asynccontextmanager
async def _bundle_server(settings: Settings) -> AsyncIterator[BundleServer]:
    from moothall.repositories.bundle_transfer import BundleServer

    async with BundleServer(
        GitRunner(settings.data_dir / "repos", settings.workspace.git_seconds), settings.workspace
    ) as bundle_server:
        yield bundle_server


def _answer(
    bus: Bus, bundle_server: BundleServer, answerer: Answerer
) -> AbstractAsyncContextManager[object]:
    return beside(bus.answer(Channel.REPOSITORIES.of(bundle_server.holder), answerer), "bundles")
