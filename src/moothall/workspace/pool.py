"""Executors in sandboxes on this machine, and a pool of them: spare ones are started before they
are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from moothall import telemetry
from moothall.config import SandboxSettings, WorkspaceSections
from moothall.domain.repository import Prepared
from moothall.domain.tool import Bounds
from moothall.errors import MoothallError, SandboxUnavailable, WorkspaceFailed
from moothall.ports import NOTHING
from moothall.processes import start_process, sweep_scratch, try_lock
from moothall.repositories.changes import (
    AskIgnored,
    ChangeCaps,
    ChangeScan,
    WorkspaceChanges,
    measure,
)
from moothall.repositories.history import NAME as HISTORY_NAME
from moothall.sandbox import cgroups, orphans
from moothall.sandbox.bubblewrap import (
    ENVIRONMENT,
    Overlay,
    SandboxSpec,
    interpreter,
    interpreter_binds,
)
from moothall.sandbox.cgroups import cores, memory
from moothall.sandbox.spawn import Sandboxed, sandbox_uid, set_owner, spawn
from moothall.sandbox_runtime.confinement import BOOT
from moothall.workspace import executor_connection
from moothall.workspace.executor_client import (
    START_SECONDS,
    ExecutorClient,
    ExecutorSetup,
    remove_tree,
)
from moothall.workspace.executor_connection import INSIDE, ExecutorConnection, bundle
from moothall.workspace.layout import Layout
from moothall.workspace.setup_network import NetworkAccess
from moothall.workspace.slots import Slots, slots_folder

# An executor in a sandbox on this machine.


_DISK_ENTRIES = 200_000
HISTORY = "/opt/history"


def _interpreter_folder(setup: ExecutorSetup) -> tuple[Path, ...]:
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
            await self._start_sandbox()
        except BaseException:
            await self.close()
            raise

    async def _start_sandbox(self) -> None:
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
                        (*limits.toolchains, *setup.toolchains, *_interpreter_folder(setup))
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

    async def _end_sandbox(self) -> None:
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


# The pool.


_MAX_SPARE_KEYS = 4
_END_ATTEMPTS, _END_PAUSE_SECONDS = 50, 0.1
_log = telemetry.get_logger(__name__)

CreateExecutor = Callable[[ExecutorSetup, Path, ExecutorClient | None], ExecutorClient | None]
"""Creates an executor without starting it; None: it belongs on this machine. Arguments: the setup,
a folder of its own, and another executor if it works on the files of that one.
"""


def concurrent_commands(settings: SandboxSettings) -> int:
    """Return how many commands run at a time: `sandbox.cores`, or one more than there are cores, as
    far as the memory suffices for the limit of each.
    """
    fitting = max(1, memory() // settings.memory_bytes)
    return settings.cores or min(cores() + 1, fitting)


class ExecutorPool:
    """A pool that starts executors, keeps spare ones, and removes all of them at its end.

    It has up to `workspace.warm` spare executors for a prepared base. `common_binds` are folders
    that every sandbox sees read-only at the same path. It is an async context manager with a task
    group: enter and leave it in the same task.
    """

    def __init__(
        self,
        settings: WorkspaceSections,
        common_binds: Sequence[tuple[Path, str]] = (),
        create_executor: CreateExecutor | None = None,
    ) -> None:
        self._settings = settings
        self._common_binds = tuple(common_binds)
        self._create_elsewhere = create_executor
        self.layout = Layout(settings.data_dir)
        self.slots = Slots(
            lambda: slots_folder(settings.data_dir / "slots"), concurrent_commands(settings.sandbox)
        )
        self._instance = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.folder = self.layout.run / self._instance
        self._spares: OrderedDict[str, list[ExecutorClient]] = OrderedDict()
        self._filling: set[str] = set()
        self._waiting: dict[str, asyncio.Future[ExecutorClient | None]] = {}
        self._open: set[ExecutorClient] = set()
        self._group: asyncio.TaskGroup | None = None
        self._lock_fd = -1
        self._number = 0
        self._reaper: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self._lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try_lock(self._lock_fd)
        await sweep(self.layout)
        await asyncio.to_thread(sweep_scratch)
        await asyncio.to_thread(executor_connection.prune, self._settings.data_dir)
        await asyncio.to_thread(bundle, self.folder / "code")
        # The reaper cleans up after a killed host: a starting sandbox, cgroups and our folder. It
        # acts when its stdin is closed. Until then it is a shell, which takes less memory.
        groups = sorted({str(folder) for folder in await asyncio.to_thread(cgroups.parents) or ()})
        self._reaper = await start_process(
            "/bin/sh",
            "-c",
            'read -r line; exec "$@"',
            "sh",
            sys.executable,
            "-I",
            "-S",
            orphans.__file__,
            f"{self._instance}-",
            str(self.folder),
            *groups,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C does not end it
            cwd="/",
            env={},
        )
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        group, self._group = self._group, None
        try:
            for executor in (
                *self._open,
                *(executor for executors in self._spares.values() for executor in executors),
            ):
                executor.kill()
            if group:
                await group.__aexit__(None, None, None)
        finally:
            await self._remove_executors()

    async def _remove_executors(self) -> None:
        for executor in (
            *self._open,
            *(executor for executors in self._spares.values() for executor in executors),
        ):
            await executor.close()
        self._spares.clear()
        self._open.clear()
        # Nobody cleans up after us once our folder is gone.
        await _end_sandboxes(f"{self._instance}-")
        if self._reaper is not None:
            with contextlib.suppress(ProcessLookupError):
                self._reaper.kill()
            await self._reaper.wait()
        await remove_tree(self.folder)
        os.close(self._lock_fd)

    @asynccontextmanager
    async def executor(self, prepared: Prepared) -> AsyncIterator[ExecutorClient]:
        """Yield a new executor on `prepared`, a spare one if possible. Raises
        `SandboxUnavailable`.
        """
        async with self.start(self._setup_for(prepared)) as executor:
            self._refill(executor.setup)
            yield executor

    def _setup_for(self, prepared: Prepared) -> ExecutorSetup:
        """Return the setup of a workspace. Bounds can only narrow the limits of the settings."""
        setup, bounds, limits = (
            self.layout.executor_setup(prepared.base, prepared.key),
            prepared.bounds,
            self._settings.sandbox,
        )
        if bounds == Bounds():
            return setup
        memory = min(bounds.memory_bytes or limits.memory_bytes, limits.memory_bytes)
        return replace(
            setup,
            key=f"{setup.key}-{memory}-{bounds.cpu_share:g}",
            limits=limits.model_copy(update={"memory_bytes": memory}),
            cpu_share=bounds.cpu_share,
        )

    @asynccontextmanager
    async def start(
        self,
        setup: ExecutorSetup,
        *,
        keep_folder: bool = False,
        neighbour: ExecutorClient | None = None,
    ) -> AsyncIterator[ExecutorClient]:
        """Yield an executor. With `keep_folder`, its folder is left to the caller. `neighbour` is
        an executor on whose files it works.
        """
        executor = await self.acquire(setup, neighbour)
        try:
            yield executor
        finally:
            await executor.close(keep_folder=keep_folder)
            self._open.discard(executor)

    async def acquire(
        self,
        setup: ExecutorSetup,
        neighbour: ExecutorClient | None = None,
        owner: Mapping[str, str] | None = None,
    ) -> ExecutorClient:
        """Return an executor that the caller must `release`. `owner` is by default that of the
        running code.

        Raises `SandboxUnavailable`, `WorkspaceFailed`.
        """
        owner = telemetry.bound_values() if owner is None else owner
        if executor := self._pop_spare(setup) or await self._await_starting(setup):
            executor.assign_owner(owner)
        else:
            executor = await self._start_executor(setup, neighbour, owner)
        self._open.add(executor)
        return executor

    def release(self, executor: ExecutorClient) -> None:
        """End an acquired executor; it is removed in the background."""
        self._open.discard(executor)
        self._discard(executor)

    def _pop_spare(self, setup: ExecutorSetup) -> ExecutorClient | None:
        executors = self._spares.get(setup.key, [])
        while executors:
            executor = executors.pop()
            if self._fits(executor, setup):
                return executor
        return None

    def _fits(self, executor: ExecutorClient, setup: ExecutorSetup) -> bool:
        """Return whether a spare is usable; discard it if not."""
        if executor.alive and not executor.is_expired and executor.setup == setup and self._group:
            return True
        self._discard(executor)
        return False

    async def _await_starting(self, setup: ExecutorSetup) -> ExecutorClient | None:
        """Wait for the spare that is being started, if no other caller does: it is ready before a
        new one.
        """
        if setup.key not in self._filling or setup.key in self._waiting:
            return None
        starting = self._waiting[setup.key] = asyncio.get_running_loop().create_future()
        try:
            executor = await starting
        except asyncio.CancelledError:
            if starting.done() and not starting.cancelled() and (executor := starting.result()):
                self._discard(executor)
            raise
        finally:
            del self._waiting[setup.key]
        return executor if executor and self._fits(executor, setup) else None

    def _create(
        self, setup: ExecutorSetup, folder: Path, neighbour: ExecutorClient | None
    ) -> ExecutorClient:
        if self._create_elsewhere and (
            executor := self._create_elsewhere(setup, folder, neighbour)
        ):
            return executor
        executor = LocalExecutor(
            setup, folder, self._settings, self.folder / "code", self._common_binds
        )
        executor.slots = self.slots
        return executor

    async def _start_executor(
        self,
        setup: ExecutorSetup,
        neighbour: ExecutorClient | None = None,
        owner: Mapping[str, str] = NOTHING,
    ) -> ExecutorClient:
        if self._group is None:
            raise WorkspaceFailed("no workspace can be opened: the pool is closing")
        self._number += 1
        executor = self._create(setup, self.folder / f"{self._instance}-{self._number}", neighbour)
        executor.assign_owner(owner)
        try:
            await executor.start()
        except OSError as error:
            raise WorkspaceFailed(
                f"a workspace cannot be created in {self.folder}: {error.strerror or error}; is "
                "the disk full?"
            ) from error
        return executor

    def _discard(self, executor: ExecutorClient) -> None:
        executor.kill()
        if self._group:
            self._group.create_task(executor.close(), name=f"close {executor.name}")

    def _refill(self, setup: ExecutorSetup) -> None:
        target = self._settings.workspace.warm
        executors = self._spares.setdefault(setup.key, [])
        self._spares.move_to_end(setup.key)
        while len(self._spares) > _MAX_SPARE_KEYS:
            for executor in self._spares.popitem(last=False)[1]:
                self._discard(executor)
        if self._group and len(executors) < target and setup.key not in self._filling:
            self._filling.add(setup.key)
            self._group.create_task(self._fill_spares(setup, target), name=f"warm {setup.key}")

    async def _fill_spares(self, setup: ExecutorSetup, target: int) -> None:
        try:
            while self._group and len(self._spares.get(setup.key, ())) < target:
                executor = await self._start_executor(setup)
                if self._group is None or setup.key not in self._spares:
                    await executor.close()
                    return
                self._store_spare(executor)
        except MoothallError as error:  # the next caller gets the same error
            _log.warning("no spare executor could be started", error=str(error))
        finally:
            self._filling.discard(setup.key)
            starting = self._waiting.get(setup.key)
            if starting and not starting.done():
                starting.set_result(None)

    def _store_spare(self, executor: ExecutorClient) -> None:
        starting = self._waiting.get(executor.setup.key)
        if starting and not starting.done():
            starting.set_result(executor)
        else:
            self._spares[executor.setup.key].append(executor)


async def _end_sandboxes(prefix: str) -> bool:
    """End the sandboxes with a name prefix, and return whether none is left. Killed processes may
    take a moment to end.
    """
    for _ in range(_END_ATTEMPTS):
        if await asyncio.to_thread(
            lambda: orphans.kill_sandboxes(prefix) == 0 and cgroups.sweep(prefix)
        ):
            return True
        await asyncio.sleep(_END_PAUSE_SECONDS)
    return False


async def sweep(layout: Layout) -> int:
    """Remove what killed processes left in the run folder, and return the number of them.

    Their sandboxes end with them, except for those that were just starting; these are ended here.
    This waits for their end, because a process that starts now may be the last one to look.
    """
    count = 0
    for folder in layout.run.iterdir():
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is being created or removed
        try:
            # If that fails, the next process tries again.
            if try_lock(descriptor) and await _end_sandboxes(f"{folder.name}-"):
                await remove_tree(folder)
                count += 1
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return count
