"""A Chromium for one call: in a sandbox of our own, with no network but the port of a proxy, and
with an empty profile in memory, so that nothing is left afterwards. Chromium's DevTools
protocol over a socket: one command at a time, without background tasks.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moothall.config import SandboxSettings
from moothall.errors import CallFailed
from moothall.network.destinations import Destinations
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter, interpreter_binds
from moothall.sandbox.spawn import Sandboxed, run_sandbox
from moothall.sandbox_runtime import chromium as chromium_start
from moothall.toolkits.browser import BrowserSettings

if TYPE_CHECKING:  # imports certificates
    from moothall.network.proxy import Proxy

# Chromium's DevTools protocol over a socket: one command at a time, without background tasks.


Message = dict[str, Any]


class BrowserGone(CallFailed):
    """The browser ended, or sent an invalid message."""


class DevTools:
    """A session with one page. Events are passed to `on_event` during commands. Dialogs are
    dismissed.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[str, Message], None],
    ) -> None:
        self._reader, self._writer, self._on_event = reader, writer, on_event
        self._last_id = 0
        self._session = ""

    async def attach(self) -> None:
        """Attach to the open page of the browser."""
        targets = (await self.call("Target.getTargets"))["targetInfos"]
        page = next((target for target in targets if target["type"] == "page"), None)
        target = (
            page["targetId"]
            if page
            else (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        )
        self._session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))[
            "sessionId"
        ]

    async def call(self, method: str, **params: Any) -> Message:
        """Send a command and return its result. Raises `CallFailed` with the browser's reason, and
        `BrowserGone`.
        """
        number = self.send(method, **params)
        while True:
            message = await self._next()
            if message.get("id") != number:
                continue
            if "error" in message:
                raise CallFailed(
                    f"the browser refused {method}: {str(message['error'].get('message'))[:300]}"
                )
            result: Message = message.get("result", {})
            return result

    def send(self, method: str, **params: Any) -> int:
        """Send a command without waiting for its answer, and return its number."""
        self._last_id += 1
        message: Message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        return self._last_id

    async def wait_until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Process events until `reached` returns true. Return False if that takes longer than
        `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                while not reached():
                    await self._next()
        except TimeoutError:
            return False
        return True

    async def _next(self) -> Message:
        try:
            message: Message = json.loads((await self._reader.readuntil(b"\0"))[:-1])
        except asyncio.LimitOverrunError as error:
            raise BrowserGone("the browser sent a message over the size limit") from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise BrowserGone("the browser ended: it ran out of memory, or crashed") from error
        if (method := message.get("method")) is not None:
            params = message.get("params", {})
            # A dialog blocks the page, so it is answered at once.
            if method == "Page.javascriptDialogOpening":
                self.send(
                    "Page.handleJavaScriptDialog", accept=params.get("type") == "beforeunload"
                )
            self._on_event(method, params)
        return message


# A Chromium for one call: in a sandbox of our own, with no network but the port of a proxy, and
# with an empty profile in memory, so that nothing is left afterwards.
#
# The sandbox has the same restrictions as a workspace (namespaces, an unprivileged uid, no
# capabilities, seccomp, a cgroup). Chromium cannot create the namespaces of its own sandbox in it,
# so that is disabled. Code that escapes from a page is in a sandbox without network except the
# checked proxy, without files except the system's, and without data of other tenants.


_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")
_PACKAGED = Path("/usr/lib/chromium/chromium")
"""Debian's own binary. The command of that name is a script that reads /etc."""

_START_SECONDS = 30.0
_MESSAGE_BYTES = 32_000_000
_PROCESSES = 400
_MEMORY_BYTES = 1_500_000_000  # of one browser and its profile
"""Processes and threads of one browser."""
_SANDBOX_FOLDER = "/opt/moothall-browser"
_FLAGS = (
    "--headless",
    "--no-sandbox",  # our own is used instead, see above
    "--remote-debugging-pipe",
    "--user-data-dir=/tmp/profile",
    "--proxy-server=http://{proxy}",
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-over-https-mode=off",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-gpu",
    "--disable-print-preview",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,CertificateTransparencyComponentUpdater",
    "--block-new-web-contents",
    "--deny-permission-prompts",
    "--password-store=basic",
    "--no-first-run",
    "--no-default-browser-check",
    "--mute-audio",
    "--hide-scrollbars",
    "--window-size=1280,800",
    "about:blank",
)


def find_chromium(settings: BrowserSettings) -> Path | None:
    """Return the browser to run, or None."""
    if settings.executable is not None:
        return settings.executable if settings.executable.is_file() else None
    command = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if command and Path(command).parent == Path("/usr/bin") and _PACKAGED.exists():
        return _PACKAGED
    return Path(command).resolve() if command else None


@dataclass(frozen=True, slots=True)
class RunningBrowser:
    """A browser with an empty page, and its proxy."""

    tools: DevTools
    proxy: Proxy


@asynccontextmanager
async def chromium(
    settings: BrowserSettings,
    sandbox: SandboxSettings,
    destinations: Destinations,
    transfer_bytes: int,
    on_event: Callable[[str, Message], None],
) -> AsyncIterator[RunningBrowser]:
    """Run a browser while the context is open. It may load and send `transfer_bytes`. Raises
    `CallFailed`, `SandboxUnavailable`.
    """
    from moothall.network.proxy import receive_listener, run_proxy

    program = find_chromium(settings)
    if program is None:
        raise CallFailed("no Chromium was found (MOOTHALL_BROWSER__EXECUTABLE)")
    our_socket, their_socket = socket.socketpair()
    async with AsyncExitStack() as stack:
        stack.callback(our_socket.close)
        with their_socket:
            sandboxed = await stack.enter_async_context(
                run_sandbox(_spec(program, sandbox, their_socket.fileno()))
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                proxy_socket = await receive_listener(our_socket)
                proxy = await stack.enter_async_context(
                    run_proxy(destinations, proxy_socket, transfer_bytes)
                )
                reader, writer = await asyncio.open_unix_connection(
                    sock=our_socket, limit=_MESSAGE_BYTES
                )
                stack.callback(writer.transport.abort)
                tools = DevTools(reader, writer, on_event)
                await tools.attach()
        except (TimeoutError, ConnectionError, BrowserGone) as error:
            raise CallFailed(f"the browser did not start: {_read_reason(sandboxed)}") from error
        stack.callback(sandboxed.kill)  # before its proxy ends
        yield RunningBrowser(tools, proxy)


def _spec(program: Path, sandbox: SandboxSettings, pipe: int) -> SandboxSpec:
    start_script = Path(chromium_start.__file__).resolve()
    start = f"{_SANDBOX_FOLDER}/start.py"
    binds = [
        *interpreter_binds(),
        (start_script, start),
        (
            start_script.with_name("chromium-policy.json"),
            "/etc/chromium/policies/managed/moothall.json",
        ),
        (
            start_script.with_name("chromium-policy.json"),
            "/etc/opt/chrome/policies/managed/moothall.json",
        ),
    ]
    if not program.is_relative_to("/usr"):
        binds.append((program.parent, f"{_SANDBOX_FOLDER}/browser"))
        program = Path(f"{_SANDBOX_FOLDER}/browser", program.name)
    if (fonts := Path("/etc/fonts")).is_dir():
        binds.append((fonts, str(fonts)))
    return SandboxSpec(
        name=f"browser-{secrets.token_hex(4)}",
        argv=(str(interpreter()), "-I", "-S", start, str(pipe), str(program), *_FLAGS),
        limits=sandbox.model_copy(update={"memory_bytes": _MEMORY_BYTES, "processes": _PROCESSES}),
        ro=tuple(binds),
        env={"HOME": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},  # noqa: S108 - inside
        fds=(pipe,),
    )


def _read_reason(sandboxed: Sandboxed) -> str:
    """Return the last useful line of the log. A headless browser complains about much that it does
    not need.
    """
    lines = [
        line for line in sandboxed.log_tail().splitlines() if line.strip() and "dbus" not in line
    ]
    return lines[-1][-300:] if lines else "it logged nothing"
