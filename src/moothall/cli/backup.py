"""`moothall backup` and `moothall restore`."""

from __future__ import annotations

from pathlib import Path

import click

from moothall.cli.options import example
from moothall.cli.runtime import say, with_settings
from moothall.config import Settings

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, resolve_path=True))


@click.command(epilog=example("moothall backup /backups/moothall-2026-11-28.tar"))
@_FILE
@with_settings()
async def backup(settings: Settings, *, file: Path) -> None:
    """Write the log, keys, tokens, audit and repositories to FILE, also while `serve` runs. FILE
    contains secrets, so only its owner can read it.
    """
    from moothall.app.data_dir import save_backup

    saved = await save_backup(settings, file, say)
    click.echo(
        f"{file}: {saved.events} events up to seq {saved.mark}, {saved.clones} repositories, "
        f"{_megabytes(file):.1f} MB"
    )


@click.command(epilog=example("moothall restore /backups/moothall-2026-11-28.tar"))
@_FILE
@with_settings()
async def restore(settings: Settings, *, file: Path) -> None:
    """Restore the backup FILE into an empty data directory. Deliberations that had not ended
    continue when `serve` starts.
    """
    from moothall.app.data_dir import restore_backup

    restored = await restore_backup(settings, file, say)
    click.echo(
        f"restored {restored.events} events up to seq {restored.mark} and {restored.clones} "
        f"repositories, as of {restored.created}, to {settings.data_dir}"
    )


def _megabytes(file: Path) -> float:
    return file.stat().st_size / 1e6
