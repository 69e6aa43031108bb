"""`moothall audit`: the hash-chained record of every tool call."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.exit_codes import EXIT_NONE
from moothall.cli.options import example, json_option
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.topic import Channel
from moothall.errors import MoothallError

if TYPE_CHECKING:
    from moothall.authorization.audit_chain import StreamChains


@click.group()
def audit() -> None:
    """The audit of tool calls."""


@audit.command(epilog=example("moothall audit verify --approvals"))
@click.option(
    "--approvals",
    is_flag=True,
    help="List the calls that an operator approved, with the approver.",
)
@with_settings()
async def verify(settings: Settings, *, approvals: bool) -> int:
    """Check that no record was changed, removed, reordered or cut off, by the files and by the
    AUDIT stream, which is the only source for hosts on other machines. Exit code 1 if one was.
    """
    from moothall.authorization.audit_chain import verify_all
    from moothall.authorization.keys import keys_of

    keys = keys_of(settings.guard, settings.data_dir)
    key, hosts = keys.audit, keys.of_hosts().audit
    stream = await _read_stream(settings, key, hosts)
    report = verify_all(settings.data_dir, key, stream, hosts)
    for problem in report.problems:
        click.echo(
            f"{problem.path}, line {problem.line}: {problem.what}"
            + ("" if problem.serious else " (harmless by itself)")
        )
    for item in report.approved if approvals else ():
        line = (
            f"{item.time}  {item.tool} of {item.principal} ({item.tenant}), request "
            f"{item.request_id}: approved by {item.by}"
        )
        click.echo(plain(line))
    unfinished = (
        f", {report.unfinished} calls whose end is not recorded" if report.unfinished else ""
    )
    pruned = f", {report.pruned} older ones were pruned" if report.pruned else ""
    approved = f", {len(report.approved)} calls approved by operators" if report.approved else ""
    click.echo(
        f"{report.records} records in {report.chains} chains{pruned}{unfinished}{approved}: "
        + ("whole" if report.ok else "NOT whole")
    )
    return 0 if report.ok else EXIT_NONE


async def _read_stream(settings: Settings, key: bytes, hosts: bytes) -> StreamChains:
    """Return the chains in the AUDIT stream. If it cannot be read, print why, and return none."""
    from moothall.app.bus import open_log
    from moothall.authorization.audit_chain import StreamChains
    from moothall.authorization.audit_stream import read_stream_chains

    try:
        async with (
            open_log(settings, lambda _: None) as bus,
            aclosing(bus.replay((Channel.AUDIT.all,))) as events,
        ):
            return await read_stream_chains(events, key, hosts)
    except MoothallError as error:
        say(plain(f"only the files are read. The AUDIT stream is unavailable: {error.message}"))
        return StreamChains()


def _time(_context: click.Context, _parameter: click.Parameter, value: str) -> datetime:
    """Parse an ISO 8601 date or time, UTC by default."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not an ISO 8601 time, such as 2026-11-01 or 2026-11-01T12:00+01:00."
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)


@audit.command(
    epilog=example(
        "moothall audit export --since 2026-11-01 > audit.jsonl",
        "moothall audit export --since 2026-11-01T12:00+01:00 --format otlp",
    )
)
@click.option(
    "--since",
    callback=_time,
    required=True,
    metavar="TIME",
    help="Records from this ISO 8601 date or time on; UTC if no offset is given.",
)
@click.option("--tenant", help="Only the records of this tenant; all by default.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "otlp"]),
    default="jsonl",
    show_default=True,
    help="jsonl: a JSON object per line on stdout; otlp: log records, to trace.endpoint.",
)
@with_settings()
async def export(settings: Settings, *, since: datetime, tenant: str | None, kind: str) -> int:
    """Write audit records for other systems, by time, from the files and from the AUDIT stream.
    Exit code 1 if the collector did not accept all.
    """
    from moothall.authorization.audit_export import read_records
    from moothall.authorization.keys import keys_of

    keys = keys_of(settings.guard, settings.data_dir)
    stream = await _read_stream(settings, keys.audit, keys.of_hosts().audit)
    records = read_records(settings.data_dir, stream, since, tenant)
    if kind == "otlp":
        return await _send(settings, records)
    for record in records:
        click.echo(json.dumps(record, separators=(",", ":")))
    return 0


async def _send(settings: Settings, records: Iterator[Mapping[str, Any]]) -> int:
    from moothall.authorization.audit_export import BATCH_RECORDS
    from moothall.telemetry.log_export import open_sender

    count = accepted = 0
    with open_sender(settings.trace, "audit export") as sender:
        while batch := list(itertools.islice(records, BATCH_RECORDS)):
            count += len(batch)
            accepted += len(batch) if await asyncio.to_thread(sender.send, batch) else 0
    say(f"{accepted} of {count} records sent to {settings.trace.endpoint}")
    return 0 if accepted == count else EXIT_NONE


@audit.command(epilog=example("moothall audit alerts --json"))
@json_option
@with_settings()
async def alerts(settings: Settings, *, as_json: bool) -> None:
    """List alerts: many refusals of one principal or task, and attempts to escape the sandbox."""
    from moothall.app.bus import open_log
    from moothall.domain.event import EventType

    async with (
        open_log(settings, lambda _: None) as bus,
        aclosing(bus.replay((Channel.AUDIT.all,))) as events,
    ):
        stream = [
            recorded.event
            async for recorded in events
            if recorded.event.type == EventType.GUARD_ALERTED
        ]
    alert_documents = [
        {"time": event.time, "tenant": event.tenant, **event.data} for event in stream
    ]
    if as_json:
        print_json(alert_documents)
        return
    for item in alert_documents:
        origin = f"{item['principal']} ({item['tenant']}), task {item['task_id']}"
        click.echo(
            plain(
                f"{item['time']}  {item['count']} {item['kind']} of {origin}; the last: "
                f"{item['tool']}: {item['reason']}"
            )
        )
    if not alert_documents:
        say("no alerts")
