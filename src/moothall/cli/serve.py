"""`moothall serve`: the server, until it is stopped. `moothall open`: its web page in a browser,
signed in.
"""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import Awaitable, Callable

import click

from moothall.cli.options import example, field_range
from moothall.cli.runtime import say, with_settings
from moothall.config import GrpcSettings, Settings


@click.command(
    epilog=example(
        "moothall serve", "moothall serve --port 0", "moothall serve --only api,page --port 0"
    )
)
@click.option(
    "--port",
    type=field_range(GrpcSettings, "port"),
    help="gRPC port; 50055 by default, 0 for any free one.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="ROLES",
    help="Roles of this process, from api,page,collector,planning,graph,tools,hosts; all "
    "by default.",
)
@with_settings(narrated=False)
async def serve(settings: Settings, *, port: int | None, only: tuple[str, ...]) -> None:
    """Serve gRPC (councils, tools, the kernel for one agent, the code runner), HTTP (the page,
    tools, /health, /tasks) and the bus, on loopback unless the settings say otherwise, until
    Ctrl-C. On a bus of your own (bus.url) any number of processes may share the work.
    """
    if port is not None:
        settings = settings.model_copy(
            update={"grpc": settings.grpc.model_copy(update={"port": port})}
        )
    if only:
        from moothall.app.bus import parse_roles

        settings = settings.model_copy(
            update={"serve": settings.serve.model_copy(update={"only": parse_roles(only)})}
        )
    await serve_until_stopped(settings)


def tokens_are(settings: Settings) -> str:
    """Return where callers find a token."""
    if settings.grpc.tokens_file is not None:
        return f"tokens are those of {settings.grpc.tokens_file}"
    if settings.grpc.token is not None:
        return "the token is that of the settings"
    return f"the token is in {settings.data_dir / 'token'}"


async def serve_until_stopped(
    settings: Settings, ready: Callable[[str], Awaitable[None]] | None = None
) -> None:
    """Serve, and print the addresses. `ready` receives the link that signs a browser in once, empty
    if there is none.
    """
    from moothall.api.http.server import LINK_SECONDS
    from moothall.app.bus import roles_of
    from moothall.app.server import open_app

    async with open_app(settings, say, serving=True) as app:
        if app.metrics_port:
            say(
                f"figures for Prometheus: http://{settings.metrics.host}:{app.metrics_port}/metrics"
            )
        if app.http_port:
            paths = ("/health", "/tasks", *(["/v1/tools"] if "tools" in roles_of(settings) else []))
            say(f"serving HTTP on {settings.web.host}:{app.http_port}: {', '.join(paths)}")
        if app.link and ready is None:
            say(f"the page, signed in once within {LINK_SECONDS:g} s: {app.link}")
        say(f"serving gRPC on {settings.grpc.host}:{app.grpc_port}; {tokens_are(settings)}")
        if ready is not None:
            await ready(app.link)
        await asyncio.Event().wait()


@click.command("open", epilog=example("moothall open", "moothall open story-1a2b3c4d5e6f7a8b"))
@click.argument("story_id", metavar="[STORY]", default="")
@click.option(
    "--no-browser",
    is_flag=True,
    help="Print the one-time sign-in link instead of opening a browser.",
)
@with_settings(narrated=False)
async def open_(settings: Settings, *, story_id: str, no_browser: bool) -> None:
    """Open the page, on the board or on STORY. If no server runs, one is started, and serves until
    Ctrl-C.
    """
    from moothall.app.server import page_link
    from moothall.domain.ids import check_id

    story = check_id(story_id, "STORY") if story_id else ""

    async def ready(link: str) -> None:
        await show_page(link, story, browser=not no_browser)

    if (link := await page_link(settings, say)) is None:
        await serve_until_stopped(settings, ready)
    else:
        await ready(link)


async def show_page(link: str, story_id: str = "", *, browser: bool = True) -> None:
    """Print a link to the page, or to a story on it, and open it in the user's browser, if there is
    one.
    """
    if not link:
        say(
            "no page: web.enabled is off, its port is taken, or it is not for this machine's user "
            "alone"
        )
        return
    url = f"{link}&story={story_id}" if story_id else link
    click.echo(url)
    if browser and not await asyncio.to_thread(webbrowser.open, url):
        say("no browser could be started here; open the link in one")
