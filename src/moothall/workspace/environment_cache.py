"""Environments that hosts on different disks share: what a set-up made, as an archive in a folder
that all of them mount.

An archive is written by a host right after a set-up, before any model's code has run, and only
hosts mount the folder: a workspace gets a copy. Its name says repository, and so tenant, lock files
and commands, and all that a set-up gets from the host. What the set-up wrote is hostile all the
same: it is unpacked as what comes from a workspace is.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from moothall.config import WorkspaceSections
from moothall.domain.ids import digest
from moothall.errors import WorkspaceFailed
from moothall.repositories.checkout import Progress
from moothall.sandbox.spawn import drop_uid
from moothall.telemetry import get_logger
from moothall.workspace.kubernetes.archive import pack, unpack
from moothall.workspace.layout import Layout

log = get_logger(__name__)

_DAY = 86_400.0
_LEFT_SECONDS = 3600.0
"""After which a half-written archive is one of a host that was killed."""


def _is_made(path: str, _status: os.stat_result) -> bool:
    """Whether it is what a set-up made, and not what it was shown."""
    return path.partition("/")[0] in {"env", "layer"}


class Archives:
    """Keeps environments in `workspace.environments`, and nothing where that is not set."""

    def __init__(self, settings: WorkspaceSections) -> None:
        made_on = (
            settings.workspace.kind,
            settings.jobs.image,
            platform.machine(),
            sys.version,
            sys.prefix,
        )
        top = settings.workspace.environments
        self._folder = top / digest(*made_on)[:32] if top else None
        self._most = settings.workspace.environments_bytes
        self._keep_seconds = settings.workspace.keep_days * _DAY
        self._owner = drop_uid(settings.sandbox)

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Keep other hosts from setting the same up."""
        async with AsyncExitStack() as stack:
            if self._folder is not None:
                try:
                    await stack.enter_async_context(Layout(self._folder).lock(name))
                except OSError as error:
                    log.warning(
                        "environments cannot be shared", path=str(self._folder), reason=str(error)
                    )
            yield

    async def take(self, name: str, folder: Path, report_progress: Progress) -> bool:
        """Unpack an environment into an empty folder; whether there was one."""
        if self._folder is None or not (path := self._folder / name).is_file():
            return False
        try:
            await asyncio.to_thread(self._take, path, folder)
        except (OSError, WorkspaceFailed) as error:
            # One that is broken goes; what fails here alone, as a full disk, is no reason to take
            # it from all.
            if isinstance(error, WorkspaceFailed):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            report_progress(
                f"what another host had set up cannot be used, and is set up anew: {error}"[:300]
            )
            return False
        report_progress("another host has set it up")
        return True

    def _take(self, path: Path, folder: Path) -> None:
        with path.open("rb") as file:
            unpack(file, folder, owner=self._owner, most=self._most)
        os.utime(path)

    async def keep(self, name: str, folder: Path) -> None:
        """Keep what a set-up made. Where it cannot be kept, the next host sets it up itself."""
        if self._folder is not None:
            try:
                await asyncio.to_thread(self._keep, self._folder / name, folder)
            except OSError as error:
                log.warning(
                    "an environment could not be shared",
                    path=str(self._folder / name),
                    reason=str(error),
                )

    def _keep(self, path: Path, folder: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            with making.open("xb") as file:
                pack(folder, file, _is_made)
            if making.stat().st_size <= self._most:
                making.rename(path)
        finally:
            making.unlink(missing_ok=True)
        self._make_room(path.parent.parent)

    def _make_room(self, top: Path) -> None:
        """Remove what was not used for long, then what was not used for longest, until the rest may
        stay.
        """
        now, left = time.time(), self._most
        found = []
        for path in top.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
        for used, size, path in sorted(found, reverse=True):
            left -= size
            if left < 0 or now - used > (
                _LEFT_SECONDS if path.name.startswith(".") else self._keep_seconds
            ):
                path.unlink(missing_ok=True)
                left += size
