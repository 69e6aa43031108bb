"""The bus of a process. Only this module decides which it is: a command opens the bus of the
serving process, or its own.

Several processes share one bus if it has a server of its own. This module defines which work each
role does, and which work one process does at a time. The serving process checks at the start and
periodically that the log is complete, and marks the deliberations that may lack records.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    aclosing,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import get_args

from moothall import telemetry
from moothall.app import preflight
from moothall.config import BusSettings, Settings
from moothall.config.services import Duty
from moothall.domain.codec import load
from moothall.domain.event import Channel, EventType, request_event_id
from moothall.domain.status import FLEET, HostState
from moothall.errors import ConfigurationError, MoothallError
from moothall.events.adapter import Bus, embedded_server, open_bus
from moothall.events.lease import BUCKET, Lease
from moothall.events.raw_store import LogReport, check_log
from moothall.processes import write_private
from moothall.telemetry.tracing import write

__all__ = ["Bus", "open_bus"]

log = telemetry.get_logger(__name__)

ReportProgress = Callable[[str], None]
ROLES: tuple[Duty, ...] = get_args(Duty)
ALL = frozenset(ROLES)
_REQUIRED_ROLES = frozenset({"collector", "hosts"})
"""Roles that a server needs if no other process can reach its bus."""
_ATTACH_SECONDS, _POLL_SECONDS, _REPLY_SECONDS = 300.0, 0.1, 1.0
_MAX_SHOWN = 100
_LOG_CHECK_SECONDS = 3600.0
"""How often the whole log is read to detect lost messages."""
_LEASE_SECONDS = 6.0
"""How long the holder of a lease may be silent until another process replaces it."""


@asynccontextmanager
async def bus_url(settings: BusSettings, data_dir: Path) -> AsyncIterator[str]:
    """Yield the bus's URL."""
    if settings.url:
        yield settings.url
        return
    async with embedded_server(settings, data_dir / "bus") as url:
        yield url


@asynccontextmanager
async def open_log(
    settings: Settings, report_progress: ReportProgress, *, alone: bool = True
) -> AsyncIterator[Bus]:
    """Open only the bus: that of the serving process, or, with `alone`, one that is started for the
    duration of the context.

    Needs no Ray and no model.
    """
    async with AsyncExitStack() as stack:
        if (address := await hold_or_find(settings.data_dir, report_progress, stack)) is not None:
            url = address.bus_url
        elif not alone and settings.bus.url is None:
            raise ConfigurationError(
                f"no server is running on {settings.data_dir}; start `moothall serve`, or leave "
                "--follow out"
            )
        else:
            url = await stack.enter_async_context(bus_url(settings.bus, settings.data_dir))
        yield await stack.enter_async_context(open_bus(settings.bus, url))


async def hold_or_find(
    data_dir: Path, report_progress: ReportProgress, stack: AsyncExitStack
) -> preflight.Address | None:
    """Hold the data directory until the stack ends, or return the address of the process that holds
    it. Waits for a process that is starting or ending.
    """
    has_reported = False
    try:
        async with asyncio.timeout(_ATTACH_SECONDS):
            while True:
                with suppress(preflight.DirectoryTaken):
                    stack.enter_context(preflight.hold(data_dir))
                    return None
                if (address := preflight.find(data_dir)) is not None:
                    return address
                if not has_reported:
                    report_progress(
                        f"another moothall process is starting or stopping on {data_dir}; "
                        "waiting for it"
                    )
                    has_reported = True
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise ConfigurationError(
            f"another process holds {data_dir} but has published no address: it is still starting, "
            "or it hangs. Wait, stop it, or set MOOTHALL_DATA_DIR to another folder"
        ) from error


async def hosts(settings: Settings) -> Sequence[HostState] | None:
    """Return the hosts of a data directory that answer, by name; None if nothing is served. Raises
    `BusUnavailable`, `ConfigurationError`.
    """
    address = preflight.find(settings.data_dir)
    url = settings.bus.url if address is None else address.bus_url
    if url is None:
        return None
    async with open_bus(settings.bus, url) as bus:
        return await hosts_on(bus)


async def is_served(settings: Settings, bus: Bus) -> bool:
    """Return whether a process serves this data directory, or any host answers on a shared bus.
    Raises `BusUnavailable`.
    """
    if preflight.find(settings.data_dir) is not None:
        return True
    if settings.bus.url is None:
        return False
    async with aclosing(bus.ask_all(FLEET, {"ask": "state"}, _REPLY_SECONDS)) as replies:
        return await anext(replies, None) is not None


async def hosts_on(bus: Bus) -> Sequence[HostState]:
    """Return the hosts that answer on a bus, by name. Suspended hosts do not answer."""
    async with aclosing(bus.ask_all(FLEET, {"ask": "state"}, _REPLY_SECONDS)) as replies:
        return sorted(
            [load(HostState, state) async for state in replies],
            key=lambda host: (host.name, host.since),
        )


