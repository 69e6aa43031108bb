"""The trusted side's repositories, and how they reach hosts on other disks."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moothall.authorization.keys import Keys, ensure_token, keys_of
from moothall.concurrency import run_in_background
from moothall.config import ForgeSettings, OidcSettings, Settings, WebhookSettings, environment
from moothall.domain.event import REPOSITORY_SERVICE, Channel
from moothall.domain.ids import digest
from moothall.domain.repository import Base, Prepared
from moothall.errors import ConfigurationError
from moothall.network.destinations import Destinations
from moothall.ports import Answerer, Bus
from moothall.processes import write_private
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.service import Prepare, RepositoryService
from moothall.toolkits.web import WebFamily

if TYPE_CHECKING:  # needed only with several machines
    from moothall.repositories.bundle_transfer import BundleServer
    from moothall.repositories.remote import RemoteRepositories
_MARK_FILE, _DISK_ID_CHARS = "house.mark", 8


def trusted_repositories(settings: Settings) -> RepositoryService:
    """Return the repositories for registering, pinning, reading and delivery."""
    return create_service(settings, _refuse_to_prepare, RepositoryService)


async def _refuse_to_prepare(base: Base, _on_progress: Callable[[str], None] | None) -> Prepared:
    raise ConfigurationError(f"repository {base.repository} is prepared by the hosts, not here")


Kind = TypeVar("Kind", bound=RepositoryService)


def create_service(settings: Settings, prepare: Prepare, kind: type[Kind]) -> Kind:
    """Return repositories of this data directory, which are prepared by `prepare`."""
    http = WebFamily().own_settings(settings)
    destinations = Destinations.read(http.allow, only=http.only_allowed)
    return kind(
        settings.data_dir, settings.workspace, prepare, secrets=environment(), pin=destinations.pin
    )


@dataclass(frozen=True, slots=True)
class Home:
    """The message of the server to hosts on any machine: a mark on the disk of the repositories,
    and the hosts' signing keys.
    """

    mark: str
    keys: Keys


def home_of(settings: Settings) -> Home | None:
    """Return what hosts receive, or None if all hosts are processes of this machine. Writes a new
    mark into the data directory each time, so that a copy of the directory has an old one. Raises
    `ConfigurationError`.
    """
    if settings.ray.address is None:
        return None
    home = Home(secrets.token_hex(16), keys_of(settings.guard, settings.data_dir).of_hosts())
    write_private(settings.data_dir / _MARK_FILE, home.mark)
    return home


def shares_data_dir(data_dir: Path, home: Home) -> bool:
    """Return whether this process sees the data directory of the server."""
    try:
        return (data_dir / _MARK_FILE).read_text(encoding="ascii") == home.mark
    except FileNotFoundError:
        return False


def disk_of(data_dir: Path) -> str:
    """Return an id of this data directory, the same for all that share it. Raises
    `ConfigurationError`.
    """
    return digest(ensure_token(data_dir, "disk.id"))[:_DISK_ID_CHARS]


def for_hosts(settings: Settings) -> Settings:
    """Return the settings for hosts on any machine, without the server's key and without settings
    that only APIs and commands need.
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
async def serve_repositories(
    settings: Settings, bus: Bus, repositories: RepositoryService, *, serves: bool = True
) -> AsyncIterator[RepositoryService]:
    """Yield the repositories, and serve them to hosts on other disks if there can be any. Without
    `serves`, requests of hosts are not answered: a process that runs only hosts has no credentials
    for that. Patches are fetched from the hosts that created them.
    """
    if settings.ray.address is None:
        yield repositories
        return
    from moothall.repositories.remote import RepositoryServer, enable_patch_fetching

    async with _bundle_server(settings) as bundle_server:
        server = RepositoryServer(repositories, bundle_server, bus.ask)
        enable_patch_fetching(repositories, bundle_server, bus.ask)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_serve_bundles(bus, bundle_server, server.answer))
            if serves:
                await stack.enter_async_context(
                    run_in_background(
                        bus.answer(REPOSITORY_SERVICE, server.answer, shared=True), "repositories"
                    )
                )
            yield repositories


@asynccontextmanager
async def fetch_repositories(
    settings: Settings, bus: Bus, repositories: RemoteRepositories
) -> AsyncIterator[None]:
    """Fetch repositories from the server, and serve it the patches of this host."""
    from moothall.repositories.remote import HOSTS

    async with _bundle_server(settings) as bundle_server:
        repositories.connect(bus.ask, bundle_server)
        async with (
            _serve_bundles(bus, bundle_server, repositories.answer),
            run_in_background(bus.answer(HOSTS, repositories.answer), "patches"),
        ):
            yield


@asynccontextmanager
async def _bundle_server(settings: Settings) -> AsyncIterator[BundleServer]:
    from moothall.repositories.bundle_transfer import BundleServer

    async with BundleServer(
        GitRunner(settings.data_dir / "repos"), settings.workspace
    ) as bundle_server:
        yield bundle_server


def _serve_bundles(
    bus: Bus, bundle_server: BundleServer, answerer: Answerer
) -> AbstractAsyncContextManager[object]:
    return run_in_background(
        bus.answer(Channel.REPOSITORIES.of(bundle_server.holder), answerer), "bundles"
    )
