"""Hosts on other machines: what the house hands them, and how both lend each other what lies on one disk alone."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moothall.aio import beside
from moothall.config import Forge, Oidc, Settings, Webhook
from moothall.disk import write_private
from moothall.domain.ids import digest
from moothall.domain.topic import Channel
from moothall.guard.keys import Keys, ensure_token, keys_of
from moothall.ports import Answerer, Bus
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.trusted import TrustedRepositories

if TYPE_CHECKING:  # nothing of it is needed on one machine
    from moothall.repositories.far import FarRepositories
    from moothall.repositories.lending import Lender

_MARK, _DISK_CHARS = "house.mark", 8


@dataclass(frozen=True, slots=True)
class Home:
    """What the house hands to hosts that may be anywhere: what lies on the disk of the repositories, and what such hosts sign with."""

    mark: str
    keys: Keys


def home_of(settings: Settings) -> Home | None:
    """Return what hosts are handed, None where all are processes of this machine. Leaves a mark in the data directory, a new one each
    time: a copy of the directory has an old one. Raises `ConfigurationError`.
    """
    if settings.ray.address is None:
        return None
    home = Home(secrets.token_hex(16), keys_of(settings).of_hosts())
    write_private(settings.data_dir / _MARK, home.mark)
    return home


def sees(data_dir: Path, home: Home) -> bool:
    """Whether this process sees the data directory of the house."""
    try:
        return (data_dir / _MARK).read_text(encoding="ascii") == home.mark
    except FileNotFoundError:
        return False


def disk_of(data_dir: Path) -> str:
    """Name this data directory: the same for all that share it. Raises `ConfigurationError`."""
    return digest(ensure_token(data_dir, "disk.id"))[:_DISK_CHARS]


def for_hosts(settings: Settings) -> Settings:
    """Return the settings for hosts that may be anywhere: without the key of the house, and what only doors and people's commands need."""
    if settings.ray.address is None:
        return settings
    guard = settings.guard.model_copy(update={"key": None})
    return settings.model_copy(update={"guard": guard, "forge": Forge(), "webhook": Webhook(), "oidc": Oidc()})


@asynccontextmanager
async def lending(settings: Settings, bus: Bus, repositories: TrustedRepositories) -> AsyncIterator[TrustedRepositories]:
    """Yield the repositories, which hosts on other disks are answered from where there may be such hosts. What they made is fetched from them."""
    if settings.ray.address is None:
        yield repositories
        return
    from moothall.repositories.far import RepositoryServer, patches_of_hosts
    from moothall.repositories.lending import HOUSE

    async with _lender(settings) as lender:
        house = RepositoryServer(repositories, lender, bus.ask)
        patches_of_hosts(repositories, lender, bus.ask)
        async with _answering(bus, lender, house.answer), beside(bus.answer(HOUSE, house.answer, shared=True), "repositories"):
            yield repositories


@asynccontextmanager
async def borrowing(settings: Settings, bus: Bus, repositories: FarRepositories) -> AsyncIterator[None]:
    """Ask the house for repositories, and lend it what is made here."""
    from moothall.repositories.far import HOSTS

    async with _lender(settings) as lender:
        repositories.far(bus.ask, lender)
        async with _answering(bus, lender, repositories.answer), beside(bus.answer(HOSTS, repositories.answer), "patches"):
            yield


@asynccontextmanager
async def _lender(settings: Settings) -> AsyncIterator[Lender]:
    from moothall.repositories.lending import Lender

    async with Lender(GitRunner(settings.data_dir / "repos", settings.workspace.git_seconds), settings.workspace) as lender:
        yield lender


def _answering(bus: Bus, lender: Lender, answerer: Answerer) -> AbstractAsyncContextManager[object]:
    return beside(bus.answer(Channel.REPOSITORIES.of(lender.holder), answerer), "bundles")
