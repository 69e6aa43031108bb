"""A Chromium for one call: in a sandbox of our own, with no network but a proxy's port, an empty
profile in memory, and nothing left of it afterwards.

The walls round it are those of a workspace (namespaces, an unprivileged uid, no capabilities,
seccomp, a cgroup): inside them Chromium cannot make the namespaces of its own sandbox, which is
therefore off. What breaks out of a page is in a box that has no network but the guarded proxy, no
files but the system's, and no other tenant's data.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from moothall.config import SandboxSettings
from moothall.errors import CallFailed
from moothall.network.destinations import Destinations
from moothall.network.proxy import Proxy, listener, proxying
from moothall.sandbox.bubblewrap import SandboxSpec, interpreter, interpreter_binds
from moothall.sandbox.spawn import Sandboxed, run_sandbox
from moothall.sandbox_runtime import chromium as chromium_start
from moothall.toolkits.browser.devtools import BrowserGone, DevTools, Message
from moothall.toolkits.browser.family import BrowserSettings

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")
_PACKAGED = Path("/usr/lib/chromium/chromium")
"""Debian's own binary: the command of that name is a script that wants to read /etc."""

_START_SECONDS = 30.0
_MESSAGE_BYTES = 32_000_000
_INSIDE = "/opt/moothall-browser"
_FLAGS = (
    "--headless",
    "--no-sandbox",  # ours stands round it: see the top
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
    """Return the browser to run, or None where there is none."""
    if settings.executable is not None:
        return settings.executable if settings.executable.is_file() else None
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found and Path(found).parent == Path("/usr/bin") and _PACKAGED.exists():
        return _PACKAGED
    return Path(found).resolve() if found else None


@dataclass(frozen=True, slots=True)
class Running:
    """A browser with one empty page, and its proxy."""

    tools: DevTools
    proxy: Proxy


@asynccontextmanager
async def chromium(
    settings: BrowserSettings,
    sandbox: SandboxSettings,
    destinations: Destinations,
    hear: Callable[[str, Message], None],
) -> AsyncIterator[Running]:
    """Run a browser for as long as the context lasts. Raises `CallFailed`, `SandboxUnavailable`."""
    program = find_chromium(settings)
    if program is None:
        raise CallFailed("there is no Chromium here (MOOTHALL_BROWSER__EXECUTABLE)")
    ours, theirs = socket.socketpair()
    async with AsyncExitStack() as stack:
        stack.callback(ours.close)
        with theirs:
            inside = await stack.enter_async_context(
                run_sandbox(_spec(program, settings, sandbox, theirs.fileno()))
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                listening = await listener(ours)
                proxy = await stack.enter_async_context(
                    proxying(destinations, listening, settings.transfer_bytes)
                )
                reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_MESSAGE_BYTES)
                stack.callback(writer.transport.abort)
                tools = DevTools(reader, writer, hear)
                await tools.attach()
        except (TimeoutError, ConnectionError, BrowserGone) as error:
            raise CallFailed(f"the browser did not start: {_why(inside)}") from error
        stack.callback(inside.kill)  # before its proxy ends: nobody is left who would connect
        yield Running(tools, proxy)


def _spec(
    program: Path, settings: BrowserSettings, sandbox: SandboxSettings, pipe: int
) -> SandboxSpec:
    here = Path(chromium_start.__file__).resolve()
    start = f"{_INSIDE}/start.py"
    binds = [
        *interpreter_binds(),
        (here, start),
        (here.with_name("chromium-policy.json"), "/etc/chromium/policies/managed/moothall.json"),
        (here.with_name("chromium-policy.json"), "/etc/opt/chrome/policies/managed/moothall.json"),
    ]
    if not program.is_relative_to("/usr"):
        binds.append((program.parent, f"{_INSIDE}/browser"))
        program = Path(f"{_INSIDE}/browser", program.name)
    if (fonts := Path("/etc/fonts")).is_dir():
        binds.append((fonts, str(fonts)))
    return SandboxSpec(
        name=f"browser-{secrets.token_hex(4)}",
        argv=(str(interpreter()), "-I", "-S", start, str(pipe), str(program), *_FLAGS),
        limits=sandbox.model_copy(
            update={"memory_bytes": settings.memory_bytes, "processes": settings.processes}
        ),
        ro=tuple(binds),
        env={"HOME": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},  # noqa: S108 - inside
        fds=(pipe,),
    )


def _why(inside: Sandboxed) -> str:
    """The last line of its log that says something: a browser complains a lot of what a headless
    one does not need.
    """
    lines = [line for line in inside.log_tail().splitlines() if line.strip() and "dbus" not in line]
    return lines[-1][-300:] if lines else "it said nothing"
