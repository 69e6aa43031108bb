"""A pool of executors: spare ones are started before they are needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from moothall import telemetry
from moothall.config import WorkspaceSections
from moothall.domain.repository import Prepared
from moothall.domain.tool import Bounds
from moothall.errors import MoothallError, WorkspaceFailed
from moothall.ports import NOTHING
from moothall.processes import start_process, try_lock
from moothall.repositories import scratch
from moothall.sandbox import cgroups, orphans
from moothall.sandbox.cgroups import cores
from moothall.workspace import executor_connection
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup, remove_tree
from moothall.workspace.executor_connection import bundle
from moothall.workspace.layout import Layout
from moothall.workspace.local_executor import LocalExecutor
from moothall.workspace.slots import Slots, slots_folder

_MAX_SPARE_KEYS = 4
_END_ATTEMPTS, _END_PAUSE_SECONDS = 50, 0.1
_log = telemetry.get_logger(__name__)

CreateExecutor = Callable[[ExecutorSetup, Path, ExecutorClient | None], ExecutorClient | None]
"""Creates an executor without starting it; None: it belongs on this machine. Arguments: the setup,
a folder of its own, and another executor if it works on the files of that one.
"""


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
            lambda: slots_folder(settings.data_dir / "slots"), settings.sandbox.cores or cores() + 1
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
        await asyncio.to_thread(scratch.sweep)
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
            await self._clear()

    async def _clear(self) -> None:
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
        self, setup: ExecutorSetup, *, keep: bool = False, beside: ExecutorClient | None = None
    ) -> AsyncIterator[ExecutorClient]:
        """Yield an executor. With `keep`, its folder is left to the caller. `beside` is an executor
        on whose files it works.
        """
        executor = await self.acquire(setup, beside)
        try:
            yield executor
        finally:
            await executor.close(keep=keep)
            self._open.discard(executor)

    async def acquire(
        self,
        setup: ExecutorSetup,
        beside: ExecutorClient | None = None,
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
            executor = await self._start_executor(setup, beside, owner)
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
        self, setup: ExecutorSetup, folder: Path, beside: ExecutorClient | None
    ) -> ExecutorClient:
        if self._create_elsewhere and (other := self._create_elsewhere(setup, folder, beside)):
            return other
        executor = LocalExecutor(
            setup, folder, self._settings, self.folder / "code", self._common_binds
        )
        executor.slots = self.slots
        return executor

    async def _start_executor(
        self,
        setup: ExecutorSetup,
        beside: ExecutorClient | None = None,
        owner: Mapping[str, str] = NOTHING,
    ) -> ExecutorClient:
        if self._group is None:
            raise WorkspaceFailed("no workspace can be opened: the pool is closing")
        self._number += 1
        executor = self._create(setup, self.folder / f"{self._instance}-{self._number}", beside)
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
            self._group.create_task(self._fill(setup, target), name=f"warm {setup.key}")

    async def _fill(self, setup: ExecutorSetup, target: int) -> None:
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
