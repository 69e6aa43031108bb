"""`moothall clean`: remove stored environments, checkouts and clones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from moothall.cli.documents import CleanDocument, KeptEntry
from moothall.cli.options import FiniteRange, example, json_option
from moothall.cli.runtime import EXIT_NONE, print_json, say, with_settings
from moothall.config import Settings
from moothall.domain.codec import dump

if TYPE_CHECKING:  # imported by the command that runs
    from moothall.workspace.layout import StoredItem


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
@with_settings("looking at what lies in the data directory and removing what should go")
async def clean(
    settings: Settings, *, older_than: float | None, everything: bool, dry_run: bool, as_json: bool
) -> int:
    """Remove environments, checkouts and clones that were not used for long, and report their
    sizes.

    Items in use stay, all of them while a process serves. Removed items are created again when
    needed. Exit code 1 if an item could not be removed.
    """
    from moothall.app.data_dir import clean_up

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
            click.echo(f"{'goes ' if item in report.removed else 'nothing_removed'}  {_row(item)}")
    for item in report.busy:
        say(f"in use {_row(item)}")
    if report.refusal and not dry_run:
        say(f"nothing was removed: {report.refusal}")
        return EXIT_NONE if has_failures else 0
    verb = "would go" if dry_run else "freed"
    remaining = [item for item in report.items if item not in report.removed]
    click.echo(
        f"{_size(_total_size(report.removed))} {verb}, {_size(_total_size(remaining))} in "
        f"{len(remaining)} things {'would stay' if dry_run else 'stay'}"
    )
    return EXIT_NONE if has_failures else 0


def _row(item: StoredItem) -> str:
    days = max(0.0, time.time() - item.used) / 86_400
    return f"{item.kind:<12} {_size(item.size):>9}  {days:>5.1f} days  {item.path.name}"


def _entry(item: StoredItem) -> KeptEntry:
    return KeptEntry(item.kind, str(item.path), item.size, round(item.used, 3))


def _total_size(items: Sequence[StoredItem]) -> int:
    return sum(item.size for item in items)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:  # noqa: PLR2004 - a unit
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
