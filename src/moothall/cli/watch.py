"""`moothall watch`: answer issues of a forge with pull requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from moothall.cli.exit_codes import EXIT_WRONG
from moothall.cli.options import example
from moothall.cli.runtime import say, with_settings
from moothall.cli.text import plain
from moothall.config import ForgeSettings, Settings, environment
from moothall.domain.identity import LOCAL
from moothall.domain.task import TASK_CHARS
from moothall.errors import ConfigurationError

if TYPE_CHECKING:
    from moothall.forge.watch import Watch

_VARIABLE = "MOOTHALL_FORGE__TOKEN"


@click.command(epilog=example("moothall watch", "moothall watch --once"))
@click.option(
    "--once",
    is_flag=True,
    help="Do the current work once and exit; exit code 0 if everything succeeded.",
)
@with_settings()
async def watch(settings: Settings, *, once: bool) -> int:
    """Let councils work on the issues of a forge (settings [forge]), until Ctrl-C.

    An open issue with the label becomes a task, its proven winner a pull request, and a review that
    requests changes or a failed check a further commit. Works in the process that serves this data
    directory, if there is one, otherwise in this one. After a restart, it continues.
    """
    async with open_watch(settings, lambda line: say(plain(line, 1000))) as forge_watch:
        return 0 if await forge_watch.watch_issues(once=once) else EXIT_WRONG


@asynccontextmanager
async def open_watch(
    settings: Settings, report_progress: Callable[[str], None]
) -> AsyncIterator[Watch]:
    """Open the watch of the configured forge. Raises `ConfigurationError` if the settings name no
    forge, and what registering raises.
    """
    from moothall.app.repositories import trusted_repositories
    from moothall.app.server import open_app
    from moothall.forge.client import forge_client
    from moothall.forge.watch import Watch
    from moothall.forge.webhooks import serve_webhooks

    forge = settings.forge
    if not forge.repositories:
        raise ConfigurationError(
            "forge.repositories is empty: name those that are watched, as owner/name"
        )
    if not (forge.label or forge.mention):
        raise ConfigurationError(
            "forge.label and forge.mention are both empty: no issue would ever be worked on"
        )
    async with forge_client(forge) as client:
        registry, repository_ids = trusted_repositories(settings), {}
        for name in forge.repositories:
            url = f"{forge.url.rstrip('/')}/{name}.git"
            registered = registry.registry.of_origin(url, LOCAL.tenant)
            credential = registered.credential if registered else ""
            repository_ids[name] = (
                await registry.register(url, credential=credential or credential_of(forge))
            ).id
        async with open_app(settings, report_progress) as app:
            watch = Watch(
                forge,
                client,
                app.deliberations,
                registry.offer,
                repository_ids,
                task_chars=TASK_CHARS,
                report_progress=report_progress,
            )
            async with serve_webhooks(forge, watch.wake) as port:
                if port:
                    report_progress(f"webhooks are heard on {forge.webhook_host}:{port}")
                report_progress(f"watching {', '.join(repository_ids)}")
                yield watch


def credential_of(forge: ForgeSettings) -> str:
    """Return the name of the token for a repository's record, which holds no secrets. Raises
    `ConfigurationError`.
    """
    if forge.token_file is not None:
        return f"file:{forge.token_file.absolute()}"
    if environment().get(_VARIABLE):
        return f"env:{_VARIABLE}"
    raise ConfigurationError(
        f"git needs forge.token too, from where it is named: set forge.token_file, or {_VARIABLE}"
    )
