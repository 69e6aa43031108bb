"""`moothall log`: the recorded events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing

import click

from moothall.cli.options import SEQUENCE, example
from moothall.cli.runtime import print_json, report_errors, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.codec import dump
from moothall.domain.event import Recorded
from moothall.domain.topic import Topic, deliberation_topics


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
    async with open_log(settings, say, alone=not follow) as bus:
        events = bus.follow(topics, after_seq) if follow else bus.replay(topics, after_seq)
        async with aclosing(events):
            async for recorded in events:
                click.echo(
                    json.dumps({"seq": recorded.seq} | dump(recorded.event))
                    if as_json
                    else _line(recorded)
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
    from moothall.cli.exit_codes import EXIT_NONE

    async with open_log(settings, say) as bus:
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
@click.confirmation_option(prompt="Pruned events cannot be brought back. Go on?")
@with_settings(narrated=False)
async def prune(settings: Settings, *, keep: int) -> None:
    """Delete the oldest events, and data that nothing refers to any more: documents, large values,
    patches, old checkouts, and audit messages older than guard.audit_days.
    """
    from moothall.app.cleaning import prune as prune_all

    gone = await prune_all(settings, keep, say)
    click.echo(f"{gone.events} events deleted")
    click.echo(
        f"with them {gone.documents} status documents, {gone.blobs} large values, {gone.patches} "
        f"patches, {gone.preparations or 0} checkouts and environments"
    )
    if settings.guard.audit_days is not None:
        click.echo(
            f"{gone.audit} messages of the AUDIT stream older than {settings.guard.audit_days} days"
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
    from moothall.events.dead_letters import letters, replay

    async with open_log(settings, say) as bus:
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
    """Print the AsyncAPI document of all events, made from the registry."""
    from moothall.events.adapter import asyncapi as document

    print_json(document())