async def watch_log(data_dir: Path, bus: Bus, report_progress: ReportProgress) -> None:
    """Check the log at once and periodically, until cancelled. Report and log faults, and mark the
    deliberations concerned.
    """
    last_report = ""
    while True:
        try:
            report = await check_log_end(data_dir, bus)
            if not report.is_complete and str(report) != last_report:
                last_report = str(report)
                report_progress(last_report)
                log.error(
                    "the log is incomplete",
                    lost=report.lost,
                    cut=report.cut,
                    concerned=list(report.concerned)[:_MAX_SHOWN],
                )
            await mark_damaged(bus, report)
        except (MoothallError, OSError) as error:
            log.warning("the log could not be checked", reason=str(error))
        await asyncio.sleep(_LOG_CHECK_SECONDS)


async def check_log_end(data_dir: Path, bus: Bus) -> LogReport:
    """Check the log against its earlier end, and store its new end. A lost end is stored as
    lost.
    """
    path = data_dir / "log-end.json"
    report = await check_log(bus, await asyncio.to_thread(_read_last_seq, path))
    await asyncio.to_thread(
        write_private, path, json.dumps({"last_seq": max(report.last, report.expected_last)})
    )
    return report


async def mark_damaged(bus: Bus, report: LogReport) -> None:
    """Publish once, for every deliberation that may lack records, that it may be damaged."""
    for task_key, missing in report.concerned.items():
        first = await bus.first(Channel.RESULTS.of(task_key))
        if first is None:
            continue
        event = write(
            EventType.DELIBERATION_DAMAGED,
            task_key,
            {"task_id": task_key, "missing": list(missing[:_MAX_SHOWN]), "count": len(missing)},
            causationid=request_event_id(task_key),
            correlationid=first.event.correlationid,
            tenant=first.event.tenant,
            ordinal=f"{missing[0]}-{missing[-1]}-{len(missing)}",
            source="log",
        )
        if all(
            [
                recorded.event.id != event.id
                async for recorded in bus.replay((Channel.RESULTS.of(task_key),))
            ]
        ):
            await bus.publish(event)


def _read_last_seq(path: Path) -> int:
    try:
        last = json.loads(path.read_bytes())["last_seq"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return last if isinstance(last, int) else 0


def parse_roles(values: Iterable[str]) -> tuple[Duty, ...]:
    """Return the roles with these names. A name can be a list separated by commas. Raises
    `ConfigurationError` for unknown roles.
    """
    names = [
        name for value in values for part in value.split(",") if (name := part.strip().lower())
    ]
    roles: dict[str, Duty] = {role: role for role in ROLES}
    if unknown := [name for name in names if name not in roles]:
        raise ConfigurationError(
            f"unknown role {unknown[0][:40]!r}; the roles are {', '.join(ROLES)}"
        )
    if values and not names:
        raise ConfigurationError(f"no role is named; the roles are {', '.join(ROLES)}")
    return tuple(roles[name] for name in dict.fromkeys(names))


def roles_of(settings: Settings) -> frozenset[str]:
    """Return the roles of a server. Raises `ConfigurationError` for an impossible combination."""
    roles = frozenset(settings.serve.only) or ALL
    if settings.bus.url is None and (
        missing := [role for role in ROLES if role in _REQUIRED_ROLES - roles]
    ):
        raise ConfigurationError(
            f"a process with the roles {', '.join(sorted(roles))} would have an embedded bus that "
            f"no other process reaches, so the roles {', '.join(missing)} would be missing: set "
            "bus.url (MOOTHALL_BUS__URL) to a server that all processes reach, or add "
            f"{', '.join(missing)}"
        )
    return roles


def embedded_parts(settings: Settings, roles: frozenset[str]) -> tuple[str, ...]:
    """Return the embedded parts of a process. Each one is in the data directory, or is found
    through it, and belongs to one process.
    """
    parts = {
        "bus": settings.bus.url is None,
        "graph": "graph" in roles and settings.graph.url is None,
        "model": "hosts" in roles and settings.llm.base_url is None,
    }
    return tuple(name for name, embedded in parts.items() if embedded)


def instance(settings: Settings, stack: ExitStack) -> str:
    """Return a name that no other running process on the bus has, and that this process gets again
    after a restart; empty with an embedded bus.
    """
    if settings.bus.url is None:
        return ""
    from moothall.app.repositories import disk_of

    number = stack.enter_context(preflight.take_number(settings.data_dir))
    return f"{disk_of(settings.data_dir)}-{number}"


def lease_of(bus: Bus, name: str) -> Lease:
    """Return the lease of work that one process does at a time."""
    return Lease(bus.bucket(BUCKET), name, _LEASE_SECONDS)


def exclusive_lease(settings: Settings, bus: Bus, name: str) -> AbstractAsyncContextManager[None]:
    """Wait until no other process does the work `name`, and exclude others meanwhile. Returns at
    once with an embedded bus, which has no other processes.
    """
    return nullcontext() if settings.bus.url is None else lease_of(bus, name).wait()
