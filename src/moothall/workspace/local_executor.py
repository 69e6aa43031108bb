"""An executor in a sandbox on this machine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.repositories.changes import (
    AskIgnored,
    ChangeCaps,
    ChangeScan,
    WorkspaceChanges,
    measure,
)
from moothall.repositories.history import NAME as HISTORY_NAME
from moothall.sandbox import cgroups
from moothall.sandbox.bubblewrap import (
    ENVIRONMENT,
    Overlay,
    SandboxSpec,
    interpreter,
    interpreter_binds,
)
from moothall.sandbox.spawn import Sandboxed, sandbox_uid, set_owner, spawn
from moothall.sandbox_runtime.confinement import BOOT
from moothall.workspace.executor_client import START_SECONDS, ExecutorClient, ExecutorSetup
from moothall.workspace.executor_connection import INSIDE, ExecutorConnection
from moothall.workspace.setup_network import NetworkAccess

_DISK_ENTRIES = 200_000
HISTORY = "/opt/history"


def _prefix(setup: ExecutorSetup) -> tuple[Path, ...]:
    return (setup.python,) if setup.python and not setup.python.is_relative_to("/usr") else ()


class LocalExecutor(ExecutorClient):
    """An executor over an overlay whose changes are in `upper`.

    code: the folder with the executor's own code.
    common_binds: folders that every sandbox sees read-only at the same path.
    """

    def __init__(
        self,
        setup: ExecutorSetup,
        folder: Path,
        settings: WorkspaceSections,
        code: Path,
        common_binds: Sequence[tuple[Path, str]],
    ) -> None:
        super().__init__(setup, folder, settings)
        self._code = code
        self._common_binds = tuple(common_binds)
        self._sandbox: Sandboxed | None = None

    @property
    def pid(self) -> int:
        """The pid of the sandbox on the host."""
        return self._sandbox.pid if self._sandbox else 0

    @property
    def alive(self) -> bool:
        """Whether the executor runs."""
        return bool(self._sandbox and self._sandbox.alive)

    async def start(self) -> None:
        """Create the folders, start the executor, and wait until it has confined itself.

        Raises `SandboxUnavailable` with the reason, after removing everything.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        uid = sandbox_uid()
        for folder in (self.folder, self.upper, self.folder / "work"):
            folder.mkdir(mode=0o755)
            set_owner(folder, uid)
        our_socket, their_socket = socket.socketpair()
        with their_socket:
            try:
                self._sandbox = await spawn(self._spec(their_socket.fileno()))
            except BaseException:
                our_socket.close()
                raise
        try:
            async with asyncio.timeout(START_SECONDS):
                try:
                    if self.setup.network_access:
                        await self._open_proxy(self.setup.network_access, our_socket)
                    self._link = await ExecutorConnection.create(our_socket)
                except BaseException:
                    our_socket.close()
                    raise
                await self._link.ready
        except (TimeoutError, ConnectionError, WorkspaceFailed) as error:
            self._sandbox.kill()
            await self._sandbox.process.wait()
            reason = self._sandbox.log_tail() or f"no answer within {START_SECONDS:g} s"
            raise SandboxUnavailable(
                f"the sandbox does not start: {reason}; `moothall doctor` shows which layer of the "
                "sandbox is missing"
            ) from error
        self._sandbox.note(
            f"sandbox {self.name}: memory and processes are limited by {cgroups.describe()}\n"
        )

    async def _open_proxy(self, access: NetworkAccess, our_socket: socket.socket) -> None:
        """Serve the proxy on the port that was opened inside, the only way to the network."""
        from moothall.network.proxy import receive_listener, run_proxy  # imports certificates

        proxy_socket = await receive_listener(our_socket)
        self._port = proxy_socket.getsockname()[1]
        self._proxy = await self._proxies.enter_async_context(
            run_proxy(access.destinations, proxy_socket, access.max_bytes, access.credentials)
        )

    def _spec(self, descriptor: int) -> SandboxSpec:
        setup, limits = self.setup, self._limits
        spec = SandboxSpec(
            name=self.name,
            argv=(),
            limits=limits,
            ro=(
                *interpreter_binds(),
                (self._code, INSIDE),
                *(
                    (path, str(path))
                    for path in dict.fromkeys(
                        (*limits.toolchains, *setup.toolchains, *_prefix(setup))
                    )
                ),
                *(self._common_binds if setup.tree else ()),
                *(((setup.history, HISTORY),) if setup.history else ()),
                *setup.ro,
                *(setup.network_access.ro if setup.network_access else ()),
            ),
            overlay=Overlay(setup.tree, self.upper, self.folder / "work") if setup.tree else None,
            fds=(descriptor,),
            log=self._log,
        )
        binds = ((setup.env, ENVIRONMENT),) if setup.env else ()
        options = setup.describe_limits(
            limits, cgroup=cgroups.parents() is not None, proxied=setup.network_access is not None
        )
        argv = (
            str(interpreter()),
            "-I",
            "-S",
            "-c",
            BOOT.format(module=setup.program),
            str(descriptor),
            json.dumps(options),
        )
        if setup.env_writable:
            return replace(spec, argv=argv, rw=binds)
        return replace(spec, argv=argv, ro=(*spec.ro, *binds))

    async def show_history(self) -> str:
        """Return the path of the read-only history, which all workspaces on the commit share."""
        return f"{HISTORY}/{HISTORY_NAME}" if self.setup.history else ""

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Read the changes from the upper folder of the overlay."""
        scan = ChangeScan(self.upper, base_files, caps, base=self.setup.tree[-1])
        while (new := await asyncio.to_thread(scan.list_new_paths)) is not None:
            await asyncio.to_thread(scan.apply_ignore_rules, await ignored(new))
        return await asyncio.to_thread(scan.read)

    async def fetch_setup_output(self) -> None:
        """Do nothing: the output is on this machine already."""

    def kill(self) -> None:
        """Kill all processes in the sandbox."""
        if self._sandbox:
            self._sandbox.kill()

    async def _end(self) -> None:
        if self._sandbox:
            await self._sandbox.close()

    async def _read_log_tail(self) -> str:
        return self._sandbox.log_tail() if self._sandbox else ""

    def _write_log(self, text: str) -> None:
        if self._sandbox:
            self._sandbox.note(text)

    def _count_memory_kills(self) -> int:
        return (
            self._sandbox.cgroup.count_memory_kills()
            if self._sandbox and self._sandbox.cgroup
            else 0
        )

    async def _disk_is_full(self) -> bool:
        limit = self._limits.disk_bytes
        size, entries = await asyncio.to_thread(measure, self.upper, limit, _DISK_ENTRIES)
        return size > limit or entries > _DISK_ENTRIES
