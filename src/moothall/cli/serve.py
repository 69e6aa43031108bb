"""`moothall serve`: the orchestrator, until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import click

from moothall.cli.options import example
from moothall.cli.run import errors_spoken, run, settings_of
from moothall.config import Settings


@click.command(epilog=example("moothall serve", "moothall serve --port 0", "moothall serve --only api,page --port 0"))
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="gRPC port; 50055 by default, 0 for any free one.")
@click.option(
    "--only",
    multiple=True,
    metavar="ROLES",
    help="What this process does: some of api,page,collector,planning,graph,tools,hosts. All by default.",
)
@click.pass_context
@errors_spoken
def serve(context: click.Context, port: int | None, only: tuple[str, ...]) -> None:
    """Serve gRPC (councils, tools, the kernel for one agent, the code runner), HTTP (the page, tools, /health, /tasks) and the bus, on
    loopback unless the settings say otherwise, until Ctrl-C. On a bus of your own (bus.url) any number of processes may share the work.
    """
    settings = settings_of(context)
    if port is not None:
        settings = settings.model_copy(update={"grpc": settings.grpc.model_copy(update={"port": port})})
    if only:
        from moothall.wiring.roles import parse_roles

        settings = settings.model_copy(update={"serve": settings.serve.model_copy(update={"only": parse_roles(only)})})
    run(serve_until_stopped(settings))


def tokens_are(settings: Settings) -> str:
    """Say where callers find a token."""
    if settings.grpc.tokens_file is not None:
        return f"tokens are those of {settings.grpc.tokens_file}"
    if settings.grpc.token is not None:
        return "the token is that of the settings"
    return f"the token is in {settings.data_dir / 'token'}"


async def serve_until_stopped(settings: Settings, ready: Callable[[str], Awaitable[None]] | None = None) -> int:
    """Serve, and say where. `ready` hears the link that signs a browser in once, empty where there is none."""
    from moothall.wiring.house import open_house
    from moothall.wiring.roles import roles_of

    async with open_house(settings, lambda line: click.echo(line, err=True), serving=True) as house:
        if house.metrics_port:
            click.echo(f"figures for Prometheus: http://{settings.metrics.host}:{house.metrics_port}/metrics", err=True)
        if house.http_port:
            paths = ("/health", "/tasks", *(["/v1/tools"] if "tools" in roles_of(settings) else []))
            click.echo(f"serving HTTP on {settings.web.host}:{house.http_port}: {', '.join(paths)}", err=True)
        if house.link and ready is None:
            click.echo(f"the page, signed in once within {settings.web.link_seconds:g} s: {house.link}", err=True)
        click.echo(f"serving gRPC on {settings.grpc.host}:{house.grpc_port}; {tokens_are(settings)}", err=True)
        if ready is not None:
            await ready(house.link)
        await asyncio.Event().wait()
    return 0
