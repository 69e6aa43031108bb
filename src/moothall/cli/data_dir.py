"""Commands for the content of a data directory. `moothall log`: the recorded events. `moothall
audit`: the hash-chained record of tool calls. `moothall backup` and `moothall restore`: all of it
in one file. `moothall clean`: removal of stored environments, checkouts and clones.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moothall.cli.options import SEQUENCE, FiniteRange, example, json_option
from moothall.cli.runtime import (
    EXIT_NONE,
    plain,
    print_json,
    print_status,
    report_errors,
    with_settings,
)
from moothall.config import Settings
from moothall.domain.codec import dump
from moothall.domain.event import Channel, Recorded, Topic, deliberation_topics
from moothall.domain.text import count_of
from moothall.errors import MoothallError, NotFound

if TYPE_CHECKING:  # imported by the command that runs
    from moothall.authorization.audit_chain import StreamChains
    from moothall.cli.documents import KeptEntry
    from moothall.workspace.layout import StoredItem


# `moothall log`: the recorded events.


@click.group()
def log() -> None:
    """The event log: all events, in order."""


@log.command(
    epilog=example(
        "moothall log tail --task task-0123456789ab", "moothall log tail --follow --json"
    )
)
@click.option("--task", "task_id", default="", help="Show only events of this deliberation.")
@click.option(
    "--after",
    "after_seq",
    type=SEQUENCE,
    default=0,
    help="Show only events after this sequence number.",
)
@click.option("--follow", is_flag=True, help="Keep following new events.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_settings(narrated=False)
async def tail(
    settings: Settings, *, task_id: str, after_seq: int, follow: bool, as_json: bool
) -> None:
    """Print events, oldest first."""
    from moothall.app.bus import open_log

    topics: Sequence[Topic] = ()
    if task_id:
        from moothall.domain.ids import check_task_key

        topics = deliberation_topics(check_task_key(task_id))
    is_unknown = bool(task_id) and not after_seq
    async with open_log(settings, print_status, alone=not follow) as bus:
        events = bus.follow(topics, after_seq) if follow else bus.replay(topics, after_seq)
        async with aclosing(events):
            async for recorded in events:
                is_unknown = False
                click.echo(
                    json.dumps({"seq": recorded.seq} | dump(recorded.event))
                    if as_json
                    else _line(recorded)
                )
    if is_unknown:
        raise NotFound(
            f"the log has no events of task {task_id!r}; `moothall list` shows the tasks"
        )


def _line(recorded: Recorded) -> str:
    event = recorded.event
    fields = {
        key: value
        for key, value in event.data.items()
        if key != "task_id" and isinstance(value, str | int | float) and value
    }
    return (
        f"{recorded.seq:>6}  {event.time[:23]:<23}  {event.type.removeprefix('moothall.'):<24} "
        f"{event.subject}  "
        + " ".join(plain(json.dumps({key: value})[1:-1], 80) for key, value in fields.items())
    )


@log.command(epilog=example("moothall log check"))
@with_settings(narrated=False)
async def check(settings: Settings) -> int:
    """Read the whole log, report missing records, and mark the deliberations concerned. Exit code 1
    if records are missing.
    """
    from moothall.app.bus import check_log_end, mark_damaged, open_log
    from moothall.cli.runtime import EXIT_NONE

    async with open_log(settings, print_status) as bus:
        report = await check_log_end(settings.data_dir, bus)
        await mark_damaged(bus, report)
    click.echo(str(report))
    for task_key, missing in report.concerned.items():
        click.echo(
            f"{plain(task_key)} may lack {len(missing)}: seq {', '.join(map(str, missing[:8]))}"
        )
    return 0 if report.is_complete else EXIT_NONE


@log.command(epilog=example("moothall log prune --keep 100000"))
@click.option("--keep", type=SEQUENCE, required=True, help="Number of newest events to keep.")
@click.confirmation_option(prompt="Pruned events cannot be restored. Continue?")
@with_settings(narrated=False)
async def prune(settings: Settings, *, keep: int) -> None:
    """Delete the oldest events, and data that nothing refers to any more: documents, large values,
    patches, old checkouts, and audit messages older than guard.audit_days.
    """
    from moothall.app.data_dir import prune as prune_all

    report = await prune_all(settings, keep, print_status)
    click.echo(f"{report.events} events deleted")
    click.echo(
        f"with them {report.documents} status documents, {report.blobs} large values, "
        f"{report.patches} patches, {report.preparations or 0} checkouts and environments"
    )
    if settings.guard.audit_days is not None:
        click.echo(
            f"{report.audit} messages of the AUDIT stream older than "
            f"{settings.guard.audit_days} days"
        )


@log.command(epilog=example("moothall log dead", "moothall log dead --replay 42"))
@click.option(
    "--replay",
    "replay_seq",
    type=click.IntRange(1, 2**63 - 1),
    help="Send the message with this number again.",
)
@with_settings(narrated=False)
async def dead(settings: Settings, *, replay_seq: int | None) -> None:
    """List messages that could not be handled, with the reasons; or send one again."""
    from moothall.app.bus import open_log
    from moothall.events.raw_store import letters, replay

    async with open_log(settings, print_status) as bus:
        if replay_seq is not None:
            click.echo(f"sent again as seq {await replay(bus, replay_seq)}")
            return
        count = 0
        async for letter in letters(bus):
            count += 1
            click.echo(
                f"{letter.seq:>6}  {letter.time:%Y-%m-%d %H:%M:%S}  {letter.subject}  "
                f"{letter.code}: {plain(letter.reason)}"
            )
        click.echo(f"{count} dead letters")


@log.command(epilog=example("moothall log asyncapi > asyncapi.json"))
@report_errors
def asyncapi() -> None:
    """Print the AsyncAPI document of all events, generated from the registry."""
    from moothall.events.adapter import asyncapi as document

    print_json(document())


# `moothall audit`: the hash-chained record of every tool call.


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
            f"{problem.path}, line {problem.line}: {problem.message}"
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
        f"{count_of(report.records, 'record')} in {count_of(report.chains, 'chain')}{pruned}"
        f"{unfinished}{approved}: " + ("whole" if report.ok else "NOT whole")
    )
    return 0 if report.ok else EXIT_NONE


async def _read_stream(settings: Settings, key: bytes, hosts: bytes) -> StreamChains:
    """Return the chains in the AUDIT stream. If it cannot be read, print why, and return none."""
    from moothall.app.bus import open_log
    from moothall.authorization.audit_chain import StreamChains
    from moothall.authorization.audit_export import read_stream_chains

    try:
        async with (
            open_log(settings, lambda _: None) as bus,
            aclosing(bus.replay((Channel.AUDIT.all,))) as events,
        ):
            return await read_stream_chains(events, key, hosts)
    except MoothallError as error:
        print_status(
            plain(f"only the files are read. The AUDIT stream is unavailable: {error.message}")
        )
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
        return await _send_records(settings, records)
    for record in records:
        click.echo(json.dumps(record, separators=(",", ":")))
    return 0


async def _send_records(settings: Settings, records: Iterator[Mapping[str, Any]]) -> int:
    from moothall.authorization.audit_export import BATCH_RECORDS
    from moothall.telemetry.recording import open_sender

    count = accepted = 0
    with open_sender(settings.trace, "audit export") as sender:
        while batch := list(itertools.islice(records, BATCH_RECORDS)):
            count += len(batch)
            accepted += len(batch) if await asyncio.to_thread(sender.send, batch) else 0
    print_status(f"{accepted} of {count} records sent to {settings.trace.endpoint}")
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
        print_status("no alerts")


# `moothall backup` and `moothall restore`.


_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, resolve_path=True))


@click.command(epilog=example("moothall backup /backups/moothall-2026-11-28.tar"))
@_FILE
@with_settings()
async def backup(settings: Settings, *, file: Path) -> None:
    """Write the log, keys, tokens, audit and repositories to FILE, also while `serve` runs. FILE
    contains secrets, so only its owner can read it.
    """
    from moothall.app.data_dir import save_backup

    saved = await save_backup(settings, file, print_status)
    click.echo(
        f"{file}: {count_of(saved.events, 'event')} up to seq {saved.mark}, "
        f"{count_of(saved.clones, 'repository', 'repositories')}, {_megabytes(file):.1f} MB"
    )


@click.command(epilog=example("moothall restore /backups/moothall-2026-11-28.tar"))
@_FILE
@with_settings()
async def restore(settings: Settings, *, file: Path) -> None:
    """Restore the backup FILE into an empty data directory. Deliberations that had not ended
    continue when `serve` starts.
    """
    from moothall.app.data_dir import restore_backup

    restored = await restore_backup(settings, file, print_status)
    click.echo(
        f"restored {count_of(restored.events, 'event')} up to seq {restored.mark} and "
        f"{count_of(restored.clones, 'repository', 'repositories')}, as of {restored.created}, to "
        f"{settings.data_dir}"
    )


def _megabytes(file: Path) -> float:
    return file.stat().st_size / 1e6


# `moothall clean`: remove stored environments, checkouts and clones.


@click.command(
    epilog=example(
        "moothall clean --dry-run", "moothall clean --older-than 3", "moothall clean --all"
    )
)
@click.option(
    "--older-than",
    type=FiniteRange(),
    help="Minimum days without use; workspace.keep_days by default.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove everything, including clones of registered repositories.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
@with_settings("scanning the data directory and removing unused data")
async def clean(
    settings: Settings, *, older_than: float | None, everything: bool, dry_run: bool, as_json: bool
) -> int:
    """Remove environments, checkouts and clones that were not used for long, and report their
    sizes.

    Items in use stay, all of them while a process serves. Removed items are created again when
    needed. Exit code 1 if an item could not be removed.
    """
    from moothall.app.data_dir import clean_up
    from moothall.cli.documents import CleanDocument

    def report_removed(item: StoredItem) -> None:
        if not as_json:
            click.echo(f"removed {_row(item)}")

    report = await clean_up(
        settings,
        older_than=older_than,
        everything=everything,
        dry_run=dry_run,
        report_removed=report_removed,
    )
    has_failures = bool(report.busy) or bool(report.refusal and report.removed)
    if as_json:
        nothing_removed = dry_run or bool(report.refusal)
        document = CleanDocument(
            dry_run=dry_run,
            refused="" if dry_run else report.refusal,
            kept=tuple(
                _entry(item)
                for item in report.items
                if nothing_removed or item not in report.removed
            ),
            removed=() if nothing_removed else tuple(map(_entry, report.removed)),
            would_remove=tuple(map(_entry, report.removed)) if nothing_removed else (),
        )
        print_json(dump(document))
        return EXIT_NONE if has_failures and not dry_run else 0
    if dry_run or report.refusal:
        for item in report.items:
            click.echo(f"{'remove' if item in report.removed else 'keep  '}  {_row(item)}")
    for item in report.busy:
        print_status(f"in use {_row(item)}")
    if report.refusal and not dry_run:
        print_status(f"nothing was removed: {report.refusal}")
        return EXIT_NONE if has_failures else 0
    verb = "would be freed" if dry_run else "freed"
    remaining = [item for item in report.items if item not in report.removed]
    click.echo(
        f"{_size(_total_size(report.removed))} {verb}, {_size(_total_size(remaining))} kept "
        f"({count_of(len(remaining), 'item')})"
    )
    return EXIT_NONE if has_failures else 0


def _row(item: StoredItem) -> str:
    days = max(0.0, time.time() - item.used) / 86_400
    return f"{item.kind:<12} {_size(item.size):>9}  {days:>5.1f} days  {item.path.name}"


def _entry(item: StoredItem) -> KeptEntry:
    from moothall.cli.documents import KeptEntry

    return KeptEntry(item.kind, str(item.path), item.size, round(item.used, 3))


def _total_size(items: Sequence[StoredItem]) -> int:
    return sum(item.size for item in items)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:  # noqa: PLR2004 - a unit
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
