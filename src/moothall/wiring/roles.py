"""What a serving process does of all that there is to do, what it needs the data directory for itself alone for, and what one process does at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import get_args

from moothall.aio import beside
from moothall.bus.lease import BUCKET, Lease
from moothall.bus.registry import EVENTS
from moothall.collector import Collector
from moothall.collector.onlooker import Onlooker
from moothall.config import Settings
from moothall.config.parts import Duty
from moothall.errors import ConfigurationError
from moothall.ports import Repositories
from moothall.wiring import lock
from moothall.wiring.bus import Bus

ROLES: tuple[Duty, ...] = get_args(Duty)
ALL = frozenset(ROLES)
_NEEDED = frozenset({"collector", "hosts"})
"""What no house does without, where nobody else reaches its bus."""


def parse_roles(said: Iterable[str]) -> tuple[Duty, ...]:
    """Return roles by their names, which may be divided by commas. Raises `ConfigurationError` for what is none."""
    names = [name for one in said for part in one.split(",") if (name := part.strip().lower())]
    known: dict[str, Duty] = {role: role for role in ROLES}
    if unknown := [name for name in names if name not in known]:
        raise ConfigurationError(f"unknown role {unknown[0][:40]!r}; the roles are {', '.join(ROLES)}")
    if said and not names:
        raise ConfigurationError(f"no role is named; the roles are {', '.join(ROLES)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def roles_of(settings: Settings) -> frozenset[str]:
    """Return what a server is to do. Raises `ConfigurationError` for what cannot be."""
    roles = frozenset(settings.serve.only) or ALL
    if settings.bus.url is None and (missing := [role for role in ROLES if role in _NEEDED - roles]):
        raise ConfigurationError(
            f"a process with the roles {', '.join(sorted(roles))} would have an embedded bus that nobody else reaches, and nobody on it does "
            f"the work of {', '.join(missing)}: set bus.url (MOOTHALL_BUS__URL) to a NATS server that all processes reach, or add "
            f"{', '.join(missing)}"
        )
    return roles


def embedded(settings: Settings, roles: frozenset[str]) -> tuple[str, ...]:
    """Return the embedded parts of a process. Each lies in the data directory, or is found through it, and is one process's."""
    parts = {
        "bus": settings.bus.url is None,
        "graph": "graph" in roles and settings.graph.url is None,
        "model": "hosts" in roles and settings.llm.base_url is None,
    }
    return tuple(name for name, here in parts.items() if here)


def instance(settings: Settings, stack: ExitStack) -> str:
    """Return what no other living process on the same bus is called, and this one is again when it is started anew; empty with an embedded bus."""
    if settings.bus.url is None:
        return ""
    from moothall.wiring.lending import disk_of

    return f"{disk_of(settings.data_dir)}-{stack.enter_context(lock.numbered(settings.data_dir))}"


def lease_of(settings: Settings, bus: Bus, name: str) -> Lease:
    """Return the lease of what one process does at a time."""
    return Lease(bus.bucket(BUCKET), name, settings.serve.lease_seconds)


def alone(settings: Settings, bus: Bus, name: str) -> AbstractAsyncContextManager[None]:
    """Wait until no other process is at what `name` says, and keep them from it: at once with an embedded bus, for then there is none."""
    return nullcontext() if settings.bus.url is None else lease_of(settings, bus, name).waited_for()


def collector_of(settings: Settings, bus: Bus, repositories: Repositories) -> Collector:
    """Return what decides, beside others on the same bus."""
    return Collector(bus, repositories, settings.limits, alone=partial(alone, settings, bus))


@asynccontextmanager
async def sending_webhooks(settings: Settings, bus: Bus) -> AsyncIterator[None]:
    """Tell the server of the settings, if any, of each decision, until the block ends; of several processes one does. Raises `ConfigurationError`."""
    if settings.webhook.url is None:
        yield
        return
    from moothall.services.webhooks import open_webhooks

    async with open_webhooks(bus, settings.webhook) as webhooks:

        async def send() -> None:
            await webhooks.run((await bus.state(EVENTS.name)).last_seq)

        work = send() if settings.bus.url is None else lease_of(settings, bus, "webhook").lead(send)
        async with beside(work, "webhook"):
            yield


class Deciding:
    """The collector of this process where it decides, and what sees all that is under way where somebody asks it.

    `decides`: whether this process decides. `watches`: whether anybody asks it what is under way. A collector knows that where nobody else
    decides, which is with an embedded bus.
    """

    def __init__(self, settings: Settings, bus: Bus, repositories: Repositories, *, decides: bool, watches: bool) -> None:
        self._bus = bus
        self._collector = collector_of(settings, bus, repositories) if decides else None
        apart = watches and (self._collector is None or settings.bus.url is not None)
        self._onlooker = Onlooker(bus) if apart else None
        self.sees: Collector | Onlooker = self._onlooker or self._collector or Onlooker(bus)

    async def run(self) -> None:
        """Decide and follow, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._collector is not None:
                group.create_task(self._collector.run(), name="deciding")
            if self._onlooker is not None:
                last_seq = (await self._bus.state(EVENTS.name)).last_seq
                group.create_task(self._onlooker.run(last_seq), name="looking on")
