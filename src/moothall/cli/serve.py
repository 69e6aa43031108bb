"""The processes that run until they are stopped. `moothall serve`: the server. `moothall open`: its
web page in a browser. `moothall watch`: answer issues of a forge with pull requests. `moothall acp`
and `moothall mcp`: councils for editors and assistants; their servers are in `acp_server.py` and
`mcp_server.py`, whose libraries are optional. `moothall executor`: the program that runs the tools
inside a workspace's container.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moothall.cli.options import example, field_range
from moothall.cli.runtime import (
    EXIT_WRONG,
    file_of,
    plain,
    print_status,
    report_errors,
    settings_of,
    with_settings,
)
from moothall.config import ForgeSettings, GrpcSettings, Settings, environment
from moothall.domain.ids import LOCAL
from moothall.domain.task import TASK_CHARS
from moothall.errors import ConfigurationError, InvalidRequest
from moothall.sandbox_runtime.confinement import EXECUTOR_PID, ROOT

if TYPE_CHECKING:
    from moothall.forge.watch import Watch


# `moothall serve`: the server, until it is stopped. `moothall open`: its web page in a browser,
# signed in.


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
    settings: Settings, handle_link: Callable[[str], Awaitable[None]] | None = None
) -> None:
    """Serve, and print the addresses. `handle_link` receives the link that signs a browser in once.

    Raises `ConfigurationError` if `handle_link` is given and there is no link.
    """
    from moothall.app.bus import roles_of
    from moothall.app.server import open_app

    async with open_app(settings, print_status, serving=True) as app:
        from moothall.api.http.server import LINK_SECONDS

        if app.metrics_port:
            print_status(
                f"metrics for Prometheus: http://{settings.metrics.host}:{app.metrics_port}/metrics"
            )
        if app.http_port:
            paths = ("/health", "/tasks", *(["/v1/tools"] if "tools" in roles_of(settings) else []))
            print_status(f"serving HTTP on {settings.web.host}:{app.http_port}: {', '.join(paths)}")
        if app.link and handle_link is None:
            print_status(f"the page, signed in once within {LINK_SECONDS:g} s: {app.link}")
        print_status(
            f"serving gRPC on {settings.grpc.host}:{app.grpc_port}; {tokens_are(settings)}"
        )
        if handle_link is not None:
            if not app.link:
                raise ConfigurationError(_explain_missing_page(settings, app.http_port))
            await handle_link(app.link)
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

    async def open_page(link: str) -> None:
        await show_page(link, story, browser=not no_browser)

    if (link := await page_link(settings, print_status)) is None:
        await serve_until_stopped(settings, open_page)
    else:
        await open_page(link)


def _explain_missing_page(settings: Settings, http_port: int) -> str:
    if not settings.web.enabled:
        return "there is no page: set MOOTHALL_WEB__ENABLED=true"
    if not http_port:
        return "there is no page: its port is taken; set MOOTHALL_WEB__PORT, or 0 for any port"
    return "no link: the page is not for this machine's user alone; sign in at its address"


async def show_page(link: str, story_id: str = "", *, browser: bool = True) -> None:
    """Print a link to the page, or to a story on it, and open it in the user's browser, if there is
    one.
    """
    url = f"{link}&story={story_id}" if story_id else link
    click.echo(url)
    if browser and not await asyncio.to_thread(webbrowser.open, url):
        print_status("no browser could be started here; open the link in one")


# `moothall watch`: answer issues of a forge with pull requests.


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
    async with open_watch(settings, lambda line: print_status(plain(line, 1000))) as forge_watch:
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
    from moothall.forge.watch import Watch, serve_webhooks

    forge = settings.forge
    if not forge.repositories:
        raise ConfigurationError(
            "forge.repositories is empty: name the repositories to watch, as owner/name"
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
                    host = forge.webhook_address.rpartition(":")[0]
                    report_progress(f"listening for webhooks on {host}:{port}")
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


# `moothall acp`: an agent for editors that speak the Agent Client Protocol.


@click.command(epilog=example("moothall acp"))
@with_settings()
async def acp(settings: Settings) -> None:
    """Offer councils to an editor that speaks the Agent Client Protocol, such as Zed, on stdin and
    stdout, until it disconnects.

    Works in the process that serves this data directory, if there is one, otherwise in this one.
    """
    try:
        from moothall.cli import acp_server
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the library of the Agent Client Protocol is not installed: pip install 'moothall[acp]'"
        ) from error
    if not all(map(_is_pipe, (0, 1))):
        raise InvalidRequest(
            "an editor starts `moothall acp` and talks to it through pipes on stdin and stdout; "
            "name the command in its settings (docs/api.md)"
        )
    await acp_server.serve(settings, file_of(click.get_current_context()))


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


# `moothall mcp`: an MCP server for editors and assistants.


_MAX_PORT = 65_535


@click.command(epilog=example("moothall mcp", "moothall mcp --http 127.0.0.1:8090"))
@click.option(
    "--http",
    default="",
    metavar="HOST:PORT",
    help="Serve streamable HTTP at http://HOST:PORT/mcp until stopped; port 0: any free port.",
)
@with_settings()
async def mcp(settings: Settings, *, http: str) -> None:
    """Offer councils to an editor or assistant that speaks MCP, on stdin and stdout until it
    disconnects, or to several of them over HTTP (--http).

    Callers over HTTP send a token. Non-loopback addresses require TLS and a configured token.

    Works in the process that serves this data directory, if there is one, otherwise in this one.
    Tools: deliberate, ask, result, why, context.
    """
    try:
        from moothall.cli.mcp_server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "MCP's library is not installed: pip install 'moothall[mcp]'"
        ) from error
    if not http:
        await serve_stdio(settings)
        return
    host, separator, port = http.rpartition(":")
    if not (separator and host and port.isdecimal() and int(port) <= _MAX_PORT):
        raise InvalidRequest(f"--http {http[:80]!r} is not HOST:PORT; write 127.0.0.1:8090")
    await serve_http(settings, host.strip("[]"), int(port))


# `moothall executor`: the program that runs the tools inside a workspace's container.


_SOCKET = "/link/link.sock"


@click.command(epilog=example("moothall executor", f"moothall executor {_SOCKET}"))
@click.argument("socket", default=_SOCKET)
@click.argument("options", default="")
@click.pass_context
@report_errors
def executor(context: click.Context, *, socket: str, options: str) -> None:
    """Run the tools of a workspace, as the first process of its container. Hosts start it.

    It connects to SOCKET, the link of the workspace, confines itself as OPTIONS define (JSON; by
    default the settings [sandbox]) and answers until the link closes. It ends every process that it
    can signal, so it is refused outside a container.
    """
    if os.getpid() not in {1, EXECUTOR_PID} or not Path(ROOT).is_dir():
        raise ConfigurationError(
            "moothall executor is the first process of a workspace's container, which has a "
            f"folder {ROOT}; this is process "
            f'{os.getpid()}. Hosts start it: set workspace.kind = "kubernetes", and run `moothall '
            "serve`"
        )
    from moothall.sandbox_runtime import container_init

    sys.argv = ["moothall executor", socket, options or json.dumps(_executor_options(context))]
    container_init.main()


def _executor_options(context: click.Context) -> dict[str, object]:
    from moothall.workspace.executor_client import EXECUTOR, ExecutorSetup

    sandbox = settings_of(context, narrated=True).sandbox
    options = ExecutorSetup("", ()).describe_limits(
        sandbox, own_users=False, cgroup=False, proxied=False
    )
    return {**options, "program": EXECUTOR}
