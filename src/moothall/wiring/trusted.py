"""The trusted side's repositories, alone or with the workspaces that a host opens on them."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from moothall.config import Settings, environment
from moothall.domain import codec
from moothall.domain.identity import LOCAL
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import ConfigurationError, InvalidRequest, NotFound
from moothall.network.destinations import Destinations
from moothall.ports import Bus, RunCode, Workspace, Workspaces
from moothall.repositories.clone import TrustedClone
from moothall.repositories.profile import Commands, parse_own
from moothall.repositories.trusted import Prepare, Remote, TrustedRepositories
from moothall.toolkits.web.family import WebFamily
from moothall.workspace.box import Box, Place
from moothall.workspace.jobs.trunk import Carrier
from moothall.workspace.local import LocalWorkspaces
from moothall.workspace.pool import MakeBox
from moothall.workspace.prepare import Preparer
from moothall.workspace.runner import LocalRunner


def trusted_repositories(settings: Settings) -> TrustedRepositories:
    """Repositories to register, pin, read and deliver to."""
    return _make_trusted(settings, _refuse_to_prepare, TrustedRepositories)


async def _refuse_to_prepare(base: Base, _on_progress: Callable[[str], None] | None) -> Prepared:
    raise ConfigurationError(f"repository {base.repository} is prepared by the hosts, not here")


_Kind = TypeVar("_Kind", bound=TrustedRepositories)


def _make_trusted(settings: Settings, prepare: Prepare, kind: type[_Kind]) -> _Kind:
    http = WebFamily().own(settings)
    destinations = Destinations.read(http.allow, only=http.only_allowed)
    return kind(settings.data_dir, settings.workspace, prepare, secrets=environment(), pin=destinations.pin)


async def register(settings: Settings, where: str, ref: str, profile: Path | None = None) -> RepositoryRef:
    """Register what this user named on the command line (a path, a URL or an id) and check that it can be used.

    `profile`: a file like `.moothall.toml` that stands for the repository's own where it says something.
    """
    repositories = trusted_repositories(settings)
    try:
        known = "" if await asyncio.to_thread(Path(where).exists) else repositories.registry.get(where, LOCAL.tenant).id
    except (NotFound, InvalidRequest):
        known = ""
    entry = repositories.registry.find(known) if known else await repositories.register(where)
    if profile is not None:
        entry = await repositories.with_profile(entry, (await asyncio.to_thread(read_file, profile)).over(entry.commands))
    named = RepositoryRef(id=entry.id, ref=ref)
    await repositories.resolve(named)
    return named


def read_file(path: Path) -> Commands:
    """Return what a file like `.moothall.toml` says. Raises `ConfigurationError`, `RepositoryError`."""
    try:
        return parse_own(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigurationError(f"the profile {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the profile {path} is not text") from error


def commands_said(setup: Sequence[str], checks: Sequence[str], profile: Path | None = None) -> Commands | None:
    """Return what a caller said of set-up and checks (NAME=COMMAND) on the command line, over what a file says; None for nothing.

    Raises `InvalidRequest`, `ConfigurationError`, `RepositoryError`.
    """
    if not (setup or checks or profile):
        return None
    pairs = [check.partition("=") for check in checks]
    if wrong := [check for check, (name, _, command) in zip(checks, pairs, strict=True) if not (name and command)]:
        raise InvalidRequest(f"--check {wrong[0][:80]!r} names no command; write NAME=COMMAND, such as tests='pytest -q'")
    said = {"setup": setup or None, "checks": {name: command for name, _, command in pairs} or None}
    try:
        commands = Commands.model_validate(said)
    except ValidationError as error:
        raise InvalidRequest(codec.wrong(error)) from error
    return commands.over(read_file(profile)) if profile else commands


@dataclass(frozen=True, slots=True)
class Hands:
    """What a host works with."""

    repositories: TrustedRepositories
    workspaces: LocalWorkspaces
    run_code: RunCode | None


@asynccontextmanager
async def open_hands(settings: Settings, far: Bus | None = None) -> AsyncIterator[Hands]:
    """Repositories that can be prepared, and the workspaces on them. `far`: the bus over which the house lends them, where they lie on
    another disk.
    """

    def clone_of(repository: str) -> TrustedClone:
        return repositories.clone(repository)

    def remote_of(repository: str) -> Remote:
        return repositories.remote(repository)

    repositories: TrustedRepositories
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(_jobs(settings)) if settings.workspace.kind == "kubernetes" else None
        workspaces = LocalWorkspaces(settings, clone_of, remote_of, make)
        preparer = Preparer(settings, clone_of, workspaces)
        if far is None:
            repositories = _make_trusted(settings, preparer.prepare, TrustedRepositories)
        else:
            from moothall.repositories.far import FarRepositories
            from moothall.wiring.lending import borrowing

            repositories = borrower = _make_trusted(settings, preparer.prepare, FarRepositories)
            await stack.enter_async_context(borrowing(settings, far, borrower))
        await stack.enter_async_context(workspaces)
        yield Hands(repositories, workspaces, LocalRunner(settings, workspaces.pool).run if settings.runner.enabled else None)


def _reach(settings: Settings, link: str) -> dict[str, str]:
    """Return the environment by which the link of that name reaches the bus."""
    bus, jobs = settings.bus, settings.jobs
    said = {"MOOTHALL_BUS__URL": jobs.bus_url or bus.url or ""}
    if jobs.link_keys:
        from moothall.bus.nats.accounts import mint

        return said | {"MOOTHALL_BUS__CREDENTIALS": mint(jobs.link_keys.get_secret_value(), link, jobs.seconds)}
    return said | {
        f"MOOTHALL_BUS__{name.upper()}": one.get_secret_value()
        for name, one in (("token", bus.token), ("credentials", bus.credentials))
        if one
    }


@asynccontextmanager
async def _jobs(settings: Settings) -> AsyncIterator[MakeBox]:
    """What makes workspaces in a cluster. Raises `ConfigurationError` where no Jobs can be made there."""
    from moothall.bus.nats.carrying import open_carrying

    if settings.jobs.link_keys:
        _reach(settings, "x")  # keys that are none are said at the start
    try:
        from moothall.workspace.jobs.box import CodeBox, JobBox, Pods
        from moothall.workspace.jobs.cluster import Cluster
    except ModuleNotFoundError as error:
        raise ConfigurationError("workspace.kind is kubernetes: pip install 'moothall[kubernetes]'") from error
    url = settings.bus.url or ""
    async with (
        open_carrying(settings.bus, url) as carrying,
        Cluster(settings.jobs, f"{socket.gethostname()[:40]}-{secrets.token_hex(4)}") as cluster,
    ):
        pods = Pods(cluster, Carrier(carrying.send, carrying.hear), lambda name: _reach(settings, name))

        def make(place: Place, folder: Path, beside: Box | None) -> Box:
            if isinstance(beside, JobBox):
                return CodeBox(place, folder, settings, beside)
            return JobBox(place, folder, settings, pods)

        yield make


class Leaving:
    """Workspaces of which `left` hears the id when they end: tools may have left something elsewhere. See `ports.Workspaces`."""

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
