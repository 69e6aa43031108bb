"""Looking whether the log is whole, at the start and now and then, and marking the deliberations that may lack something."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from moothall import telemetry
from moothall.bus.log_check import LogReport, check_log
from moothall.config import Settings
from moothall.domain.causes import requested_id
from moothall.domain.event import EventType
from moothall.domain.topic import Channel
from moothall.errors import MoothallError
from moothall.telemetry.events import write
from moothall.wiring.bus import Bus, Tell

log = telemetry.get_logger(__name__)

_SHOWN = 100


async def watch_log(settings: Settings, bus: Bus, tell: Tell) -> None:
    """Check at once and every `bus.check_seconds`, until cancelled; what is wrong is told and logged, and the deliberations are marked."""
    told = ""
    while True:
        try:
            report = await look(settings, bus)
            if not report.whole and str(report) != told:
                told = str(report)
                tell(told)
                log.error("the log is not whole", lost=report.lost, cut=report.cut, concerned=list(report.concerned)[:_SHOWN])
            await mark(bus, report)
        except (MoothallError, OSError) as error:
            log.warning("the log could not be checked", reason=str(error))
        await asyncio.sleep(settings.bus.check_seconds)


async def look(settings: Settings, bus: Bus) -> LogReport:
    """Check the log against where it ended before, and remember where it ends. A lost end is remembered as lost."""
    path = settings.data_dir / "log-end.json"
    report = await check_log(bus, await asyncio.to_thread(_read, path))
    await asyncio.to_thread(_write, path, max(report.last, report.before))
    return report


async def mark(bus: Bus, report: LogReport) -> None:
    """Publish once, of every deliberation that may lack a record, that it may."""
    for task_id, missing in report.concerned.items():
        first = await bus.first(Channel.RESULTS.of(task_id))
        if first is None:
            continue
        event = write(
            EventType.DELIBERATION_DAMAGED,
            task_id,
            {"task_id": task_id, "missing": list(missing[:_SHOWN]), "count": len(missing)},
            causationid=requested_id(task_id),
            correlationid=first.event.correlationid,
            tenant=first.event.tenant,
            ordinal=f"{missing[0]}-{missing[-1]}-{len(missing)}",
            source="log",
        )
        if all([known.event.id != event.id async for known in bus.replay((Channel.RESULTS.of(task_id),))]):
            await bus.publish(event)


def _read(path: Path) -> int:
    try:
        last = json.loads(path.read_bytes())["last_seq"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return last if isinstance(last, int) else 0


def _write(path: Path, last: int) -> None:
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump({"last_seq": last}, file)
    fresh.replace(path)
