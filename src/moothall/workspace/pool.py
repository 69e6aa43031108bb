"""Boxes kept ready: an executor is started before somebody needs it."""

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
from moothall.file_locks import try_lock
from moothall.ports import NOTHING
from moothall.processes import start_process
from moothall.repositories import scratch
from moothall.sandbox import cgroups, orphans
from moothall.sandbox.cgroups import cores
from moothall.workspace import executor_log
from moothall.workspace.bundle import bundle
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup, remove_tree
from moothall.workspace.layout import Layout
from moothall.workspace.local_executor import LocalExecutor
from moothall.workspace.slots import Slots, slots_folder

_KEYS_KEPT = 4
_DYING, _DYING_PAUSE = 50, 0.1
_log = telemetry.get_logger(__name__)

MakeBox = Callable[[ExecutorSetup, Path, ExecutorClient | None], ExecutorClient]
"""Makes a box that is not started yet: on a place, with a folder of its own, perhaps beside another
on whose files it works.
"""


class ExecutorPool:
    """Starts boxes, keeps `settings.workspace.warm` spare ones a prepared key, and clears all away.

    `shown` is read-only and at the same place in every sandbox. An async context manager with a
    task group inside: enter and leave it in the same task.
    """

    def __init__(
        self,
        settings: WorkspaceSections,
        shown: Sequence[tuple[Path, str]] = (),
        make: MakeBox | None = None,
    ) -> None:
        self._settings = settings
        self._shown = tuple(shown)
        self._make = make or self._on_this_machine
        self.layout = Layout(settings.data_dir)
        self._slots = (
            None
            if make
            else Slots(
                lambda: slots_folder(settings.data_dir / "slots"),
                settings.sandbox.cores or cores() + 1,
            )
        )
        self._instance = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = self.layout.run / self._instance
        self._spares: OrderedDict[str, list[ExecutorClient]] = OrderedDict()
        self._filling: set[str] = set()
        self._waiting: dict[str, asyncio.Future[ExecutorClient | None]] = {}
        self._open: set[ExecutorClient] = set()
        self._group: asyncio.TaskGroup | None = None
        self._lock_fd = -1
        self._number = 0
        self._reaper: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self._lock_fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try_lock(self._lock_fd)
        await sweep(self.layout)
        await asyncio.to_thread(scratch.sweep)
        await asyncio.to_thread(executor_log.prune, self._settings.data_dir)
        await asyncio.to_thread(bundle, self._folder / "code")
        # Cleans up after a killed host: a sandbox that was just starting, cgroups, our folder. Its
        # stdin ends with us.
        groups = sorted({str(folder) for folder in await asyncio.to_thread(cgroups.parents) or ()})
        self._reaper = await start_process(
            sys.executable,
            "-I",
            "-S",
            orphans.__file__,
            f"{self._instance}-",
            str(self._folder),
            *groups,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
            cwd="/",
            env={},
        )
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        group, self._group = self._group, None
        try:
            for box in (*self._open, *(box for boxes in self._spares.values() for box in boxes)):
                box.kill()
            if group:
                await group.__aexit__(None, None, None)
        finally:
            await self._clear()

    async def _clear(self) -> None:
        for box in (*self._open, *(box for boxes in self._spares.values() for box in boxes)):
            await box.close()
        self._spares.clear()
        self._open.clear()
        await _end_all(f"{self._instance}-")  # nobody sweeps after us once our folder is gone
        if self._reaper is not None:
            with contextlib.suppress(ProcessLookupError):
                self._reaper.kill()
            await self._reaper.wait()
        await remove_tree(self._folder)
        os.close(self._lock_fd)

    @asynccontextmanager
    async def box(self, prepared: Prepared) -> AsyncIterator[ExecutorClient]:
        """A fresh box on `prepared`, a spare one where there is one. Raises
        `SandboxUnavailable`.
        """
        async with self.start(self._place(prepared)) as box:
            self._refill(box.place)
            yield box

    def _place(self, prepared: Prepared) -> ExecutorSetup:
        """What a workspace shows; bounds narrow the settings' limits, and never widen them."""
        place, bounds, limits = (
            self.layout.place(prepared.base, prepared.key),
            prepared.bounds,
            self._settings.sandbox,
        )
        if bounds == Bounds():
            return place
        memory = min(bounds.memory_bytes or limits.memory_bytes, limits.memory_bytes)
        return replace(
            place,
            key=f"{place.key}-{memory}-{bounds.cpu_share:g}",
            limits=limits.model_copy(update={"memory_bytes": memory}),
            cpu_share=bounds.cpu_share,
        )

    @asynccontextmanager
    async def start(
        self, place: ExecutorSetup, *, keep: bool = False, beside: ExecutorClient | None = None
    ) -> AsyncIterator[ExecutorClient]:
        """A box on `place`; `keep` leaves its folder to the caller. `beside`: a box whose files it
        works on, wherever that runs.
        """
        box = await self.take(place, beside)
        try:
            yield box
        finally:
            await box.close(keep=keep)
            self._open.discard(box)

    async def take(
        self,
        place: ExecutorSetup,
        beside: ExecutorClient | None = None,
        whose: Mapping[str, str] | None = None,
    ) -> ExecutorClient:
        """Return a box on `place` for the caller to `drop`. `whose`: by default that of the running
        code.

        Raises `SandboxUnavailable`, `WorkspaceFailed`.
        """
        whose = telemetry.bound_values() if whose is None else whose
        if box := self._spare(place) or await self._await_coming(place):
            box.belong_to(whose)
        else:
            box = await self._fresh(place, beside, whose)
        self._open.add(box)
        return box

    def drop(self, box: ExecutorClient) -> None:
        """End a box that was taken; it is cleared away meanwhile."""
        self._open.discard(box)
        self._discard(box)

    def _spare(self, place: ExecutorSetup) -> ExecutorClient | None:
        boxes = self._spares.get(place.key, [])
        while boxes:
            box = boxes.pop()
            if self._fits(box, place):
                return box
        return None

    def _fits(self, box: ExecutorClient, place: ExecutorSetup) -> bool:
        """Whether a spare is what is wanted; it is thrown away where not."""
        if box.alive and not box.spent and box.place == place and self._group:
            return True
        self._discard(box)
        return False

    async def _await_coming(self, place: ExecutorSetup) -> ExecutorClient | None:
        """The spare that is just being started, if nobody waits for it yet: it is ready before a
        new one would be.
        """
        if place.key not in self._filling or place.key in self._waiting:
            return None
        coming = self._waiting[place.key] = asyncio.get_running_loop().create_future()
        try:
            box = await coming
        except asyncio.CancelledError:
            if coming.done() and not coming.cancelled() and (box := coming.result()):
                self._discard(box)
            raise
        finally:
            del self._waiting[place.key]
        return box if box and self._fits(box, place) else None

    def _on_this_machine(
        self, place: ExecutorSetup, folder: Path, _beside: ExecutorClient | None
    ) -> ExecutorClient:
        box = LocalExecutor(place, folder, self._settings, self._folder / "code", self._shown)
        box.slots = self._slots
        return box

    async def _fresh(
        self,
        place: ExecutorSetup,
        beside: ExecutorClient | None = None,
        whose: Mapping[str, str] = NOTHING,
    ) -> ExecutorClient:
        if self._group is None:
            raise WorkspaceFailed("no workspaces can be opened any more: they are being closed")
        self._number += 1
        box = self._make(place, self._folder / f"{self._instance}-{self._number}", beside)
        box.belong_to(whose)
        try:
            await box.start()
        except OSError as error:
            raise WorkspaceFailed(
                f"a workspace cannot be made in {self._folder}: {error.strerror or error}; is the "
                "disk full?"
            ) from error
        return box

    def _discard(self, box: ExecutorClient) -> None:
        box.kill()
        if self._group:
            self._group.create_task(box.close(), name=f"close {box.name}")

    def _refill(self, place: ExecutorSetup) -> None:
        wanted = self._settings.workspace.warm
        boxes = self._spares.setdefault(place.key, [])
        self._spares.move_to_end(place.key)
        while len(self._spares) > _KEYS_KEPT:
            for box in self._spares.popitem(last=False)[1]:
                self._discard(box)
        if self._group and len(boxes) < wanted and place.key not in self._filling:
            self._filling.add(place.key)
            self._group.create_task(self._fill(place, wanted), name=f"warm {place.key}")

    async def _fill(self, place: ExecutorSetup, wanted: int) -> None:
        try:
            while self._group and len(self._spares.get(place.key, ())) < wanted:
                box = await self._fresh(place)
                if self._group is None or place.key not in self._spares:
                    await box.close()
                    return
                self._keep(box)
        except MoothallError as error:  # the next open meets the same fault, and tells its caller
            _log.warning("no executor could be kept ready", error=str(error))
        finally:
            self._filling.discard(place.key)
            coming = self._waiting.get(place.key)
            if coming and not coming.done():
                coming.set_result(None)

    def _keep(self, box: ExecutorClient) -> None:
        coming = self._waiting.get(box.place.key)
        if coming and not coming.done():
            coming.set_result(box)
        else:
            self._spares[box.place.key].append(box)


async def _end_all(prefix: str) -> bool:
    """End the sandboxes whose name begins with `prefix`; whether nothing is left of them. What was
    killed may take a moment to die.
    """
    for _ in range(_DYING):
        if await asyncio.to_thread(lambda: orphans.end(prefix) == 0 and cgroups.sweep(prefix)):
            return True
        await asyncio.sleep(_DYING_PAUSE)
    return False


async def sweep(layout: Layout) -> int:
    """Remove what killed processes left in the run folder; return how many there were.

    Their sandboxes die with them, all but those that were just starting; here those end too, and
    folders and cgroups go. Whoever is started again at once comes while they die, and may be the
    last who looks: so that is waited for.
    """
    swept = 0
    for folder in layout.run.iterdir():
        try:
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made, or just gone
        try:
            if try_lock(descriptor) and await _end_all(
                f"{folder.name}-"
            ):  # else whoever comes next tries again
                await remove_tree(folder)
                swept += 1
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return swept
