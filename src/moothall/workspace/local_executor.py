"""One sandbox on this machine with an executor in it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.errors import SandboxUnavailable, WorkspaceFailed
from moothall.network.proxy import listener, proxying
from moothall.repositories.changes import (
    AskIgnored,
    ChangeCaps,
    ChangeScan,
    WorkspaceChanges,
    measure,
)
from moothall.repositories.workspace_history import NAME as HISTORY_NAME
from moothall.sandbox.bubblewrap import (
    ENVIRONMENT,
    Overlay,
    SandboxSpec,
    interpreter,
    interpreter_binds,
)
from moothall.sandbox.cgroups import parents, way
from moothall.sandbox.spawn import Sandboxed, drop_uid, own, spawn
from moothall.sandbox_runtime.confinement import BOOT
from moothall.workspace.bundle import INSIDE
from moothall.workspace.executor_client import START_SECONDS, ExecutorClient, ExecutorSetup
from moothall.workspace.executor_connection import ExecutorConnection
from moothall.workspace.packages import NetworkAccess

_DISK_ENTRIES = 200_000
_HISTORY = "/opt/history"


def _prefix(place: ExecutorSetup) -> tuple[Path, ...]:
    return (place.python,) if place.python and not place.python.is_relative_to("/usr") else ()


class LocalExecutor(ExecutorClient):
    """A running executor, of the code in the folder `code`, over an overlay whose changes are in
    `upper`; `shown` is read-only and at the same place in every sandbox.
    """

    def __init__(
        self,
        place: ExecutorSetup,
        folder: Path,
        settings: WorkspaceSections,
        code: Path,
        shown: Sequence[tuple[Path, str]],
    ) -> None:
        super().__init__(place, folder, settings)
        self._code = code
        self._shown = tuple(shown)
        self._sandbox: Sandboxed | None = None

    @property
    def pid(self) -> int:
        """The host's pid of the sandbox."""
        return self._sandbox.pid if self._sandbox else 0

    @property
    def alive(self) -> bool:
        """Whether the executor runs."""
        return bool(self._sandbox and self._sandbox.alive)

    async def start(self) -> None:
        """Make the folders, start the executor and wait until it has shut itself in.

        Raises `SandboxUnavailable` with the reason; then nothing is left.
        """
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        uid = drop_uid(self._limits)
        for folder in (self.folder, self.upper, self.folder / "work"):
            folder.mkdir(mode=0o755)
            own(folder, uid)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._sandbox = await spawn(self._spec(theirs.fileno()))
            except BaseException:
                ours.close()
                raise
        try:
            async with asyncio.timeout(START_SECONDS):
                try:
                    if self.place.reach:
                        await self._open_way(self.place.reach, ours)
                    self._link = await ExecutorConnection.over(ours)
                except BaseException:
                    ours.close()
                    raise
                await self._link.ready
        except (TimeoutError, ConnectionError, WorkspaceFailed) as error:
            self._sandbox.kill()
            await self._sandbox.process.wait()
            reason = self._sandbox.log_tail() or f"no answer within {START_SECONDS:g} s"
            raise SandboxUnavailable(
                f"the sandbox does not start: {reason}; `moothall doctor` says which wall is "
                "missing"
            ) from error
        self._sandbox.note(f"sandbox {self.name}: memory and processes are held by {way()}\n")

    async def _open_way(self, reach: NetworkAccess, ours: socket.socket) -> None:
        """Serve the port that was opened inside: the box's only way out."""
        listening = await listener(ours)
        self._port = listening.getsockname()[1]
        self._proxy = await self._outside.enter_async_context(
            proxying(reach.destinations, listening, reach.most, reach.credentials)
        )

    def _spec(self, descriptor: int) -> SandboxSpec:
        place, limits = self.place, self._limits
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
                        (*limits.toolchains, *place.toolchains, *_prefix(place))
                    )
                ),
                *(self._shown if place.tree else ()),
                *(((place.history, _HISTORY),) if place.history else ()),
                *place.ro,
                *(place.reach.ro if place.reach else ()),
            ),
            overlay=Overlay(place.tree, self.upper, self.folder / "work") if place.tree else None,
            fds=(descriptor,),
            log=self._log,
        )
        binds = ((place.env, ENVIRONMENT),) if place.env else ()
        options = place.describe_walls(
            limits, cgroup=parents() is not None, proxied=place.reach is not None
        )
        argv = (
            str(interpreter()),
            "-I",
            "-S",
            "-c",
            BOOT.format(module=place.program),
            str(descriptor),
            json.dumps(options),
        )
        if place.env_writable:
            return replace(spec, argv=argv, rw=binds)
        return replace(spec, argv=argv, ro=(*spec.ro, *binds))

    async def show_history(self) -> str:
        """It is bound, read-only and shared by all workspaces on the commit."""
        return f"{_HISTORY}/{HISTORY_NAME}" if self.place.history else ""

    async def changes(
        self, base_files: Sequence[str], caps: ChangeCaps, ignored: AskIgnored
    ) -> WorkspaceChanges:
        """Read them from the upper folder of the overlay."""
        survey = ChangeScan(self.upper, base_files, caps, base=self.place.tree[-1])
        while (new := await asyncio.to_thread(survey.list_new_paths)) is not None:
            await asyncio.to_thread(survey.apply_ignore_rules, await ignored(new))
        return await asyncio.to_thread(survey.read)

    async def take_back(self) -> None:
        """It is written here already."""

    def kill(self) -> None:
        """End everything inside, at once."""
        if self._sandbox:
            self._sandbox.kill()

    async def _end(self) -> None:
        if self._sandbox:
            await self._sandbox.close()

    async def _last_words(self) -> str:
        return self._sandbox.log_tail() if self._sandbox else ""

    def _note(self, text: str) -> None:
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
