"""`moothall open`: the page of the house in a browser, signed in."""

from __future__ import annotations

import asyncio
import webbrowser

import click

from moothall.cli.options import example
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.cli.serve import serve_until_stopped
from moothall.config import Settings


@click.command("open", epilog=example("moothall open", "moothall open story-1a2b3c4d5e6f7a8b"))
@click.argument("story_id", metavar="[STORY]", default="")
@click.option("--no-browser", is_flag=True, help="Print the link that signs in once, and open nothing.")
@click.pass_context
@errors_spoken
def open_(context: click.Context, *, story_id: str, no_browser: bool) -> None:
    """Open the page, on the board or on STORY. Where no house serves, one is started, and serves until Ctrl-C."""
    from moothall.domain.ids import check_id

    run(_open(settings_of(context), check_id(story_id, "STORY") if story_id else "", browser=not no_browser))


async def _open(settings: Settings, story_id: str, *, browser: bool) -> int:
    from moothall.wiring.opening import page_link

    if (link := await page_link(settings, lambda line: click.echo(line, err=True))) is not None:
        await show(link, story_id, browser=browser)
        return 0

    async def ready(link: str) -> None:
        await show(link, story_id, browser=browser)

    return await serve_until_stopped(settings, ready)


async def show(link: str, story_id: str = "", *, browser: bool = True) -> None:
    """Print a link to the page, or to a story on it, and open it in the user's browser, if there is one."""
    if not link:
        click.echo("no page: web.enabled is off, its port is taken, or it is not for this machine's user alone", err=True)
        return
    whole = f"{link}&story={story_id}" if story_id else link
    click.echo(whole)
    if browser and not await asyncio.to_thread(webbrowser.open, whole):
        click.echo("no browser could be started here; open the link in one", err=True)
