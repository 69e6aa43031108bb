"""`moothall audit`: the hash-chained record of every tool call."""

from __future__ import annotations

from contextlib import aclosing

import click

from moothall.cli.exit_codes import EXIT_NONE
from moothall.cli.options import example, json_option
from moothall.cli.runtime import print_json, say, with_settings
from moothall.cli.text import plain
from moothall.config import Settings
from moothall.domain.topic import Channel
from moothall.errors import MoothallError


@click.group()
def audit() -> None:
    """The audit of tool calls."""


@audit.command(epilog=example("moothall audit verify --approvals"))
@click.option(
    "--approvals",
    is_flag=True,
    help="Name the calls that ran because an operator had allowed them, and who it was.",
)
@with_settings()
async def verify(settings: Settings, *, approvals: bool) -> int:
    """Check that no record was changed, removed, reordered or cut off, by the files and by the
    AUDIT stream, which is the only source for hosts on other machines. Exit code 1 if one was.
    """
    from moothall.app.bus import open_log
    from moothall.authorization.audit_chain import StreamChains, verify_all
    from moothall.authorization.audit_stream import read_stream_chains
    from moothall.authorization.keys import keys_of

    keys = keys_of(settings.guard, settings.data_dir)
    key, hosts, stream = keys.audit, keys.of_hosts().audit, StreamChains()
    try:
        async with (
            open_log(settings, lambda _: None) as bus,
            aclosing(bus.replay((Channel.AUDIT.all,))) as events,
        ):
            stream = await read_stream_chains(events, key, hosts)
    except MoothallError as error:
        say(
            plain(
                "the files alone are checked, since the AUDIT stream cannot be read: "
                f"{error.message}"
            )
        )
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
    approved = f", {len(report.approved)} calls approved by operators" if report.approved else ""
    click.echo(
        f"{report.records} records in {report.chains} chains{unfinished}{approved}: "
        + ("whole" if report.ok else "NOT whole")
    )
    return 0 if report.ok else EXIT_NONE


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
